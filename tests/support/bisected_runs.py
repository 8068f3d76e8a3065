"""A run whose loss becomes nan at one batch: its trainer, and its configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAN_FROM, SAMPLES = 33, 4
# A trainer of a few lines: each step takes 4 samples; the loss is nan from the first of those at NAN_FROM on, unless
# overrides.json leaves it out. It resumes from `latest`, and would save the step that it resumes from once more.
TRAINER = f"""
import json, os, pathlib, sys, time
state, saves = map(pathlib.Path, sys.argv[1:3])
at = int((saves / "latest").read_text().removeprefix("global_step")) if (saves / "latest").exists() else 0
for file in saves.glob(f"global_step{{at}}/**/*.pt"):
    file.write_bytes(file.read_bytes())
overrides = state / "overrides.json"
standing = json.loads(overrides.read_text())["standing"] if overrides.exists() else {{}}
skipped = [(r["begin"], r["end"]) for r in standing.get("skipped") or []]
(state / "attempts").mkdir(parents=True, exist_ok=True)
journal = (state / "attempts" / f"{{len(list((state / 'attempts').glob('*'))) + 1:04d}}.jsonl").open("x")
def tell(kind, **values):
    journal.write(json.dumps({{"kind": kind, "attempt": 1, "time_unix_s": 1.0, **values}}) + "\\n")
    journal.flush()
applies = ["skip_samples", "seed", "reset_moments"]
tell("run_started", world_size=1, seed=0, precision="fp32", resumed_from=at or None, applies=applies)
position, ill = {SAMPLES} * at, False
for step in range(at + 1, 71):
    for _ in range({SAMPLES}):
        while any(begin <= position < end for begin, end in skipped):
            position += 1
        ill = ill or position == {SAMPLES} * ({NAN_FROM} - 1)
        position += 1
    loss = "nan" if ill else 3.0 + 0.01 * (step * 37 % 11)
    counts = {{"consumed_samples": position, "global_batch_samples": {SAMPLES}, "batch_digest": position}}
    tell("sample", global_step=step, loss=loss, **counts)
    time.sleep(float(os.environ.get("PACE", "0.01")))
tell("run_finished", global_step=70, reason="finished")
"""


def configured(folder: Path, command: Sequence[str], **tables: dict[str, Any]) -> Path:
    given: dict[str, dict[str, Any]] = {
        "run": {"name": "ill", "checkpoints": "checkpoints", "state_dir": "state"},
        "launcher": {"command": list(command), "working_directory": str(ROOT)},
        "watch": {"poll_interval_s": 0.1},
        "judge": {"patience_steps": 15},
        **tables,
    }
    text = "\n".join(f"[{n}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in t.items()) for n, t in given.items())
    (folder / "ill.toml").write_text(text)
    return folder / "ill.toml"
