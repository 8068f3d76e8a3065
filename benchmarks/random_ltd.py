"""What random-LTD saves and costs, and whether a small GPT learns as well with it.

    python benchmarks/random_ltd.py [--quick] [--json] [--repetitions 5] [--seeds 3] [--steps 150]

Cost: forward and backward of a GPT, by the share of tokens that its middle layers keep.

- `step_ms`: measured; `of_full`: over that of the same model without random-LTD.
- `bound`: what it would be if a layer's time were its tokens' share and nothing else cost anything: the embedding, the
  first and last layer and the head, which see every token, are measured as a model of two layers.
- `draw_ms`, `move_ms`: of one step, in all dropping layers: drawing the subsets; gather and scatter, there and back.

Learning: the same small GPT on Python's own library as text, at the same rates, until the layers have seen as many
tokens on average (`effective_tokens`): without random-LTD, and with a quarter of the tokens kept at first, linearly to
all over 70 % of the steps, and so with more steps; and with it for the same number of steps as without, which is less.
Validation at full length, every layer with every token.

Repetitions are interleaved and told as medians. On a CPU it is one thread and its processor time, so that neighbours do
not count; on CUDA time by the clock, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer_hooks.gpt.data import Corpus, load_corpus
from trainer_hooks.gpt.model import GPT, Block, Shape
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.random_ltd import LayerTokens, RandomLtd
from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.routing import Routing, fastest

COST = Shape(layers=12, width=256, heads=4, seqlen=256)
COST_BATCH, COST_VOCABULARY = 2, 512
ON_CUDA = Shape(layers=12, width=768, heads=12, seqlen=2048)
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)

LEARNING = Shape(layers=6, width=64, heads=4, seqlen=128)
LEARNING_BATCH, PEAK_LR, WARMUP_STEPS = 16, 2e-3, 20
START_SHARE, RAMP_SHARE = 0.25, 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`start` tokens at first, `full` after `total_steps`."""

    start: int
    full: int
    total_steps: int

    def kept_tokens(self, step: int) -> int:
        return self.start + (self.full - self.start) * min(step, self.total_steps) // self.total_steps


# ---- cost


def medians(timed: dict[str, Callable[[], object]], repetitions: int, device: torch.device) -> dict[str, float]:
    """What each takes, ms."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    took: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(repetitions + 1):
        for name, what in timed.items():
            _wait(device)
            began = clock()
            what()
            _wait(device)
            if number:  # the first is not what a step pays
                took[name].append((clock() - began) * 1e3)
    return {name: statistics.median(times) for name, times in took.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def costs(
    shape: Shape,
    repetitions: int,
    device: torch.device,
    *,
    routing: Routing | None = None,
    samples: int = COST_BATCH,
) -> list[dict[str, Any]]:
    """One row for each share of tokens kept; `routing` moves the tokens, None is the fastest on that device."""
    routing = routing or fastest(device)
    torch.manual_seed(0)
    model, ends = GPT(shape, COST_VOCABULARY).to(device), GPT(replace(shape, layers=2), COST_VOCABULARY).to(device)
    batch = torch.randint(COST_VOCABULARY, (samples, shape.seqlen + 1), device=device)

    def step(of: GPT, share: float | None = None) -> None:
        of.zero_grad()
        switched = None
        if share is not None:
            kept = int(shape.seqlen * share)
            switched = RandomLtd(of, Block, Linear(start=kept, full=kept, total_steps=1), seed=0, routing=routing)
            switched.begin(1, 0)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            of(batch).backward()
        if switched is not None:
            switched.remove()

    hidden = torch.randn(samples, shape.seqlen, shape.width, device=device, requires_grad=True)
    timed: dict[str, Callable[[], object]] = {"full": lambda: step(model), "ends": lambda: step(ends)}
    for share in SHARES:
        timed[f"step {share}"] = lambda share=share: step(model, share)  # type: ignore[misc]
        timed[f"draw {share}"] = lambda share=share: draw(hidden, int(shape.seqlen * share))  # type: ignore[misc]
        timed[f"move {share}"] = lambda share=share: move(hidden, int(shape.seqlen * share), routing)  # type: ignore[misc]
    ms = medians(timed, repetitions, device)
    dropping = shape.layers - 2
    return [
        {
            "kept_share": share,
            "step_ms": ms[f"step {share}"],
            "full_ms": ms["full"],
            "of_full": ms[f"step {share}"] / ms["full"],
            "bound": (ms["ends"] + share * (ms["full"] - ms["ends"])) / ms["full"],
            "draw_ms": dropping * ms[f"draw {share}"] if share < 1 else 0.0,
            "move_ms": dropping * ms[f"move {share}"] if share < 1 else 0.0,
        }
        for share in SHARES
    ]


def draw(hidden: Tensor, kept: int) -> Tensor:
    """One layer's subsets."""
    return kept_indices(layer_key(0, 1, 1), 0, hidden.shape[0], hidden.shape[1], kept, hidden.device)


def move(hidden: Tensor, kept: int, routing: Routing) -> None:
    """One layer's tokens in and out, and their gradients back."""
    indices = torch.arange(kept, device=hidden.device).expand(hidden.shape[0], kept)
    bypass, inside = routing.gather(hidden, indices, True)
    torch.autograd.grad(routing.scatter(bypass, inside, indices, True), hidden, torch.ones_like(hidden))


# ---- learning


def learning(steps: int, seed: int, corpus: Corpus) -> list[dict[str, Any]]:
    """Three trainings of one seed."""
    tokens = steps * LEARNING_BATCH * LEARNING.seqlen
    longer = steps
    while _effective(longer) < tokens:
        longer += 1
    return [
        trained("without", steps, None, seed, corpus),
        trained("random-LTD, as many effective tokens", longer, _ramp(longer), seed, corpus),
        trained("random-LTD, as many steps", steps, _ramp(steps), seed, corpus),
    ]


def _ramp(steps: int) -> Linear:
    full = LEARNING.seqlen
    return Linear(start=int(full * START_SHARE), full=full, total_steps=int(steps * RAMP_SHARE))


def _effective(steps: int) -> float:
    counted, ramp = LayerTokens(LEARNING.layers), _ramp(steps)
    dropping = range(1, LEARNING.layers - 1)
    for step in range(1, steps + 1):
        kept = ramp.kept_tokens(step)
        counted.add(samples=LEARNING_BATCH, seqlen=LEARNING.seqlen, kept=kept, dropping=dropping)
    return float(counted.effective_tokens)


def trained(name: str, steps: int, schedule: Linear | None, seed: int, corpus: Corpus) -> dict[str, Any]:
    """One training, and its validation loss at the end."""
    torch.manual_seed(seed)
    model = GPT(LEARNING, corpus.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.01)
    order, counted = DataOrder(corpus.training_samples, seed), LayerTokens(LEARNING.layers)
    ltd = RandomLtd(model, Block, schedule, seed=seed) if schedule is not None else None
    began = time.process_time()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(step / WARMUP_STEPS, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        if ltd is not None:
            ltd.begin(step, 0)
            ltd.count(counted, samples=LEARNING_BATCH, seqlen=LEARNING.seqlen)
        else:
            counted.add(samples=LEARNING_BATCH, seqlen=LEARNING.seqlen)
        samples = order.indices((step - 1) * LEARNING_BATCH, LEARNING_BATCH)
        model(torch.from_numpy(corpus.training(samples))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    took = time.process_time() - began
    return {
        "training": name,
        "seed": seed,
        "steps": steps,
        "tokens": steps * LEARNING_BATCH * LEARNING.seqlen,
        "effective_tokens": round(float(counted.effective_tokens)),
        "validation_loss": validated(model, corpus),
        "cpu_s": took,
    }


@torch.no_grad()
def validated(model: GPT, corpus: Corpus) -> float:
    """Mean over 256 samples, nats."""
    model.eval()
    parts = np.array_split(np.arange(min(256, corpus.validation_samples)), 8)
    return statistics.mean(model(torch.from_numpy(corpus.validation(part))).item() for part in parts)


# ---- told


def show(answer: dict[str, Any]) -> None:
    """The tables."""
    shape = answer["shape"]
    print("{layers} layers, width {width}, {samples} x {seqlen} tokens, forward and backward".format(**shape))
    print(f"{answer['device']}, load {answer['load']:.1f}, torch {answer['torch']}\n")
    print("  kept   step ms  of full   bound   draw ms   move ms  both, % of step")
    for row in answer["rows"]:
        both = 100 * (row["draw_ms"] + row["move_ms"]) / row["step_ms"]
        line = "{kept_share:6.3f} {step_ms:9.1f} {of_full:8.3f} {bound:7.3f} {draw_ms:9.2f} {move_ms:9.2f}"
        print(line.format(**row), f"{both:16.1f}")
    print(f"\n{'training':<38} seed  steps   tokens  effective  validation    cpu s")
    for row in answer["learning"]:
        line = "{training:<38} {seed:4d} {steps:6d} {tokens:8d} {effective_tokens:10d}"
        print(line.format(**row), f"{row['validation_loss']:11.4f} {row['cpu_s']:8.1f}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition, one seed, 20 steps: half a minute")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--repetitions", type=int, help="of each, interleaved")
    parser.add_argument("--seeds", type=int, help="0 leaves the learning out")
    parser.add_argument("--steps", type=int, help="of the training without random-LTD")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the costs")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.set_num_threads(1)
    shape = COST if device.type == "cpu" else ON_CUDA
    seeds = asked.seeds if asked.seeds is not None else (1 if asked.quick else 3)
    steps = asked.steps or (20 if asked.quick else 150)
    rows = costs(shape, asked.repetitions or (1 if asked.quick else 5), device)
    corpus = load_corpus([], seqlen=LEARNING.seqlen, vocabulary=None, validation_share=0.02)
    answer = {
        "rows": rows,
        "learning": [row for seed in range(seeds) for row in learning(steps, seed, corpus)],
        "shape": {"layers": shape.layers, "width": shape.width, "seqlen": shape.seqlen, "samples": COST_BATCH},
        "device": device.type,
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    if asked.json:
        print(json.dumps(answer))
    else:
        show(answer)


if __name__ == "__main__":
    sys.exit(main())
