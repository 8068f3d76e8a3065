"""What can be done to a run: to its data for a while, or to its weights and moments at one step."""
# ruff: noqa: ARG001 - all acts take the same arguments

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from recorded.corpora import VOCABULARY, Tokens
from recorded.recipe import Act

if TYPE_CHECKING:
    from recorded.train import Run

__all__ = ["DATA_ACTS", "WEIGHT_ACTS", "flip_bit"]

Batch = tuple[Tokens, Tokens]


def garbage(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """A share of the samples is random tokens."""
    bad = rng.random(len(tokens)) < act.p.get("share", 1.0)
    noise = rng.integers(0, VOCABULARY, (len(tokens), tokens.shape[1] + 1))
    return np.where(bad[:, None], noise[:, :-1], tokens), np.where(bad[:, None], noise[:, 1:], targets)


def typos(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """A share of the single tokens is wrong, in input and target alike."""
    both = np.concatenate([tokens, targets[:, -1:]], axis=1)
    both = np.where(rng.random(both.shape) < act.p["share"], rng.integers(0, VOCABULARY, both.shape), both)
    return both[:, :-1], both[:, 1:]


def repeated(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """Each sample is one token over and over."""
    token = rng.integers(0, VOCABULARY, (len(tokens), 1))
    return np.broadcast_to(token, tokens.shape), np.broadcast_to(token, targets.shape)


def labels(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """The targets of a share of the samples are shuffled."""
    bad = rng.random(len(tokens)) < act.p.get("share", 1.0)
    return tokens, np.where(bad[:, None], rng.permuted(targets, axis=1), targets)


def vocabulary(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """Another tokenizer's numbers: every token goes by another name, always the same one."""
    names = np.random.default_rng(act.p.get("seed", 0)).permutation(VOCABULARY)
    return names[tokens], names[targets]


def shifted(act: Act, tokens: Tokens, targets: Tokens, rng: np.random.Generator) -> Batch:
    """Targets are off by one: the token after the next."""
    return tokens, np.concatenate([targets[:, 1:], targets[:, :1]], axis=1)


def flip_bit(value: float, bit: int) -> float:
    """An fp32 number with one of its 32 bits turned over; 30 is the exponent's highest."""
    whole = np.float32(value).view(np.uint32) ^ np.uint32(1 << bit)
    return float(whole.view(np.float32))


def bit_flip(act: Act, run: Run) -> None:
    """One bit of some weights of one parameter."""
    where = run.model.slice_of(act.p["of"])
    rng = np.random.default_rng((run.recipe.seed, act.start))
    for index in rng.integers(where.start, where.stop, act.p.get("count", 1)):
        run.model.flat[index] = flip_bit(float(run.model.flat[index]), act.p["bit"])


def scale_weights(act: Act, run: Run) -> None:
    """A parameter times a factor; 0 zeroes it."""
    run.model.flat[run.model.slice_of(act.p["of"])] *= act.p["by"]


def noise_weights(act: Act, run: Run) -> None:
    """Gaussian noise of so many standard deviations of the parameter."""
    part = run.model.flat[run.model.slice_of(act.p.get("of", ""))]
    generator = torch.Generator().manual_seed(run.recipe.seed * 1000 + act.start)
    part += act.p["by"] * part.std() * torch.randn(part.shape, generator=generator)


def swap_weights(act: Act, run: Run) -> None:
    """Two parts of the same size change places: shards loaded in the wrong order."""
    one, other = run.model.slice_of(act.p["of"]), run.model.slice_of(act.p["with"])
    kept = run.model.flat[one].clone()
    run.model.flat[one] = run.model.flat[other]
    run.model.flat[other] = kept


def nan_weight(act: Act, run: Run) -> None:
    """One weight is nan."""
    run.model.flat[run.model.slice_of(act.p["of"]).start] = float("nan")


def scale_v(act: Act, run: Run) -> None:
    """Adam's second moment times a factor; 0 zeroes it without telling the step count."""
    run.v *= act.p["by"]


def scale_m(act: Act, run: Run) -> None:
    """Adam's first moment times a factor."""
    run.m *= act.p["by"]


def scaler(act: Act, run: Run) -> None:
    """The loss scale is set."""
    run.loss_scale = act.p["to"]


DATA_ACTS: dict[str, Callable[[Act, Tokens, Tokens, np.random.Generator], Batch]] = {
    f.__name__: f for f in (garbage, typos, repeated, labels, vocabulary, shifted)
}
WEIGHT_ACTS: dict[str, Callable[[Act, Run], None]] = {
    f.__name__: f for f in (bit_flip, scale_weights, noise_weights, swap_weights, nan_weight, scale_v, scale_m, scaler)
}
