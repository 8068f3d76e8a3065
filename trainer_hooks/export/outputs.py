"""The outputs of one attempt, on rank 0: the metrics journal, /metrics, and the announcement of /metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.sample import LayerVariance, Record, Sample, encode
from trainer_hooks.errors import Guard
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt, journal_path
from trainer_hooks.export.step_collector import StepCollector
from trainer_hooks.sample.process_facts import job_id

log = logging.getLogger(__name__)


def state_folder(state_dir: str | os.PathLike[str] | None, run: str) -> Path:
    """Where the run's journal, overrides.json and KILL are."""
    where = state_dir or os.environ.get("SENTINEL_STATE_DIR")
    if where is None and (why := why_not_a_name(run)) is not None:
        log.error("sentinel: run=%s %s: the run's state folder is .sentinel/run in its place", ascii(run)[:60], why)
        run = "run"
    return Path(where or Path(".sentinel") / run)


class Outputs:
    """Mints the attempt and starts what can be started; what fails is counted by the guard and left out."""

    def __init__(
        self,
        state_dir: Path,
        run: str,
        settings: ExporterSettings,
        guard: Guard,
        layers: Callable[[], LayerVariance | None],
    ) -> None:
        self._guard = guard
        self.attempt = 0  # Number of this life of the training process group; 0 where none could be minted
        self.journal: JournalWriter | None = None
        self.exporter: Exporter | None = None
        self._collector: StepCollector | None = None
        with guard("open the journal"):
            self.attempt, descriptor = create_attempt(state_dir)
            self.journal = JournalWriter(descriptor, journal_path(state_dir, self.attempt))
        with guard("start the exporter"):
            errors, window_s = lambda: guard.errors + self.lost, settings.window_s
            self._collector = StepCollector(run, self.attempt, errors=errors, layers=layers, window_s=window_s)
            self.exporter = Exporter(self._collector, settings, failed=self._exporter_failed)
        with guard("announce the exporter"):
            labels = {"run": run, "attempt": str(self.attempt), "job": job_id() or ""}
            announce(self.exporter, state_dir / "scrape.json", labels)

    @property
    def lost(self) -> int:
        return self.journal.lost if self.journal is not None else 0

    def put(self, record: Record) -> None:
        """Queues a record for the journal; a sample is shown at /metrics as well."""
        if self._collector is not None and isinstance(record, Sample):
            self._collector.push(record)
        if self.journal is not None:
            self.journal.put(encode(record))

    def close(self) -> None:
        """Writes what is queued, within a deadline, and frees the port."""
        with self._guard("close the journal"):
            if self.journal is not None:
                self.journal.close()
        with self._guard("close the exporter"):
            if self.exporter is not None:
                self.exporter.close()

    def _exporter_failed(self, error: Exception) -> None:
        with self._guard("answer every scrape"):
            raise error
