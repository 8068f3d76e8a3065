"""Writes benchmarks/results/readings.txt: on what the hook's readings were checked, and how near they came.

`python -m tests.hooks.matrix_table` runs all combinations on 1, 2 and 4 ranks (a quarter of an hour) and writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.hooks.compiled import compile_adams
from tests.hooks.matrix import ADAMS, DTYPES, STEPS, ZEROS
from tests.hooks.torchrun import lines_of

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "readings.txt"
RANKS = (1, 2, 4)

PER_STEP = ("loss", "adam_variance_l1", "adam_variance_max", "grad_norm", "layer l1", "layer max")
AT_INTERVALS = ("momentum_l2", "param_norm", "update_norm", "loss_spread", "grad_norm_spread")

REFUSED: dict[str, str] = {}
"""What DeepSpeed says where it does not take a combination: a part of its own words, and what that means."""


def described(case: dict[str, Any]) -> str:
    return f"ZeRO {case['zero']}, {case['precision']}, {case['adam']}, accumulation {case['accumulation']}"


def worst(cases: Iterable[dict[str, Any]], *readings: str) -> float:
    """Over the cases that ran."""
    return max((c["worst"].get(r, 0.0) for c in cases if not c["refused"] for r in readings), default=0.0)


def table(cases: list[dict[str, Any]]) -> str:
    """A row per ZeRO stage and precision, a column per Adam."""
    lines = ["| ZeRO | precision | " + " | ".join(ADAMS) + " |", "|---|---|" + "---|" * len(ADAMS)]
    for zero in ZEROS:
        for precision in DTYPES:
            cells = []
            for adam in ADAMS:
                these = [c for c in cases if (c["case"]["zero"], c["case"]["adam"]) == (zero, adam)]
                these = [c for c in these if c["case"]["precision"] == precision]
                ran = [c for c in these if not c["refused"]]
                cells.append(f"{worst(ran, *PER_STEP):.0e}" if ran else "refused")
            lines.append(f"| {zero} | {precision} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(cases: list[dict[str, Any]]) -> str:
    ran = [c for c in cases if not c["refused"]]
    refused = "".join(f"- *{reason}*: {meaning}\n" for reason, meaning in REFUSED.items())
    each = "\n".join(f"| `{name}` | {worst(ran, name):.0e} |" for name in (*PER_STEP, *AT_INTERVALS))
    return f"""# What the hook reads, and how near it is

*Written by `python -m tests.hooks.matrix_table`; DeepSpeed {version("deepspeed")}, torch {version("torch")}, gloo.*

{len(ran)} combinations of ZeRO stage (offload: the optimizer on the CPU), precision, Adam, accumulation (1, 4) and
ranks ({", ".join(map(str, RANKS))}) were trained for {STEPS} steps each. After every step each reading was compared
with one made in float64 from what DeepSpeed itself gives of the whole parameters: their gradients before the step,
their Adam state after it. fp16 through a patched capability check (DeepSpeed refuses it on a CPU), with a loss scale
that doubles within the steps.

The largest relative error over ranks, accumulation and steps, of the readings of every step:

{table(cases)}

And of each reading over all of them:

| reading | largest relative error |
|---|---|
{each}

`update_norm` is compared with the change of the parameters over lr, a small difference of large float32 numbers;
`loss_spread` and `grad_norm_spread` are differences of what ranks have (the latter compared up to ZeRO 2; gradients in
half precision are rounded otherwise under a loss scale).
{"Refused by DeepSpeed:" + chr(10) + chr(10) + refused if refused else ""}
Model parallelism (pipeline with tied embeddings, tensor parallelism by Megatron's interface, experts) is compared in
the same way on 4 ranks by `tests/hooks/test_model_parallel.py`. Not tried: MiCS, sequence parallelism, an optimizer on
an NVMe (its state is not in memory and is not measured), other optimizers than Adam.
"""


def main() -> None:
    compile_adams()
    cases = [case for ranks in RANKS for case in lines_of("matrix.py", "--all", ranks=ranks, timeout_s=3500)]
    PAGE.write_text(page(cases), encoding="utf-8")


if __name__ == "__main__":
    main()
