"""Folders that this account can't write: what has to be recorded first, and what goes on all the same."""

from __future__ import annotations

import codecs
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.adapters.event_files import spans
from sentinel.cli import status
from sentinel.config import load_config
from sentinel.daemon import wiring
from sentinel.plan.incident.log_outcomes import AlertFiring
from sentinel.vocabulary.errors import FilesystemRefused
from tests.e2e.kill_points import write_events
from tests.support.diverged_runs import diverged_run, watched
from tests.support.log_lines import lines_of, logged

NOBODY = 65534
COMMAND = "[[paging.command]]\nname = '{}'\ncommand = ['/bin/true']\nseverity = 'warning'"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, which other accounts can't enter."""
    path = Path(tempfile.mkdtemp(prefix="sentinel-unwritable-"))
    yield path
    for each in (path, *path.rglob("*")):
        each.chmod(0o700)
    shutil.rmtree(path)


@contextmanager
def unprivileged(folder: Path, *read_only: str) -> Iterator[None]:
    """As an account that root's rights do not help, and that can't write the named folders."""
    was = os.geteuid()
    codecs.lookup("ascii")  # the interpreter's own files may be out of that account's reach
    for path in (folder, *folder.rglob("*")) if was == 0 else ():
        os.chown(path, NOBODY, NOBODY)
    for name in read_only:
        (folder / name).chmod(0o500)
    os.seteuid(NOBODY if was == 0 else was)
    try:
        yield
    finally:
        os.seteuid(was)


def recorded(folder: Path) -> list[tuple[str, str | None]]:
    return [(e["event"], e.get("topic")) for e in lines_of(folder / "s" / "incidents.jsonl")]


def test_an_event_is_recorded_although_its_page_can_not_be_written_and_that_is_a_trouble_of_its_own(
    folder: Path,
) -> None:
    config = diverged_run(folder, "ladder = []", COMMAND.format("chat"), COMMAND.format("phone"))
    for name in ("pages/chat", "pages/phone"):
        (folder / "s" / name).mkdir(parents=True)
    with unprivileged(folder, "s/pages", "s/pages/chat"):
        ours = watched(config, folder)
        assert ours.turn(0.0)
        ours.turn(0.0)
        ours.leave(0.0)
    events = recorded(folder)
    assert ("opened", None) in events
    assert ("alert_firing", "paging") in events
    assert events.index(("opened", None)) < events.index(("alert_firing", "paging"))
    assert list((folder / "s" / "pages" / "chat").iterdir()) == []


def test_a_channel_that_can_not_be_written_holds_up_no_other_and_is_made_up_for_later(folder: Path) -> None:
    config = diverged_run(folder, COMMAND.format("chat"), COMMAND.format("phone"))
    for name in ("pages/chat", "pages/phone"):
        (folder / "s" / name).mkdir(parents=True)
    pages = folder / "s" / "pages"
    gone = AlertFiring(incident=None, topic="down", severity="critical", reason="it is gone", since_unix_s=1.0)
    with unprivileged(folder, "s/pages", "s/pages/chat"):
        paging = wiring.paging_of(config, wiring.neighbours_of(config))
        paging.append(replace(gone, time_unix_s=1.0))
        paging.follow()
        assert [len(list((pages / name).glob("*.json"))) for name in ("chat", "phone")] == [0, 1]
        assert "chat" in (paging.problem() or "")
        next((pages / "phone").glob("*.json")).unlink()  # it was delivered
        (pages / "chat").chmod(0o700)
        pages.chmod(0o700)
        paging.follow()
        assert [len(list((pages / name).glob("*.json"))) for name in ("chat", "phone")] == [1, 0]
        assert paging.problem() is None


def test_status_needs_no_index_that_it_can_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spans, "_SAVE_AFTER_BYTES", 1)
    diverged_run(folder)
    write_events(folder / "tb", range(1, 40), ".a")
    with unprivileged(folder, "s"):
        assert status.show(load_config(folder / "a.toml"), as_json=False) == 1
        assert "diverged" in capsys.readouterr().out
        assert not (folder / "s" / "tensorboard-index.json").exists()
        with pytest.raises(FilesystemRefused, match=r"incidents\.jsonl"):  # where it matters, it is said
            wiring.neighbours_of(load_config(folder / "a.toml")).incident_log.append(*logged({"event": "opened"}))
