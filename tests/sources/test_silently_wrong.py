"""Logs that were read without a word and judged wrong: two jobs in one, ranks without a loss, late first lines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind, judge_past
from sentinel.sources.followed_log import FollowedLog
from sentinel.sources.opening import one_source, open_sources
from sentinel.vocabulary.errors import ConfigError
from tests.sources.reading import records_of, samples
from tests.sources.readings import told

Line = Callable[[int], str]


def written(tmp_path: Path, lines: Sequence[str], name: str = "a.log") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def verdict_of(path: Path, **columns: str) -> tuple[Verdict, list[str]]:
    """The verdict, and what the source says of itself."""
    source, replay = one_source(path, columns), Replay(Thresholds())
    for readings in source:
        replay.push(readings)
    return judge_past(replay.series, None), list(source.notes)


def megatron(total: int, loss: float) -> Line:
    return lambda i: f" iteration {i:8d}/{total:8d} | learning rate: 1.0E-04 | lm loss: {loss - i / 1000:.6E} |"


def generic(loss: float, lr: str = "1e-4") -> Line:
    return lambda i: f"step {i}: loss {loss - i / 1000:.4f}, lr {lr}"


def titan(loss: float) -> Line:
    return lambda i: f"[rank0]:[titan] - root - INFO - step: {i:2d}  loss:  {loss - i / 1000:.5f}  grad_norm:  0.8319"


def dicts(loss: float, from_epoch: float = 0.0, lr: str = "5e-05") -> Line:
    return lambda i: f"{{'loss': {loss:.4f}, 'learning_rate': {lr}, 'epoch': {from_epoch + i / 100:.4f}}}"


def by_turns(one: Line, other: Line, *, of: int, ahead: int = 100) -> list[str]:
    """One job's next lines, then the other's, which is so many steps behind."""
    turns = range(1, 121, of)
    return [
        line for k in turns for job, by in ((one, ahead), (other, 0)) for line in map(job, range(k + by, k + by + of))
    ]


TWO_JOBS = {
    "pretraining and fine-tuning, Megatron": by_turns(megatron(20_000, 3.0), megatron(300, 1.2), of=20),
    "two writers, Megatron": by_turns(megatron(20_000, 3.0), megatron(300, 1.2), of=1),
    "two writers that began together, Megatron": by_turns(megatron(500, 3.0), megatron(500, 1.2), of=1, ahead=0),
    "two writers that began together, TorchTitan": by_turns(titan(3.0), titan(2.8), of=1, ahead=0),
    "two writers that began together, of other rates": by_turns(generic(3.0), generic(2.9, "1e-5"), of=1, ahead=0),
    "two writers that began together, of other losses": by_turns(generic(3.0), generic(2.4), of=1, ahead=0),
    "by turns, generic": by_turns(generic(3.0), generic(1.5), of=12),
    "by turns, Hugging Face": by_turns(dicts(2.5, 0.5), dicts(1.2, 0.1, "1e-05"), of=10, ahead=0),
    "two writers, Hugging Face": by_turns(dicts(2.5, 0.5), dicts(1.2, 0.1, "1e-05"), of=1, ahead=0),
}


@pytest.mark.parametrize("name", TWO_JOBS)
def test_two_jobs_that_append_to_one_log_are_refused_and_both_are_named(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, TWO_JOBS[name])
    both = r"one at .* \(newest loss .*, the other at .* \(newest loss|each step, and in 16 steps .* and "
    with pytest.raises(ConfigError, match=both):
        told(one_source(path, {}))
    with pytest.raises(ConfigError, match=both):
        FollowedLog(path).poll()


@pytest.mark.parametrize(
    "lives",
    [
        [(1, 60), (41, 80), (61, 90), (81, 130)],
        [(1, 60), (1, 40), (1, 90)],
        [(1, 60), (1, 20), (61, 90)],  # from scratch in vain, then on from the first one's last checkpoint
        [(1, 5), (5, 5), (5, 6), (6, 8)],
        [(1, 60), (60, 60), (60, 60), (60, 60)],  # it dies at the same step
    ],
)
@pytest.mark.parametrize("form", [megatron(500, 3.0), titan(3.0), dicts(2.5)])
def test_restarts_are_no_second_job(tmp_path: Path, lives: list[tuple[int, int]], form: Line) -> None:
    lines = [
        form(i).replace(": 2.", f": 2.{n}") for n, (first, last) in enumerate(lives) for i in range(first, last + 1)
    ]
    assert told(one_source(written(tmp_path, lines), {}))


def test_ranks_without_a_prefix_are_still_averaged(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [f"step {i}: loss {3 + rng.gauss(0, 0.3):.4f}, lr 1e-4" for i in range(1, 100) for _ in range(2)]
    source = one_source(written(tmp_path, lines), {})
    assert len(told(source)) == 99
    assert "taken for other ranks'" in source.notes[-1]


NOT_VISIBLE = (
    "[rank0]:2026-01-01 00:00:00,000 - root - WARNING - \x1b[31mPipeline Parallel loss is not visible. "
    "Please add \x1b[33mrank 6\x1b[31m to LOG_RANK environment variable in run_train.sh.\x1b[39m"
)
WITHOUT_LOSS = [f"[rank0]:[titan] step: {i:2d}  loss: -1.00000  grad_norm:  0.8{i:03d}" for i in range(1, 60)]


def test_a_pipeline_rank_without_the_loss_is_blind_and_the_rank_that_has_it_is_named(tmp_path: Path) -> None:
    verdict, notes = verdict_of(written(tmp_path, [NOT_VISIBLE, *WITHOUT_LOSS]))
    assert (verdict.kind, "never negative" in verdict.reason) == (VerdictKind.BLIND, True)
    assert "rank 6 has it (LOG_RANK)" in "; ".join(notes)


def test_a_pipeline_rank_without_the_loss_is_not_averaged_with_one_that_has_it(tmp_path: Path) -> None:
    lines = [
        f"[rank{r}]: step:  4  loss: {loss}  grad_norm: 1.0" for r, loss in ((0, "-1.00000"), (6, "7.5"), (7, "8.5"))
    ]
    assert [(s.loss, s.loss_spread) for s in samples(records_of("torchtitan", lines))] == [(8.0, 1.0)]
    for rank, loss in ((0, "-1.00000"), (6, "7.5")):
        lines = [f"[rank{rank}]: step: {i}  loss: {loss}  grad_norm: 1.0" for i in range(1, 9)]
        written(tmp_path, lines, f"rank-{rank}.log")
    assert [s.loss for s in samples(FollowedLog(tmp_path / "rank-*.log").poll())] == [7.5] * 7


@pytest.mark.parametrize("every", [100, 2_000])
def test_a_sum_that_falls_from_a_late_first_line_is_no_bad_resume(tmp_path: Path, every: int) -> None:
    rng = random.Random(every)
    steps = range(2_000, 2_000 + 60 * every, every)
    rows = [(step, 42_602 * (step / 2_000) ** -0.3 * (1 + rng.gauss(0, 0.005))) for step in steps]
    lines = [f"| epoch 001: {n} / 99999 loss={loss:.3f}, num_updates={n}, lr=0.0001, gnorm=1.5" for n, loss in rows]
    table = ["step,loss", *(f"{n},{loss}" for n, loss in rows)]
    for path in (written(tmp_path, lines), written(tmp_path, table, "a.csv")):
        assert verdict_of(path)[0].kind is VerdictKind.HEALTHY


def llama_factory(steps: int) -> list[str]:
    """Trainer's dict of each step, then the one of LLaMA-Factory's callback, rounded."""
    lines, stamp = [], "[INFO|2024-10-01 12:00:00] llamafactory.train.callbacks:157 >>"
    for i in range(1, steps):
        loss, lr, epoch = 3 * i**-0.1, 5e-5 * (1 - i / 500), i * 0.00513
        lines += [
            f"{{'loss': {loss:.4f}, 'grad_norm': 1.{i}, 'learning_rate': {lr}, 'epoch': {epoch:.4f}}}",
            f"{stamp} {{'loss': {loss:.4f}, 'learning_rate': {lr:2.4e}, 'epoch': {epoch:.2f}, 'throughput': 1234.56}}",
        ]
    return lines


def test_a_step_that_two_loggers_write_is_one_and_no_restart(tmp_path: Path) -> None:
    (source,) = open_sources(written(tmp_path, llama_factory(400)), {})
    read = told(source)
    assert [(one["attempt"], one["step"]) for one in read] == [(1, i) for i in range(1, 400)]
    assert "399 lines show a step once more" in source.notes[0]


ALGOPERF = "I0124 12:34:56.000000 140 submission_runner.py:420] Time since start: 51.78s, \tStep: {n}, \t{{{values}}}"
OF_CRITEO = "'train/loss': 0.{x}, 'validation/loss': 0.{y}, 'validation/num_examples': 83274637, 'test/loss': 0.128"
OF_FINEWEB = "'train/loss': 6.{x}, 'train/ppl': 120.5, 'validation/loss': 6.{y}, 'validation/ppl': 123.1"
OF_BERT = (
    "{{'training_steps': {n}, 'average_loss': 7.{x}, 'step_loss': 6.{x}, 'learning_rate': 0.00035, 'seq/s': 1234.5, "
    "'global_steps': {n}, 'samples_trained': 448000, 'skipped_steps': 0}}\n"
    ':::MLLOG {{"key": "eval_accuracy", "value": 0.3{x}, "metadata": {{"file": "/x.py", "epoch_num": 150000}}}}'
)


@pytest.mark.parametrize(
    ("form", "columns", "first"),
    [
        ("I0124 12:34:56.0 140 submission.py:139] {n}) loss = 6.{x}, grad_norm = 0.652", {}, 6.11),
        (ALGOPERF.replace("{values}", OF_FINEWEB), {}, 6.11),
        (ALGOPERF.replace("{values}", OF_CRITEO), {}, 0.11),
        ("step:{n} - train/loss:6.{x} - train/lr(1e-3):0.35", {}, 6.11),
        (OF_BERT, {"loss": "step_loss"}, 6.11),
    ],
)
def test_logs_of_benchmarks_are_read(tmp_path: Path, form: str, columns: dict[str, str], first: float) -> None:
    lines = [form.format(n=10 * i, x=i, y=i + 1) for i in range(11, 40)]
    read = told(one_source(written(tmp_path, lines), columns))
    assert [one["step"] for one in read] == list(range(110, 400, 10))
    assert read[0]["loss"] == first
    assert read[0].get("lr") in (None, pytest.approx(0.00035))


def test_what_is_refused_names_the_option_that_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path, [OF_BERT.format(n=10 * i, x=i) for i in range(11, 40)])
    with pytest.raises(
        ConfigError, match=r"average_loss 7\.11 and step_loss 6\.11; say which with --column loss=average_l"
    ):
        one_source(path, {})
