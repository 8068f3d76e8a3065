"""What is trained: a base run for each setting and seed, and resumes of it, clean or with one fault."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.journal import Journals
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import overrides_for
from sentinel.plan.incident.baseline import baseline_of
from sentinel.vocabulary.overrides import Anchor, encode_overrides
from sentinel.vocabulary.sample import RunStarted, Sample

SAVES, AT, STEPS = 20, 40, 19  # steps between saves, the save that is resumed from, steps of a resumed attempt
SMALL = (
    *("--seqlen", "32", "--global-batch", "4", "--lr", "1e-3", "--lr-warmup", "15", "--lr-decay", "150"),
    *("--validation-batches", "1", "--save-interval", str(SAVES)),
)
OF_FP16 = '{"fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 8, "hysteresis": 1}}'
SCRATCH = "started from scratch"

Setting = tuple[int, tuple[str, ...]]  # ranks, options
_STAGES: list[Setting] = [(1, ("--zero", str(stage))) for stage in (0, 1, 2, 3, 1)]
_PARTED = ((1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"))
FAULTS: dict[str, list[Setting]] = {  # fault -> the settings of its runs, by seed
    "scheduler lost": _STAGES,
    "scheduler stepped twice": _STAGES,
    "optimizer state not loaded": _STAGES,
    "wrong shard of one rank": [(2, ("--zero", str(stage), "--precision", kind)) for stage, kind in _PARTED],
    "data from epoch start": _STAGES,
    "data order of another seed": _STAGES,
    "samples skipped": _STAGES,
    "samples replayed": _STAGES,
    "wrong checkpoint": _STAGES,
    "override ignored": _STAGES,
    "loss scale reset": [(1, ("--zero", str(stage), "--precision", "fp16")) for stage in (1, 2, 1, 2, 3)],
    SCRATCH: _STAGES,
}
_TWO: list[Setting] = [(2, ("--zero", str(stage))) for stage in (1, 2, 3, 1, 2)]
_OPEN: list[Setting] = [(1, ("--zero", str(stage))) for stage in (1, 0, 2, 1, 0)]
_MICRO: list[Setting] = [(1, ("--zero", str(stage), "--micro-batch", "1")) for stage in (0, 1, 2, 0, 1)]
DESIGNS: dict[str, tuple[str, list[Setting]]] = {  # what is done -> (the fault to be named, the settings by seed)
    "two ranks' shards exchanged": ("shards exchanged", _TWO),
    "weights and moments of two blocks exchanged": ("layers exchanged", _OPEN),
    "moments of two blocks exchanged": ("layers exchanged", _OPEN),
    "Adam's step 0": ("Adam's step count", _OPEN),
    "first moment zeroed": ("first moment not loaded", _OPEN),
    "moments rounded to bfloat16": ("moments rounded", _OPEN),
    "one block's weights drawn anew": ("weights partly loaded", _OPEN),
    "half the accumulation": ("accumulation changed", _MICRO),
    "gradients summed, not averaged": ("accumulation changed", _MICRO),
    "half a batch skipped": ("part of a batch skipped", _OPEN),
    # Designed by their kind alone: no reading is made for them.
    "first moment mirrored": ("state differs within layers", _OPEN),
    "queries' heads reversed": ("state differs within layers", _OPEN),
    "gains and biases of the norms lost": ("weights partly loaded", _OPEN),
    "older shard of one rank": ("wrong shard of one rank", _TWO),
    "dropout switched on": ("setting changed", _OPEN),
    "Adam's step doubled": ("Adam's step count", _OPEN),
    "weights rounded to bfloat16": ("weights partly loaded", _OPEN),
    # Designed by one who did not know the checks.
    "decay of the weights in the gradient": ("setting changed", _OPEN),
    "qkv's moments laid out by heads": ("state differs within layers", _OPEN),
    "average of the weights in their place": ("weights partly loaded", _OPEN),
    "output head untied": ("gradient differs", _OPEN),
    "causal mask lost": ("gradient differs", _OPEN),
    "text in lower case": ("other samples", _OPEN),
}
_RESUMED_WITH = {"half the accumulation": ("--global-batch", "2"), "dropout switched on": ("--dropout", "0.1")}
HALVED = Rung(name="half the LR", hypothesis="the LR is too high", lr_factor=0.5)
DECIDED = {
    "another seed": Rung(name="reseed", hypothesis="the order did it", reseed=True),
    "another seed and half the LR": Rung(name="both", hypothesis="either", reseed=True, lr_factor=0.5),
    "samples skipped": Rung(name="skip", hypothesis="the data did it", skip_samples=10),
    "moments reset": Rung(name="reset", hypothesis="the moments did it", reset_moments=True),
    "SLW": Rung(name="SLW", hypothesis="too long", seqlen_start=8, seqlen_total_steps=30, seqlen_by_tokens=False),
    "a longer LR warmup": Rung(name="warmup", hypothesis="too fast", lr_warmup_factor=3),
}
_SLW = ("--seqlen-start", "8", "--seqlen-warmup-steps", "60")
CLEAN: dict[str, tuple[int, tuple[str, ...]]] = {  # as it was; (ranks, options)
    **{f"ZeRO {stage}": (1, ("--zero", str(stage))) for stage in range(4)},
    **{f"ZeRO {stage}, 2 ranks": (2, ("--zero", str(stage))) for stage in range(4)},
    "bf16, ZeRO 1, 2 ranks": (2, ("--zero", "1", "--precision", "bf16")),
    "bf16, ZeRO 3, 2 ranks": (2, ("--zero", "3", "--precision", "bf16")),
    "fp16, ZeRO 2": (1, ("--zero", "2", "--precision", "fp16")),
    "dropout": (1, ("--dropout", "0.1")),
    "micro-batches": (1, ("--micro-batch", "1", "--zero", "1")),
    "SLW, truncate": (1, _SLW),
    "SLW, reshape": (1, (*_SLW, "--seqlen-shorten", "reshape", "--seqlen-start", "16")),
    "SLW, truncate_keep": (1, (*_SLW, "--seqlen-shorten", "truncate_keep")),
    "batch-size warmup": (1, ("--batch-size-warmup", "1", "1", "200", "--micro-batch", "1")),
    "random-LTD": (1, ("--random-ltd", "16", "60")),
    "LR by tokens": (1, ("--lr-unit", "tokens", "--lr-warmup", "2000", "--lr-decay", "20000")),
}
# As it was, but for what another machine may do: (design, options of the base run, options of the resume beside them).
OTHERWISE: dict[str, tuple[str | None, tuple[str, ...], tuple[str, ...]]] = {
    "fp32, other micro-batches": (None, ("--zero", "1"), ("--micro-batch", "1")),
    "bf16, other micro-batches": (None, ("--zero", "1", "--precision", "bf16"), ("--micro-batch", "1")),
    "dropout, other masks": ("other dropout masks", ("--dropout", "0.1"), ()),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training; `begun` is the case whose folder it goes on in."""

    case: str
    ranks: int
    arguments: tuple[str, ...]
    begun: str | None = None
    fault: str | None = None  # to be named
    design: str | None = None  # what is done
    amount: int = 0  # of a shift, in steps
    at: int = AT
    rung: str | None = None
    trainer: str = "ours"
    kind: str = ""  # its row in the table

    def prepared(self, root: Path) -> dict[str, Any]:
        """Its folder, made from the base run's, and what the worker needs."""
        folder = root / self.case.replace("/", " ")
        if self.begun is not None and not folder.exists():
            shutil.copytree(root / self.begun, folder)
            checkpoints = folder / "checkpoints"
            for one in checkpoints.glob("*[0-9]"):
                if one.is_dir() and int("".join(filter(str.isdigit, one.name))) > self.at:
                    shutil.rmtree(one)
            if self.trainer == "ours":
                (checkpoints / "latest").write_text(f"global_step{self.at}")
        line = list(self.arguments)
        if "fp16" in line:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "fp16.json").write_text(OF_FP16)
            line += ["--deepspeed-config", str(folder / "fp16.json")]
        if self.rung is not None:
            rung = HALVED if self.rung == "half the LR" else DECIDED[self.rung]
            (folder / "state" / "overrides.json").write_text(overrides_of(rung, folder, self.at))
        return {**asdict(self), "folder": str(folder), "arguments": line}


def overrides_of(rung: Rung, folder: Path, at: int) -> str:
    records = Journals(folder / "state").poll()
    started = next(r for r in records if isinstance(r, RunStarted))
    saved = next(r for r in records if isinstance(r, Sample) and r.global_step == at)
    anchor = Anchor(global_step=at, consumed_samples=saved.consumed_samples, consumed_tokens=saved.consumed_tokens)
    made = overrides_for(
        rung, baseline_of(started), incident="incident-1", rollback="incident-1-r1", anchor=anchor, new_seed=99
    )
    return encode_overrides(made)


def _line(steps: int, seed: int, options: tuple[str, ...]) -> tuple[str, ...]:
    return (*SMALL, "--steps", str(steps), "--seed", str(seed), *options)


def _drawn(seed: int, what: object) -> random.Random:
    return random.Random(f"{what} {seed}")  # noqa: S311


def _base(ranks: int, options: tuple[str, ...], seed: int) -> Job:
    over = _drawn(seed, options).randrange(8, SAVES - 1)  # steps that it made after its last save
    name = f"base {ranks} {' '.join(options).replace('--', '')} {seed}"
    return Job(case=name, ranks=ranks, arguments=_line(AT + over, seed, options))


def faulty(seeds: int) -> Iterator[tuple[Job, Job]]:
    """(the base run, its resume with the fault)."""
    for fault, settings in FAULTS.items():
        for seed in range(seeds):
            ranks, options = settings[seed % len(settings)]
            base = _base(ranks, options, seed)
            drawn = _drawn(seed, fault)
            amount = drawn.randrange(1, 6) if fault == "samples skipped" else drawn.randrange(1, AT - 1)
            yield (
                base,
                Job(
                    case=f"{fault} {seed}",
                    kind=fault,
                    ranks=ranks,
                    arguments=_line(STEPS if fault == SCRATCH else AT + STEPS, seed, options),
                    begun=base.case,
                    fault=fault,
                    design=fault,
                    amount=amount,
                    rung="half the LR" if fault == "override ignored" else None,
                ),
            )
    for design, (fault, settings) in DESIGNS.items():
        for seed in range(seeds):
            ranks, options = settings[seed % len(settings)]
            base = _base(ranks, options, seed)
            line = (*_line(AT + STEPS, seed, options), *_RESUMED_WITH.get(design, ()))
            of = {"kind": design, "design": design, "fault": fault}
            yield base, Job(case=f"{design} {seed}", ranks=ranks, arguments=line, begun=base.case, **of)


def clean(seeds: int) -> Iterator[tuple[Job, Job]]:
    """(the base run, a resume of it in which nothing is wrong), from both of its saves."""
    for seed in range(seeds):
        for name, (ranks, options) in CLEAN.items():
            for at in (SAVES, AT):
                yield _clean(name, ranks, options, seed, at, None)
        for name, (design, options, more) in OTHERWISE.items():
            base = _base(1, options, seed)
            line = (*_line(AT + STEPS, seed, options), *more)
            yield base, Job(case=f"{name} {seed}", kind=name, ranks=1, arguments=line, begun=base.case, design=design)
        for rung in DECIDED:
            yield _clean(f"decided: {rung}", 1, ("--zero", str(seed % 4)), seed, AT, rung)


def _clean(name: str, ranks: int, options: tuple[str, ...], seed: int, at: int, rung: str | None) -> tuple[Job, Job]:
    base = _base(ranks, options, seed)
    line = _line(at + STEPS, seed, options)
    case = f"{name} {seed} from {at}"
    return base, Job(case=case, kind=name, ranks=ranks, arguments=line, begun=base.case, at=at, rung=rung)


HF_FAULTS = ("scheduler lost", "optimizer state not loaded", "data from epoch start", SCRATCH)
HF_DESIGNS = ("moments of two blocks exchanged", "Adam's step 0", "first moment mirrored")


def hugging_face(seeds: int) -> Iterator[tuple[Job, Job]]:
    for seed in range(seeds):
        base = Job(case=f"base HF {seed}", ranks=1, arguments=(str(seed), str(AT + 12)), trainer="HF")
        for design in (*HF_FAULTS, *HF_DESIGNS, None):
            fault = DESIGNS[design][0] if design in HF_DESIGNS else design
            steps = STEPS if fault == SCRATCH else AT + STEPS
            case, line = f"HF {design or 'clean'} {seed}", (str(seed), str(steps))
            of = {"kind": design or "Hugging Face's Trainer", "fault": fault, "design": design, "trainer": "HF"}
            yield base, Job(case=case, ranks=1, arguments=line, begun=base.case, **of)
