"""Whether `sentinel bisect` names the cause of a divergence that was injected. On real, tiny trainings.

Twelve causes, seven of them under Hugging Face's Trainer too. A run of the reference trainer (four layers of width 64,
no LayerNorm in the blocks but where it is restarted with other settings, no gradient clipping, 32 tokens, a batch of
16), or of a Llama of that shape without a norm in its layers, saves every 10 steps and is trained for 40 steps past its
cause. Three causes were written down before the probes were proven by their own journals: a restart with a weight decay
of 20, and two trainers that ignore what a probe asks of the LR. Then the bisect runs as a person would run it, each
probe a process of its own, forked from this one to save the time of imports. What has ended is kept below --folder, and
a second call goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.causes.forked import HUGGING_FACE, REFERENCE, Forked, begin, running, warm
from benchmarks.causes.trainer import LOST
from sentinel.act.neighbours import Launcher
from sentinel.act.starts import Starts
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.state_files import OverridesFile
from sentinel.cli.bisect import bisect_of
from sentinel.config import Config, load_config
from sentinel.config.run_files import clock
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.judge.events import Event
from sentinel.judge.history import Attempt, History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.lab.bisect import causes
from sentinel.lab.bisect.proof.proving import shown_by
from sentinel.lab.probes.at_work import ProbeJob
from sentinel.lab.probes.probe import Probe
from sentinel.plan.incident.baseline import baseline_of
from sentinel.plan.incident.events import OnsetReadings, opened
from sentinel.plan.starts.audit import audited
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import LrSchedule

ROOT = Path(__file__).resolve().parents[1]
PATIENCE, MORE = 15, 40  # steps that a run is trained past its cause
LATER, BATCHES = (0, 7, 14), (1, 2, 4)  # tried until the run diverges: the cause so many steps later, more bad batches
SMALL = (
    *("--preset", "tiny", "--seqlen", "32", "--global-batch", "16", "--clip", "0", "--lr", "3e-3"),
    *("--lr-warmup", "10", "--lr-decay", "400", "--save-interval", "10"),
)
WARM = {  # trainer -> words of a throwaway start
    REFERENCE: ("none", "0", *SMALL, "--steps", "2"),
    HUGGING_FACE: ("none", "0", "--seed", "0", "--steps", "2"),
}
DATA = frozenset({causes.SAMPLES})
EXPECTED: dict[str, frozenset[str]] = {  # cause -> what names it
    "bad batch": DATA,
    "shuffled labels": DATA,
    "nan sample": DATA,
    "LR jump": frozenset({causes.RATE}),
    "short warmup": frozenset({causes.SHORT_WARMUP}),
    "bit flip in the weights": frozenset({causes.WEIGHTS}),
    "bit flip in Adam's v": frozenset({causes.ADAM}),
    "wrong gradients": frozenset({causes.GRADIENTS, causes.BROKEN_NODE}),
    "weight decay": frozenset({"weight decay"}),
    LOST: frozenset({causes.BAD_START}),
    "LR jump, peak ignored": frozenset({causes.RATE}),
    "short warmup, warmup ignored": frozenset({causes.RATE}),
}
NOT_IN_FORCE = {"LR jump, peak ignored": "lower-lr", "short warmup, warmup ignored": "longer-warmup"}
ON_A_MACHINE = ("bit flip in the weights", "bit flip in Adam's v", "wrong gradients")
IN_DATA_OR_SETTINGS = tuple(cause for cause in EXPECTED if cause not in ON_A_MACHINE)
HF = ("bad batch", "shuffled labels", "nan sample", "LR jump", "bit flip in the weights", "weight decay", LOST)
OTHER_SETTINGS = ("short warmup", "short warmup, warmup ignored", "weight decay")  # restarted so by a person
RESTARTED = (*OTHER_SETTINGS, LOST)
WEIGHT_DECAYS = (20.0, 60.0, 120.0)
RESTART, PEAKS = 40, (0.08, 0.12, 0.2, 0.3)  # a restart at this step, to a higher peak LR, without a warmup
DECIDES = ("sentinel/lab/bisect/*.py", "sentinel/lab/probes/probe.py", "sentinel/lab/probes/at_work.py")
JUDGES = ("sentinel/judge/**/*.py", "benchmarks/causes/*.py")


@dataclass(frozen=True, kw_only=True)
class Case:
    cause: str
    seed: int
    trainer: str = REFERENCE

    @property
    def label(self) -> str:
        return self.cause if self.trainer == REFERENCE else f"HF: {self.cause}"

    @property
    def name(self) -> str:
        return f"{re.sub(r'[^A-Za-z]+', '-', self.label.replace(chr(39), ''))}-{self.seed}"

    @property
    def injected(self) -> str:
        """Two of the five broken ranks are wrong in every process of that node."""
        return "broken node" if self.cause == "wrong gradients" and self.seed >= 3 else self.cause

    @property
    def ranks(self) -> int:
        return 2 if self.cause == "wrong gradients" else 1

    def command(self, folder: Path, later: int = 0, batches: int = 1, *, steps: int | None = None) -> list[str]:
        run = ["-m", "torch.distributed.run", f"--nproc_per_node={self.ranks}", "--master-port=0"]
        started = [sys.executable, *(run if self.ranks > 1 else []), "-m", self.trainer]
        at = RESTART if self.cause in RESTARTED else 45 + 3 * self.seed + later
        shape = (*SMALL, *(() if self.cause in OTHER_SETTINGS else ("--no-block-layernorm",)))
        options = [*(shape if self.trainer == REFERENCE else ()), "--seed", str(self.seed)]
        places = ["--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]
        ends = ["--steps", str(steps or at + MORE)]
        step = f"{at}x{batches}" if batches > 1 else str(at)
        return [*started, self.injected, step, *options, *ends, *places]


def main() -> int:
    """Exit code 0 where at least 9 of 10 causes come first and no data fault is blamed on a machine, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bisect"), help="of the trainings")  # noqa: S108
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(EXPECTED), help="these causes alone")
    parser.add_argument("--quick", action="store_true", help="one seed: a check of the program, no result")
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no further case after these")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    seeds = range(1 if asked.quick else asked.seeds)
    cases = [Case(cause=cause, seed=seed) for seed in seeds for cause in asked.only]
    cases += [
        Case(cause=cause, seed=seed, trainer=HUGGING_FACE) for seed in seeds for cause in asked.only if cause in HF
    ]
    if asked.minutes:
        asked.folder.mkdir(parents=True, exist_ok=True)
        for trainer, words in WARM.items():
            with TemporaryDirectory(dir=asked.folder) as scratch:
                warm(Path(scratch), [trainer, *words])
    rows = list(_rows(cases, asked.folder, end))
    shown = table(rows)
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json({"rows": rows}) if asked.as_json else shown)
    rows = [row for row in rows if row["probes"]]
    named, blamed = sum(row["named"] for row in rows), sum(row["blamed"] for row in rows)
    return int(not asked.quick and (10 * named < 9 * len(rows) or blamed > 0))


def _rows(cases: list[Case], root: Path, end: float) -> Iterator[dict[str, Any]]:
    code = code_digest()
    for case in cases:
        folder = root / case.name
        done = folder / "row.json"
        row = json.loads(done.read_text()) if done.exists() else {}
        if row and row["code"] != code and _judged_the_same(folder):
            done.write_text(json.dumps(row := row | {"code": code, "label": case.label}))
        if row.get("code") != code:
            if time.monotonic() > end:
                continue
            row = one(case, folder) | {"code": code}
            done.write_text(json.dumps(row))
            print(f"{case.name}: {row['ranked'][:1] or row['reason']}", file=sys.stderr, flush=True)
        yield row


def code_digest() -> str:
    """Of what decides and judges: a row of other code is no result, and its bisect is run again."""
    files = sorted(path for pattern in (*DECIDES, *JUDGES) for path in ROOT.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _judged_the_same(folder: Path) -> bool:
    """Whether the present code opens the same incident, finds the same in what its probes have recorded, and asks for
    none more: then its result is the present code's too."""
    if not (folder / "run.toml").exists() or (found := _alarm(folder)) is None:
        return False
    made, alarm = bisect_of(load_config(folder / "run.toml"), None), found[1]
    window, results = made.question.window, made.probes.results
    if (window.onset_step, window.until_step) != (alarm.onset_range[0], alarm.verdict_step):
        return False
    for life in made.probes.record.lives:
        if life.result is None:
            return False
        history = History()
        for record in Journals(made.folder / life.name).poll():
            history.push(record)
        ended = life.result.ended if life.result.ended in ("failed", "stopped") else None
        if shown_by(life.probe, history.latest, made.question, ended).outcome != life.result.outcome:
            return False
    return not causes.next_probes(made.question, results, narrow=True)


def one(case: Case, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case.name, "cause": case.cause, "label": case.label, "ranked": [], "probes": []}
    row |= {"named": False, "blamed": False, "exact": None, "windows": 0.0, "unchanged": None, "reason": ""}
    trained = folder / "trained.json"
    if not trained.exists():
        trained.write_text(json.dumps(_diverge(case, folder)))
    for old in (folder / "state" / "bisect", folder / "state" / "incidents.jsonl"):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    if (why := put_on_record(folder)) is not None:
        return row | {"reason": why}
    config = load_config(_configuration(folder, case.command(folder, **json.loads(trained.read_text()))))
    audit_on_record(config)
    before, began = digests(folder), time.monotonic()
    made = bisect_of(config, None)
    job_of = made.probes.job_of

    def forked(probe: Probe, place: Path) -> ProbeJob:
        job = job_of(probe, place)
        job.launcher = cast("Launcher", Forked(job.launcher))
        return job

    made.probes.job_of = forked
    report = made.run(poll_interval_s=0.25)
    probes, first = report["probes"], (report["ranked"] or [{"cause": ""}])[0]["cause"]
    window = made.question.window.until_step - report["from"]["global_step"]
    return row | {
        "ranked": [(s["cause"], s["sure"]) for s in report["ranked"]],
        "named": first in EXPECTED[case.cause],
        "blamed": case.cause in IN_DATA_OR_SETTINGS and first.startswith("hardware"),
        "exact": probes[0]["differs_at"] is None and probes[0]["compared"] > 0,
        "probes": [(p["name"], p["outcome"], p["steps"]) for p in probes],
        "windows": max(p["steps"] for p in probes) / window,
        "unchanged": digests(folder) == before,
        "reason": report["reason"],
        "seconds": round(time.monotonic() - began, 1),
    }


def _diverge(case: Case, folder: Path) -> dict[str, int]:
    """Trains the run until its cause makes it diverge, and returns how that was done; of a short warmup with the first
    peak LR at which it does."""
    if case.cause not in RESTARTED:
        for later in LATER:
            for batches in BATCHES if case.cause == "bad batch" else (1,):
                _begun_anew(folder)
                _train(case.command(folder, later, batches), folder)
                if _alarm(folder) is not None:
                    return {"later": later, "batches": batches}
        return {}
    _begun_anew(folder)
    _train(case.command(folder, steps=RESTART), folder)
    whole = folder.with_name(f"{folder.name}.before")
    shutil.rmtree(whole, ignore_errors=True)
    folder.rename(whole)
    for settings in _settings(case):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        if settings is not None:
            OverridesFile(folder / "state" / "overrides.json").write(_restart(settings))
        _train(case.command(folder), folder)
        if _alarm(folder) is not None:
            break
    return {}


def _begun_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _train(command: list[str], folder: Path) -> None:
    pids = begin(command, folder / "run.log", {"SENTINEL_STATE_DIR": str(folder / "state")})
    while running(pids):
        time.sleep(0.1)


def _settings(case: Case) -> Iterator[TrainingSettings | None]:
    """Of the restart, until one makes the run diverge; None for the run's own."""
    if case.cause == LOST:
        yield None
    elif case.cause == "weight decay":
        yield from (TrainingSettings(weight_decay=decay) for decay in WEIGHT_DECAYS)
    else:
        for peak in PEAKS:
            schedule = LrSchedule(peak=peak, warmup=1, anchor=RESTART, decay_start=10, decay_end=400)
            yield TrainingSettings(lr=schedule)


def _restart(settings: TrainingSettings) -> Overrides:
    anchor = Anchor(global_step=RESTART)
    return Overrides(incident="a-person", rollback="stage-2", anchor=anchor, standing=settings)


def _alarm(folder: Path) -> tuple[Attempt, Event] | None:
    """The newest attempt, and how the judge calls it diverged; None where it does not."""
    history, series = History(), Series(Thresholds(patience_steps=PATIENCE))
    for record in Journals(folder / "state").poll():
        history.push(record)
    for sample in history.lineage(history.latest) if history.latest is not None else ():
        series.push(sample)
        if series.alarm is not None and history.latest is not None:
            return history.latest, series.alarm
    return None


def put_on_record(folder: Path) -> str | None:
    """Puts the divergence on record, as a watch does; why it can't, where there is none."""
    if (found := _alarm(folder)) is None:
        return "the training did not diverge"
    attempt, alarm = found
    at = next(s for s in attempt.samples if s.global_step == alarm.onset_range[1])
    onset = OnsetReadings(onset_samples=at.consumed_samples, batch_samples=at.global_batch_samples)
    overrides = OverridesFile(folder / "state" / "overrides.json").read()
    known = {"onset_range": alarm.onset_range, "alarm_step": alarm.verdict_step}
    verdict = Verdict(kind=VerdictKind.DIVERGED, reason=alarm.reason, **known)
    baseline = baseline_of(attempt.started)
    event = opened(1, attempt.number, baseline, overrides, reason=alarm.reason, verdict=verdict, onset=onset)
    IncidentLog(folder / "state" / "incidents.jsonl").append(replace(event, time_unix_s=time.time()))
    return None


def audit_on_record(config: Config) -> None:
    """Puts the audit of the newest start on record, as a watch does."""
    found = Starts().audit(observer_of(config, neighbours_of(config)).look(clock()))
    if found is not None and found.settled:
        IncidentLog(config.run.state_dir / "incidents.jsonl").append(replace(audited(found), time_unix_s=time.time()))


def _configuration(folder: Path, command: list[str]) -> Path:
    path = folder / "run.toml"
    options = ["--save={checkpoints}", "--state-dir={state}", "--save-interval=0", "--steps={until_step}"]
    path.write_text(
        f'[run]\nname = "{folder.name}"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n\n'
        f"[launcher]\ncommand = {json.dumps(command)}\n"
        f"working_directory = {json.dumps(str(ROOT))}\n\n"
        f"[judge]\npatience_steps = {PATIENCE}\n\n"
        f'[bisect]\noptions = {json.dumps(options)}\nother_node_environment = ["NODE=other"]\n'
    )
    return path


def digests(folder: Path) -> dict[str, str]:
    """Of every file of the run, less the bisect's own."""
    files = (p for p in folder.rglob("*") if p.is_file() and "bisect" not in p.relative_to(folder).parts)
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def table(found: list[dict[str, Any]]) -> str:
    rows, calm = [row for row in found if row["probes"]], [row["case"] for row in found if not row["probes"]]
    lines = [f"{'cause':32}{'n':>4}{'first':>8}{'sure':>6}{'exact':>7}{'probes':>8}{'windows':>9}{'as it was':>11}"]
    for cause in [*dict.fromkeys(row["label"] for row in rows), "all"]:
        some = [row for row in rows if cause in (row["label"], "all")]
        sure = sum(row["named"] and row["ranked"][0][1] == "sure" for row in some)
        most, windows = max(len(row["probes"]) for row in some), max(row["windows"] for row in some)
        sums = [sum(bool(row[key]) for row in some) for key in ("named", "exact", "unchanged")]
        lines.append(f"{cause:32}{len(some):4}{sums[0]:8}{sure:6}{sums[1]:7}{most:8}{windows:9.2f}{sums[2]:11}")
    faults = [row for row in rows if row["cause"] in IN_DATA_OR_SETTINGS]
    exact = sum(bool(row["exact"]) for row in faults)
    ignoring = [row for row in rows if row["cause"] in NOT_IN_FORCE]
    ignored = [said for row in ignoring for name, said, _ in row["probes"] if name == NOT_IN_FORCE[row["cause"]]]
    lines += [
        "",
        f"faults of data and settings blamed on a machine: {sum(r['blamed'] for r in faults)} of {len(faults)}",
        f"controls of these that are the run bit for bit: {exact} of {len(faults)}",
        f"probes whose change the trainer ignored: {ignored.count('not tried')} of {len(ignored)} not tried",
        "probes, windows: the most of one case; a window is from the checkpoint to the alarm",
    ]
    for row in rows:
        if not row["named"]:
            lines.append(f"  not first: {row['case']}: {row['ranked']} {row['reason']} {row['probes']}")
    lines += [f"  did not diverge, and has no bisect: {', '.join(calm)}"] if calm else []
    head = f"`python {' '.join(sys.argv)}`, torch {version('torch')}, DeepSpeed {version('deepspeed')}, on a CPU"
    return "\n".join([head, "", *lines])


if __name__ == "__main__":
    sys.exit(main())
