"""Undo after several rollbacks: in which order, what is said of the others, and how the job starts again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints.pins import Pins
from sentinel.adapters.state_files import OwnPins
from tests.e2e.kill_points import build, copy_run, incidents, line, live

TO_40, TO_20 = (("rollback", "--to", f"global_step{step}", "--yes", "--no-start") for step in (40, 20))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runs").resolve() / "run", ill=False)


@pytest.fixture
def run(built: Path, tmp_path: Path) -> Path:
    """60 steps, rolled back to step 40, then to step 20."""
    folder = tmp_path.resolve() / "run"
    copy_run(built, folder)
    for words in (TO_40, TO_20):
        sentinel(folder, *words)
    return folder


def sentinel(folder: Path, *words: str, expect: int = 0) -> str:
    ran = subprocess.run(line(folder, words), capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == expect, ran.stderr
    return ran.stdout + ran.stderr


def tags(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").glob("global_step*"))


@pytest.mark.full
def test_undo_of_the_newer_says_what_the_older_one_holds_and_how_it_comes_back(run: Path, built: Path) -> None:
    said = sentinel(run, "undo", "--yes")
    assert tags(run) == ["global_step20", "global_step40"]
    assert "undo incident-2: incident-2-r1; brings back global_step40" in said
    held = "incident-1 holds global_step60, which stay in its quarantine; `sentinel undo incident-1` brings them back"
    assert said.count(held) == 2  # before the question and at the end
    said = sentinel(run, "undo", "incident-1", "--yes")
    assert "stay in its quarantine" not in said
    assert live(run) == live(built)


@pytest.mark.full
def test_undo_of_all_is_the_newest_first_and_gives_the_run_back_as_it_was(run: Path, built: Path) -> None:
    refused = sentinel(run, "undo", "incident-1", "--yes", expect=2)
    assert "incident-1 can't be undone before incident-2, which is newer; `sentinel undo --all` does both" in refused
    assert "pass either incident-1 or --all" in sentinel(run, "undo", "incident-1", "--all", expect=2)
    said = sentinel(run, "undo", "--all", "--yes")
    assert said.index("undo incident-2") < said.index("undo incident-1")
    assert live(run) == live(built)
    assert [i.outcome for i in incidents(run)] == ["undone", "undone"]
    assert "no rollback to undo" in sentinel(run, "undo", "--all", "--yes", expect=2)


@pytest.mark.full
def test_undo_tells_the_command_that_starts_the_job_again(run: Path) -> None:
    text = (run / "run.toml").read_text()
    (run / "run.toml").write_text(text.replace('["false"]', '["sh", "-c", "echo in $SENTINEL_STATE_DIR"]'))
    said = sentinel(run, "undo", "--all", "--yes").splitlines()
    typed = said[said.index("the job is not started; this starts it again:") + 1]
    subprocess.run(["/bin/sh", "-c", typed], check=True, timeout=60, cwd="/")
    assert (run / "state" / "job.log").read_text() == f"in {run / 'state'}\n"
    assert shlex.split(typed)[0] == "cd"


@pytest.mark.full
def test_a_pin_of_the_watch_goes_with_the_line_that_is_moved_away_and_a_persons_stays(
    built: Path, tmp_path: Path
) -> None:
    run = tmp_path.resolve() / "run"
    copy_run(built, run)
    pins, own = Pins(run / "checkpoints"), OwnPins(run / "state")
    for tag in ("global_step40", "global_step60"):
        pins.pin(tag)
    own.write(["global_step60"])
    sentinel(run, *TO_20)
    assert pins.tags() == ("global_step40",)  # a person's own
    _is_no_target(run, pins)
    shutil.copytree(run / "checkpoints" / "global_step20", run / "checkpoints" / "global_step60")  # saved once more
    pins.pin("global_step60")
    shutil.copytree(run / "checkpoints" / "global_step20", run / "checkpoints" / "global_step50")
    pins.pin("global_step50")
    shutil.rmtree(run / "checkpoints" / "global_step50")  # by a retention: nothing but the pin is left of that line
    sentinel(run, "undo", "--yes")
    assert (pins.usable(), [*pins.left()]) == (("global_step40",), ["global_step50"])
    assert live(run) == live(built)


def _is_no_target(run: Path, pins: Pins) -> None:
    """A pin of what a rollback has moved away, also once a checkpoint of that name was saved anew and deleted."""
    again = run / "checkpoints" / "global_step40"
    shutil.copytree(run / "checkpoints" / "global_step20", again)
    pins.pin(again.name)  # of the new line, which is another checkpoint
    assert pins.let_go(again.name)
    shutil.rmtree(again)
    words = line(run, ("checkpoints", "--json"))
    listed = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert [one["tag"] for one in json.loads(listed)] == ["global_step20"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs takes root")
def test_a_quarantine_on_another_filesystem_is_refused_before_anything_is_moved(built: Path, tmp_path: Path) -> None:
    run = copy_run(built, tmp_path.resolve() / "run")
    room, before = run / "checkpoints" / ".sentinel-quarantine", live(run)
    room.mkdir(exist_ok=True)
    mount, umount = (str(shutil.which(name)) for name in ("mount", "umount"))
    if subprocess.run([mount, "-t", "tmpfs", "none", str(room)], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        said = sentinel(run, *TO_40, expect=2)
    finally:
        subprocess.run([umount, str(room)], check=True)
    assert f"{room} is on another filesystem than {run / 'checkpoints'}: a rename can't get there" in said
    assert live(run) == before
    assert incidents(run) == ()


@pytest.mark.full
def test_an_undo_in_another_or_an_empty_save_folder_is_refused_and_comes_back_with_the_right_one(
    run: Path, built: Path
) -> None:
    """As where the file system is not mounted, or the configuration was edited since."""
    there, aside = run / "checkpoints", run / "aside"
    there.rename(aside)
    there.mkdir()
    said = sentinel(run, "undo", "--all", "--yes", expect=4)
    assert "which it moved aside, is neither in" in said
    assert "mount what is not mounted" in said
    shutil.rmtree(there)
    config = next(run.glob("*.toml"))
    text = config.read_text()
    config.write_text(text.replace('"checkpoints"', '"another"'))
    shutil.copytree(built / "checkpoints", run / "another")
    said = sentinel(run, "undo", "--all", "--yes", expect=4)
    assert "was decided for the checkpoints in" in said
    assert live(run / "another") == live(built / "checkpoints")
    shutil.rmtree(run / "another")
    config.write_text(text)
    aside.rename(there)
    sentinel(run, "undo", "--all", "--yes")
    assert live(run) == live(built)


@pytest.mark.full
def test_a_checkpoint_that_somebody_took_out_of_the_quarantine_is_named_before_anything_is_done(
    run: Path, built: Path
) -> None:
    (gone,) = (run / "checkpoints" / ".sentinel-quarantine").rglob("global_step60")
    shutil.rmtree(gone)
    said = sentinel(run, "undo", "--all", "--yes", expect=4)
    assert "global_step60 (1 in all), which it moved aside, is neither" in said
    sentinel(run, "undo", "--all", "--without-missing", "--yes")
    lost = {path for path in live(built) if "global_step60/" in path}
    assert lost
    assert live(run).keys() == live(built).keys() - lost


@pytest.mark.full
def test_purge_names_what_no_rollback_moved_and_an_original_that_has_grown_and_deletes_nothing(run: Path) -> None:
    room = run / "checkpoints" / ".sentinel-quarantine" / "incident-2"
    (room / "mine").mkdir()
    (room / "mine" / "notes").write_text("precious")
    shutil.copytree(run / "checkpoints" / "global_step20", room / "incident-2-r1" / "global_step20")
    left_over = room.with_name("incident-2.purging")
    left_over.mkdir()
    refused = sentinel(run, "purge", "incident-2", "--yes", expect=4)
    assert "incident-2 moved there: incident-2-r1/global_step20, mine; move that elsewhere, then purge again" in refused
    (room / "mine").rename(run / "mine")
    (room / "incident-2-r1" / "global_step20").rename(run / "mine" / "global_step20")
    originals = run / ".sentinel-quarantine" / "incident-2" / "incident-2-r1" / "tensorboard-originals"
    original = next(originals.glob("*tf-events*"))
    with original.open("ab") as late:
        late.write(b"an event that was flushed late")
    refused = sentinel(run, "purge", "incident-2", "--yes", expect=4)
    assert f"{original} is not deleted: another process has changed it since it was moved there" in refused
    assert room.is_dir()
    original.rename(run / "mine" / "events")
    sentinel(run, "purge", "incident-2", "--yes")
    assert not room.exists()
    assert not left_over.exists()
