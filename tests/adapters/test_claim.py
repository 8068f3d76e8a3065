"""One state folder acts on a save folder: what tells it from its copy, from a moved one and from a second one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints import Checkpoints, Claim, claim
from sentinel.vocabulary.errors import LockHeld, NotOurCheckpoints, QuarantineError
from sentinel.vocabulary.numbers import dump_json, load_object

RECORD = Path(".sentinel-quarantine", "state-folder.json")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    checkpoints, state = tmp_path / "checkpoints", tmp_path / "state"
    checkpoints.mkdir()
    state.mkdir()
    return checkpoints, state


def test_looking_writes_nothing_and_keeping_records_the_state_folder(folders: tuple[Path, Path]) -> None:
    checkpoints, state = folders
    assert Claim(checkpoints, state).problem() is None
    assert not [*checkpoints.iterdir(), *state.iterdir()]
    Claim(checkpoints, state).keep()
    assert load_object((checkpoints / RECORD).read_text())["state_dir"] == str(state)
    assert Claim(checkpoints, state).problem() is None
    assert Checkpoints(checkpoints).list() == ()
    assert Checkpoints(checkpoints).look().incidents == frozenset()


@pytest.mark.parametrize("copied", [True, False])
def test_a_second_and_a_copied_state_folder_are_refused_until_the_record_is_deleted(
    folders: tuple[Path, Path], copied: bool
) -> None:
    checkpoints, state = folders
    Claim(checkpoints, state).keep()
    other = state.with_name("other")
    shutil.copytree(state, other) if copied else other.mkdir()
    problem = Claim(checkpoints, other).problem()
    assert problem is not None
    for named in (f"state folder {state} ", f"this one is {other}:", f"delete {checkpoints / RECORD} "):
        assert named in problem
    with pytest.raises(NotOurCheckpoints, match="stop the watch of the other"):
        Claim(checkpoints, other).keep()
    (checkpoints / RECORD).unlink()
    Claim(checkpoints, other).keep()
    assert Claim(checkpoints, other).problem() is None
    assert Claim(checkpoints, state).problem() is not None


def test_a_renamed_state_folder_goes_on_and_a_copy_in_its_old_place_does_not(folders: tuple[Path, Path]) -> None:
    checkpoints, state = folders
    Claim(checkpoints, state).keep()
    moved = state.rename(state.with_name("moved"))
    shutil.copytree(moved, state)
    assert Claim(checkpoints, moved).problem() is None
    Claim(checkpoints, moved).keep()
    assert Claim(checkpoints, state).problem() is not None


def test_the_same_folder_seen_at_the_same_path_with_another_inode_goes_on_from_the_same_host_alone(
    folders: tuple[Path, Path],
) -> None:
    """As after a restore of a backup, or with a file server that numbers anew."""
    checkpoints, state = folders
    Claim(checkpoints, state).keep()
    record = load_object((checkpoints / RECORD).read_text())
    (checkpoints / RECORD).write_text(dump_json({**record, "inode": 1}))
    assert Claim(checkpoints, state).problem() is None
    (checkpoints / RECORD).write_text(dump_json({**record, "inode": 1, "host": "another"}))
    assert Claim(checkpoints, state).problem() is not None


def test_a_watch_whose_record_is_deleted_writes_it_again_and_one_that_is_handed_over_acts_no_more(
    folders: tuple[Path, Path],
) -> None:
    checkpoints, state = folders
    ours = Claim(checkpoints, state)
    ours.keep()
    (checkpoints / RECORD).unlink()
    ours.keep()
    assert (checkpoints / RECORD).exists()
    (checkpoints / RECORD).unlink()
    (state.with_name("other")).mkdir()
    Claim(checkpoints, state.with_name("other")).keep()
    with pytest.raises(NotOurCheckpoints):
        ours.keep()
    (checkpoints / RECORD).write_text("")
    with pytest.raises(NotOurCheckpoints):
        Claim(checkpoints, state).keep()


def test_a_save_folder_that_is_not_there_yet_is_not_made_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    Claim(tmp_path / "checkpoints", tmp_path / "state").keep()
    assert not (tmp_path / "checkpoints").exists()
    for folder in ("checkpoints", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "checkpoints" / RECORD.parent).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(QuarantineError, match="is a link"):
        Claim(tmp_path / "checkpoints", tmp_path / "state").keep()


def test_a_copy_of_before_the_last_renewal_is_refused_wherever_it_is_seen(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a clone of the volume, mounted over the original's path: path, host and inode are the same."""
    checkpoints, state = folders
    ours = Claim(checkpoints, state)
    ours.keep()
    copied = (state / "identity.json").read_bytes()
    monkeypatch.setattr(claim, "_RENEW_S", 0.0)
    ours.keep()
    kept = (state / "identity.json").read_bytes()
    (state / "identity.json").write_bytes(copied)
    assert Claim(checkpoints, state).problem() is not None
    with pytest.raises(NotOurCheckpoints):
        Claim(checkpoints, state).keep()
    (state / "identity.json").write_bytes(kept)
    Claim(checkpoints, state).keep()
    with pytest.raises(NotOurCheckpoints):  # who acted first stops as soon as another one does
        ours.keep()


def test_while_one_process_acts_no_other_does(folders: tuple[Path, Path]) -> None:
    """Of two clones with one nonce. A process that has ended, or was killed, holds nobody up."""
    checkpoints, state = folders
    acts = "import sys, time; from pathlib import Path; from sentinel.adapters.checkpoints import Claim\n"
    acts += "c = Claim(*map(Path, sys.argv[1:3])); c.keep(); print('acts', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", acts, str(checkpoints), str(state)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "acts\n"
            with pytest.raises(LockHeld, match=f"process {other.pid} of the state folder"):
                Claim(checkpoints, state).keep()
        finally:
            other.kill()
        other.wait()
        Claim(checkpoints, state).keep()


@pytest.mark.parametrize(("age_s", "held"), [(0.0, True), (170.0, True), (190.0, False)])
def test_a_process_of_another_machine_acts_for_three_renewals(
    folders: tuple[Path, Path], age_s: float, held: bool
) -> None:
    checkpoints, state = folders
    Claim(checkpoints, state).keep()
    record = load_object((checkpoints / RECORD).read_text())
    (checkpoints / RECORD).write_text(dump_json({**record, "holder": {"machine": "another", "pid": 1, "start": 1}}))
    os.utime(checkpoints / RECORD, (time.time() - age_s,) * 2)
    if held:
        with pytest.raises(LockHeld):
            Claim(checkpoints, state).keep()
    else:
        Claim(checkpoints, state).keep()


def test_who_acts_no_more_hands_over_at_once(folders: tuple[Path, Path]) -> None:
    checkpoints, state = folders
    ours = Claim(checkpoints, state)
    ours.keep()
    ours.release()
    assert load_object((checkpoints / RECORD).read_text())["holder"] is None
    Claim(checkpoints, state).keep()
