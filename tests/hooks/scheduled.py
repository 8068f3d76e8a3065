"""Every schedule, switched on in the middle of a run: the cases, at any size, and how they are run.

`python -m tests.hooks.scheduled FOLDER` records them for the tests that have no trainer, in a quarter of an hour.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.adapters.journal import Journals
from sentinel.judge.history import History
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor, Overrides, encode_overrides
from sentinel.vocabulary.pacing import (
    Adaptive,
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    Mixed,
    RandomLtdSchedule,
)
from sentinel.vocabulary.sample import Sample, Validation, encode
from sentinel.vocabulary.training_settings import TrainingSettings
from tests.hooks.torchrun import lines_of


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the runs are: the checkpoint that all of them go on from, and how long the schedules last."""

    full: int
    batch: int
    at: int
    warmup: int
    steps: int
    index: str
    """The folder of the data's voc index."""

    unbearable_lr: float = 1.5e-2
    """Peak at which a model without block LayerNorms really diverges."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of every run."""
        words = {"--seqlen": self.full, "--global-batch": self.batch, "--validate-every": 20, "--validation-batches": 2}
        return tuple(str(word) for pair in words.items() for word in pair)

    @property
    def bearable(self) -> tuple[str, ...]:
        """Of a run that is well."""
        return (*self.arguments, "--lr", "2e-3", "--lr-warmup", "20", "--lr-decay", str(self.steps))

    def standings(self) -> dict[str, TrainingSettings]:
        """What is switched on at the checkpoint, by the case's name."""
        at, whole, warmup = self.at, self.full, self.warmup
        bounds: dict[str, Any] = {"start": 8, "full": whole, "anchor_step": at}
        linear = FixedLinear(total_steps=warmup, **bounds)
        probe = Mixed(short_steps=warmup * 9 // 40, full_steps=warmup // 40, total_steps=warmup * 5 // 4, **bounds)
        endless = Mixed(short_steps=warmup * 3 // 8, full_steps=warmup // 24, **bounds)
        dropping = RandomLtdSchedule(start=16, full=whole, total_steps=warmup, anchor_step=at)
        paced = self._paced(at)
        grows = BatchSizeSchedule(
            start=self.batch // 4,
            full=self.batch,
            increment=self.batch // 4,
            ramp_samples=warmup * self.batch * 5 // 8,
            anchor_samples=at * self.batch,
        )
        return {
            "nothing": TrainingSettings(),
            "linear": TrainingSettings(seqlen=linear),
            "linear reshape": TrainingSettings(seqlen=linear, shorten="reshape"),
            "linear keep": TrainingSettings(seqlen=linear, shorten="truncate_keep"),
            "root": TrainingSettings(seqlen=FixedRoot(total_steps=warmup, **bounds)),
            "discrete": TrainingSettings(
                seqlen=FixedDiscrete(difficulties=(8, whole), max_steps=(warmup // 2,), **bounds)
            ),
            "mixed": TrainingSettings(seqlen=probe),
            "mixed reshape": TrainingSettings(seqlen=probe, shorten="reshape"),
            "mixed keep": TrainingSettings(seqlen=probe, shorten="truncate_keep"),
            "mixed for ever": TrainingSettings(seqlen=endless),
            "adaptive": TrainingSettings(seqlen=Adaptive(**bounds)),
            "random-LTD": TrainingSettings(random_ltd=dropping),
            "voc": TrainingSettings(curriculum=paced),
            "batch": TrainingSettings(batch_size=grows),
            "all of it": TrainingSettings(seqlen=linear, shorten="reshape", random_ltd=dropping, curriculum=paced),
        }

    def options(self) -> dict[str, tuple[str, ...]]:
        """What begins a schedule with the run, by the case's name."""
        warmup, quarter = str(self.warmup), str(self.batch // 4)
        mixed = {"pacing": "mixed", "start": 8, "short_steps": self.warmup * 3 // 10, "full_steps": self.warmup // 10}
        dropping = ("--random-ltd", "16", warmup)
        paced = ("--curriculum", dump_json(self._paced(0).to_json()))
        linear = dump_json({"start": 8, "total_steps": self.warmup})
        adaptive = dump_json({"pacing": "adaptive", "start": 8})
        sooner = ("--lr-decay", "240", "--steps", "200")
        return {
            "nothing": sooner,
            "mixed": ("--seqlen-schedule", dump_json(mixed)),
            "adaptive": ("--seqlen-schedule", adaptive, "--validate-every", "10", *sooner),
            "random-LTD": (*dropping, "--seed", "1"),
            "voc": paced,
            "batch": ("--batch-size-warmup", quarter, quarter, "2000", "--micro-batch", quarter),
            "all of it": ("--seqlen-schedule", linear, "--seqlen-shorten", "reshape", *dropping, *paced),
        }

    def overrides(self, standing: TrainingSettings) -> str:
        """overrides.json for it."""
        consumed = self.at * self.batch
        anchor = Anchor(global_step=self.at, consumed_samples=consumed, consumed_tokens=consumed * self.full)
        return encode_overrides(Overrides(incident="i-1", rollback="i-1.1", anchor=anchor, standing=standing))

    def _paced(self, at: int) -> CurriculumSchedule:
        voc = DifficultySchedule(
            kind="percentile", start=1, full=100, total_steps=self.warmup, root_degree=2.0, anchor_step=at
        )
        return CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=voc, index=self.index)})


class Runs:
    """What is to be run, one after the other in one process, and what came of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._wanted: list[dict[str, Any]] = []

    def add(self, case: str, *arguments: str, begun: str | None = None, overrides: str | None = None) -> None:
        """`begun` is the case whose checkpoint it goes on from."""
        folder = self.root / case
        if begun is not None:
            shutil.copytree(self.root / begun, folder)
        files = ("--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state"))
        line = [*arguments, *files]
        self._wanted.append({"case": case, "folder": str(folder), "arguments": line, "overrides": overrides})

    def run(self) -> dict[str, str]:
        """How each ended."""
        (self.root / "runs.json").write_text(json.dumps(self._wanted))
        self._wanted.clear()
        return {line["case"]: line["ended"] for line in lines_of("gpt_runs.py", str(self.root / "runs.json"), ranks=1)}

    def history(self, case: str) -> History:
        """Of the attempts that the case's weights descend from."""
        history = History()
        for record in Journals(self.root / case / "state").poll():
            history.push(record)
        return history


def restart_all(runs: Runs, size: Size, cases: dict[str, TrainingSettings] | None = None) -> None:
    """The run that is well, and from its checkpoint each case, once bearable and once at a rate that ends in nan."""
    runs.add("begun", *size.bearable, "--steps", str(size.at), "--save-interval", str(size.at))
    runs.run()
    for name, standing in (size.standings() if cases is None else cases).items():
        rate = LrSchedule(peak=1e30, warmup=size.warmup // 2, decay_end=0, anchor=size.at)
        finely = ("--micro-batch", str(size.batch // 4)) if name == "batch" else ()
        more = (*finely, "--validate-every", "10") if name == "adaptive" else finely
        for kind, steps, given in (("well", size.steps, standing), ("nan", size.at + 20, replace(standing, lr=rate))):
            line = (*size.bearable, "--steps", str(steps), *more)
            runs.add(f"{kind} {name}", *line, begun="begun", overrides=size.overrides(given))


def diverge_all(runs: Runs, size: Size, cases: Collection[str] | None = None) -> None:
    """Runs that begin with a schedule and do not bear their learning rate."""
    for name, options in size.options().items():
        if cases is not None and name not in cases:
            continue
        decay = "240" if name in ("adaptive", "nothing") else "800"
        rate = ("--no-block-layernorm", "--lr", str(size.unbearable_lr), "--lr-warmup", "20", "--lr-decay", decay)
        line = (*size.arguments, *rate, "--steps", str(size.steps))
        runs.add(f"ill {name}", *line, *options)


def index_of(folder: Path, seqlen: int) -> str:
    """Builds the voc index of the default data."""
    from trainer_hooks.data.__main__ import main

    asked = ["--metric", "voc", "--seqlen", str(seqlen), "--output", str(folder), "--workers", "1"]
    if main(["analyze", *asked, "--quiet"]) != 0:
        raise SystemExit("the data could not be indexed")
    return str(folder / "voc")


ENDS_IN_NAN = ("batch", "linear", "mixed", "random-LTD", "voc")
"""What is recorded of the runs that end in nan."""

KEPT_KEYS = (
    *("kind", "attempt", "global_step", "time_unix_s", "loss", "adam_variance_l1", "adam_variance_max", "grad_norm"),
    *("lr", "seqlen", "kept_tokens", "curriculum_share", "global_batch_samples", "consumed_samples", "consumed_tokens"),
)


def record(history: History, path: Path) -> None:
    """Samples and validations of one lineage as journal lines, without what nobody judges by."""
    latest = history.latest
    if latest is None:
        raise SystemExit(f"{path}: nothing was run")
    lines = []
    found: list[Sample | Validation] = [*history.lineage(latest), *history.validations(latest)]
    for told in sorted(found, key=lambda r: (r.global_step, isinstance(r, Validation))):
        line = json.loads(encode(replace(told, time_unix_s=0.0)))
        lines.append(json.dumps({key: line[key] for key in KEPT_KEYS if line.get(key) is not None}))
    path.write_bytes(lzma.compress("\n".join([*lines, ""]).encode(), preset=9 | lzma.PRESET_EXTREME))


def main(folder: Path) -> None:
    runs = Runs(folder / "runs")
    runs.root.mkdir(parents=True)
    index = index_of(folder / "index", 128)
    restart_all(runs, Size(full=128, batch=8, at=150, warmup=120, steps=400, index=index))
    diverge_all(runs, Size(full=128, batch=16, at=0, warmup=150, steps=360, index=index))
    for case in runs.run():
        kind, _, name = case.partition(" ")
        if kind == "nan" and name not in ENDS_IN_NAN:  # one of each kind of schedule says it all
            continue
        record(runs.history(case), folder / f"{case.replace(' ', '_')}.jsonl.xz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
