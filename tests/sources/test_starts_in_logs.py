"""The audit of a start where a Megatron log is all that there is, with a line for each step or for every tenth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sentinel.act.starts import Starts
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import Continued, StartAudit
from sentinel.sources.log_file import read_log
from tests.support.facts import facts_of, look_of
from tests.support.there import there

Values = Mapping[str, Callable[[int], float]]


def lr(step: int) -> float:
    return 1e-3 * min(1.0, step / 50) * (1 - step / 10_000)


def line(step: int, values: Values) -> str:
    shown = {"samples": 8 * step, "rate": lr(step), "scale": 65536.0, "loss": 3 + 4 * step**-0.5}
    shown |= {name: of(step) for name, of in values.items()}
    loss = shown["loss"] + random.Random(step).gauss(0, 0.02)
    return (
        f" iteration {step:8d}/   10000 | consumed samples: {shown['samples']:12d} | elapsed time per iteration (ms):"
        f" 10.0 | learning rate: {shown['rate']:.3E} | global batch size:     8 | lm loss: {loss:.6E} |"
        f" loss scale: {shown['scale']} | grad norm: 1.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |\n"
    )


def audited(path: Path, values: Values, *, every: int, over: int) -> StartAudit | None:
    """Of a run that saved at its 40th line, and went on for `over` more before it was resumed."""
    save = 40 * every
    lines = [line(step, {}) for step in range(every, save + over * every + 1, every)]
    lines.insert(40, f"  successfully saved checkpoint at iteration {save:7d} to ckpt\n")
    lines.append(f"  successfully loaded checkpoint from ckpt at iteration {save}\n")
    lines += [line(step, values) for step in range(save + every, save + 21 * every, every)]
    path.write_text("".join(lines))
    history = History()
    for record in read_log(path):
        history.push(record)
    saved = Checkpoint(tag=f"global_step{save}", global_step=save, complete=True)
    verdict = Verdict(kind=VerdictKind.FINISHED, reason="")
    facts = facts_of(verdict=verdict, checkpoints=(saved,), latest_tag=saved.tag, last_step=save + 20 * every)
    return Starts().audit(look_of(history, Series(Thresholds()), facts))


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("over", [0, 12])
@pytest.mark.parametrize(
    ("fault", "values"),
    [
        (None, lambda _: {}),
        ("scheduler lost", lambda save: {"rate": lambda s: lr(s - save)}),
        ("samples skipped", lambda _: {"samples": lambda s: 8 * s + 64}),
        ("samples replayed", lambda _: {"samples": lambda s: 8 * s - 64}),
        ("data from epoch start", lambda save: {"samples": lambda s: 8 * (s - save)}),
        ("loss scale reset", lambda _: {"scale": lambda _: 2.0**32}),
        ("loss jumps", lambda _: {"loss": lambda _: 9.0}),
        ("loss drops", lambda _: {"loss": lambda _: 1.5}),
    ],
)
def test_a_log_alone_tells_what_became_of_schedule_samples_scale_and_loss(
    tmp_path: Path, fault: str | None, values: Callable[[int], Values], over: int, every: int
) -> None:
    found = there(audited(tmp_path / "log.txt", values(40 * every), every=every, over=over))
    assert found.fault == fault, found.reason
    assert found.verdict is (Continued.NO if fault else Continued.YES), found.reason
