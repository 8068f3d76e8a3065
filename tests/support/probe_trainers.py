"""Probes whose trainers are a few lines of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.adapters.journal import Journals
from sentinel.judge.thresholds import Thresholds
from sentinel.lab.probes.at_work import ProbeJob
from sentinel.lab.probes.probe import Probe, Window
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.vocabulary.errors import SlurmUnavailable
from sentinel.vocabulary.sample import Record as Line
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode

TAG, AT, ONSET, ALARM = "global_step40", 40, 45, 60


def readings(steps: range, ill_from: int = 10**9, **others: Any) -> list[Sample]:
    """A loss of 3 that is 9 from that step on."""

    def one(step: int) -> Sample:
        loss = 9.0 if step >= ill_from else 3.0 + 0.01 * (step % 3)
        return Sample(
            attempt=1, global_step=step, time_unix_s=0.0, loss=loss, batch_digest=step, grad_norm=1.0, seqlen=8
        )

    return [replace(one(step), **others) for step in steps]


WINDOW = Window(
    before=tuple(readings(range(1, AT + 1))),
    after={s.global_step: s for s in readings(range(AT + 1, 80), ONSET)},
    onset_step=ONSET,
    until_step=ALARM,
    thresholds=Thresholds(patience_steps=10),
)


def fed(one: Probe, samples: list[Sample]) -> list[Sample]:
    """The samples with the digests that the probe's overrides lead to: four of the data order in a step."""
    skipped = (one.overrides.standing.skipped or ()) if one.overrides else ()
    position, found = 4 * AT, list[Sample]()
    for sample in samples:
        position = next((r.end for r in skipped if r.begin <= position < r.end), position) + 4
        found.append(replace(sample, batch_digest=position // 4, consumed_samples=position, global_batch_samples=4))
    return found


class Trainers:
    """Trainers that write their whole journal when they are started, and live until they are stopped."""

    def __init__(self) -> None:
        self.alive: set[Path] = set()
        self.started: list[str] = []
        self.away = self.dies_at_once = self.ignores_overrides = False
        self.ill_from = {"control": ONSET}
        self.until = ALARM + 4

    def job(self, one: Probe, folder: Path) -> ProbeJob:
        launcher: Any = _Launcher(self, one, folder)
        return ProbeJob(folder, launcher, Journals(folder))


class _Launcher:
    def __init__(self, trainers: Trainers, one: Probe, folder: Path) -> None:
        self._all, self._probe, self._folder = trainers, one, folder

    def look(self, _: Sequence[RunStarted]) -> JobsSeen:
        return JobsSeen(writers=(WriterSeen(id="1", rollback=None),) if self._folder in self._all.alive else ())

    def stop(self, *_: object) -> None:
        self._all.alive.discard(self._folder)

    def start(self, *_: object, **__: object) -> None:
        if self._all.away:
            raise SlurmUnavailable("sbatch", "it is away")
        self._all.started.append(self._folder.name)
        (self._folder / "attempts").mkdir()
        lines: list[Line] = [RunStarted(attempt=1, time_unix_s=0.0, world_size=2)]
        if not self._all.dies_at_once:
            self._all.alive.add(self._folder)
            ill_from = self._all.ill_from.get(self._probe.name, 10**9)
            asked = replace(self._probe, overrides=None) if self._all.ignores_overrides else self._probe
            lines += fed(asked, readings(range(AT + 1, self._all.until + 1), ill_from))
            lines.append(RunFinished(attempt=1, global_step=self._all.until, time_unix_s=0.0, reason="finished"))
        (self._folder / "attempts" / "0001.jsonl").write_text("".join(encode(line) + "\n" for line in lines))
