"""What a plain loop is told to change at a start: applied by its calls, or refused before the first step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, RandomSampler

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.sample import RunStarted, Sample, decode
from trainer_hooks import attach, decisions
from trainer_hooks.learning_rate import formula_of

STEP, BATCH, SAMPLES = 4, 3, 24


def decide(folder: Path, *, once: dict[str, Any] | None = None, **standing: Any) -> None:
    decided = Overrides(
        incident="i",
        rollback="r1",
        anchor=Anchor(global_step=STEP),
        standing=TrainingSettings(**standing),
        once=Once(id="r1", **once) if once is not None else None,
    )
    (folder / "overrides.json").write_text(encode_overrides(decided))


def training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.01)
    update(net, optimizer)
    return net, optimizer


def update(net: nn.Module, optimizer: torch.optim.Optimizer, hook: Any = None) -> None:
    loss = net(torch.ones(2, 4)).square().mean()
    if hook is not None:
        hook.loss(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def sampler(rank: int = 0, ranks: int = 1) -> DistributedSampler[Any]:
    return DistributedSampler(range(SAMPLES), num_replicas=ranks, rank=rank, seed=5, drop_last=True)


def test_where_nothing_is_decided_all_is_as_it_is(tmp_path: Path) -> None:
    net, optimizer = training()
    before = [dict(group) for group in optimizer.param_groups]
    start = decisions(tmp_path, step=STEP, full_seqlen=8)
    own, batch = sampler(), torch.ones(2, 9)
    start.apply(optimizer)
    assert start.sampler(own) is own
    assert start.truncate(batch) is batch
    assert (start.clip(1.0), decisions(tmp_path).seed(7), start.by_loop("total_tokens")) == (1.0, 7, None)
    assert optimizer.param_groups == before
    attach(model=net, optimizer=optimizer, decisions=start, state_dir=tmp_path).close("finished")


@pytest.mark.parametrize(
    ("decided", "why"),
    [
        ({"clip_grad": 0.5}, r"decisions\.clip"),
        ({"adam_beta2": 0.95}, "adam_beta2"),
        ({"once": {"seed": 3}}, r"decisions\.sampler"),
        ({"once": {"reset_moments": True}}, "reset_moments"),
        ({"seqlen": FixedLinear(start=8, full=16, total_steps=9)}, "full_seqlen"),
        ({"lr": LrSchedule(peak=0.01, warmup=0, decay_end=0)}, r"decisions\.apply"),
        ({"qk_clip": 100.0}, r"decisions\.by_loop\('qk_clip'\)"),
    ],
)
def test_a_change_that_no_call_applies_ends_the_start_before_the_first_step(
    tmp_path: Path, decided: dict[str, Any], why: str
) -> None:
    decide(tmp_path, **decided)
    net, optimizer = training()
    start = decisions(tmp_path, step=STEP)
    with pytest.raises(ConfigError, match=why) as refused:
        attach(model=net, optimizer=optimizer, decisions=start, state_dir=tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'overrides.json'}: ")


def test_the_optimizers_numbers_are_set_and_the_moments_are_zero(tmp_path: Path) -> None:
    decide(tmp_path, once={"reset_moments": True}, adam_beta2=0.95, adam_eps=1e-6, weight_decay=0.2)
    _, optimizer = training()
    start = decisions(tmp_path, step=STEP)
    start.apply(optimizer)
    (group,) = optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.95), 1e-6, 0.2)
    assert not any(float(s["exp_avg_sq"].abs().sum() + s["step"]) for s in optimizer.state.values())
    assert start.made.moments_reset_steps == (STEP,)


def test_the_decided_lr_is_set_before_each_update_and_the_scheduler_goes_on_with_its_own(tmp_path: Path) -> None:
    decide(tmp_path, lr=LrSchedule(peak=0.01, warmup=4, decay_end=0, anchor=STEP))
    net, optimizer = training()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done))
    alone = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1), scheduler.lr_lambdas)
    start = decisions(tmp_path, step=STEP)
    start.apply(optimizer, scheduler)
    samples: list[Sample] = []
    hook = attach(
        model=net, optimizer=optimizer, decisions=start, step=STEP, state_dir=tmp_path, on_sample=samples.append
    )
    for _ in range(3):
        update(net, optimizer, hook)
        scheduler.step()
        alone.optimizer.step()
        alone.step()
    hook.close("finished")
    assert [s.lr for s in samples] == pytest.approx([0.0025, 0.005, 0.0075])
    assert [s.global_step for s in samples] == [5, 6, 7]
    assert scheduler.get_last_lr() == alone.get_last_lr()


def test_a_one_shot_change_is_made_once_and_its_order_stays(tmp_path: Path) -> None:
    decide(tmp_path, once={"seed": 11, "skip_samples": 2})
    consumed = STEP * BATCH
    net, optimizer = training()
    start = decisions(tmp_path, step=STEP)
    drawn = list(start.sampler(sampler(), consumed_samples=consumed))
    start.apply(optimizer)
    hook = attach(model=net, optimizer=optimizer, decisions=start, step=STEP, state_dir=tmp_path)
    update(net, optimizer, hook)
    checkpoint: dict[str, Any] = {}
    start.once_done(checkpoint)
    hook.close("walltime")
    old = list(sampler())
    assert drawn[:consumed] == old[:consumed]
    assert set(old[consumed : consumed + 2]).isdisjoint(drawn[consumed : SAMPLES - 2])
    assert drawn[consumed : SAMPLES - 2] != old[consumed + 2 :]
    lines = (tmp_path / "attempts" / "0001.jsonl").read_text().splitlines()
    (told,) = (r for line in lines if isinstance(r := decode(line), RunStarted))
    assert (told.rollback, told.applied_once, told.seed, told.skipped_samples) == ("r1", ("r1",), 11, 2)
    assert (told.resumed_from, told.first_sample_index) == (STEP, consumed + 2)
    again = decisions(tmp_path, step=STEP, client_state=checkpoint)
    assert list(again.sampler(sampler(), consumed_samples=consumed)) == drawn
    again.check()  # nothing is left to be applied
    assert again.made.attempt == 1
    assert len(again.made.reseeds) == 2


def test_ranks_draw_their_own_parts_of_one_decided_order(tmp_path: Path) -> None:
    decide(tmp_path, once={"seed": 11})
    alone = list(decisions(tmp_path, step=STEP).sampler(sampler(), consumed_samples=8))
    parts = [list(decisions(tmp_path, step=STEP).sampler(sampler(r, 2), consumed_samples=8)) for r in range(2)]
    assert [number for pair in zip(*parts, strict=True) for number in pair] == alone
    assert sorted(alone) == list(range(SAMPLES))


def test_an_order_that_follows_from_no_seed_is_refused(tmp_path: Path) -> None:
    decide(tmp_path, once={"seed": 3})
    with pytest.raises(ConfigError, match="a RandomSampler's order does not follow from a seed"):
        decisions(tmp_path, step=STEP).sampler(RandomSampler(range(4)))


def test_batches_are_cut_to_the_length_of_their_step(tmp_path: Path) -> None:
    decide(tmp_path, seqlen=FixedLinear(start=8, full=16, total_steps=8))
    net, optimizer = training()
    start = decisions(tmp_path, step=STEP, full_seqlen=16)
    hook = attach(model=net, optimizer=optimizer, decisions=start, step=STEP, state_dir=tmp_path)
    lengths = []
    for _ in range(5):
        batch = start.truncate({"tokens": torch.ones(2, 17), "mask": torch.ones(2, 16)})
        lengths.append((batch["tokens"].shape[1], batch["mask"].shape[1]))
        update(net, optimizer, hook)
    hook.close("finished")
    schedule = FixedLinear(start=8, full=16, total_steps=8)
    assert lengths == [(schedule.seqlen(n) + 1, schedule.seqlen(n)) for n in range(STEP + 1, STEP + 6)]


def nanogpt(done: int) -> float:
    if done < 10:
        return 1e-3 * (done + 1) / 11
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * min(1, (done - 10) / 90))) * 9e-4


@pytest.mark.parametrize(
    "own",
    [nanogpt, lambda done: 1e-3 * min(1, done / 10), lambda done: 1e-3 * min(1.0, (done + 1) / 11)],
    ids=["nanoGPT", "constant with warmup", "constant, from the first step on"],
)
def test_a_loops_lr_is_a_formula(own: Any) -> None:
    found = formula_of(lambda step: own(step - 1), 1e-3, 10, 100)
    assert found is not None
    assert [found.lr(step=n) for n in range(1, 100)] == pytest.approx([own(n - 1) for n in range(1, 100)])


def test_an_lr_that_is_none_is_said_to_be_unknown(tmp_path: Path) -> None:
    _, optimizer = training()
    start = decisions(tmp_path)
    start.apply(optimizer, lambda done: 1 / (1 + done) ** 0.5, total_steps=100)
    assert start.facts()["lr_schedule"] is None
    assert "LambdaLR" in start.facts()["lr_schedule_unknown"]
