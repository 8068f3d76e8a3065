"""How long it takes to plan a rollback over many checkpoints and to carry its moves out.

Makes N checkpoints of M files (hard links to a few small archives, so that there are many names and few inodes), then
times what a rollback does to them: list and choose the target (`plan_s`), move the later half into the quarantine
(`act_s`). Beside it: verifying that one target, and two straightforward ways in the same folder: a recursive walk of
every checkpoint with the size of each file, and shutil.move of the same half.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from sentinel.adapters.checkpoints import Checkpoints
from sentinel.plan.choose.mitigation import Baseline, Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import RunState
from sentinel.plan.restart.decision import choose_target

STEPS_BETWEEN = 100
LINKS_PER_INODE = 30_000  # ext4 takes 65,000
WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}


def make(folder: Path, checkpoints: int, files: int) -> None:
    """Whole by name and by content: one model file, the rest optimizer shards."""
    source, made = folder / ".source", 0
    source.mkdir()
    shard = source
    for number in range(1, checkpoints + 1):
        tag = folder / f"global_step{number * STEPS_BETWEEN}"
        tag.mkdir()
        for rank in range(files):
            if made % LINKS_PER_INODE == 0:
                shard = _archive(source / f"{made}.pt")
            made += 1
            os.link(
                shard,
                tag / (f"zero_pp_rank_{rank - 1}_mp_rank_00_optim_states.pt" if rank else "mp_rank_00_model_states.pt"),
            )
    (folder / "latest").write_text(f"global_step{checkpoints * STEPS_BETWEEN}")


def _archive(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(64))
    return path


def plan(folder: Path, onset: int) -> tuple[str, list[str]]:
    """The target and what lies after it, from a fresh look."""
    listed = Checkpoints(folder).list()
    incident = Incident(
        id="incident-1",
        opened_unix_s=0.0,
        attempt=1,
        onset_range=(onset, onset),
        alarm_step=onset,
        onset_tokens=None,
        best_mean=None,
        reason="",
        led_by=(),
        baseline=Baseline(),
    )
    rung = Rung(name="reseed", hypothesis="the data", reseed=True)
    target = choose_target(incident, rung, RunState(now_unix_s=0.0, checkpoints=listed), Policy())
    if target.tag is None:
        raise SystemExit(target.reason)
    return target.tag, [c.tag for c in listed if c.global_step > target.global_step]


def walk_everything(folder: Path) -> int:
    """What the straightforward look does: every file of every checkpoint."""
    return sum(
        path.lstat().st_size for tag in sorted(folder.glob("global_step*")) for path in tag.rglob("*") if path.is_file()
    )


def timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def measure(folder: Path, checkpoints: int, files: int) -> dict[str, float | int]:
    make(folder, checkpoints, files)
    onset = (checkpoints // 2) * STEPS_BETWEEN + Policy().margin_steps
    target, later = plan(folder, onset)  # also warms the cache for everybody
    plan_s = timed(lambda: plan(folder, onset))
    verify_s = timed(lambda: Checkpoints(folder).verify(target))
    act_s = timed(lambda: Checkpoints(folder).quarantine(later, **WHERE))
    Checkpoints(folder).restore(**WHERE)
    aside = folder / "aside"
    aside.mkdir()
    move_s = timed(lambda: [shutil.move(folder / tag, aside / tag) for tag in later])
    for tag in later:
        (aside / tag).rename(folder / tag)
    return {
        "checkpoints": checkpoints,
        "files": checkpoints * files,
        "moved": len(later),
        "plan_s": round(plan_s, 4),
        "act_s": round(act_s, 4),
        "verify_target_s": round(verify_s, 4),
        "baseline_walk_s": round(timed(lambda: walk_everything(folder)), 4),
        "baseline_move_s": round(move_s, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 checkpoints of 100 files")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, the table on stderr")
    parser.add_argument("--checkpoints", type=int, default=1000)
    parser.add_argument("--files", type=int, default=400, help="of each checkpoint; 4000 takes minutes to make")
    parser.add_argument("--folder", type=Path, help="where to make them; default is the system's temporary folder")
    asked = parser.parse_args()
    checkpoints, files = (100, 100) if asked.quick else (asked.checkpoints, asked.files)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        row = measure(Path(name), checkpoints, files)
    table = sys.stderr if asked.json else sys.stdout
    print(f"{checkpoints} checkpoints of {files} files, {row['moved']} of them moved", file=table)
    print(f"{'list and choose the target':36}{row['plan_s']:>9.3f} s", file=table)
    print(f"{'  a recursive walk of everything':36}{row['baseline_walk_s']:>9.3f} s", file=table)
    print(f"{'move into the quarantine':36}{row['act_s']:>9.3f} s", file=table)
    print(f"{'  shutil.move':36}{row['baseline_move_s']:>9.3f} s", file=table)
    print(f"{'verify the target':36}{row['verify_target_s']:>9.3f} s", file=table)
    if asked.json:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
