"""Pieces of job scripts: what stands in the way of being sure of what a trainer gets.

They stand in tests/data/script_snippets.txt, one a line, where an arrow stands for a line break or a tab.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HEADS", "LINES", "SETS", "STARTS", "USES", "VALUES", "snippets"]

_TEXT = (Path(__file__).parents[1] / "data" / "script_snippets.txt").read_text(encoding="utf-8")


def _listed(name: str) -> list[str]:
    lines = _TEXT.partition(f"== {name}: ")[2].partition("\n== ")[0].removesuffix("\n").split("\n")[1:]
    return [line.replace("⏎", "\n").replace("⇥", "\t") for line in lines]


VALUES, LINES, HEADS = map(_listed, ("VALUES", "LINES", "HEADS"))
SETS, USES, STARTS = map(_listed, ("SETS", "USES", "STARTS"))


def snippets() -> Iterator[tuple[str, str]]:
    """A name and a script for each piece, in each place where it may stand."""
    for value in (*VALUES, *(f"$(({'9+' * n}9))" for n in (80, 98, 99, 100, 120))):
        yield f"value {value}", f"#!/bin/bash\n#SBATCH -N 4 -J x\nB=4\nL={value}\npython x.py --seed 1 --lr $L\n"
        yield f"declared {value}", f"B=4\ndeclare -i L={value}\npython x.py --lr=$L --seed 1 $((L*2)) --iters {value}\n"
    for line in LINES:
        text = f'#!/bin/bash\nB=4\n{line}\nA="--lr 1"\npython x.py $A --seed 2 --deepspeed_config c.json\n'
        yield f"line {line}", text
        yield f"line after {line}", text.replace(f"{line}\n", "") + f"{line}\n"
        yield f"line first {line}", f'{line}\nOLD="--lr 5"\nA="--lr 1"\npython x.py $A --seed 2\n'
    for head in HEADS:
        yield f"head {head}", f"#!/bin/bash\n{head}\nN=$SLURM_NNODES\npython x.py --lr 1 --nodes $N\n"
        yield f"only head {head}", f"{head}\npython x.py --lr 1 --job $SLURM_JOB_NAME"
    ways = [(made, used, begun) for made in SETS for used in USES for begun in STARTS]
    for made, used, begun in random.Random(0).sample(ways, 250):
        text = f"{made}\n{begun.replace('USED', used)}\n"
        yield f"way {text}", text
