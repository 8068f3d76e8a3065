"""Writes sentinel/plan/pooled_spikes.py: how spikes of the tuning families went on, for the price of waiting.

Each curve of `benchmarks/public` and `benchmarks/recorded` whose family is not held out (SPLIT.md) is judged live.
`--check` writes nothing; exit code 1 where the file would change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.curves import read_folder
from backtest.episodes import traced
from backtest.pooling import pooled

from sentinel.plan import pooled_spikes
from sentinel.plan.pooled_spikes import AGES, Table

HERE = Path(__file__).parent


def main() -> int:
    """Traces, pools, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    asked = parser.parse_args()
    curves = [c for name in ("public", "recorded") for c in read_folder(HERE / name) if not c.held_out]
    table = pooled(spike for curve in curves for spike in traced(curve).spikes)
    path = Path(pooled_spikes.__file__)
    before = path.read_text(encoding="utf-8")
    head, mark, rest = before.partition('TABLE = """\n')
    after = head + mark + "".join(_lines(table)) + rest[rest.index('"""') :]
    if not asked.check:
        path.write_text(after, encoding="utf-8")
    print(f"{path.name}: {'as it was' if after == before else 'differs' if asked.check else 'written'}")
    return int(asked.check and after != before)


def _lines(table: Table) -> Iterator[str]:
    for (size, how), cells in table.items():
        for age, cell in zip(AGES, cells, strict=True):
            shares = " ".join(f"{share:.3f}".removeprefix("0") for share in cell.healed_by)
            counts = f"{cell.spikes} {cell.spikes_never} {cell.families}"
            yield f"{size} {how} {age}: {counts}: {cell.never:.3f}: {shares}\n".replace(": \n", ":\n")


if __name__ == "__main__":
    sys.exit(main())
