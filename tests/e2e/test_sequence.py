"""The sequence diagram of CONTRIBUTING.md, against the code, and against an incident that really happens."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.local import LocalJobs
from sentinel.plan.incident.events import fold
from tests.e2e.traced_calls import ROOT, Message, Section, diagram, recorded

FILES, SECTIONS = diagram()
MESSAGES = [message for section in SECTIONS for message in section.messages]
TOML = """\
[run]
name = "small"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
kind = "local"
command = {command}
stop_grace_s = 20

[watch]
poll_interval_s = 0.3

[judge]
quiet_s = 0.5

[policy]
mode = "act"
hold_steps = 200

[[policy.ladder]]
name = "reseed"
hypothesis = "the data did it"
reseed = true
"""


def functions_of(file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node.name


def test_every_module_and_function_of_the_diagram_exists() -> None:
    assert {file for file in FILES.values() if not (ROOT / file).is_file()} == set()
    assert [m for m in MESSAGES if m.function not in functions_of(m.callee)] == []
    assert {m.caller for m in MESSAGES} | {m.callee for m in MESSAGES} == set(FILES.values())


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_incident_makes_the_calls_of_the_diagram_in_their_order(tmp_path: Path) -> None:
    folder, calls = tmp_path.resolve(), tmp_path.resolve() / "calls"
    traced = [sys.executable, "-m", "tests.e2e.traced_calls", str(calls)]
    training = [*traced, "tests.e2e.small_training", str(folder)]
    (folder / "small.toml").write_text(TOML.format(command=training))
    state, run = folder / "state", ("--run", str(folder / "small.toml"))
    (folder / "checkpoints").mkdir()
    jobs, paths = LocalJobs(state), {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    jobs.start(training, cwd=folder, extra_env=paths, log_path=state / "job.log")
    try:
        for words in (["watch", *run], ["undo", *run, "--yes"]):
            command = [*traced, "sentinel", *words]
            ran = subprocess.run(
                command, env=os.environ | paths, cwd=folder, capture_output=True, text=True, timeout=280, check=False
            )
            assert ran.returncode == 0, ran.stderr
    finally:
        jobs.stop(grace_s=5)
    (incident,) = fold(IncidentLog(state / "incidents.jsonl").read())
    assert incident.outcome == "undone"
    assert missing(SECTIONS, list(recorded(calls))) == ()


def missing(sections: list[Section], calls: list[Message]) -> tuple[Message, ...]:
    """The messages of the first section that was not found behind those before it; none where all were found."""
    at = iter(calls)
    for section in sections:
        left = section.messages
        for call in at:
            if section.at_once and call == section.messages[0]:
                left = section.messages
            left = left[1:] if call == left[0] else left
            if not left:
                break
        if left:
            return left
    return ()
