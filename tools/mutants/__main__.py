"""`python -m tools.mutants`: how many small breakages of the code that matters the tests notice.

Each change is one that a slip of the hand makes: another comparison, a dropped condition, a factor of ten, a statement
left out. A change that all tests survive is a missing test, or one that changes nothing that can be seen: those are
explained in `explained.toml`, by name, and counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tools.mutants.areas import AREAS, Area, files_of, tests_of
from tools.mutants.changes import Change, changes_of
from tools.mutants.covering import Covered
from tools.mutants.trying import Copy, try_all

_ROOT = Path(__file__).resolve().parents[2]
_EXPLAINED = Path(__file__).with_name("explained.toml")


@dataclass(slots=True)
class Tally:
    """What came of one area's changes."""

    area: str
    possible: int
    noticed: int = 0
    explained: int = 0
    survivors: list[Change] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Changes that were tried and could have been noticed."""
        return self.noticed + len(self.survivors)

    @property
    def share(self) -> float:
        """Noticed / tried, those explained left out; 1 where none was tried."""
        return self.noticed / self.tried if self.tried else 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row an area, then the survivors. 1 when fewer than 90 % were noticed in one of them."""
    asked = _asked(arguments)
    explained = tomllib.loads(_EXPLAINED.read_text(encoding="utf-8"))["explained"]
    areas = [a for a in AREAS if not asked.area or a.name in asked.area]
    covered = _covered(areas, asked.covered)
    tallies = [_try_area(area, covered.of(area.tests), asked, explained) for area in areas]
    if asked.json:
        print(json.dumps([_as_json(t) for t in tallies], indent=1))
    else:
        _print(tallies)
    return 0 if all(t.share >= asked.least for t in tallies) else 1


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--area", action="append", choices=[a.name for a in AREAS], help="only this one; repeatable")
    parser.add_argument("--file", action="append", help="only changes of this file; repeatable")
    parser.add_argument("--sample", type=int, default=60, help="changes to draw from each area; 0 for all (hours)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=0.9, help="share to be noticed in each area")
    parser.add_argument(
        "--covered", type=Path, metavar="FILE", help="keep here which tests run what, or take it from here"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser.parse_args(arguments)


def _try_area(area: Area, covered: Covered, asked: argparse.Namespace, explained: dict[str, str]) -> Tally:
    files = [f for f in files_of(area, _ROOT) if not asked.file or f in asked.file]
    possible = [c for f in files for c in changes_of(f, (_ROOT / f).read_bytes())]
    drawn = possible
    if asked.sample and len(possible) > asked.sample:
        drawn = random.Random(asked.seed).sample(possible, asked.sample)
    tally = Tally(area=area.name, possible=len(possible))
    to_try = [c for c in drawn if c.name not in explained]
    tally.explained = len(drawn) - len(to_try)
    if not to_try:
        return tally
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        parts = [to_try[n :: asked.workers] for n in range(asked.workers)]
        with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
            tried = [
                pool.submit(try_all, part, covered, _ROOT, Path(folder) / str(n))
                for n, part in enumerate(parts)
                if part
            ]
            for change, survived in (pair for one in tried for pair in one.result()):
                tally.noticed += not survived
                if survived:
                    tally.survivors.append(change)
    return tally


def _covered(areas: Sequence[Area], kept: Path | None) -> Covered:
    """Of all areas together, since they share most tests."""
    if kept is not None and kept.exists():
        return Covered.read(kept)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        file = kept if kept is not None else Path(folder) / "covered.json"
        code = [name for area in areas for name in files_of(area, _ROOT)]
        tests = [name for area in areas for name in tests_of(area, _ROOT)]
        covered = cover(_ROOT, Path(folder) / "tree", code, tests, file.absolute())
    for test in covered.failed:
        print(f"left out: {test} fails on the unchanged code", file=sys.stderr)
    return covered


def cover(root: Path, folder: Path, code: Sequence[str], tests: Sequence[str], file: Path) -> Covered:
    """Runs the tests once, in a copy of the tree at `root` that is made in `folder`; what they cover goes to `file`."""
    copy = Copy(root, folder)
    told = {"code": sorted(set(code)), "tests": list(dict.fromkeys(tests)), "file": str(file)}
    command = [sys.executable, "-m", "tools.mutants.covering", json.dumps(told)]
    ran = subprocess.run(
        command, cwd=copy.folder, env=copy.environment(), capture_output=True, text=True, timeout=3600, check=False
    )
    if ran.returncode not in (0, 1):  # 1: some tests failed
        sys.exit(f"the tests could not be run\n{ran.stdout[-3000:]}{ran.stderr[-2000:]}")
    return Covered.read(file)


def _as_json(tally: Tally) -> dict[str, object]:
    survivors = [{"name": c.name, "line": c.line} for c in tally.survivors]
    counts = {"possible": tally.possible, "tried": tally.tried, "noticed": tally.noticed, "explained": tally.explained}
    return {"area": tally.area, **counts, "share": tally.share, "survivors": survivors}


def _print(tallies: Sequence[Tally]) -> None:
    print(f"{'area':<24}{'possible':>9}{'tried':>7}{'noticed':>9}{'explained':>11}{'share':>8}")
    for t in tallies:
        print(f"{t.area:<24}{t.possible:>9}{t.tried:>7}{t.noticed:>9}{t.explained:>11}{t.share:>8.1%}")
    for change in (c for t in tallies for c in t.survivors):
        print(f"survived: {change.name} (line {change.line})")


if __name__ == "__main__":
    sys.exit(main())
