"""What a case is, and which there are, in their order. Standard library alone: the runner never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_S", "Case", "Row", "Setting", "cases"]

LIMIT_S = 90.0
"""A case that has not answered by then is killed."""

Row = dict[str, Any]
"""One case's figures, as JSON. `wrong`: a list of sentences, of a wrong reading or a missed goal; `not_run`: why the
machine can't answer it, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a case is given."""

    device: str  # cuda or cpu
    quick: bool  # The shrunken form: it shows that the case runs, and its figures say nothing
    folder: Path  # Of the case's own files; empty at its start

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question, answered by a process of its own."""

    name: str
    module: str  # In this package; its function `measure(setting, *given)` returns the row
    measure: str
    given: tuple[Any, ...] = ()
    limit_s: float = LIMIT_S
    deepspeed: bool = False  # Whether it needs DeepSpeed


def cases(*, quick: bool) -> list[Case]:
    """All of them, the most valuable first: what needs no DeepSpeed, then what is of every run, then the rest."""
    return [*_without_deepspeed(quick), *_of_every_run(quick), *_rest(quick)]


def _without_deepspeed(quick: bool) -> list[Case]:
    types = ("float32", "bfloat16", "float16")
    sizes = ("0.4M",) if quick else ("1.3B", "7B")
    return [
        *(Case(name=f"kernel, {of}", module="kernels", measure="right", given=(of,)) for of in types),
        Case(name="host syncs of the pass", module="kernels", measure="syncs"),
        Case(name="2.3e9 elements", module="kernels", measure="large"),
        Case(name="memory sanitizer", module="kernels", measure="sanitizer"),
        Case(name="tensor subclass", module="kernels", measure="subclass"),
        *(Case(name=f"one pass, {size}", module="cost", measure="measured_pass", given=(size,)) for size in sizes),
        Case(name="host syncs of the hook", module="tests", measure="tested", given=("plain torch",)),
    ]


def _of_every_run(quick: bool) -> list[Case]:
    zeros = (("1", "bf16"), ("3", "bf16"), ("2", "fp16"), ("2 offload", "bf16"))
    size = "0.4M" if quick else "1.3B"
    return [
        Case(
            name="host syncs of the hook, DeepSpeed", module="tests", measure="tested", given=("ZeRO",), deepspeed=True
        ),
        *(_readings(zero, precision, "torch AdamW") for zero, precision in zeros),
        Case(name=f"whole hook, {size}", module="cost", measure="whole_hook", given=(size,), deepspeed=True),
        Case(name="four ranks on one device", module="ranks", measure="four"),
    ]


def _rest(quick: bool) -> list[Case]:
    first = [Case(name="tests of the pass", module="tests", measure="tested", given=("the pass",), limit_s=240)]
    ltd = Case(name="random-LTD, plain torch", module="tokens", measure="random_ltd", given=(False,), deepspeed=True)
    lengths = Case(name="sequence length warmup", module="tokens", measure="lengths")
    resume = [_resume("bf16", 1, deterministic=False)]
    if quick:
        return [*first, ltd, lengths, *resume]
    zeros = ("0", "1", "2", "3", "1 offload", "3 offload")
    readings = [_readings(zero, precision, "torch AdamW") for zero in zeros for precision in ("bf16", "fp16", "fp32")]
    compiled = [("0", "fp16", "FusedAdam"), ("1", "bf16", "FusedAdam"), ("2 offload", "bf16", "DeepSpeedCPUAdam")]
    kinds = [("fp16", 2), ("bf16", 3), ("fp32", 0)]
    return [
        *first,
        *(one for one in readings if one not in _of_every_run(quick)),
        *(_resume(*kind, deterministic=sure) for sure in (True, False) for kind in [("bf16", 1), *kinds]),
        lengths,
        ltd,
        # These compile an op of DeepSpeed's when they are first run
        Case(
            name="random-LTD, DeepSpeed's op",
            module="tokens",
            measure="random_ltd",
            given=(True,),
            deepspeed=True,
            limit_s=300,
        ),
        Case(
            name="tests of random-LTD",
            module="tests",
            measure="tested",
            given=("random-LTD",),
            deepspeed=True,
            limit_s=300,
        ),
        *(_readings(*of, limit_s=300) for of in compiled),
    ]


def _readings(zero: str, precision: str, adam: str, *, limit_s: float = LIMIT_S) -> Case:
    return Case(
        name=f"readings, ZeRO {zero}, {precision}, {adam}",
        module="readings",
        measure="compared",
        given=(zero, precision, adam),
        deepspeed=True,
        limit_s=limit_s,
    )


def _resume(precision: str, zero: int, *, deterministic: bool) -> Case:
    return Case(
        name=f"exact resume, {precision}, ZeRO {zero}{', deterministic' if deterministic else ''}",
        module="resume",
        measure="compared",
        given=(precision, zero, deterministic),
        deepspeed=True,
        limit_s=180,
    )
