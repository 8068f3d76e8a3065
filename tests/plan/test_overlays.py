"""What of the incident log is drawn over a run's curves in W&B, and the words of `[wandb]`; no library is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.config import load_config
from sentinel.plan.alerts.annotations import overlays
from sentinel.vocabulary.errors import ConfigError
from tests.support.log_lines import logged

OPENED: dict[str, Any] = {
    "event": "opened",
    "incident": "incident-1",
    "time_unix_s": 50.0,
    "attempt": 1,
    "onset_range": [300, 310],
    "alarm_step": 340,
    "reason": "the loss rose",
    "led_by": [],
}


def closed(outcome: str, incident: str = "incident-1") -> dict[str, Any]:
    return {"event": "closed", "incident": incident, "time_unix_s": 90.0, "outcome": outcome, "reason": "r"}


def test_an_incident_is_the_steps_from_the_onsets_early_end_to_the_alarm() -> None:
    (found,) = overlays("tr8", logged(OPENED))
    assert (found.first_step, found.last_step, found.alarm_unix_s, found.outcome) == (300, 340, 50.0, "open")
    assert found.tags == ["sentinel", "incident-1", "open"]
    assert found.text == "opened, onset at step 300 to 310, seen at 340: the loss rose"


def test_a_persons_own_rollback_has_no_onset_and_is_not_drawn() -> None:
    assert overlays("tr8", logged(OPENED | {"onset_range": None})) == ()


def test_each_incident_has_its_own_end_and_the_last_one_counts() -> None:
    second = OPENED | {"incident": "incident-2", "onset_range": [700, 700], "alarm_step": None}
    stopped = {"event": "stopped", "incident": "incident-1", "time_unix_s": 60.0, "reason": "the budget is spent"}
    restart = {"event": "intent", "action": {"kind": "start_job"}}
    first, other = overlays("tr8", logged(OPENED, stopped, closed("undone"), second, restart))
    assert (first.outcome, other.outcome) == ("undone", "open")
    assert (other.first_step, other.last_step) == (700, 700)
    assert overlays("tr8", logged(OPENED, stopped))[0].outcome == "stopped"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('entity = "lab"', "entity and project belong together"),
        ('entity = "lab"\nproject = "a/b"', "project: 'a/b' is a path: a name has no / in it"),
        ('run_id = ""', "run_id: '' is empty"),
        ("timeout_s = 0", "timeout_s should be above 0 and at most 600, not 0"),
        ('api_key = "secret"', r"\[wandb\] has no key 'api_key'"),
    ],
)
def test_what_the_table_says_wrong_is_told_with_what_would_be_right(tmp_path: Path, table: str, said: str) -> None:
    path = tmp_path / "tr8.toml"
    path.write_text(f'[run]\nname = "tr8"\ncheckpoints = "c"\n[wandb]\n{table}\n')
    with pytest.raises(ConfigError, match=said):
        load_config(path)


def test_the_key_file_counts_from_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "tr8.toml"
    path.write_text('[run]\nname = "tr8"\ncheckpoints = "c"\n[wandb]\napi_key_file = "keys/wandb"\n')
    assert load_config(path).wandb.api_key_file == tmp_path / "keys" / "wandb"


def said_without_the_library(*words: str) -> tuple[int, str]:
    program = "import sys; sys.modules['wandb'] = None; from sentinel.cli import main; main()"
    env = {"WANDB_API_KEY": "of nothing", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stderr


def test_without_the_library_it_is_said_how_to_have_it() -> None:
    code, text = said_without_the_library("export", "wandb:lab/pretraining/abc123", "-o", "a.csv")
    assert (code, text) == (2, "sentinel: wandb is not installed; pip install 'training-sentinel[wandb]'\n")


def test_incidents_go_to_wandb_for_a_run_and_by_a_push_alone() -> None:
    for words in (("push",), ("diff", "--run", "tr8")):
        code, text = said_without_the_library("dashboards", *words, "--wandb")
        assert code == 2
        assert "--wandb needs push and --run" in text
