"""`watch` beside a trainer that knows nothing of it: a real process writes Megatron's lines, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.checkpoint_files import deepspeed
from tests.adapters.servers import running
from tests.support.log_lines import lines_of

SENTINEL = [sys.executable, "-m", "sentinel"]
ROTATED_AT = 120
ILL_FROM = 320

TRAINER = """
import random, sys, time
from pathlib import Path

log, saves, until_step, rotated_at, ill_from = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6])
random.seed(0)
file = log.open("a")
for step in range(1, until_step + 1):
    loss = 3 + 4 * step**-0.5 + random.gauss(0, 0.02) + (3.5 if step >= ill_from else 0)
    line = (
        f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}] iteration {step:8d}/   10000 |"
        f" consumed samples: {8 * step:12d} | elapsed time per iteration (ms): 10.0 | learning rate: 1.000E-04 |"
        f" global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {random.uniform(1, 2):.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\\n"
    )
    file.write(line[: len(line) // 2])  # whoever reads now finds a torn line
    file.flush()
    time.sleep(0.01)
    file.write(line[len(line) // 2 :])
    file.flush()
    if step == rotated_at:
        file.close()
        log.rename(log.with_name(log.name + ".1"))
        file = log.open("a")
while not (saves / "enough").exists():  # a save that takes its time
    (saves / "global_step200" / "mp_rank_00_model_states.pt").touch()
    time.sleep(0.1)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose trainer only logs, with two whole checkpoints."""
    for step in (100, 200):
        deepspeed(tmp_path / "checkpoints", step)
    (tmp_path / "checkpoints" / "latest").write_text("global_step200")
    (tmp_path / "logs").mkdir()
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "tr8.toml").write_text(
        '[run]\nname = "tr8"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        '[source]\nkind = "log"\npath = "logs/main_log.txt"\n'
        "[watch]\npoll_interval_s = 0.2\n[judge]\nstalled_after_s = 3\n"
    )
    return tmp_path


@contextmanager
def training(run: Path, until_step: int) -> Iterator[None]:
    """The trainer, started by a person; its environment says whose it is."""
    words = [run / "logs" / "main_log.txt", run / "checkpoints", until_step, ROTATED_AT, ILL_FROM]
    environment = os.environ | {"SENTINEL_STATE_DIR": str(run / "state")}
    with subprocess.Popen([sys.executable, str(run / "trainer.py"), *map(str, words)], env=environment) as trainer:
        try:
            yield
        finally:
            trainer.kill()


def asked(run: Path, verb: str, *words: str) -> tuple[int, str]:
    line = [*SENTINEL, verb, "--run", str(run / "tr8.toml"), *words]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout


def status(run: Path) -> tuple[int, dict[str, Any]]:
    code, told = asked(run, "status", "--json")
    return code, json.loads(told)


def until(true: Callable[[], Any], *, within_s: float = 120) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def events(run: Path) -> list[dict[str, Any]]:
    return [dict(event) for event in lines_of(run / "state" / "incidents.jsonl")]


@pytest.mark.full
def test_a_divergence_is_seen_in_a_log_while_it_is_written_and_nothing_is_done(run: Path) -> None:
    line = [*SENTINEL, "watch", "--run", str(run / "tr8.toml")]
    with training(run, 480), running(*line, folder=run, name="watch") as watch:
        until(lambda: any(event["event"] == "shadow" for event in events(run)))
        code, answer = status(run)
        watch.terminate()
        watch.wait(60)
    assert (code, answer["verdict"], answer["mode"]) == (1, "diverged", "observe")
    assert answer["onset_range"][1] == ILL_FROM
    assert answer["events"][-1]["kind"] == "divergence"
    assert (run / "logs" / "main_log.txt.1").exists()
    (opened,) = [event for event in events(run) if event["event"] == "opened"]
    assert (opened["attempt"], opened["onset_range"][1]) == (1, ILL_FROM)  # a rotation is no new attempt
    told = (run / "watch.log").read_text()
    assert "a log of the format megatron" in told
    assert "would have applied 'reseed' from global_step200" in told
    assert "sentinel would have acted 1 time" in asked(run, "incidents", "--shadow")[1]
    assert (run / "checkpoints" / "latest").read_text() == "global_step200"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "global_step100",
        "global_step200",
        "latest",
    ]


@pytest.mark.full
def test_a_log_that_goes_silent_has_stalled_once_a_second_witness_says_so(run: Path) -> None:
    log = run / "logs" / "main_log.txt"
    with training(run, 80):
        until(lambda: log.exists() and "iteration       80/" in log.read_text())
        time.sleep(4)
        code, answer = status(run)
        assert (code, answer["verdict"]) == (0, "healthy"), answer["reason"]  # it saves: one witness is alive
        (run / "checkpoints" / "enough").touch()
        until(lambda: status(run)[1]["verdict"] == "stalled")
        code, answer = status(run)
        assert code == 1
        assert "journal and log have been silent for" in answer["reason"]
        watched = subprocess.run(
            [*SENTINEL, "watch", "--once", "--run", str(run / "tr8.toml")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert watched.returncode == 1
    assert [event["event"] for event in events(run)] == ["alert_firing"]  # a hang is not a divergence
