"""What a probe has written becomes the run's: each file once, nothing overwritten, taken up where it was cut short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints.probes import Adoptions, event_files, journals_of, place_checkpoint
from sentinel.adapters.checkpoints.quarantine import Quarantine
from sentinel.vocabulary.errors import QuarantineError
from tests.adapters.checkpoint_files import deepspeed, digests, hugging_face

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """Its checkpoints of steps 10, which it began from, 20 and 30."""
    for step in (10, 20, 30):
        deepspeed(tmp_path / "probe", step)
    deepspeed(tmp_path / "run", 10)
    return tmp_path / "probe"


def test_checkpoints_after_the_step_are_moved_and_the_rest_stays(probe: Path, tmp_path: Path) -> None:
    adoptions = Adoptions(tmp_path / "run")
    assert adoptions.done(**WHERE) is None
    adoptions.adopt(probe, 10, "global_step30", {}, **WHERE)
    assert adoptions.done(**WHERE) is True
    moved = sorted(p.name for p in (tmp_path / "run").glob("global_step*"))
    assert moved == ["global_step10", "global_step20", "global_step30"]
    assert [p.name for p in probe.iterdir()] == ["global_step10"]


def test_what_was_cut_short_is_taken_up_and_not_complete_before(probe: Path, tmp_path: Path) -> None:
    adoptions, in_the_way = Adoptions(tmp_path / "run"), tmp_path / "run" / "global_step30"
    in_the_way.mkdir()
    with pytest.raises(QuarantineError, match="global_step30 is there already"):
        adoptions.adopt(probe, 10, "global_step30", {}, **WHERE)
    assert adoptions.done(**WHERE) is False
    assert (probe / "global_step30").exists()
    in_the_way.rmdir()
    adoptions.adopt(probe, 10, "global_step30", {}, **WHERE)
    assert adoptions.done(**WHERE) is True


def test_a_probe_without_the_checkpoint_changes_nothing(probe: Path, tmp_path: Path) -> None:
    with pytest.raises(QuarantineError, match="has no global_step40 any more: nothing of the probe was adopted"):
        Adoptions(tmp_path / "run").adopt(probe, 10, "global_step40", {}, **WHERE)
    assert Adoptions(tmp_path / "run").done(**WHERE) is None
    assert not (tmp_path / "run" / "global_step20").exists()


def test_event_files_and_journals_are_given_a_second_name_and_overwrite_nothing(probe: Path, tmp_path: Path) -> None:
    board, attempts, run = tmp_path / "board", tmp_path / "attempts", tmp_path / "run"
    (board / "train" / "events.out.tfevents.9").mkdir(parents=True)  # a folder of that name is no event file
    event = board / "train" / "events.out.tfevents.1"
    event.write_bytes(b"steps")
    (board / "events.out.tfevents.2").symlink_to(event)
    attempts.mkdir()
    (attempts / "0002.jsonl").write_text("{}")
    (attempts / "0002.jsonl.part").touch()
    files = event_files(board, run / "board") | journals_of(attempts, run / "attempts")
    assert files == {
        event: run / "board" / "train" / event.name,
        attempts / "0002.jsonl": run / "attempts" / "0002.jsonl",
    }
    adoptions = Adoptions(run)
    for _ in range(2):  # again: they are there, and are the same
        adoptions.adopt(probe, 10, "global_step10", files, **WHERE)
    assert files[event].samefile(event)
    event.unlink()
    event.write_bytes(b"other")
    with pytest.raises(QuarantineError, match=r"events.out.tfevents.1 is there already: .* would overwrite it"):
        adoptions.adopt(probe, 10, "global_step10", files, **WHERE)
    assert files[event].read_bytes() == b"steps"


def test_a_checkpoint_with_folders_in_it_is_placed_whole_and_placed_again(tmp_path: Path) -> None:
    tag = hugging_face(tmp_path / "run", 10)
    deepspeed(tag, 10)
    for _ in range(2):
        place_checkpoint(tmp_path / "run", tag.name, tmp_path / "copies", tmp_path / "own")
    assert digests(tmp_path / "own" / tag.name) == digests(tag)


def test_a_copy_is_made_where_there_are_no_hard_links(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    source, destination = tmp_path / "events.out.tfevents.1", tmp_path / "run" / "board" / "events.out.tfevents.1"
    source.write_bytes(b"steps")
    Adoptions(tmp_path / "run").adopt(probe, 10, "global_step10", {source: destination}, **WHERE)
    assert destination.read_bytes() == b"steps"
    assert not destination.samefile(source)
    assert [p.name for p in destination.parent.iterdir()] == [destination.name]


def test_a_copy_that_a_kill_cut_short_is_gone_after_the_adoption_is_taken_up_and_after_an_undo(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def refused(*_: object) -> None:
        raise OSError("no hard links here")

    def cut_short(one: int, other: int, _count: int) -> int:
        os.write(other, os.read(one, 2))
        raise Killed

    run, journal = tmp_path / "run", tmp_path / "0002.jsonl"
    journal.write_bytes(b"lines")
    destination = tmp_path / "state" / "attempts" / journal.name
    monkeypatch.setattr(Path, "hardlink_to", refused)
    for finish in ("taken up", "undone"):
        with monkeypatch.context() as killed:
            killed.setattr(os, "copy_file_range", cut_short)
            with pytest.raises(Killed):
                Adoptions(run).adopt(probe, 10, "global_step10", {journal: destination}, **WHERE)
        (part,) = destination.parent.iterdir()
        assert part.read_bytes() == b"li"
        if finish == "undone":
            Quarantine(run, None).bring_back(**WHERE)
            assert list(destination.parent.iterdir()) == []
        else:
            Adoptions(run).adopt(probe, 10, "global_step10", {journal: destination}, **WHERE)
            assert [p.read_bytes() for p in destination.parent.iterdir()] == [b"lines"]
            Quarantine(run, None).bring_back(**WHERE)
            destination.unlink()
