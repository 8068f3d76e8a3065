"""All checks that need a GPU, the most valuable first, each in under ten minutes.

    python -m benchmarks.gpu [--minutes 60] [--json] [--only PART] [--device cpu --quick]

    readings   the hook's readings against float64: precisions, a loss scale that overflows, ZeRO 0 to 3, offload
    cost       one pass over Adam's state beside one read of it; the whole hook's time, waits and memory in a step
    tests      the project's own tests that need a GPU
    demo       `sentinel demo` on the GPU
    diverging  GPT-3 125M in bf16: the LR at which it diverges; sequence length warmup and longer LR warmup there
    tokens     random-LTD by DeepSpeed's op and by ours, sequence length warmup, by the clock
    resume     whether a resume is exact to the bit, and what is not

A table is printed as each part ends. What is measured is kept in --folder: a call that was cut short, or whose minutes
were over, is gone on with by the next. With a GPU the tables are written to benchmarks/results/gpu-DATE.txt.

Exit codes: 0 nothing is wrong (not all may be done, as the tables say), 1 a reading is wrong, a goal is missed or a
case failed, 2 wrong arguments, 3 there is no GPU that torch sees.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

from .parts import PART_MINUTES, PARTS
from .report import PartReport, about, document, header, text
from .rows import Rows, same_machine
from .running import ROOT, run_part

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs what is not done yet."""
    asked = _arguments(argv)
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(_NO_GPU.format(torch=torch.__version__), file=sys.stderr)
        return 3
    machine = about(asked.device, quick=asked.quick)
    out = sys.stderr if asked.as_json else sys.stdout
    print(header(machine), file=out, flush=True)
    until = time.monotonic() + 60 * asked.minutes
    reports: list[PartReport] = []
    with _folder(asked) as folder:
        try:
            same_machine(folder, machine)
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        for name in asked.only or PARTS:
            reports.append(_performed(name, folder, asked, until))
            print(f"\n{text(reports[-1])}", file=out, flush=True)
            if results := _results(asked):
                results.write_text("\n\n".join([header(machine), *map(text, reports)]) + "\n", encoding="utf-8")
    if asked.as_json:
        print(dump_json(document(machine, reports)))
    return int(any(report.faults for report in reports))


def _performed(name: str, folder: Path, asked: argparse.Namespace, until: float) -> PartReport:
    rows = Rows(folder / f"{name}.jsonl")
    if asked.again:
        rows.set_aside()
    left = until - time.monotonic()
    if left < _LEAST_S:
        return PartReport(name=name, rows=rows.rows, not_run="not run in this call: its minutes are over")
    failed = run_part(
        name,
        rows,
        device=asked.device,
        quick=asked.quick,
        folder=folder / name,
        seconds=min(left, 60 * PART_MINUTES),
        say=_progress,
    )
    return PartReport(name=name, rows=rows.rows, failed=failed)


_LEAST_S = 30.0
"""A part takes as long to import what it needs."""

_NO_GPU = (
    "torch {torch} sees no CUDA device here. On a machine with a GPU run `make gpu`, which sets up what is missing; "
    "without one, --device cpu --quick shows that the parts run."
)


def _progress(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def _results(asked: argparse.Namespace) -> Path | None:
    if asked.results is not None:
        return Path(asked.results)
    if asked.device == "cuda" and not asked.quick:
        return ROOT / "benchmarks" / "results" / f"gpu-{date.today().isoformat()}.txt"
    return None


@contextmanager
def _folder(asked: argparse.Namespace) -> Iterator[Path]:
    if asked.folder is None and asked.quick:
        with tempfile.TemporaryDirectory(prefix="sentinel-gpu-") as made:
            yield Path(made)
        return
    folder = (asked.folder or Path(".gpu-rows") / asked.device).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="for all parts together")
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="one JSON document on stdout, tables on stderr"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="every part shrunken: its figures say nothing")
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), metavar="PART", help="this part; may be repeated"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure anew; rows that are there are renamed, not deleted"
    )
    parser.add_argument(
        "--folder", type=Path, help="of the rows; default .gpu-rows/DEVICE, with --quick a temporary one"
    )
    parser.add_argument(
        "--results", type=Path, help="the table file; default with a GPU benchmarks/results/gpu-DATE.txt"
    )
    asked = parser.parse_args(argv)
    if asked.device == "cpu" and not asked.quick:
        parser.error("--device cpu needs --quick: the full form is of a size for a GPU")
    if asked.minutes <= 0:
        parser.error(f"--minutes {asked.minutes:g} is not a time: give a number above 0")
    return asked


if __name__ == "__main__":
    sys.exit(main())
