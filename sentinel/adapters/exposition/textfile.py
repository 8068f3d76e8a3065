"""What one run's watch shows, in a file for node_exporter's textfile collector, where nobody can scrape."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from sentinel.adapters.exposition.collector import DaemonCollector
from sentinel.vocabulary.metrics import Shown

__all__ = ["Textfile"]

log = logging.getLogger(__name__)


class Textfile:
    """Written anew by each turn. What goes wrong with it is logged once, and costs no turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained = False

    def write(self, shown: Iterable[Shown]) -> None:
        """Holds this from now on, and nothing else."""
        collector = DaemonCollector()
        collector.show("", shown)
        try:
            _replace(self._path, collector.text())
        except OSError as error:
            log.log(
                logging.DEBUG if self._complained else logging.WARNING,
                "the metrics' textfile can't be written: %s",
                error,
            )
            self._complained = True

    def remove(self) -> None:
        """The watch has ended as it should."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the metrics' textfile can't be taken away: %s", error)


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all, and not forced to the disk: it is written anew in a moment. Beside it, the name does not end
    in .prom: nobody reads half of it."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.chmod(0o644)
    beside.replace(path)
