"""A race's winner made the run: whole or not begun wherever it is killed, and undone byte for byte."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.local import LocalJobs
from sentinel.plan.incident import Adoption, Race
from sentinel.plan.incident_events import event, race_begun
from sentinel.vocabulary.overrides import Once
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode
from tests.e2e.kill_points import (
    Point,
    build,
    copy_run,
    incidents,
    inventory,
    live,
    settled,
    strike,
    why_not,
    write_events,
)
from tests.e2e.stepping import UNDO, WATCH, as_a_fork, as_a_process
from tests.tiers import full

PROBE = "incident-1-p2"
ROOM = "checkpoints/.sentinel-quarantine/incident-1"
OWN = f"{ROOM}/race/{PROBE}"
EVENTS = "events.out.tfevents.1700000001.host.p"


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ill run of 60 steps whose race to step 60 was won by a probe from step 20, and nothing of it adopted yet."""
    run = build(tmp_path_factory.mktemp("raced").resolve() / "run", ill=True)
    configuration = run / "run.toml"
    named = configuration.read_text().replace('["false"]', '["false", "train.py", "--save=checkpoints"]')
    configuration.write_text(f"{named}race = 2\nmargin_steps = 20\n")
    tried = copy_run(run, run.with_name("tried"))  # what would be decided without a race
    configuration_of_one = (tried / "run.toml").read_text().replace("race = 2\n", "")
    (tried / "run.toml").write_text(configuration_of_one)
    assert as_a_process(tried, WATCH)[0] == 4
    (found,) = incidents(tried)
    rung = found.rollbacks[0]
    once = replace(rung.overrides.once or Once(id=PROBE), id=PROBE)
    entrant = replace(rung, id=PROBE, overrides=replace(rung.overrides, rollback=PROBE, once=once))
    lost = replace(entrant, id="incident-1-p1", rung="lost")
    log = IncidentLog(run / "state" / "incidents.jsonl")
    begun = [e for e in IncidentLog(tried / "state" / "incidents.jsonl").read() if e["event"] == "opened"]
    won = {"probe": PROBE, "tag": "global_step60", "global_step": 60}
    ended = event("race_ended", "incident-1", winner=won, reason="it is the healthiest", standings=[])
    race = race_begun("incident-1", Race(entrants=(lost, entrant), until_step=60))
    for number, one in enumerate([*begun, race, ended]):
        log.append({**one, "time_unix_s": 100.0 + number})
    _probe(run, rung.target_step)
    return run


def _probe(run: Path, target: int) -> None:
    own = run / OWN
    for step in (target, 40, 60):  # the target's copy, and what it has saved under names that the run has used too
        shutil.copytree(run / "checkpoints" / f"global_step{step}", own / "checkpoints" / f"global_step{step}")
    for step in (40, 60):
        shard = own / "checkpoints" / f"global_step{step}" / "mp_rank_00_model_states.pt"
        shard.write_bytes(shard.read_bytes() + b"probe")
    write_events(own / "tensorboard", range(target + 1, 61), ".p")
    (own / "tensorboard" / "events.out.tfevents.1700000000.host.p").rename(own / "tensorboard" / EVENTS)
    (own / "attempts").mkdir()
    os.link(run / "state" / "attempts" / "0001.jsonl", own / "attempts" / "0001.jsonl")
    at = {"attempt": 2, "time_unix_s": 70.0}
    made = [Sample(**at, global_step=step, loss=2.0, seqlen=32) for step in range(target + 1, 61)]
    begin = RunStarted(**at, run="small", rollback=PROBE, resumed_from=target, parent_attempt=1)
    lines = [begin, *made, RunFinished(**at, global_step=60, reason="finished")]
    (own / "attempts" / "0002.jsonl").write_text("".join(encode(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def adopted(raced: Path) -> Path:
    run = copy_run(raced, raced.with_name("adopted"))
    code, said = as_a_process(run, WATCH)
    assert code == 4, said  # its command is `false`
    return run


def test_the_winner_s_checkpoints_events_and_journal_are_the_run_s(raced: Path, adopted: Path) -> None:
    (incident,) = incidents(adopted)
    (rollback,) = incident.rollbacks
    assert rollback.adopts == Adoption(probe=PROBE, tag="global_step60", global_step=60)
    assert rollback.starts == 1
    assert (adopted / "checkpoints" / "latest").read_text() == "global_step60"
    for step in (40, 60):
        own = raced / OWN / "checkpoints" / f"global_step{step}" / "mp_rank_00_model_states.pt"
        theirs = adopted / "checkpoints" / f"global_step{step}" / "mp_rank_00_model_states.pt"
        assert theirs.read_bytes() == own.read_bytes()
    assert (adopted / "tensorboard" / EVENTS).read_bytes() == (raced / OWN / "tensorboard" / EVENTS).read_bytes()
    assert (adopted / "state" / "attempts" / "0002.jsonl").exists()
    assert not inventory(raced) - inventory(adopted)  # what the ill attempt had saved lies in the quarantine


def test_undo_after_the_adopted_run_has_trained_on_gives_back_every_byte_and_keeps_what_came_after(
    raced: Path, adopted: Path, tmp_path: Path
) -> None:
    run = copy_run(adopted, tmp_path.resolve() / "run")
    later = run / "checkpoints" / "global_step80"
    shutil.copytree(run / "checkpoints" / "global_step60", later)
    (later / "mp_rank_00_model_states.pt").write_bytes(b"trained on")
    (run / "checkpoints" / "latest").write_text("global_step80")
    write_events(run / "tensorboard", range(61, 81), ".q")
    at = {"attempt": 3, "time_unix_s": 90.0}
    lines = [RunStarted(**at, run="small", rollback="incident-1-r1", resumed_from=60, parent_attempt=2)]
    lines += [Sample(**at, global_step=step, loss=2.0, seqlen=32) for step in range(61, 81)]
    lines += [RunFinished(**at, global_step=80, reason="finished")]
    (run / "state" / "attempts" / "0003.jsonl").write_text("".join(encode(line) + "\n" for line in lines))
    before = inventory(run)
    assert as_a_process(run, UNDO)[0] == 0
    assert live(run) == live(raced)
    assert not before - inventory(run)
    assert not inventory(raced) - inventory(run)
    aside = run / ROOM / "incident-1-r1-undone"
    assert sorted(p.name for p in aside.glob("global_step*")) == ["global_step40", "global_step60", "global_step80"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs takes root")
def test_a_quarantine_on_another_filesystem_is_refused_before_anything_is_raced_or_moved(
    raced: Path, tmp_path: Path
) -> None:
    run = copy_run(raced, tmp_path.resolve() / "run")
    room, before = run / "checkpoints" / ".sentinel-quarantine", live(run)
    mount, umount = (str(shutil.which(name)) for name in ("mount", "umount"))
    if subprocess.run([mount, "-t", "tmpfs", "none", str(room)], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        code, said = as_a_process(run, WATCH)
    finally:
        subprocess.run([umount, str(room)], check=True)
    assert (code, live(run)) == (2, before)
    assert f"{room} is on another filesystem than {run / 'checkpoints'}: a rename can't get there" in said
    assert [i.rollbacks for i in incidents(run)] == [[]]


@pytest.mark.full
def test_undo_of_a_race_that_goes_on_stops_its_probes_and_then_purge_clears_them(raced: Path, tmp_path: Path) -> None:
    run = copy_run(raced, tmp_path.resolve() / "run")
    log = run / "state" / "incidents.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # as before it had ended
    purge, probe = ("purge", "incident-1", "--yes"), LocalJobs(run / OWN)
    probe.start(["sleep", "600"], cwd=run, extra_env={}, log_path=run / OWN / "job.log")
    try:
        assert as_a_process(run, purge)[0] == 2
        assert as_a_process(run, UNDO)[0] == 0
        assert probe.writers() == ()
    finally:
        probe.stop(grace_s=1)
    assert [(i.status, i.outcome) for i in incidents(run)] == [("closed", "undone")]
    assert live(run) == live(raced)
    assert as_a_process(run, purge)[0] == 0
    assert not (run / ROOM).exists()


@pytest.mark.full
def test_a_winner_that_is_gone_before_its_adoption_ends_it_for_a_person_and_undo_gives_all_back(
    raced: Path, tmp_path: Path
) -> None:
    run = copy_run(raced, tmp_path.resolve() / "run")
    shutil.rmtree(run / OWN / "checkpoints" / "global_step60")
    code, said = as_a_process(run, WATCH)
    assert code == 4
    assert "has no global_step60 any more: nothing of the probe was adopted" in said
    assert (run / "checkpoints" / "latest").read_text() == "global_step20"
    assert as_a_process(run, UNDO)[0] == 0
    assert live(run) == live(raced)


SAMPLE = [
    ("rename", 1, f"{OWN}/checkpoints/global_step60", UNDO),  # the last of what is adopted
    ("rename", 1, "checkpoints/global_step40", WATCH),  # into the quarantine
]
MORE = [
    ("rename", 1, f"{OWN}/checkpoints/global_step40", WATCH),
    ("rename", 1, f"{OWN}/checkpoints/global_step60", WATCH),
    ("link", 1, f"tensorboard/{EVENTS}", UNDO),
    ("link", 1, "state/attempts/0002.jsonl", WATCH),
    ("fsync", 1, f"{OWN}/checkpoints", WATCH),  # all is moved, and not said so
]


def _struck(raced: Path, adopted: Path, point: Point, then: Sequence[str], run: Path, follow: Callable) -> list[str]:  # type: ignore[type-arg]
    for _ in range(3):  # a job that takes a moment longer to die may shift the calls of a watch by one
        shutil.rmtree(run, ignore_errors=True)
        ran = strike(copy_run(raced, run), WATCH, point, "KILL")
        if ran.struck:
            break
    if not ran.struck:
        return [f"{point} was not met, {ran.instead} was struck: exit {ran.code}: {ran.said[-300:]}"]
    wrong = [f"lost: {name}" for name in inventory(raced) - inventory(run)]
    code, said = follow(run, then)
    if then == UNDO and code == 2:  # nothing was decided yet
        then = WATCH if live(run) != live(raced) else UNDO
    wanted = raced if then == UNDO else adopted
    if _but_overrides(live(run)) != _but_overrides(live(wanted)):
        odd = {name for name, _ in set(live(run).items()) ^ set(live(wanted).items())}
        wrong.append(f"it stands between: {sorted(odd)}: exit {code}: {said[-300:]}")
    wrong += [f"lost after {then[0]}: {name}" for name in inventory(raced) - inventory(run)]
    if then == WATCH:
        (incident,) = incidents(run)
        starts = [r.starts for r in incident.rollbacks]
        if starts != [1]:
            wrong.append(f"the job was started {starts} times")
    return [f"{point}, then {then[0]}: {problem}" for problem in wrong]


def _but_overrides(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if name != "state/overrides.json"}


WHY_NOT = why_not()
steps = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
TMPFS = Path("/dev/shm")  # noqa: S108 - no file of a known name is made there


@steps
@pytest.mark.parametrize(("call", "number", "path", "then"), [*SAMPLE[:1], *full([*SAMPLE[1:], *MORE])])
def test_an_adoption_that_is_killed_is_carried_out_or_taken_back(
    raced: Path, adopted: Path, tmp_path: Path, call: str, number: int, path: str, then: tuple[str, ...]
) -> None:
    point = Point(call=call, path=path, number=number)
    assert _struck(raced, adopted, point, then, tmp_path.resolve() / "run", as_a_process) == []


@steps
@pytest.mark.full
@pytest.mark.skipif(not TMPFS.is_dir(), reason=f"no {TMPFS} here to be another filesystem")
def test_an_adoption_across_filesystems_is_killed_within_a_copy_carried_out_and_undone(
    raced: Path, adopted: Path, tmp_path: Path
) -> None:
    run = copy_run(raced, tmp_path.resolve() / "run")
    with tempfile.TemporaryDirectory(dir=TMPFS) as other:
        if Path(other).stat().st_dev == run.stat().st_dev:
            pytest.skip(f"{TMPFS} is no other filesystem than {tmp_path}")
        text = (run / "run.toml").read_text()
        for name, key in (("state", "state_dir"), ("tensorboard", "tensorboard")):
            shutil.copytree(run / name, Path(other, name))
            shutil.rmtree(run / name)
            (run / name).symlink_to(Path(other, name))  # for what this test reads
            text = text.replace(f'{key} = "{name}"', f'{key} = "{other}/{name}"')
        (run / "run.toml").write_text(text)
        copied = Point(call="rename", path=f"{other}/tensorboard/.{EVENTS}.sentinel-copying", number=1)
        assert strike(run, WATCH, copied, "KILL").struck
        assert as_a_process(run, WATCH)[0] == 4  # its command is `false`
        assert _but_overrides(live(run)) == _but_overrides(live(adopted))
        assert (run / "state" / "attempts" / "0002.jsonl").read_text() == (
            run / OWN / "attempts" / "0002.jsonl"
        ).read_text()
        assert as_a_process(run, UNDO)[0] == 0
        assert live(run) == live(raced)


@steps
@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("then", [WATCH, UNDO])
def test_wherever_an_adoption_is_killed(raced: Path, adopted: Path, tmp_path: Path, then: tuple[str, ...]) -> None:
    root = tmp_path.resolve()
    points = settled(raced, root, WATCH)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        struck = [pool.submit(_struck, raced, adopted, p, then, root / f"{n}", as_a_fork) for n, p in enumerate(points)]
        wrong = [problem for future in struck for problem in future.result()]
    print(f"{len(points)} points")
    assert wrong == []
