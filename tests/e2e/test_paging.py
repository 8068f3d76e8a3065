"""`sentinel watch` and `sentinel page` with real receivers: what arrives, when, and what is left when it can't."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import pytest

from sentinel.vocabulary.sample import RunFinished, Sample, encode
from tests.adapters.pagers import Receiver, environment, free_port, hangs, mail_server, receiver, says, until
from tests.support.log_lines import lines_of

SENTINEL = [sys.executable, "-m", "sentinel"]
SECRET = "a-token-that-nobody-may-see"  # noqa: S105 - the one that is looked for

RUN = """\
[run]
name = "tr8"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
{launcher}

[watch]
poll_interval_s = 0.05

[judge]
gone_after_s = 0.01 # the trainer has named no process: it is gone once it is silent

[policy]
{policy}

{paging}
"""


@pytest.fixture
def web() -> Iterator[Receiver]:
    with receiver() as got:
        yield got


def write_run(
    folder: Path, paging: str, *, policy: str = "mode = 'observe'", launcher: str = "command = ['true']"
) -> Path:
    path = folder / "tr8.toml"
    path.write_text(RUN.format(paging=paging, policy=policy, launcher=launcher))
    (folder / "checkpoints").mkdir(exist_ok=True)
    return path


def trained(folder: Path, *losses: float, attempt: int = 1, ended: str | None = None) -> None:
    """A journal, as a trainer that is gone has left it."""
    attempts = folder / "state" / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    path = attempts / f"{attempt:04d}.jsonl"
    before = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as journal:
        for step, loss in enumerate(losses, before + 1):
            journal.write(encode(Sample(attempt=attempt, global_step=step, time_unix_s=time.time(), loss=loss)) + "\n")
        if ended is not None:
            last = RunFinished(attempt=attempt, global_step=len(losses), time_unix_s=time.time(), reason=ended)
            journal.write(encode(last) + "\n")


def diverged(folder: Path) -> None:
    trained(folder, *[4.0 - 0.01 * step for step in range(60)], *[float("nan")] * 3)


def sentinel(path: Path, *words: str, expect: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    verb, *rest = words
    line = [*SENTINEL, verb, "--run", str(path), *rest]
    ran = subprocess.run(
        line,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == expect, f"{words}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


class Watching:
    """A watch in the background; its stderr in a file."""

    def __init__(self, path: Path, *words: str, **more: str) -> None:
        self.log = path.parent / "watch.log"
        with self.log.open("ab") as log:
            line = [*SENTINEL, "watch", "--run", str(path), *words]
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=log, env=environment(**more))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)

    def ends(self, *, expect: int, within_s: float = 120) -> None:
        assert self.process.wait(within_s) == expect, self.log.read_text()


def events(folder: Path) -> list[dict[str, Any]]:
    return lines_of(folder / "state" / "incidents.jsonl")


def last_turn_unix_s(folder: Path) -> float:
    """When the watch has last renewed its lock, as it does in each turn; 0 while it has none."""
    lock = folder / "state" / "lock"
    return lock.stat().st_mtime if lock.exists() else 0.0


def waiting(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "pages").glob("*/*.json"))


def hook(url: str, **keys: Any) -> str:
    return "[[paging.webhook]]\n" + "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in ({"url": url} | keys).items()
    )


@pytest.mark.full
def test_a_divergence_that_needs_a_person_reaches_every_channel(tmp_path: Path, web: Receiver) -> None:
    got = tmp_path / "phone.json"
    words = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')", str(got)]
    with mail_server(None) as box:
        mail = f"host = 'localhost'\nport = {box.port}\nsecurity = 'none'\nsender = 's@a.example'\nto = ['a@a.example']"
        phone = f"[[paging.command]]\nname = 'phone'\nseverity = 'critical'\ncommand = {json.dumps(words)}"
        paging = f"{hook(web.url)}\n{phone}\n[[paging.mail]]\n{mail}"
        path = write_run(tmp_path, paging, policy="mode = 'act'\nrollback_budget = 0")
        diverged(tmp_path)
        sentinel(path, "watch", expect=4)
        assert [mail["Subject"].partition("]")[0] for mail in box.mails] == ["[warning", "[critical"]
    assert [(d["severity"], d["topic"]) for d in web.documents] == [
        ("warning", "divergence"),
        ("critical", "divergence"),
    ]
    assert "rollback budget of 0 is spent" in web.documents[1]["summary"]
    (told,) = [json.loads(line) for line in got.read_text().splitlines()]
    assert told == web.documents[1]
    assert not waiting(tmp_path)
    sentinel(path, "watch", expect=4)  # again: the person was told
    assert len(web.requests) == 2
    assert "webhook: 0 wait, 0 were given up" in sentinel(path, "page").stdout


def test_in_mode_observe_the_page_says_what_would_be_done(tmp_path: Path, web: Receiver) -> None:
    diverged(tmp_path)
    with Watching(write_run(tmp_path, hook(web.url))):
        until(lambda: len(web.requests) == 2)
    opened, shadow = web.documents
    assert opened["key"] == shadow["key"] == "tr8/incident-1/divergence"
    assert "would have applied 'reseed' from scratch" in shadow["summary"]


@pytest.mark.full
def test_a_pager_that_hangs_delays_no_turn_and_no_other_channel(tmp_path: Path, web: Receiver) -> None:
    """While the first page hangs for good, the watch goes on, sees the run end well and says so through the other."""
    with receiver() as silent:
        silent.always = hangs(silent.over)
        paging = hook(silent.url, name="silent", timeout_s=600) + "\n" + hook(web.url, name="chat")
        diverged(tmp_path)
        with Watching(write_run(tmp_path, paging)) as watch:
            until(lambda: silent.requests and len(web.requests) == 2)
            trained(tmp_path, *[3.0] * 30, attempt=2, ended="finished")
            watch.ends(expect=1)  # it holds no exit up, either
        assert [(d["status"], d["severity"]) for d in web.documents][-1] == ("resolved", "warning")
        assert len(silent.requests) == 1
        assert len(waiting(tmp_path)) == 3
        assert "not delivered: silent" in watch.log.read_text()


@pytest.mark.full
@pytest.mark.parametrize("when", ["before the outbox", "before the delivery"])
def test_a_daemon_that_is_killed_before_its_page_was_delivered_is_made_up_for(
    tmp_path: Path, web: Receiver, when: str
) -> None:
    port = free_port()
    path = write_run(tmp_path, hook(f"http://localhost:{port}/page"))
    sentinel(path, "watch", "--once")
    diverged(tmp_path)
    with Watching(path) as watch:
        until(lambda: len(waiting(tmp_path)) == 2)
        watch.process.kill()
    if when == "before the outbox":  # as if it had been killed between the log and the outbox
        for page in waiting(tmp_path):
            page.unlink()
        (tmp_path / "state" / "pages" / "followed.json").write_text('{"events": 0}')
    assert [event["event"] for event in events(tmp_path)][:1] == ["opened"]
    with receiver(port) as there, Watching(path):
        until(lambda: len(there.requests) == 2)
        until(lambda: not waiting(tmp_path))
        assert [d["topic"] for d in there.documents] == ["divergence", "divergence"]
        assert len({d["id"] for d in there.documents}) == 2


@pytest.mark.full
def test_a_network_that_is_away_loses_no_page_even_when_the_watch_ends(tmp_path: Path) -> None:
    port = free_port()
    paging = "[paging]\nretry_up_to_s = 0.5\n" + hook(f"http://localhost:{port}/page")
    path = write_run(tmp_path, paging, policy="mode = 'act'\nrollback_budget = 0")
    diverged(tmp_path)
    with Watching(path) as watch:
        until(lambda: any(e["event"] == "stopped" for e in events(tmp_path)))
        until(lambda: not (tmp_path / "state" / "lock").exists())  # a person can do something meanwhile
        shown = sentinel(path, "page", expect=1).stdout
        assert "webhook: 2 wait, 0 were given up" in shown
        assert "[critical] tr8 incident-1: stopped, a person is needed" in shown
        with pytest.raises(subprocess.TimeoutExpired):
            watch.process.wait(1)
        with receiver(port) as there:
            there.answers = [says(500), says(429, Retry_After="1")]
            watch.ends(expect=4)
            assert not there.answers
            told = [severity for severity, _ in groupby(d["severity"] for d in there.documents)]
            assert told == ["warning", "critical"]
    assert not waiting(tmp_path)


@pytest.mark.full
def test_what_a_person_settles_is_resolved_without_a_watch(tmp_path: Path, web: Receiver) -> None:
    path = write_run(tmp_path, hook(web.url), policy="mode = 'act'\nrollback_budget = 0")
    diverged(tmp_path)
    sentinel(path, "watch", expect=4)
    sentinel(path, "rollback", "--to", "scratch", "--no-start", "--yes")
    last = web.documents[-1]
    assert (last["key"], last["status"], last["severity"]) == ("tr8/incident-1/divergence", "resolved", "critical")
    assert len(web.requests) == 3  # a person's own rollback pages nobody


@pytest.mark.full
def test_no_secret_is_in_a_log_or_in_the_state_folder(tmp_path: Path, web: Receiver) -> None:
    (tmp_path / "token").write_text(SECRET + "-in-a-file\n")
    dead = f"http://localhost:{free_port()}/{SECRET}"
    channels = [
        hook(web.url, name="with-token", token_env="TOKEN"),  # noqa: S106 - a variable's name
        hook(web.url, name="with-file", token_file="token"),  # noqa: S106
        "[[paging.webhook]]\nname = 'dead'\nurl_env = 'DEAD'",
        f"[[paging.mail]]\nhost = 'localhost'\nport = {free_port()}\nsender = 'a@a'\nto = ['b@b']",
        "user_env = 'TOKEN'\npassword_env = 'TOKEN'",
    ]
    path = write_run(tmp_path, "\n".join(channels))
    diverged(tmp_path)
    web.answers = [says(302, Location=f"http://other.example/{SECRET}"), says(500), says(401)]
    with Watching(path, "--verbose", TOKEN=SECRET, DEAD=dead) as watch:
        until(lambda: len(web.requests) >= 7)
        watch.process.send_signal(signal.SIGTERM)
        watch.ends(expect=0)
    tested = sentinel(path, "page", "--test", expect=3, TOKEN=SECRET, DEAD=dead)
    assert any(SECRET in value for r in web.requests for value in r["headers"].values())  # it was really sent
    said = [watch.log.read_text(), tested.stdout, tested.stderr]
    kept = [file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file()]
    said += [(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode() for data in kept]
    assert "redirects to http://other.example" in said[0]
    assert not any(SECRET in text for text in said)


@pytest.mark.full
def test_a_watch_whose_pager_misses_its_token_does_not_begin_and_names_it(tmp_path: Path, web: Receiver) -> None:
    path = write_run(tmp_path, hook(web.url, token_env="NOT_THERE"))  # noqa: S106 - a variable's name
    assert "token_env: the environment has no NOT_THERE" in sentinel(path, "watch", "--once", expect=2).stderr
    assert "did not arrive: token_env" in sentinel(path, "page", "--test", expect=3).stdout
    diverged(tmp_path)
    sentinel(path, "rollback", "--to", "scratch", "--no-start", "--yes")  # a person is not kept from acting


def test_a_test_page_says_for_each_channel_whether_it_arrived(tmp_path: Path, web: Receiver) -> None:
    nothing = f"http://localhost:{free_port()}/"
    path = write_run(tmp_path, hook(web.url, name="chat") + "\n" + hook(nothing, name="nothing"))
    tested = sentinel(path, "page", "--test", expect=3).stdout.splitlines()
    assert tested[0] == "chat: arrived"
    assert tested[1].startswith("nothing: did not arrive: localhost can't be reached")
    assert web.documents[0]["topic"] == "test"
    sentinel(write_run(tmp_path, hook(web.url)), "page", "--test")
    assert "no page is sent" in sentinel(write_run(tmp_path, ""), "page", "--test", expect=2).stderr


SLURM = "kind = 'slurm'\njob_name = 'tr8'\nquery_interval_s = 0.1\nslurm_timeout_s = 5"


@pytest.mark.full
def test_slurm_that_does_not_answer_is_told_once_and_its_return_too(tmp_path: Path, web: Receiver) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        (tools / name).write_text(
            f"#!/bin/sh\n[ -e {tmp_path}/up ] || {{ echo 'Unable to contact slurm controller' >&2; exit 1; }}\n"
        )
        (tools / name).chmod(0o755)
    policy = "mode = 'observe'\nconfirm_within_s = 1.0"
    path = write_run(tmp_path, hook(web.url), policy=policy, launcher=SLURM)
    trained(tmp_path, 4.0, 3.9)
    search = f"{tools}:{os.environ['PATH']}"
    with Watching(path, PATH=search):
        until(lambda: web.requests and not waiting(tmp_path))  # it knows that it was told
    with Watching(path, PATH=search):  # another daemon knows what was told
        until(lambda: (tmp_path / "watch.log").read_text().count("watching tr8") == 2)
        began_unix_s = time.time()
        until(lambda: last_turn_unix_s(tmp_path) > began_unix_s + 2)  # longer than it takes to be told
        (tmp_path / "up").touch()
        until(lambda: len(web.requests) >= 2)
    first, second = web.documents[:2]
    assert (first["key"], first["status"]) == ("tr8/watch_failing", "firing")
    assert "Slurm does not answer" in first["summary"]
    assert (second["key"], second["status"]) == ("tr8/watch_failing", "resolved")


def test_a_job_that_is_gone_and_not_started_again_is_told(tmp_path: Path, web: Receiver) -> None:
    path = write_run(tmp_path, hook(web.url), policy="mode = 'act'")
    trained(tmp_path, 4.0, 3.9)
    with Watching(path) as watch:
        until(lambda: web.requests)
        watch.process.send_signal(signal.SIGTERM)
        watch.ends(expect=0)
    (down,) = web.documents
    assert (down["key"], down["severity"]) == ("tr8/down", "critical")
    assert "restart_on_crash is off, so a person has to start it again" in down["summary"]


def test_a_restarted_job_that_dies_at_once_is_told_with_its_last_lines_and_without_its_secrets(
    tmp_path: Path, web: Receiver
) -> None:
    dies = f"echo loading; echo 'train.py: error: unrecognized arguments: --lx, api_key={SECRET}' >&2; exit 2"
    launcher = f"command = ['bash', '-c', {json.dumps(dies)}]"
    path = write_run(
        tmp_path, hook(web.url), policy="mode = 'act'\nrestart_on_crash = true\nstart_budget = 1", launcher=launcher
    )
    trained(tmp_path, 4.0, 3.9)
    with Watching(path) as watch:
        until(lambda: web.requests)
        watch.process.send_signal(signal.SIGTERM)
        watch.process.wait(30)
    down = web.documents[0]
    assert "the job was started again 1 times" in down["summary"]
    assert down["details"]["last_lines"].endswith("loading\ntrain.py: error: unrecognized arguments: --lx, api_key=***")
    assert down["details"]["last_lines"] in down["text"]


@pytest.mark.full
def test_a_watch_that_ends_by_an_error_says_so_and_says_when_it_is_back(tmp_path: Path, web: Receiver) -> None:
    path = write_run(tmp_path, hook(web.url))
    log = tmp_path / "state" / "incidents.jsonl"
    log.parent.mkdir()
    log.write_text('{"event": "decided", "incident": "incident-3", "time_unix_s": 1}\n')
    sentinel(path, "watch", expect=4)
    log.unlink()
    sentinel(path, "watch", "--once")
    assert [(d["key"], d["status"]) for d in web.documents] == [("tr8/ended", "firing"), ("tr8/ended", "resolved")]
    assert "event 1 of the incident log makes no sense" in web.documents[0]["summary"]
