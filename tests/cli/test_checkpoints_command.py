"""`sentinel watch` audits a start and pages for a bad one; `status` and `checkpoints` show it."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sentinel.adapters.checkpoints import QUARANTINE, Checkpoints
from sentinel.cli.commands import app
from sentinel.config.run_files import find_config
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.vocabulary.sample import CheckpointSaved, StateLoaded, encode
from tests.adapters.checkpoint_files import deepspeed
from tests.support.audited_starts import AT, CLEAN, LINE, LOADED, STARTED
from tests.support.log_lines import lines_of


def configured(folder: Path, loaded: StateLoaded) -> Path:
    """Attempt 1 saved at step 100 and went on to 130; attempt 2 goes on from there, and saves at step 120."""
    of = {"time_unix_s": 1.0}
    saves = [CheckpointSaved(attempt=n, global_step=s, tag=f"global_step{s}", **of) for n, s in ((1, AT), (2, 120))]
    first = [STARTED, *LINE[:AT], saves[0], *LINE[AT:]]
    second = [CLEAN.started, loaded, *CLEAN.samples, saves[1]]
    (folder / "state" / "attempts").mkdir(parents=True)
    for number, records in ((1, first), (2, second)):
        lines = "".join(encode(record) + "\n" for record in records)
        (folder / "state" / "attempts" / f"{number:04}.jsonl").write_text(lines)
    for step in (AT, 120):
        deepspeed(folder / "checkpoints", step)
    (folder / "checkpoints" / "latest").write_text("global_step120")
    (folder / "tr8.toml").write_text(
        f'[run]\nname = "tr8"\ncheckpoints = "{folder}/checkpoints"\nstate_dir = "{folder}/state"\n'
        '[launcher]\nkind = "elsewhere"\n'
    )
    return folder / "tr8.toml"


def asked(config: Path, *words: str) -> Any:
    done = CliRunner().invoke(app, [words[0], "--run", str(config), *words[1:]])
    assert not done.exception or isinstance(done.exception, SystemExit), done.output
    return json.loads(done.stdout) if "--json" in words else done.stdout


def test_saves_after_a_start_that_loaded_another_state_are_not_certified(tmp_path: Path) -> None:
    config = configured(tmp_path, replace(LOADED, adam_variance_l1=LINE[79].adam_variance_l1))
    asked(config, "watch", "--once", "--observe")
    events = lines_of(tmp_path / "state" / "incidents.jsonl")
    told = next(e for e in events if e["event"] == "start_audited")
    assert (told["attempt"], told["verdict"], told["fault"]) == (2, "not continued", "wrong checkpoint")
    page = next(e for e in events if e["event"] == "alert_firing" and e["topic"] == "bad_start")
    assert page["severity"] == "critical"
    assert "that of step 80, not of step 100" in page["reason"]
    whole, spoilt = asked(config, "checkpoints", "--json")
    assert (whole["tag"], whole["certified"], whole["why_not"]) == ("global_step100", True, None)
    assert (spoilt["certified"], spoilt["healthy"], spoilt["start"]) == (False, False, "not continued")
    assert spoilt["why_not"].startswith("attempt 2 did not continue the run: wrong checkpoint")
    assert asked(config, "status", "--json")["start"]["fault"] == "wrong checkpoint"
    assert "global_step120" in asked(config, "checkpoints")
    asked(config, "watch", "--once", "--observe")
    again = lines_of(tmp_path / "state" / "incidents.jsonl")
    assert len(again) == len(events)  # it is audited once, and paged once


@pytest.mark.parametrize("made", [19, 20])
def test_a_save_is_not_healthy_before_the_audit_of_its_start_is_over(tmp_path: Path, made: int) -> None:
    config = configured(tmp_path, LOADED)
    journal = tmp_path / "state" / "attempts" / "0002.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2] + lines[22 - made :]))  # its start, what it loaded, samples, its save
    before, during = asked(config, "checkpoints", "--json")
    assert (before["healthy"], before["certified"]) == (True, True)
    over = made == 20
    assert (during["healthy"], during["certified"]) == (True if over else None, over)
    assert during["why_not"] == (
        None if over else "the audit of attempt 2's start is not over: 19 of 20 steps are made"
    )
    target = asked(config, "rollback", "--to", "global_step120", "--dry-run", "--json")
    assert ("is not over" in (target["refusal"] or "")) != over


@pytest.mark.parametrize("watched", [False, True])
def test_a_start_that_goes_on_is_recorded_and_pages_nobody(tmp_path: Path, watched: bool) -> None:
    config = configured(tmp_path, LOADED)
    if watched:
        asked(config, "watch", "--once", "--observe")
        (event,) = lines_of(tmp_path / "state" / "incidents.jsonl")
        assert (event["event"], event["verdict"]) == ("start_audited", "continued")
    assert asked(config, "status", "--json")["start"]["verdict"] == "continued"
    assert [one["certified"] for one in asked(config, "checkpoints", "--json")] == [True, True]


def test_a_pin_whose_checkpoint_a_rollback_has_moved_is_named_with_the_incident_and_how_it_comes_back(
    tmp_path: Path,
) -> None:
    config, seen = configured(tmp_path, LOADED), Checkpoints(tmp_path / "checkpoints")
    where = {"incident": "incident-1", "rollback": "incident-1-r1"}
    seen.pins.pin("global_step120")
    seen.quarantine(["global_step120"], **where)
    said = "global_step120 is pinned and is no rollback target: incident-1 moved it away; `sentinel "
    for command in ("checkpoints", "pin", "doctor"):
        assert f"{said}undo incident-1` brings it back with its pin" in asked(config, command)
    assert [one["tag"] for one in asked(config, "checkpoints", "--json")] == ["global_step100"]
    seen.restore(**where)
    assert said not in asked(config, "checkpoints")
    assert asked(config, "pin") == "global_step120\n"
    seen.quarantine(["global_step120"], **where)
    shutil.rmtree(tmp_path / "checkpoints" / QUARANTINE)  # purged
    assert f"{said}pin global_step120 --release` ends that" in asked(config, "pin")
    asked(config, "pin", "global_step120", "--release")
    assert asked(config, "pin") == "nothing is pinned\n"


def test_what_an_undo_brings_back_from_after_the_onset_is_not_healthy_whatever_the_newest_readings_say(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path, LOADED)
    journal, log = tmp_path / "state" / "attempts" / "0002.jsonl", tmp_path / "state" / "incidents.jsonl"
    first, *others = journal.read_text().splitlines()
    begun = json.loads(first) | {"incident": "incident-1", "rollback": "incident-1-r1", "gradient_clipping": 0.25}
    journal.write_text("\n".join([json.dumps(begun), *others, ""]))
    at: dict[str, Any] = {"incident": "incident-1", "rollback": "incident-1-r1", "time_unix_s": 1.0}
    moved = {"kind": "quarantine_checkpoints", "tags": ["global_step120"]}
    decided = {"rung": "reseed", "hypothesis": "the data", "changes": [], "lost_steps": 30}
    decided |= {"target": {"tag": "global_step100", "global_step": AT}}
    overrides = {"schema": 1, "incident": "incident-1", "rollback": "incident-1-r1", "standing": {}}
    opened = {"onset_range": [110, 114], "alarm_step": 120, "onset_tokens": None, "best_mean": 2.0, "reason": "it rose"}
    opened |= {"attempt": 1, "led_by": [], "baseline": {"lr": None, "seqlen": None}}
    events = [
        at | {"event": "opened"} | opened,
        at | {"event": "decided", "overrides": overrides | {"anchor": {"global_step": AT}}} | decided,
        at | {"event": "intent", "action": moved},
        at | {"event": "closed", "outcome": "recovered", "reason": "it is better"},
    ]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert [one["certified"] for one in asked(config, "checkpoints", "--json")] == [True, True]
    assert "undone" not in asked(config, "status")
    assert _clipping(config) == 0.25
    assert not {"paused", "KILL"} & {*re.findall("paused|KILL", asked(config, "status"))}
    for name, said in (("PAUSED", "does not act, until `sentinel resume`"), ("KILL", "the KILL file is in the state")):
        (tmp_path / "state" / name).write_text("")
        assert said in asked(config, "status")
        (tmp_path / "state" / name).unlink()
    events.append(at | {"event": "done", "rollback": None, "action": {"kind": "undo"}})
    events.append(at | {"event": "closed", "outcome": "undone", "reason": "a person took it back"})
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    before, after = asked(config, "checkpoints", "--json")
    assert (before["certified"], after["certified"], after["healthy"], after["start"]) == (True, False, False, None)
    assert after["why_not"] == ("the undo of incident-1 brought it back, and it is after the onset (step 110 to 114)")
    goes_on = "attempt 2 belongs to what was taken back; a restart resumes from global_step120"
    assert f"incident-1 was undone: {goes_on}" in asked(config, "status")
    assert _clipping(config) is None  # what the undone restart was given is not what the run trains with
    third = CLEAN.started, *(replace(one, global_step=one.global_step + 20) for one in CLEAN.samples)
    lines = [encode(replace(one, attempt=3)) for one in third]
    lines[0] = json.dumps(json.loads(lines[0]) | {"parent_attempt": 1, "resumed_from": 120})
    (tmp_path / "state" / "attempts" / "0003.jsonl").write_text("\n".join([*lines, ""]))
    assert "was undone" not in asked(config, "status")


def _clipping(config: Path) -> float | None:
    """What a rollback would keep."""
    read = find_config(str(config), config)
    return observer_of(read, neighbours_of(read)).look(time.time()).facts.settings.baseline.clip_grad


def test_a_pin_that_an_undo_has_set_aside_is_not_promised_back_and_a_newer_one_is_told_apart(tmp_path: Path) -> None:
    config, seen = configured(tmp_path, LOADED), Checkpoints(tmp_path / "checkpoints")
    seen.pins.pin("global_step120")
    seen.quarantine(["global_step120"], incident="incident-1", rollback="incident-1-r1-undone")
    why = "global_step120 is pinned and is no rollback target: the undo of incident-1 moved it away; `sentinel pin"
    assert asked(config, "pin") == f"{why} global_step120 --release` ends that\n"
    deepspeed(tmp_path / "checkpoints", 120)
    seen.pins.pin("global_step120")
    ends = "ends the newer pin, a second time this one"
    assert asked(config, "pin") == f"global_step120\nan earlier {why} global_step120 --release` {ends}\n"
