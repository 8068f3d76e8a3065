"""The checks that need a GPU, the most valuable first, each in a process of its own of at most 90 s.

    python -m benchmarks.gpu [--minutes 9] [--out DIR] [--again] [--only CASE] [--device cpu --quick]

    1  without DeepSpeed: the kernels against float64, host syncs, 2.3e9 elements, memory sanitizer, a tensor subclass;
       one pass at 1.3B and 7B parameters, with memory peaks; host syncs in the five calls of the hook
    2  the same five calls in DeepSpeed; readings under ZeRO 1, 2, 3 and offload; the whole hook at 1.3B; four ranks on
       one device
    3  the rest: the other readings, exact resume, sequence length warmup, random-LTD, ops that are compiled

The next call goes on where this one ended, however it ended: what was begun is written first, rows as they come. A case
that hangs is killed and comes last. What needs DeepSpeed is left for a later call where DeepSpeed can't be imported.
With --out each row and the table are written there, too, at once: OUT/rows.jsonl, OUT/table.txt, OUT/log.txt. Where
--folder has no rows and --out has, they are taken up from there.

Exit codes: 0 nothing is wrong (not all may be done, as the table says), 1 a reading is wrong, a goal is missed or a
case failed, 2 wrong arguments, 3 there is no GPU that torch sees.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path

from sentinel.vocabulary.errors import ConfigError

from .case import LIMIT_S, Case, cases
from .rows import Rows
from .running import run_case
from .table import faults, left, table

__all__ = ["main"]

_LEAST_S = 20.0
"""A case takes as long to import what it needs: with less, none is begun."""


def main(argv: list[str] | None = None) -> int:
    """Runs what is not done yet."""
    asked = _arguments(argv)
    until = time.monotonic() + 60 * asked.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the case under way is killed, too
    folder = (asked.folder or Path(".gpu-rows") / asked.device).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    machine = _machine(asked, folder)
    if isinstance(machine, str):
        print(machine, file=sys.stderr)
        return 3
    rows = Rows(folder, asked.out)
    try:
        rows.of_machine(machine)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    every = cases(quick=asked.quick)
    if asked.only:
        every = [case for case in every if any(_is_meant(case, name, every) for name in asked.only)]
    for case in every if asked.again else ():
        rows.add({"again": case.name})
    without_deepspeed = machine["deepspeed"].startswith("none")
    possible = [case for case in every if not (case.deepspeed and without_deepspeed)]
    try:
        for case in rows.to_do(possible):
            if (seconds := until - time.monotonic()) < min(_LEAST_S, asked.limit or _LEAST_S):
                break
            _answer(case, rows, asked, folder, seconds)
            _write(table(rows, every), folder, asked.out)
    finally:
        text = table(rows, every)
        _write(text, folder, asked.out)
        print(text)
    for name in left(rows, every):
        print(f"not done: {name}", file=sys.stderr)
    return int(bool(faults(rows)))


def _answer(case: Case, rows: Rows, asked: argparse.Namespace, folder: Path, seconds: float) -> None:
    limit_s = asked.limit or case.limit_s
    rows.add({"begun": case.name})
    began = time.monotonic()
    answer = run_case(
        case.name,
        case,
        device=asked.device,
        quick=asked.quick,
        folder=folder,
        limit_s=min(limit_s, seconds),
        hang=case.name in asked.hang,
    )
    took_s = round(time.monotonic() - began, 1)
    if "row" in answer:
        rows.add({"of": case.name, "row": answer["row"], "took_s": took_s})
    elif not answer["in_time"] and seconds < limit_s:
        rows.add({"of": case.name, "cut": "the minutes of the call were over"})
    else:
        rows.add({"of": case.name, "failed": answer["failed"]})
    said = answer.get("failed") or "; ".join(answer["row"].get("wrong", [])) or answer["row"].get("not_run", "done")
    print(f"{took_s:6.1f} s  {case.name}: {said}", file=sys.stderr, flush=True)


def _machine(asked: argparse.Namespace, folder: Path) -> dict[str, str] | str:
    """What the machine is; or why it can't be measured on, as a sentence."""
    answer = run_case("machine", None, device=asked.device, quick=asked.quick, folder=folder, limit_s=3 * LIMIT_S)
    found: dict[str, str] = answer.get("row", {})
    if not found:
        return f"torch can't be imported by {sys.executable} ({answer['failed']}): see {folder / 'log.txt'}"
    if found["hardware"] == "none":
        return _NO_GPU.format(torch=found["torch"])
    return found


_NO_GPU = (
    "torch {torch} sees no CUDA device here. On a machine with a GPU run `make gpu`, which finds the Python whose "
    "torch sees it; without one, --device cpu --quick shows that the cases run."
)

_MOST_LOG_BYTES = 4_000_000


def _write(text: str, folder: Path, out: Path | None) -> None:
    for path in filter(None, (folder, out)):
        new = path / "table.txt.new"
        new.write_text(text + "\n", encoding="utf-8")
        new.rename(path / "table.txt")
    log = folder / "log.txt"
    if out is not None and log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _MOST_LOG_BYTES))
            (out / "log.txt").write_bytes(file.read())
    shutil.rmtree(folder / "work", ignore_errors=True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call; the next one goes on")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="every case shrunken: its figures say nothing")
    parser.add_argument("--only", action="append", metavar="CASE", help="cases whose names begin so; may be repeated")
    parser.add_argument("--again", action="store_true", help="measure anew, with --only those cases: after a mend, say")
    parser.add_argument("--folder", type=Path, help="of the rows; default .gpu-rows/DEVICE")
    parser.add_argument("--out", type=Path, help="rows and table are copied there as they come")
    parser.add_argument("--limit", type=float, metavar="S", help="for a rehearsal: seconds a case, for all of them")
    parser.add_argument(
        "--hang", action="append", default=[], metavar="CASE", help="for a rehearsal: this case hangs on purpose"
    )
    asked = parser.parse_args(argv)
    if asked.device == "cpu" and not asked.quick:
        parser.error("--device cpu needs --quick: the full form is of a size for a GPU")
    if asked.minutes <= 0:
        parser.error(f"--minutes {asked.minutes:g} is not a time: give a number above 0")
    if unknown := [name for name in asked.only or () if not any(c.name.startswith(name) for c in _every())]:
        parser.error(f"no case begins with {unknown[0]!r}; there are: {'; '.join(c.name for c in _every())}")
    return asked


def _is_meant(case: Case, name: str, every: list[Case]) -> bool:
    return case.name == name or (case.name.startswith(name) and all(other.name != name for other in every))


def _every() -> list[Case]:
    return [*cases(quick=False), *cases(quick=True)]


if __name__ == "__main__":
    sys.exit(main())
