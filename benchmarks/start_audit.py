"""Whether the audit of a start names what is wrong with it, and is silent where nothing is. On real, tiny trainings.

Each base run saves at steps 20 and 40 and is cut off 8 to 18 steps after its last save. A copy of it is resumed for 19
steps: with one of 35 designs of a fault by the reference trainer, 7 of them by Hugging Face's Trainer as well, or with
none (all shardings that train on a CPU, schedules, decided changes, other micro-batches, other dropout masks). The
audit sees the journals and the checkpoints' folder alone. Second column of each: the same, where the run had ended at
its save, so that no step was made before. What has been trained is kept below --folder, and a second call goes on from
there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.starts.cases import Job, clean, faulty, hugging_face
from sentinel.act.observation import Observation
from sentinel.act.starts import Starts
from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.journal import Journals
from sentinel.adapters.state_files import OverridesFile
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.facts import Facts, readings_of
from sentinel.plan.observation import FoldersSeen
from sentinel.plan.starts.audit import Continued, StartAudit, Trail
from sentinel.plan.starts.checks import audit
from sentinel.vocabulary.numbers import dump_json

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 60  # trainings of one process


def main() -> int:
    """Exit code 0 where at least 9 of 10 faults are named and no clean start is alarmed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/start_audit"), help="of the trainings")  # noqa: S108
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed: a check of the program, no result")
    parser.add_argument("--minutes", type=float, default=60.0, help="train no more after these")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    asked = parser.parse_args()
    seeds = 1 if asked.quick else asked.seeds
    groups = {
        "faults, the reference trainer": list(faulty(seeds)),
        "faults, Hugging Face's Trainer": [pair for pair in hugging_face(seeds) if pair[1].fault],
        "clean": [*clean(seeds), *(pair for pair in hugging_face(seeds) if not pair[1].fault)],
    }
    end, done = time.monotonic() + 60 * asked.minutes, Done(asked.folder)
    faults = [*groups["faults, the reference trainer"], *groups["faults, Hugging Face's Trainer"]]
    for some in (faults, groups["clean"]):
        done.train(dict.fromkeys(base for base, _ in some), end)
        done.train((job for _, job in some), end)
    found = {name: list(rows(pairs, done)) for name, pairs in groups.items()}
    cost = costs()
    shown = table(found, cost)
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json({"rows": found, "cost": cost}) if asked.as_json else shown)
    of_faults = found["faults, the reference trainer"]
    missed = sum(not row["named"] for row in of_faults)
    alarms = [row for row in found["clean"] if row["fault"] is not None]
    return int(not asked.quick and (10 * missed > len(of_faults) or bool(alarms)))


class Done:
    """The trainings that have ended, and how."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path = folder, folder / "ended.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.ended: dict[str, str] = {r["case"]: r["ended"] for r in map(json.loads, lines)}

    def train(self, jobs: Iterable[Job], end: float) -> None:
        by_ranks: dict[int, list[Job]] = defaultdict(list)
        for job in jobs:
            if job.case not in self.ended and (job.begun is None or self.well(job.begun)):
                by_ranks[job.ranks].append(job)
        for ranks, waiting in by_ranks.items():
            while waiting and time.monotonic() < end:
                self._some(waiting[:AT_ONCE], ranks)
                del waiting[:AT_ONCE]

    def well(self, case: str) -> bool:
        return self.ended.get(case, "").startswith(("finished", "stopped"))

    def _some(self, jobs: list[Job], ranks: int) -> None:
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps([job.prepared(self.folder) for job in jobs]))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        ran = subprocess.run(
            [*command, "-m", "benchmarks.starts.worker", str(plan)],
            cwd=ROOT,
            env=dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu"),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in ran.stdout.splitlines() if line.startswith('{"case"')]
        for line in map(json.loads, lines):
            self.ended[line["case"]] = line["ended"]
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if not lines:
            raise SystemExit(f"no training ended:\n{ran.stderr[-3000:]}")


def rows(pairs: list[tuple[Job, Job]], done: Done) -> Iterator[dict[str, object]]:
    for _, job in pairs:
        if not done.well(job.case):
            continue
        look = look_of(done.folder / job.case)
        found, alone = Starts().audit(look), audit_alone(look)
        if found is None:
            continue
        yield {
            "case": job.case,
            "kind": job.kind,
            "injected": job.fault,
            "verdict": str(found.verdict),
            "fault": found.fault,
            "reason": found.reason,
            "named": found.fault == job.fault,
            "at_its_save_reason": None if alone is None else alone.reason,
            "at_its_save": None if alone is None else alone.fault,
            "at_its_save_verdict": None if alone is None else str(alone.verdict),
        }


def look_of(folder: Path) -> Observation:
    history = History()
    for record in Journals(folder / "state").poll():
        history.push(record)
    there = Checkpoints(folder / "checkpoints")
    folders = FoldersSeen(
        checkpoints=there.list(),
        latest_tag=there.latest(),
        overrides=OverridesFile(folder / "state" / "overrides.json").read(),
    )
    series, verdict = Series(Thresholds()), Verdict(kind=VerdictKind.FINISHED, reason="")
    facts = Facts(now_unix_s=0.0, folders=folders, verdict=verdict, readings=readings_of(history, series))
    return Observation(history=history, series=series, facts=facts)


def audit_alone(look: Observation) -> StartAudit | None:
    """The same, had the run ended at the save that was resumed from."""
    attempt = look.history.latest
    start = Starts().start_of(look, attempt) if attempt is not None else None
    if start is None or start.ancestor is None:
        return audit(start) if start is not None else None
    parent, at = look.history.parent(attempt) if attempt is not None else (None, 0)
    line = look.history.lineage(parent) if parent is not None else ()
    trail = Trail(s for s in line if s.global_step <= at)
    trail.foresee(at, parent.foreseen(at) if parent is not None else ())
    return audit(replace(start, ancestor=replace(start.ancestor, later=(), trail=trail)))


def costs() -> dict[str, float]:
    """The digest of a batch of 16 samples of 129 tokens, and the smallest preset's passes over it, on one core; s."""
    import torch

    from trainer_hooks.gpt.model import GPT, PRESETS
    from trainer_hooks.sample.batch_digest import batch_digest

    torch.set_num_threads(1)
    tokens, model = torch.randint(256, (16, 129)), GPT(PRESETS["tiny"], 256)
    micro = torch.randint(50304, (8, 2049))

    def took(of: Callable[[], object], times: int) -> float:
        each = []
        for _ in range(times):
            began = time.perf_counter()
            of()
            each.append(time.perf_counter() - began)
        return median(each)

    return {
        "digest_s": took(lambda: batch_digest(tokens), 500),
        "step_s": took(lambda: model(tokens).backward(), 30),
        "digest_8x2049_s": took(lambda: batch_digest(micro), 500),
    }


def table(found: dict[str, list[dict[str, object]]], cost: dict[str, float]) -> str:
    lines = []
    for name, each in found.items():
        lines += ["", name, f"{'':34}{'n':>5}{'named':>8}{'at its save':>14}"]
        kinds: dict[str, list[dict[str, object]]] = defaultdict(list)
        for row in each:
            kinds[str(row["kind"])].append(row)
        for kind, some in [*kinds.items(), ("all", each)]:
            named = sum(bool(row["named"]) for row in some)
            alone = sum(row["at_its_save"] == row["injected"] for row in some)
            lines.append(f"{kind[:33]:34}{len(some):5}{named:8}{alone:14}")
        unknown = sum(row["verdict"] == str(Continued.UNKNOWN) for row in each)
        lines.append(f"verdict unknown: {unknown}")
        lines += [f"  not as injected: {r['case']}: {r['reason']}" for r in each if not r["named"]]
    share = cost["digest_s"] / cost["step_s"]
    took, passes, long = 1e6 * cost["digest_s"], 1e3 * cost["step_s"], 1e6 * cost["digest_8x2049_s"]
    lines += ["", f"digest of 16 x 129 tokens: {took:.0f} us of one core; of 8 x 2049: {long:.0f} us (medians)"]
    lines += [f"the tiny preset's passes over the first: {passes:.1f} ms; {share:.3%} of it is the digest"]
    head = f"`python {' '.join(sys.argv)}`, torch {version('torch')}, DeepSpeed {version('deepspeed')}, on a CPU"
    return "\n".join([head, "For clean starts, named means: no alarm.", *lines])


if __name__ == "__main__":
    sys.exit(main())
