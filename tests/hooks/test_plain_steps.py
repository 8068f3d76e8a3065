"""What counts as a step of a plain loop: an update of the gradients of the losses that the loop has told of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import RunStarted, Sample, decode
from trainer_hooks import attach, decisions


def loss_of(net: nn.Module, times: float = 1.0) -> torch.Tensor:
    return times * net(torch.ones(2, 4)).square().mean()


def journal(folder: Path, kind: type) -> list[Sample]:
    (path,) = (folder / "attempts").glob("*.jsonl")
    return [r for line in path.read_text().splitlines() if isinstance(r := decode(line), kind)]


def test_a_step_that_the_loop_leaves_out_is_a_skipped_step_with_its_own_loss(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    hook = attach(model=net, optimizer=optimizer, state_dir=tmp_path)
    losses = []
    for step in range(1, 7):
        loss = loss_of(net, times=float(step))
        losses.append(loss.item())
        hook.loss(loss)
        loss.backward()
        if step not in (3, 6):
            optimizer.step()
        optimizer.zero_grad()
    hook.close("finished")
    samples = journal(tmp_path, Sample)
    assert [s.global_step for s in samples] == [1, 2, 3, 4, 5]  # of the last no later loss tells
    assert [s.loss for s in samples] == pytest.approx(losses[:5])
    assert [s.skipped for s in samples] == [False, False, True, False, False]
    assert hook.errors == 0


def test_accumulated_micro_batches_are_one_step(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-9)
    hook = attach(model=net, optimizer=optimizer, state_dir=tmp_path)
    for _ in range(3):
        for micro_batch in (1.0, 2.0):
            loss = loss_of(net, micro_batch)
            hook.loss(loss)
            hook.loss(loss)  # once more: it counts once
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    hook.close("finished")
    expected = 1.5 * loss_of(net).item()
    assert [(s.global_step, s.skipped) for s in journal(tmp_path, Sample)] == [(1, False), (2, False), (3, False)]
    assert [s.loss for s in journal(tmp_path, Sample)] == pytest.approx([expected] * 3, rel=1e-6)


def test_the_losses_of_a_closure_come_within_the_step_that_calls_it(tmp_path: Path) -> None:
    """Lightning's steps are made so. The decided LR holds in each of them, and goes back to the loop's after it."""
    lr = LrSchedule(peak=0.5, warmup=10, decay_end=0)
    decided = Overrides(incident="i", rollback="r1", anchor=Anchor(global_step=4), standing=TrainingSettings(lr=lr))
    (tmp_path / "overrides.json").write_text(encode_overrides(decided))
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    start = decisions(tmp_path, step=4)
    start.apply(optimizer, lambda _: 0.1, total_steps=9)
    hook = attach(model=net, optimizer=optimizer, state_dir=tmp_path, step=4, decisions=start)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net)
        hook.loss(loss)
        loss.backward()
        return loss

    losses, moved = [], []
    for form in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        before = net.bias.detach().clone()
        losses.append(form().item())
        moved.append(((before - net.bias) / net.bias.grad).item())
    hook.close("finished")
    samples = journal(tmp_path, Sample)
    expected = [lr.lr(step=step) for step in (5, 6)]
    assert moved == pytest.approx(expected)
    assert [(s.global_step, s.lr) for s in samples] == [(5, expected[0]), (6, expected[1])]
    assert [s.loss for s in samples] == pytest.approx(losses)
    assert hook.errors == 0


def test_a_step_that_torch_makes_while_the_state_is_saved_is_none_of_the_training(tmp_path: Path) -> None:
    """Of an optimizer without state; with a decided LR the weights would move."""
    lr = LrSchedule(peak=0.5, warmup=0, decay_end=0)
    standing = TrainingSettings(lr=lr)
    decided = Overrides(incident="i", rollback="r1", anchor=Anchor(global_step=4), standing=standing)
    (tmp_path / "overrides.json").write_text(encode_overrides(decided))
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    start = decisions(tmp_path, step=4)
    start.apply(optimizer, lambda _: 0.1, total_steps=9)
    hook = attach(model=net, optimizer=optimizer, state_dir=tmp_path, step=4, decisions=start)
    for _ in range(2):
        loss = loss_of(net)
        hook.loss(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        before = [p.detach().clone() for p in net.parameters()]
        get_state_dict(net, optimizer)
        assert all(torch.equal(one, p) for one, p in zip(before, net.parameters(), strict=True))
    hook.close("finished")
    assert [(s.global_step, s.lr) for s in journal(tmp_path, Sample)] == [(5, 0.5), (6, 0.5)]
    assert hook.errors == 0


def test_the_steps_that_were_completed_are_where_it_goes_on_from(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    hook = attach(model=net, optimizer=torch.optim.AdamW(net.parameters()), state_dir=tmp_path, step=250)
    hook.run_started(total_steps=300)
    hook.close("finished")
    (started,) = journal(tmp_path, RunStarted)
    assert started.resumed_from == 250
