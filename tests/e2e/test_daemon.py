"""The daemon's manners: signals, and the unit that systemd runs it under."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.adapters.pagers import until

ROOT = Path(__file__).parents[2]


@contextmanager
def watch(folder: Path) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(folder / "a.toml")]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def configure(folder: Path, extra: str = "") -> None:
    (folder / "a.toml").write_text(f'[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\n{extra}')


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if words in line:
            return seen
    raise AssertionError(seen)


def page_at(target: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{target}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_it_ends_cleanly_when_it_is_asked_to(tmp_path: Path) -> None:
    """At once, also in the middle of a long pause, and without a lock left behind."""
    configure(tmp_path, "[watch]\npoll_interval_s = 600\n")
    with watch(tmp_path) as process:
        read_until(process, "no attempt has begun")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not (tmp_path / "s" / "lock").exists()


@pytest.mark.full
def test_it_reads_its_configuration_again_on_sighup_and_keeps_the_old_one_if_that_is_wrong(tmp_path: Path) -> None:
    configure(tmp_path)
    with watch(tmp_path) as process:
        read_until(process, "watching a in mode observe, every 5 s")
        able = "[launcher]\ncommand = ['true']\n"
        configure(tmp_path, "[policy]\nmode = 'act'\n")
        process.send_signal(signal.SIGHUP)
        assert "[launcher] command is empty" in read_until(process, "`sentinel doctor` finds BAD")
        configure(tmp_path, f"{able}[watch]\npoll_interval_s = 0.5\n[policy]\nmode = 'approve'\n")
        process.send_signal(signal.SIGHUP)
        read_until(process, "watching a in mode approve, every 0.5 s")
        configure(tmp_path, "[policy]\nmode = 'pray'\n")
        process.send_signal(signal.SIGHUP)
        said = read_until(process, "stays in force")
        assert "policy.mode should be one of" in said
        (tmp_path / "a.toml").write_text('[run]\nname = "b"\ncheckpoints = "c"\nstate_dir = "s"\n')
        process.send_signal(signal.SIGHUP)
        read_until(process, "[run] name and state_dir can't change")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_its_metrics_follow_the_configuration_and_are_announced_no_more_when_it_ends(tmp_path: Path) -> None:
    announced = tmp_path / "s" / "scrape-watch.json"
    configure(tmp_path, '[metrics]\nannounce = "127.0.0.1"\n')
    with watch(tmp_path) as process:
        read_until(process, "no attempt has begun")
        ((first,),) = (group["targets"] for group in json.loads(announced.read_text()))
        pending = 'sentinel_verdict{attempt="",run="a",verdict="pending"} 1.0'
        until(lambda: pending in page_at(first))  # it is shown when the turn is over in which it is said
        configure(tmp_path, "[metrics]\nserve = false\n")
        process.send_signal(signal.SIGHUP)
        read_until(process, "the configuration was read again")
        read_until(process, "watching a")
        assert json.loads(announced.read_text()) == []
        configure(tmp_path, '[metrics]\nannounce = "127.0.0.1"\n')
        process.send_signal(signal.SIGHUP)
        read_until(process, "/metrics of sentinel itself is at")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert json.loads(announced.read_text()) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("kept", "name"), [("watch@", "watch@tr8"), ("fleet", "fleet")])
def test_the_units_are_such_that_systemd_takes_and_finds_safe(tmp_path: Path, kept: str, name: str) -> None:
    unit = tmp_path / f"sentinel-{name}.service"
    text = (ROOT / "deploy" / "systemd" / f"sentinel-{kept}.service").read_text()
    unit.write_text(text.replace("/opt/sentinel/bin/sentinel", sys.executable))
    command = ["systemd-analyze", "verify", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unit.name not in checked.stderr, checked.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", told.stdout)
    assert exposure is not None, told.stdout + told.stderr
    assert float(exposure[1]) <= 4.0
