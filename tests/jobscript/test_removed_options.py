"""What is left of a list once an option is taken out of it: no empty line, no broken continuation, nothing moved."""

from __future__ import annotations

import pytest

from sentinel.jobscript import RemoveOption, SetOption, rewrite
from tests.jobscript.shell_sandbox import parses

SEED = RemoveOption(flag="--seed")

LEFT: list[tuple[str, str]] = [
    # a line of its own goes whole, whatever continues it
    ('A=" \\\n  --lr 1 \\\n  --seed 4 \\\n  "\npython x.py $A\n', 'A=" \\\n  --lr 1 \\\n  "\npython x.py $A\n'),
    ('A=" \\\n --seed 4\\\n --fp16"\npython x.py $A\n', 'A=" \\\n --fp16"\npython x.py $A\n'),
    ('A="\n  --lr 1\n  --seed 4\n"\npython x.py $A\n', 'A="\n  --lr 1\n"\npython x.py $A\n'),
    ('A=(\n  --lr 1\n  --seed 4\n)\npython x.py "${A[@]}"\n', 'A=(\n  --lr 1\n)\npython x.py "${A[@]}"\n'),
    ("python x.py --lr 1 \\\n  --seed 4 \\\n  --fp16\n", "python x.py --lr 1 \\\n  --fp16\n"),
    ("python x.py --lr 1 \\\n --seed \\\n 4 \\\n --fp16\n", "python x.py --lr 1 \\\n --fp16\n"),
    ("python x.py \\\n--seed 4 \\\n--lr 1\n", "python x.py \\\n--lr 1\n"),
    # a line that holds something else, or that nothing continues, stays with what is left of it
    ('A="--lr 1\n--seed 4"\npython x.py $A\n', 'A="--lr 1\n"\npython x.py $A\n'),
    ('A="--seed 4\n--lr 1"\npython x.py $A\n', 'A="\n--lr 1"\npython x.py $A\n'),
    ("python x.py --lr 1 \\\n  --seed 4\ndate\n", "python x.py --lr 1 \\\n\ndate\n"),
    ("python x.py --lr 1 \\\n  --seed 4 --fp16\n", "python x.py --lr 1 \\\n --fp16\n"),
    ("python x.py --lr 1 --seed 4 \\\n  --fp16\n", "python x.py --lr 1 \\\n  --fp16\n"),
    ("python x.py --lr 1 \\\n  --seed 4 | tee log\n", "python x.py --lr 1 \\\n | tee log\n"),
    ('A=(\n --lr 1\n --seed 4 # why\n)\npython x.py "${A[@]}"\n', 'A=(\n --lr 1\n # why\n)\npython x.py "${A[@]}"\n'),
    # within a line the blanks before it go, where others follow
    ('A="--lr 1\t --seed 4 --fp16"\npython x.py $A\n', 'A="--lr 1 --fp16"\npython x.py $A\n'),
    ('A="--seed 4 --lr 1"\npython x.py $A\n', 'A=" --lr 1"\npython x.py $A\n'),
    ('A="--lr 1 --seed 4"\npython x.py $A\n', 'A="--lr 1 "\npython x.py $A\n'),
    ("python x.py --lr 1 --seed 4;date\n", "python x.py --lr 1 ;date\n"),
    ("python x.py --lr 1 --seed 4 ; date\n", "python x.py --lr 1 ; date\n"),
    ("python x.py --lr 1 --seed 4", "python x.py --lr 1 "),
    ("python x.py --seed=4 --lr 1\n", "python x.py --lr 1\n"),
]


@pytest.mark.parametrize(("before", "after"), LEFT)
def test_an_option_goes_with_its_line_or_with_the_blanks_before_it(before: str, after: str) -> None:
    assert rewrite(before, [SEED]).text == after
    assert parses(after)


def test_a_list_that_is_made_of_its_own_old_value_is_changed_where_it_is_written() -> None:
    """`X="--lr $X"`: the value is the X of the line before, which stays."""
    text = 'X=1\nX="--lr $X --seed 2"\npython x.py $X\n'
    assert rewrite(text, [SetOption(flag="--lr", value="7")]).text == 'X=1\nX="--lr 7 --seed 2"\npython x.py $X\n'
