"""Rewinds in one process against as many job restarts, from the same checkpoints with the same overrides.

    python benchmarks/in_place.py [--quick] [--json] [--rewinds N] [--zero 0,1,2,3] [--ranks 1,2] [--precision fp32] \\
        [--preset tiny] [--long N] [--memory]
    python benchmarks/in_place.py --cost [--ranks 1,2] [--memory]

The reference trainer (real DeepSpeed, dropout on, so that the generators count) trains to step 40 once and saves at 20
and 40. Then, for each rewind: PARK, `parked` in the journal, `latest` and overrides.json by hand, RESUME; and beside it
a job of its own from the same `latest` and overrides.json. The changes of overrides.json are taken in turn from
CHANGES, so that each rewind also takes the one before it back; one job for each change is enough.

- `equal`: rewinds after which, 20 steps later, the digest of parameters, masters, Adam's state, loss scale and
  generators is that of the job, on every rank.
- `in place s`: from RESUME to the end of the first new step, by the journal; `park s`: from PARK to `parked`. `job s`:
  from the start of the job to the end of its first step. Median and largest. There is no queue here, and no other node.
- `--long N`: N more rewinds in the same process: resident memory and open files after 10 and after all of them.
- `--memory`: the rewinds go back to a state in memory, of step 60, and the jobs beside them start from a checkpoint of
  that step which another job has saved; `latest` names global_step40 for the rewinds. Not from scratch.
- `--cost`: what a boundary costs the training thread of a trainer that can park and of one that can't, by turns, in one
  process; the difference over the time of a step of the tiny model. With `--memory`: what a state in memory costs, with
  its digest, over the time of 50 steps, by the clock and by CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule, RandomLtdSchedule
from sentinel.vocabulary.parking import ParkRequest, ResumeRequest, encode_request, memory_tag
from sentinel.vocabulary.sample import Parked, Sample, decode

Row = dict[str, Any]
TRAINER = Path(__file__).with_name("in_place_trainer.py")
STEPS = 20
PATIENCE_S = 300.0
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
LR = LrSchedule(peak=5e-4, warmup=10, decay_end=10**5, anchor=20)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one rewind does: to which step, with what."""

    name: str
    to: int  # 0 is from scratch
    standing: TrainingSettings = field(default_factory=TrainingSettings)
    once: dict[str, Any] = field(default_factory=dict)

    def overrides(self, rollback: str) -> str:
        once = Once(id=rollback, **self.once) if self.once else None
        incident, _, _ = rollback.rpartition("-")
        anchor = Anchor(global_step=self.to)
        overrides = Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=self.standing, once=once)
        return encode_overrides(overrides)


CHANGES = (
    Change(name="nothing", to=20),
    Change(name="a new data order", to=40, once={"seed": 7, "skip_samples": 8}),
    Change(name="lower LR, longer warmup", to=20, standing=TrainingSettings(lr=LR)),
    Change(name="moments reset", to=40, once={"reset_moments": True}),
    Change(
        name="Adam's settings",
        to=20,
        standing=TrainingSettings(adam_beta2=0.95, adam_eps=1e-6, weight_decay=0.1, clip_grad=0.3),
    ),
    Change(name="qk-clip", to=40, standing=TrainingSettings(qk_clip=0.05, lr_factor_of={"attention.qk": 0.25})),
    Change(
        name="SLW",
        to=20,
        standing=TrainingSettings(seqlen=FixedLinear(start=8, full=32, total_steps=15, anchor_step=20)),
    ),
    Change(
        name="random-LTD",
        to=40,
        standing=TrainingSettings(random_ltd=RandomLtdSchedule(start=16, full=32, total_steps=90)),
    ),
    Change(name="another micro-batch", to=20, standing=TrainingSettings(free=Free(options=("--micro-batch=1",)))),
    Change(name="from scratch", to=0, standing=TrainingSettings(adam_beta2=0.95)),
)


FROM_MEMORY = 60  # With --memory: every change goes back to this step
KEPT, EVERY = 20, 20  # so that the state of that step is there after all the steps that a rewind takes


def changes_of(*, memory: bool) -> tuple[Change, ...]:
    """What the rewinds do, in turn."""
    if not memory:
        return CHANGES
    slw = FixedLinear(start=8, full=32, total_steps=15, anchor_step=FROM_MEMORY)
    seqlen = {"SLW": {"standing": TrainingSettings(seqlen=slw)}}
    return tuple(replace(c, to=FROM_MEMORY, **seqlen.get(c.name, {})) for c in CHANGES if c.to)


def main(arguments: list[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    if asked.cost:
        for ranks in _numbers(asked.ranks):
            print(json.dumps(cost_of(ranks, 10 if asked.quick else 100, memory=asked.memory)))
        return
    rewinds = 10 if asked.quick else asked.rewinds
    rows = []
    for ranks, zero in product(_numbers(asked.ranks), _numbers(asked.zero)):
        with tempfile.TemporaryDirectory() as folder:
            of_all = {"precision": asked.precision, "preset": asked.preset, "memory": asked.memory}
            job = Job(folder=Path(folder), ranks=ranks, zero=zero, **of_all)
            rows.append(row_of(job, rewinds, 0 if asked.quick else asked.long))
            if not asked.json:
                _print(rows[-1], first=len(rows) == 1)
    if asked.json:
        costs = [cost_of(ranks, 10 if asked.quick else 100, memory=False) for ranks in _numbers(asked.ranks)]
        print(json.dumps(document(rows, costs)))


def document(rows: list[Row], costs: list[Row]) -> Row:
    """What scripts rely on; the rows beside it. Targets in memory and kills are not measured here."""
    return {
        "rewinds": sum(row["rewinds"] for row in rows),
        "equal": sum(row["equal"] for row in rows),
        "in_place_s": median(row["in_place_s"] for row in rows),
        "job_restart_s": median(row["job_s"] for row in rows),
        "park_share_of_step": max(cost["park_share_of_step"] for cost in costs),
        "rows": rows,
    }


def row_of(job: Job, rewinds: int, long: int) -> Row:
    job.begin()
    known = changes_of(memory=job.memory)
    changes = list(islice(cycle(known), rewinds))
    with job.in_place() as trainer:
        made = [trainer.rewind(change) for change in changes]
        more = [trainer.rewind(change) for change in islice(cycle(known), long)]
    jobs = {change.name: job.restarted(change) for change in known[:rewinds]}
    jobs_s = [one.first_step_s for one in jobs.values()]
    unequal = [c.name for c, one in zip(changes, made, strict=True) if one.digests != jobs[c.name].digests]
    row: Row = {"ranks": job.ranks, "zero": job.zero, "precision": job.precision, "rewinds": rewinds}
    row |= {"equal": rewinds - len(unequal), "unequal": sorted(set(unequal)), "jobs": len(jobs)}
    row |= {
        "in_place_s": median(one.first_step_s for one in made),
        "in_place_most_s": max(o.first_step_s for o in made),
    }
    row |= {"park_s": median(one.park_s for one in made), "job_s": median(jobs_s), "job_most_s": max(jobs_s)}
    if more:
        early, late = more[min(9, len(more) - 1)], more[-1]
        row |= {"long": long, "rss_mb": [early.rss_mb, late.rss_mb], "files": [early.files, late.files]}
        row |= {"rss_mb_of_all": [one.rss_mb for one in (*made, *more)], "objects": [early.objects, late.objects]}
    return row


def cost_of(ranks: int, turns: int, *, memory: bool) -> Row:
    """Of a boundary, and as a share of a step of the tiny model; or of a state in memory, and of 50 steps."""
    if memory:
        arguments = ("--memory", str(turns), "--seqlen", "32", "--global-batch", "4", "--zero", "1")
        command = [*_launcher(ranks), str(TRAINER.with_name("in_place_cost.py")), *arguments]
        ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True, timeout=PATIENCE_S)
        of_memory: Row = json.loads(ran.stdout.splitlines()[-1])
        return of_memory
    command = [*_launcher(ranks), str(TRAINER.with_name("in_place_cost.py")), str(turns)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True, timeout=PATIENCE_S)
    found: Row = json.loads(ran.stdout)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder=Path(folder), ranks=ranks, zero=0, precision="fp32", preset="tiny")
        job.begin()
        steps = [r.step_time_s for r in records(job.folder / "state", 1) if isinstance(r, Sample) and r.step_time_s]
    found["step_ms"] = 1e3 * median(steps)
    found["park_share_of_step"] = found["more_us"] / 1e3 / found["step_ms"]
    return found


@dataclass(frozen=True, kw_only=True)
class Made:
    """What came of one rewind, or one job."""

    digests: tuple[str, ...]  # Of each rank
    first_step_s: float
    park_s: float = 0.0
    rss_mb: float = 0.0  # Of rank 0
    files: int = 0
    objects: int = 0


@dataclass(kw_only=True)
class Job:
    """The run, in a folder of its own."""

    folder: Path
    ranks: int
    zero: int
    precision: str
    preset: str
    memory: bool = False  # Whether rewinds go back to a state in memory

    def begin(self) -> None:
        """Trains to step 40 and saves at 20 and 40; to where a state will be kept in memory as well."""
        last = FROM_MEMORY if self.memory else 40
        self._run(self.folder, "--save-interval", "20", "--steps", str(last), steps=10**9)
        if self.memory:
            self.point(40)

    @contextmanager
    def in_place(self) -> Iterator[RunningTrainer]:
        """A trainer under way, from step 40."""
        log = self.folder / "log"
        kept = ("--memory-targets", str(KEPT), "--memory-every", str(EVERY)) if self.memory else ()
        command = self._command(self.folder, *kept, steps=STEPS)
        with log.open("wb") as told:
            process = subprocess.Popen(command, env=ENVIRONMENT, stdout=told, stderr=told)
        trainer = RunningTrainer(job=self, process=process, log=log)
        try:
            trainer.await_attempt()
            yield trainer
            (self.folder / "state" / "KILL").touch()
            process.wait(PATIENCE_S)
        finally:
            process.terminate()
            process.wait()

    def restarted(self, change: Change) -> Made:
        """A job of its own, from the same checkpoints."""
        with tempfile.TemporaryDirectory() as copied:
            folder = Path(copied)
            (folder / "checkpoints").symlink_to(self.folder / "checkpoints")
            (folder / "state").mkdir()
            self.prepare(change, "incident-1-r1", folder, on_disk=change.to)
            began = time.time()
            self._run(folder, steps=STEPS, once=True)
            told = told_in(folder, self.ranks)
            first = next(r for r in records(folder / "state", told[0]["attempt"]) if isinstance(r, Sample))
            return Made(digests=tuple(one["digest"] for one in told), first_step_s=first.time_unix_s - began)

    def point(self, step: int) -> None:
        """Makes `latest` name the checkpoint of that step; 0: none."""
        checkpoints = self.folder / "checkpoints"
        for name, text in (("latest", f"global_step{step}"), ("latest_checkpointed_iteration.txt", str(step))):
            if step:
                put(checkpoints / name, text)
            else:
                (checkpoints / name).unlink(missing_ok=True)

    def prepare(self, change: Change, rollback: str, folder: Path, *, on_disk: int) -> None:
        """By hand what a rollback does, less the moves. `on_disk`: the step of the checkpoint for `latest`."""
        self.point(on_disk)
        put(folder / "state" / "overrides.json", change.overrides(rollback))

    def _run(self, folder: Path, *more: str, steps: int, once: bool = False) -> None:
        command = self._command(folder, *more, steps=steps, once=once)
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            _, told = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:  # a launcher that is killed leaves its ranks behind
                os.killpg(process.pid, signal.SIGABRT)
        if process.returncode:
            raise SystemExit(told.decode()[-3000:])

    def _command(self, folder: Path, *more: str, steps: int, once: bool = False) -> list[str]:
        (folder / "digests").mkdir(exist_ok=True)
        own = [str(folder / "digests"), str(steps), *(["--once"] if once else []), "--"]
        trainer = ["--preset", self.preset, "--seqlen", "32", "--global-batch", "4", "--lr", "1e-3", "--lr-warmup", "5"]
        trainer += ["--lr-decay", "100000", "--dropout", "0.1", "--zero", str(self.zero), "--precision", self.precision]
        trainer += ["--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]
        trainer += ["--tensorboard", str(folder / "tensorboard")]
        end = () if "--steps" in more else ("--steps", "1000000")
        return [*_launcher(self.ranks), str(TRAINER), *own, *trainer, *end, *more]


@dataclass(kw_only=True)
class RunningTrainer:
    """A trainer that is asked to park and to resume, as a daemon asks it."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    attempt: int = 0
    rewinds: int = 0

    def await_attempt(self) -> list[Row]:
        """What the ranks tell of the next attempt."""

        def told() -> list[Row] | None:
            found = told_in(self.job.folder, self.job.ranks)
            return found if found and found[0]["attempt"] > self.attempt else None

        found = self._until(told)
        self.attempt = found[0]["attempt"]
        return found

    def rewind(self, change: Change) -> Made:
        state, before = self.job.folder / "state", self.attempt
        self.rewinds += 1
        rollback = f"incident-1-r{self.rewinds}"
        asked = time.time()
        park = ParkRequest(rollback=rollback, attempt=before, deadline_unix_s=asked + PATIENCE_S)
        put(state / "PARK", encode_request(park))
        parked = self._until(lambda: next((r for r in records(state, before)[-1:] if isinstance(r, Parked)), None))
        memory = self.job.memory
        self.job.prepare(change, rollback, self.job.folder, on_disk=40 if memory else change.to)
        (state / "PARK").unlink()
        tag = memory_tag(change.to) if memory else f"global_step{change.to}" if change.to else None
        began = time.time()
        put(
            state / "RESUME",
            encode_request(ResumeRequest(rollback=rollback, attempt=before, target=tag, global_step=change.to)),
        )
        told = self.await_attempt()
        (state / "RESUME").unlink()
        first = next(r for r in records(state, self.attempt) if isinstance(r, Sample))
        if told[0]["rollback"] != rollback or (told[0]["from"] or 0) != change.to:
            raise SystemExit(f"{told[0]} is not {rollback} from {change.to}")
        return Made(
            digests=tuple(one["digest"] for one in told),
            first_step_s=first.time_unix_s - began,
            park_s=parked.time_unix_s - asked,
            rss_mb=told[0]["rss_mb"],
            files=told[0]["files"],
            objects=told[0]["objects"],
        )

    def _until(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while (one := found()) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the trainer has ended, or hangs: {self.log.read_text()[-3000:]}")
            time.sleep(0.02)
        return one


def _launcher(ranks: int) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [sys.executable, *(torchrun if ranks > 1 else ())]


def put(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def records(state: Path, attempt: int) -> list[Any]:
    text = (state / "attempts" / f"{attempt:04d}.jsonl").read_text()
    return [decode(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def told_in(folder: Path, ranks: int) -> list[Row]:
    """The last line of each rank, once all of them tell of the same attempt."""
    paths = [folder / "digests" / f"{rank}.jsonl" for rank in range(ranks)]
    lines = [path.read_text().splitlines(keepends=True) if path.exists() else [] for path in paths]
    if not all(lines) or len({len(of_rank) for of_rank in lines}) > 1 or not all(of[-1].endswith("\n") for of in lines):
        return []
    return [json.loads(of_rank[-1]) for of_rank in lines]


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _print(row: Row, *, first: bool) -> None:
    if first:
        print("ranks  zero  equal      in place s      park s  job s           rss MB, files after 10 and after all")
    times = f"{row['in_place_s']:.2f} ({row['in_place_most_s']:.2f})", f"{row['job_s']:.2f} ({row['job_most_s']:.2f})"
    equal = f"{row['equal']} of {row['rewinds']}"
    long = f"{row['rss_mb']}, {row['files']}" if "rss_mb" in row else ""
    print(
        f"{row['ranks']:5}  {row['zero']:4}  {equal:9}  {times[0]:14}  {row['park_s']:6.2f}  {times[1]:14}  {long}"
        + (f"  unequal: {', '.join(row['unequal'])}" if row["unequal"] else ""),
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rewinds", type=int, default=10)
    parser.add_argument("--zero", default="0,1,2,3")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--cost", action="store_true")
    return parser


if __name__ == "__main__":
    main()
