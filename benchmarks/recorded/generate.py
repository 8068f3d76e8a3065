"""Makes the recorded curves: `python benchmarks/recorded/generate.py [--out FOLDER] [--only NAME…] [--index-only]`.

Curves that are there already are left alone, so a run cut short is taken up where it stopped. See README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the sums depend on it
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import torch  # noqa: E402 - after the number of threads is set

from recorded.curves import write_curve  # noqa: E402
from recorded.ill import ILL  # noqa: E402
from recorded.index import write_index  # noqa: E402
from recorded.logged import logged  # noqa: E402
from recorded.recipe import Recipe  # noqa: E402
from recorded.train import train_pair  # noqa: E402
from recorded.well import WELL  # noqa: E402

RECIPES = {recipe.name: recipe for recipe in (*ILL, *WELL)}


def make(recipe: Recipe, folder: Path) -> Path:
    """Trains the recipe and its sibling, and writes what was logged."""
    path = folder / f"{recipe.name}.csv.xz"
    write_curve(path, logged(train_pair(recipe), recipe))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "curves")
    parser.add_argument("--only", nargs="*", help="names; default is all that are not there yet")
    parser.add_argument("--index-only", action="store_true", help="train nothing, label what is there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [] if args.index_only else args.only or RECIPES:
        if not args.only and (args.out / f"{name}.csv.xz").exists():
            continue
        start = time.monotonic()
        path = make(RECIPES[name], args.out)
        print(f"{name}: {time.monotonic() - start:.1f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)
    rows = write_index(RECIPES.values(), args.out, args.out.parent / "INDEX.csv")
    for (kind, held), count in sorted(Counter((str(row["label"]), str(row["held_out"])) for row in rows).items()):
        print(f"{kind:17} held out {held:3} {count:4}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
