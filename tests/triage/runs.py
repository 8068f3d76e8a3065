"""Runs to look at: a diverged one with two attempts and an incident, written as its trainer and its daemon write."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import LayerVariance, Record, RunFinished, RunStarted, Sample, encode
from tests.support.there import there

HOSTILE = "</script ></script><script>window.broken=1</script><img src=x onerror='window.broken=1'><!--"


def sample(attempt: int, step: int, loss: float, **more: object) -> Sample:
    noise = random.Random(step * 7 + attempt).gauss(0, 1)
    made = Sample(
        attempt=attempt,
        global_step=step,
        time_unix_s=1_700_000_000.0 + step,
        loss=loss + 0.02 * noise,
        adam_variance_l1=5.0 + 0.01 * step + 0.02 * noise,
        adam_variance_max=0.02 + 0.001 * abs(noise),
        grad_norm=1.0 + 0.1 * noise,
        lr=1e-3,
        seqlen=128,
        global_batch_samples=16,
        consumed_samples=16 * step,
        consumed_tokens=2048 * step,
    )
    return replace(made, **more)


def diverged(folder: Path, reason: str = "the loss left its band at step 205") -> Path:
    """Writes the run; returns its configuration."""
    state = folder / "state"
    (folder / "checkpoints").mkdir(parents=True)
    one: list[Record] = [RunStarted(attempt=1, time_unix_s=1_700_000_000.0, seed=0, first_sample_index=0)]
    for step in range(1, 401):
        ill = max(0.0, min(3.0, (step - 200) * 0.05))
        one.append(sample(1, step, 3 + 2 * math.exp(-step / 10) + ill, adam_variance_max=0.02 + 0.1 * (step > 198)))
        if step % 10 == 0:
            grown = 0.02 * (1 + 9 * (step >= 200))
            one.append(
                LayerVariance(
                    attempt=1, global_step=step, time_unix_s=1_700_000_000.0 + step, layers=("head", "blocks.0"),
                    adam_variance_l1=(1.0, 2.0), adam_variance_max=(0.02, grown),
                )
            )  # fmt: skip
    one[-2] = replace(one[-2], loss=math.nan) if isinstance(one[-2], Sample) else one[-2]
    two: list[Record] = [
        RunStarted(
            attempt=2, time_unix_s=1_700_000_300.0, parent_attempt=1, resumed_from=180, rollback="incident-1-r1",
            incident="incident-1", seed=1,
        )
    ]  # fmt: skip
    two += [sample(2, step, 2.9) for step in range(181, 301)]
    two.append(RunFinished(attempt=2, global_step=300, time_unix_s=1_700_000_700.0, reason="finished"))
    write_attempt(state, 1, one)
    write_attempt(state, 2, two)
    events = [
        {
            "event": "opened", "incident": "incident-1", "time_unix_s": 1_700_000_260.0, "attempt": 1,
            "onset_range": [201, 205], "alarm_step": 300, "onset_tokens": 1, "best_mean": 3.0, "reason": reason,
            "led_by": ["adam_variance_max"], "baseline": {"seed": 0, "lr": None, "seqlen": None},
        },
        {
            "event": "decided", "incident": "incident-1", "rollback": "incident-1-r1", "rung": "reseed",
            "hypothesis": "the order of the data did it", "time_unix_s": 1_700_000_262.0,
            "target": {"tag": "global_step180", "global_step": 180}, "changes": ["seed 0 -> 1"], "lost_steps": 80,
            "overrides": {
                "schema": 1, "incident": "incident-1", "rollback": "incident-1-r1", "anchor": {"global_step": 180},
                "standing": {}, "once": {"id": "incident-1-r1", "seed": 1},
            },
        },
        {"event": "closed", "incident": "incident-1", "time_unix_s": 1_700_000_700.0, "outcome": "recovered",
         "reason": "best 20-step mean is 2.9"},
    ]  # fmt: skip
    (state / "incidents.jsonl").write_text("".join(dump_json(event) + "\n" for event in events))
    return configuration(folder)


def falls_ill_again(folder: Path) -> None:
    """Another incident, late in the run."""
    opens = {"event": "opened", "incident": "incident-2", "time_unix_s": 1_700_000_900.0, "attempt": 2}
    opens |= {"onset_range": [290, 295], "alarm_step": 299, "onset_tokens": 1, "best_mean": 3.0, "led_by": []}
    opens |= {"reason": "again", "baseline": {"seed": 0, "lr": None, "seqlen": None}}
    with (folder / "state" / "incidents.jsonl").open("a") as file:
        file.write(dump_json(opens) + "\n")


def configuration(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(
        '[run]\nname = "tiny"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n\n[watch]\npoll_interval_s = 0.2\n'
    )
    return path


def write_attempt(state: Path, number: int, records: Iterable[Record]) -> None:
    path = state / "attempts" / f"{number:04d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(encode(record) + "\n" for record in records))


def document_in(html: str) -> dict[str, Any]:
    """What a page is told."""
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', html, re.DOTALL)
    return json.loads(there(found)[1])
