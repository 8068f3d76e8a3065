"""A probe beside the run, as the checks of its proof see them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sentinel.lab.probes.probe import Probe, Window
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.starts.evidence import Evidence
from sentinel.vocabulary.sample import RunStarted, Sample


@dataclass(frozen=True, slots=True)
class BesideRun:
    """One probe beside the run."""

    probe: Probe
    started: RunStarted
    samples: Sequence[Sample]
    window: Window
    baseline: Baseline

    @property
    def pairs(self) -> Iterator[tuple[Sample, Sample]]:
        """(the probe's step, the run's)."""
        after = self.window.after
        return ((s, after[s.global_step]) for s in self.samples if s.global_step in after)

    def reported(self, name: str) -> object:
        """As the trainer runs with it; None where only its arguments show it."""
        return Evidence(started=self.started).reported(name)
