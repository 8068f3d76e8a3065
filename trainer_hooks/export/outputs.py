"""The outputs of one attempt, on rank 0: the metrics journal, /metrics, and the announcement of /metrics."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.sample import LayerVariance, Record, Sample, encode
from trainer_hooks.errors import Guard
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt, journal_path
from trainer_hooks.export.step_collector import StepCollector
from trainer_hooks.sample.process_facts import job_id

log = logging.getLogger(__name__)

_OPEN_S = 10.0  # how long attach waits for the state folder's filesystem
_CLOSE_S = 15.0  # how long close waits for that filesystem: as long as the journal and the server may take, and more
_MOST_EARLY = 10_000  # records that wait for a filesystem that hangs at attach; the next ones are dropped and counted


def state_folder(state_dir: str | os.PathLike[str] | None, run: str) -> Path:
    """Where the run's journal, overrides.json and KILL are."""
    where = state_dir or os.environ.get("SENTINEL_STATE_DIR")
    if where is None and (why := why_not_a_name(run)) is not None:
        log.error("sentinel: run=%s %s: the run's state folder is .sentinel/run in its place", ascii(run)[:60], why)
        run = "run"
    return Path(where or Path(".sentinel") / run)


class Outputs:
    """Mints the attempt and starts what can be started; what fails is counted by the guard and left out.

    A thread does it, since each of these is a file: attach waits for it a short while, and a filesystem that hangs
    longer holds no rank up. What is put meanwhile waits in memory, and is written with the attempt's number once there
    is one."""

    def __init__(
        self,
        state_dir: Path,
        run: str,
        settings: ExporterSettings,
        guard: Guard,
        layers: Callable[[], LayerVariance | None],
        *,
        patience_s: float = _OPEN_S,
        close_s: float = _CLOSE_S,
    ) -> None:
        self._guard = guard
        self._state_dir = state_dir
        self._run = run
        self._settings = settings
        self.attempt = 0  # Number of this life of the training process group; 0 where none could be minted, or not yet
        self.journal: JournalWriter | None = None
        self.exporter: Exporter | None = None
        self._collector: StepCollector | None = None
        self._layers = layers
        self._close_s = close_s
        self._early: list[Record] | None = []  # What waits for the attempt's number
        self._dropped = 0
        self._closed = False
        self._change = threading.Lock()
        opened = threading.Thread(target=self._open, name="sentinel-open", daemon=True)
        opened.start()
        opened.join(patience_s)
        if opened.is_alive():
            log.warning("sentinel: %s does not answer within %g s; training goes on", state_dir, patience_s)

    @property
    def lost(self) -> int:
        return self._dropped + (self.journal.lost if self.journal is not None else 0)

    def put(self, record: Record) -> None:
        """Queues a record for the journal; a sample is shown at /metrics as well. From any thread; never waits."""
        with self._change:
            if self._early is None:
                self._put(record)
            elif len(self._early) < _MOST_EARLY:
                self._early.append(record)
            else:
                self._dropped += 1

    def close(self) -> None:
        """Writes what is queued, and frees the port. A thread does it, which is waited for within a deadline."""
        with self._change:
            self._closed = True
            if self._early is not None:  # whatever opens the journal later writes them, if the process lives on
                self._dropped += len(self._early)
                return
        closing = threading.Thread(target=self._close, name="sentinel-close", daemon=True)
        closing.start()
        closing.join(self._close_s)
        if closing.is_alive():
            log.warning("sentinel: %s does not answer within %g s; the end goes on", self._state_dir, self._close_s)

    def _open(self) -> None:
        guard, run, state_dir = self._guard, self._run, self._state_dir
        with guard("open the journal"):
            self.attempt, descriptor = create_attempt(state_dir)
            self.journal = JournalWriter(descriptor, journal_path(state_dir, self.attempt))
        with guard("start the exporter"):
            settings = self._settings
            self._collector = StepCollector(
                run,
                self.attempt,
                errors=lambda: guard.errors + self.lost,
                layers=self._layers,
                window_s=settings.window_s,
                most_layers=settings.most_layers,
            )
            self.exporter = Exporter(self._collector, settings, failed=self._exporter_failed)
        with guard("announce the exporter"):
            labels = {"run": run, "attempt": str(self.attempt), "job": job_id() or ""}
            announce(self.exporter, state_dir / "scrape.json", labels)
        with self._change:
            early, self._early = self._early or [], None
            for record in early:
                self._put(replace(record, attempt=self.attempt))
        if self._closed:
            self._close()

    def _put(self, record: Record) -> None:
        if self._collector is not None and isinstance(record, Sample):
            self._collector.push(record)
        if self.journal is not None:
            self.journal.put(encode(record))

    def _close(self) -> None:
        with self._guard("close the journal"):
            if self.journal is not None:
                self.journal.close()
        with self._guard("close the exporter"):
            if self.exporter is not None:
                self.exporter.close()

    def _exporter_failed(self, error: Exception) -> None:
        with self._guard("answer every scrape"):
            raise error
