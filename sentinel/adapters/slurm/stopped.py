"""STATE_DIR/jobs/stopped.json: in which shape the jobs that were cancelled last stood, for a start that comes later."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from sentinel.durable import write_atomically
from sentinel.plan.slurm_jobs import Submission
from sentinel.vocabulary.errors import LineError, SlurmRefused
from sentinel.vocabulary.numbers import dump_json, load_object

__all__ = ["StoppedJobs"]


class StoppedJobs:
    """Slurm's queue is empty after an undo: an array's other tasks and a chain's other jobs are known from here."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, groups: Collection[str], shape: Sequence[Submission]) -> None:
        """Records the shape before the jobs are cancelled. A repeated stop finds fewer jobs: the first one counts."""
        known, _ = self._read()
        if not set(groups) <= set(known):
            document = {"groups": sorted(groups), "shape": [asdict(one) for one in shape]}
            write_atomically(self._path, dump_json(document, indent=2))

    def shape(self, group: str) -> tuple[Submission, ...]:
        """What stands in for the jobs that were cancelled with this one; empty where it was not among them."""
        groups, shape = self._read()
        return shape if group in groups else ()

    def _read(self) -> tuple[list[str], tuple[Submission, ...]]:
        try:
            document = load_object(self._path.read_text(encoding="utf-8"))
            return list(document["groups"]), tuple(Submission(**row) for row in document["shape"])
        except FileNotFoundError:
            return [], ()
        except (LineError, KeyError, TypeError) as error:
            raise SlurmRefused(f"{self._path} can't be read: {error}") from error
