"""Rungs that race against the ladder one by one, and against trying every rung to the end, on runs that really diverge.

Each incident is trained once: the demo's recipe at a short length up to the judge's alarm, then each of three rungs
from its own target to --end. The trainer is bit-exact, so a probe of a race is the beginning of that training: its
journal is cut at the race's last step and shown to the race's own code. The ladder one by one is read from the same
journals: the steps up to which each rung is held until the judge calls it diverged or the recovery check settles it.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DS_ACCELERATOR", "cpu")

from sentinel.act.past import Past
from sentinel.act.probes import ProbeJob
from sentinel.act.racing import Racing
from sentinel.adapters.journal import Journals
from sentinel.config import Config, load_config
from sentinel.daemon.wiring import assemble, neighbours_of, observer_of
from sentinel.demo.configuration import Recipe, trainer_command, write_configuration
from sentinel.judge.recovery_check import Answer
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident import Adoption, Incident, Race
from sentinel.plan.look import Look
from sentinel.plan.observation import JobsSeen, Standing, WriterSeen
from sentinel.plan.race import race_of, winner
from sentinel.plan.turn import next_turn
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import encode_overrides
from sentinel.vocabulary.sample import Record, Sample, Validation

SMALL = ("--seqlen=32", "--global-batch=8")
RECIPE = Recipe(lr=3e-2, lr_warmup=60, steps=1000)
RACE_STEPS = 100
EVERY = 5
"""Steps between two looks at a rung that is held."""

_RUNG = '[[policy.ladder]]\nname = "LR / {n}"\nhypothesis = "the learning rate is too high"\n'
_RUNG += 'target = "before_risky_window"\nreseed = true\nlr_factor = {factor}\n\n'
LEARNING_RATES = "".join(_RUNG.format(n=n, factor=1 / n) for n in (2, 4, 8))


def main() -> int:
    asked = _arguments()
    began = time.monotonic()
    if asked.quick:
        asked.incidents, asked.end = 1, 60
    if not asked.recorded:
        _record(asked, began)
    rows = [
        row
        for folder in sorted(asked.runs.iterdir(), key=_seed)
        if (folder / "trained").exists() and (row := evaluate(folder, asked.end)) is not None
    ]
    shown = f"{_header()}\n\n{_table(rows)}"
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json({"rows": rows}) if asked.as_json else shown)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one incident, cut short: a check of the program")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--incidents", type=int, default=20, help="seeds from 0; odd ones have another ladder")
    parser.add_argument("--first", type=int, default=0, help="the first seed; with --every, a part for one process")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--end", type=int, default=220, help="the step that every rung is tried up to")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no incident after these")
    parser.add_argument("--runs", type=Path, default=Path("race-runs"), help="keep the trainings there")
    parser.add_argument("--recorded", action="store_true", help="train nothing: evaluate what is there")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    return parser.parse_args()


def _seed(folder: Path) -> int:
    return int(folder.name.removeprefix("seed").partition("-")[0])


# recording


def _configured(folder: Path, seed: int) -> Config:
    path = write_configuration(folder, seed, RECIPE)
    text, mark = path.read_text(encoding="utf-8"), "[[policy.ladder]]"
    rungs = text.split(mark)[1:4] if seed % 2 == 0 else LEARNING_RATES.split(mark)[1:]
    raced = text.split(mark)[0] + f"race = 3\nrace_steps = {RACE_STEPS}\n\n" + "".join(mark + rung for rung in rungs)
    path.write_text(raced, encoding="utf-8")
    return load_config(path)


def _record(asked: argparse.Namespace, began: float) -> None:
    import torch.distributed as dist

    from trainer_hooks.gpt.__main__ import be_a_launcher

    be_a_launcher()
    dist.init_process_group("gloo")
    for seed in range(asked.first, asked.incidents, asked.every):
        if time.monotonic() - began > 60 * asked.minutes:
            break
        folder = (asked.runs / f"seed{seed}").resolve()
        if not (folder / "done").exists():
            _incident(folder, seed, asked.end)
            (folder / "done").touch()


def _incident(folder: Path, seed: int, end: int) -> None:
    from benchmarks.demo_divergence import Judged
    from trainer_hooks.gpt.arguments import parse

    options = [*SMALL, f"--lr-decay={RECIPE.steps}"]
    if not (folder / "trained").exists():
        shutil.rmtree(folder, ignore_errors=True)  # cut short
        folder.mkdir(parents=True)
        _configured(folder, seed)
        Judged(parse([*trainer_command(folder, seed, RECIPE)[3:], *options, "--steps=300"]), 100).train()
        (folder / "trained").touch()
    if (found := _raced(load_config(folder / "demo.toml"))) is None:
        print(f"seed {seed}: no race", file=sys.stderr)
        return
    for entrant in found[1].entrants:
        own = folder / entrant.id
        if (own / "trained").exists():
            continue
        shutil.rmtree(own, ignore_errors=True)
        (own / "state" / "attempts").mkdir(parents=True)
        (own / "checkpoints").mkdir()
        (own / "state" / "attempts" / "0001.jsonl").hardlink_to(folder / "state" / "attempts" / "0001.jsonl")
        if entrant.target_tag is not None:
            (own / "checkpoints" / entrant.target_tag).symlink_to(folder / "checkpoints" / entrant.target_tag)
            (own / "checkpoints" / "latest").write_text(entrant.target_tag)
        (own / "state" / "overrides.json").write_text(encode_overrides(entrant.overrides))
        words = [*trainer_command(own, seed, RECIPE)[3:], *options, f"--steps={end}", "--save-interval=0"]
        trainer = _until(end)(parse(words), 100)
        reason = trainer.train()
        if trainer.verdict is None and (trainer.last is None or trainer.last.global_step < end):
            raise SystemExit(f"seed {seed}: {entrant.id} was stopped before step {end}: {reason}")
        (own / "trained").touch()


def _until(end: int) -> Any:
    """A trainer that stops there, also where a rung has the run end by tokens, and where it is known to diverge."""
    from benchmarks.demo_divergence import Judged

    class Until(Judged):
        def _on_sample(self, sample: Sample) -> None:
            super()._on_sample(sample)
            self.stop_asked = self.stop_asked or sample.global_step >= end

    return Until


def _raced(config: Config) -> tuple[Incident, Race] | None:
    """The incident that the watch opens on the run as it stands, and its race."""
    parts, past = assemble(config, config.policy, say=lambda _: None), Past()
    observer = observer_of(config, replace(parts.near, launcher=Alive(runs=False)))  # type: ignore[arg-type]
    for _ in range(2):
        look = past.read(observer.look(time.time()), config.policy, lambda _: None)
        if (incident := look.run.open_incident) is not None:
            whole = tuple(replace(c, verified=True) for c in look.run.checkpoints)
            gone = {"attempts": (), "signs": ()}  # its trainer was this process, which lives
            seen = replace(look.run, no_races=None, checkpoints=whole, **gone)
            race = race_of(incident, seen, config.policy)
            return (incident, race) if isinstance(race, Race) else None
        turn = next_turn(replace(look, start=None), config.policy)
        parts.ledger.record_all(r for r in turn.records if r["event"] == "opened")
    return None


# evaluating


@dataclass
class Told:
    """A source that gives a probe's journal up to a step, and the run's before it."""

    records: list[Record]
    until: int = 0
    given: int = field(default=0, init=False)
    unreadable: int = 0

    def poll(self) -> list[Record]:
        new = []
        while self.given < len(self.records):
            record = self.records[self.given]
            if isinstance(record, Sample) and record.attempt > 1 and record.global_step > self.until:
                break
            new.append(record)
            self.given += 1
        return new


class Alive:
    """The launcher of a job that runs."""

    def __init__(self, *, runs: bool = True) -> None:
        self.runs = runs

    def look(self, _: Any) -> JobsSeen:
        return JobsSeen(writers=(WriterSeen(id="process 1"),) if self.runs else ())


def evaluate(folder: Path, end: int) -> dict[str, Any] | None:
    config = load_config(folder / "demo.toml")
    if (found := _raced(config)) is None or not all((folder / e.id / "trained").exists() for e in found[1].entrants):
        return None
    incident, race = found
    alarm = incident.alarm_step or race.until_step
    held = {e.id: _held(config, incident, e, folder / e.id, end) for e in race.entrants}
    standings = [_standing(config, incident, race, e, folder / e.id) for e in race.entrants]
    won, reason, _ = winner(race, standings, incident)
    ends = {name: one["final"] for name, one in held.items() if one["answer"] == "recovered"}
    best = min(ends, key=lambda name: ends[name], default=None)
    by_ladder, spent = None, 0
    for entrant in race.entrants:
        one = held[entrant.id]
        spent += one["step"] - entrant.target_step
        if one["answer"] == "recovered":
            by_ladder = spent
            break
    raced, in_turn = None, None
    if won is not None and held[won.probe]["answer"] == "recovered":
        longest = max(race.until_step - e.target_step for e in race.entrants)
        after = max(0, held[won.probe]["step"] - race.until_step)
        raced, in_turn = longest + after, sum(race.until_step - e.target_step for e in race.entrants) + after
    last = {name: one["last"] for name, one in held.items()}
    return {
        "incident": folder.name,
        "alarm_step": alarm,
        "until_step": race.until_step,
        "winner": _rung(race, won.probe if won else None),
        "winner_of_all": _rung(race, best),
        "same": (won.probe if won else None) == best,
        "within": None if won is None or best is None else ends.get(won.probe, float("nan")) / ends[best] - 1,
        "ladder_steps": by_ladder,
        "race_steps": raced,
        "race_steps_in_turn": in_turn,
        "relapsed": None if won is None else held[won.probe]["relapsed"],
        "followed_to": None if won is None else last[won.probe],
        "reason": reason,
        "rungs": {race.entrant(name).rung: {k: v for k, v in one.items() if k != "last"} for name, one in held.items()},
    }


def _rung(race: Race, probe: str | None) -> str:
    return "none" if probe is None else race.entrant(probe).rung


def _records(own: Path) -> list[Record]:
    return sorted(Journals(own / "state").poll(), key=lambda r: r.attempt)  # stable: each journal in its order


def _looks(config: Config, own: Path, until: int, *, runs: bool = True) -> Iterator[tuple[int, Look]]:
    """As a watch looks while the rung is held."""
    records = _records(own)
    near = neighbours_of(replace(config, run=replace(config.run, state_dir=own / "state", tensorboard=None)))
    source = Told(records)
    near = replace(near, source=source, launcher=Alive(runs=runs))  # type: ignore[arg-type]
    observer = observer_of(config, near)
    steps = [r.global_step for r in records if isinstance(r, Sample) and r.attempt > 1 and r.global_step <= until]
    now = max(r.time_unix_s for r in records if isinstance(r, Sample))
    for step in [*steps[::EVERY], *steps[-1:]]:
        source.until = step
        yield step, observer.look(now)


def _held(config: Config, incident: Incident, entrant: Any, own: Path, end: int) -> dict[str, Any]:
    """When a rung that is tried by itself is settled, and how; what it comes to at the end; whether it relapses."""
    past, settled, relapsed, step = Past(), None, None, entrant.target_step
    for step, look in _looks(config, own, end):
        attempt = look.history.latest
        if attempt is None or attempt.number < 2:
            continue
        diverged = look.series.alarm is not None or look.verdict.kind is VerdictKind.DIVERGED
        if settled is None and diverged:
            settled = (step, "diverged")
        elif settled is None:
            answer = past.recovery(incident, entrant, attempt, look, hold_steps=config.policy.hold_steps).answer
            if answer is not Answer.NOT_YET:
                settled = (step, str(answer))
        elif diverged and settled[1] == "recovered" and relapsed is None:
            relapsed = step
    if step < end and settled is not None and settled[1] == "recovered" and relapsed is None:
        relapsed = step  # its trainer was stopped as diverged, by a judge that knows nothing from before the restart
    validations = [
        r.loss for r in _records(own) if isinstance(r, Validation) and r.attempt > 1 and r.global_step <= end
    ]
    at, how = settled or (step, "not settled")
    final = fmean(validations[-2:]) if validations else float("nan")
    return {"step": at, "answer": how, "final": final, "relapsed": relapsed, "last": step}


def _standing(config: Config, incident: Incident, race: Race, entrant: Any, own: Path) -> Standing:
    """What the race's own code sees of the probe at the race's last step."""
    journal = Told(_records(own), race.until_step)
    near = neighbours_of(config)
    with tempfile.TemporaryDirectory() as place:
        job = ProbeJob(Path(place), Alive(runs=False), journal)  # type: ignore[arg-type]
        racing = Racing(near=near, jobs=lambda: lambda _, __: job, thresholds=config.judge)
        entry = racing._entry(incident, replace(race, started=frozenset({entrant.id})), entrant)
        entry.folder, entry.job = Path(place), job
        standing = racing._standing(entry, time.time())
    return replace(standing, saved=Adoption(probe=entrant.id, tag="-", global_step=race.until_step))


# showing


def _header() -> str:
    versions = f"Python {platform.python_version()}, {os.cpu_count()} CPUs"
    command = shlex.join(["python", "benchmarks/race.py", *sys.argv[1:]])
    recipe = f"the demo's recipe with {' '.join(SMALL)}, LR {RECIPE.lr:g}; race = 3, race_steps = {RACE_STEPS}"
    return f"{date.today().isoformat()}, {versions}\n{command}\n\n{recipe}"


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'incident':10}{'alarm':>6}{'race to':>8}  {'winner':27}{'of all to the end':27}{'ladder':>7}"]
    lines[0] += f"{'race':>6}{'relapse':>9}"
    for row in rows:
        steps = "".join(
            f"{'-' if row[k] is None else row[k]:>{w}}" for k, w in (("ladder_steps", 7), ("race_steps", 6))
        )
        relapse = "none" if row["relapsed"] is None else f"at {row['relapsed']}"
        lines.append(
            f"{row['incident']:10}{row['alarm_step']:>6}{row['until_step']:>8}  {row['winner']:27}"
            f"{row['winner_of_all']:27}{steps}{relapse:>9}"
        )
    both = [row for row in rows if row["ladder_steps"] and row["race_steps"]]
    ladder, race = sum(r["ladder_steps"] for r in both), sum(r["race_steps"] for r in both)
    in_turn = sum(r["race_steps_in_turn"] for r in both)
    named = [row for row in rows if row["winner"] != "none"]
    relapsed = sum(row["relapsed"] is not None for row in named)
    same = sum(row["same"] for row in rows)
    near = sum(bool(row["same"] or (row["within"] is not None and row["within"] <= 0.01)) for row in rows)
    calm = [row["followed_to"] - row["until_step"] for row in named if row["relapsed"] is None]
    followed = f" (the others followed for {min(calm)} steps and more)" if calm else ""
    lines += [
        "",
        f"n = {len(rows)} incidents",
        f"the winner is that of trying all to the end: {same} of {len(rows)}; that, or at most 1 % above it: {near}",
        f"steps from the job's stop to recovery, where both recover ({len(both)}): ladder {ladder}, race side by side "
        f"{race}" + (f" ({race / ladder:.0%})" if ladder else ""),
        f"the same with the probes one after the other: {in_turn}" + (f" ({in_turn / ladder:.0%})" if ladder else ""),
        f"winners that diverge again: {relapsed} of {len(named)}{followed}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # see trainer_hooks.gpt.__main__.leave
