"""What making batches shorter costs a step: the bookkeeping, and the cut of one micro-batch.

A GPT-3 sized setting: global batch 512, full length 2048, start 64, 3000 steps of warmup, micro-batch 8 of a dict with
tokens, labels, loss mask, position ids and a shared mask. Beside the cut: the same cut by hand, one slice per tensor.
Medians and the 99th percentile over all steps, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sentinel.vocabulary.pacing import FixedLinear
from trainer_hooks.seqlen_warmup import SHORTENINGS, SeqlenWarmup

BATCH, FULL, START, STEPS, MICRO, RANKS = 512, 2048, 64, 3000, 8, 64


def bookkeeping(shorten: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds per step within the warmup, and after it, where one rank of 64 resolves its packed samples."""
    schedule = FixedLinear(start=START, full=FULL, total_steps=steps)
    warmup = SeqlenWarmup(schedule, shorten, global_batch_samples=BATCH)
    during, after, position, one = [], [], 0, torch.zeros(1, FULL + 1)
    for step in range(1, steps + steps // 2):
        begun = time.perf_counter()
        length = warmup.begin(step)
        fresh = BATCH - warmup.kept_samples
        warmup.took([(position, position + fresh)])
        for number in range(0, warmup.kept_samples, RANKS):
            warmup.segments(number)
        (during if length < FULL else after).append(time.perf_counter() - begun)
        position += fresh
        warmup(one)
    return during, after


def batch() -> dict[str, Tensor]:
    rows = torch.randint(50304, (MICRO, FULL + 1))
    return {
        "tokens": rows[:, :-1].contiguous(),
        "labels": rows[:, 1:].contiguous(),
        "loss_mask": torch.ones(MICRO, FULL),
        "position_ids": torch.arange(FULL).expand(MICRO, FULL).contiguous(),
        "attention_mask": torch.ones(1, 1, FULL, FULL, dtype=torch.bool).tril(),
    }


def by_hand(whole: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    short = {name: leaf[:, :length].contiguous() for name, leaf in whole.items() if leaf.dim() == 2}
    short["attention_mask"] = whole["attention_mask"][:, :, :length, :length].contiguous()
    return short


def timed(call: Callable[[], Any], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return taken


def row(what: str, seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    return {
        "what": what,
        "median_us": round(1e6 * statistics.median(ordered), 1),
        "p99_us": round(1e6 * ordered[len(ordered) * 99 // 100], 1),
    }


def measure(steps: int, times: int) -> list[dict[str, Any]]:
    rows = []
    for shorten in SHORTENINGS:
        during, after = bookkeeping(shorten, steps)
        rows.append(row(f"bookkeeping, {shorten}, in the warmup", during))
        rows.append(row(f"bookkeeping, {shorten}, after it", after))
    whole = batch()
    for length in (64, 1024):
        rows.append(row(f"cut to {length}, by hand", timed(lambda n=length: by_hand(whole, n), times)))  # type: ignore[misc]
        for shorten in ("truncate", "reshape"):
            warmup = SeqlenWarmup(FixedLinear(start=length, full=FULL, total_steps=10**6), shorten)
            warmup.begin(1, samples=BATCH)
            rows.append(row(f"cut to {length}, {shorten}", timed(lambda w=warmup: w(whole), times)))  # type: ignore[misc]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--json", action="store_true", help="one JSON document and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(STEPS // 10 if options.quick else STEPS, 20 if options.quick else 200)
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'':50s} {'median us':>10s} {'p99 us':>10s}")
    for told in rows:
        print(f"{told['what']:50s} {told['median_us']:10.1f} {told['p99_us']:10.1f}")


if __name__ == "__main__":
    sys.exit(main())
