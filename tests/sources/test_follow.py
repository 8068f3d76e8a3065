"""A log that is followed while others write, rotate, cut, tear and replace it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.sources.followed_log import FollowedLog
from sentinel.vocabulary.sample import Record, Sample
from tests.sources.reading import megatron, samples, starts, steps


def lines(*of: int, loss: float = 3.0, rank: str = "") -> str:
    return "".join(megatron(step, loss, rank=rank) + "\n" for step in of)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def drained(followed: FollowedLog) -> list[Record]:
    """All that is there, the step that is held too."""
    return followed.poll() + followed.poll()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main_log.txt"


def test_a_log_that_is_not_there_yet_is_nothing_yet(path: Path) -> None:
    followed = FollowedLog(path)
    assert followed.poll() == []
    path.write_text(lines(1, 2, 3))
    assert steps(drained(followed)) == [(1, 1), (1, 2), (1, 3)]
    assert followed.format == "megatron"


def test_the_last_step_is_given_when_the_next_begins_or_the_log_is_silent(path: Path) -> None:
    path.write_text(lines(1, 2, 3, rank="[default7]:"))
    followed = FollowedLog(path)
    assert steps(followed.poll()) == [(1, 1), (1, 2)]
    assert steps(followed.poll()) == [(1, 3)]
    assert followed.poll() == []
    append(path, lines(4, rank="[default7]:"))
    assert steps(drained(followed)) == [(1, 4)]


def test_a_step_that_nobody_else_reports_is_given_at_once(path: Path) -> None:
    path.write_text(lines(1, 2, 3))
    assert steps(FollowedLog(path).poll()) == [(1, 1), (1, 2), (1, 3)]


def test_a_line_torn_over_two_polls_is_read_whole(path: Path) -> None:
    text = lines(3)
    path.write_text(lines(1, 2) + text[:120])
    followed = FollowedLog(path)
    assert steps(drained(followed)) == [(1, 1), (1, 2)]
    append(path, text[120:])
    assert steps(drained(followed)) == [(1, 3)]
    assert followed.unreadable == 0


def test_a_rotated_log_is_read_to_its_end_and_then_its_successor(path: Path) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path)
    records = followed.poll()
    append(path, lines(3))
    path.rename(path.with_suffix(".1"))
    append(path.with_suffix(".1"), lines(4))
    path.write_text(lines(5, 6))
    records += drained(followed)
    assert steps(records) == [(1, s) for s in range(1, 7)]


def test_between_rotation_and_the_new_file_the_old_one_is_followed(path: Path) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path)
    records = followed.poll()
    path.rename(path.with_suffix(".1"))
    append(path.with_suffix(".1"), lines(3))
    records += drained(followed)
    path.write_text(lines(4))
    records += drained(followed)
    assert steps(records) == [(1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("grown", [1, 40], ids=["shorter", "longer than it was"])
def test_a_log_that_was_cut_is_read_from_its_beginning(path: Path, grown: int) -> None:
    path.write_text(lines(*range(1, 20)))
    followed = FollowedLog(path)
    records = drained(followed)
    path.write_text(lines(*range(20, 20 + grown)))  # copytruncate, and writing goes on
    records += drained(followed)
    assert steps(records) == [(1, s) for s in range(1, 20 + grown)]


def test_a_size_that_is_behind_for_once_is_not_believed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(lines(*range(1, 20)))
    followed = FollowedLog(path)
    records = drained(followed)
    real = os.fstat

    def behind(fd: int) -> os.stat_result:
        shown = list(real(fd))
        shown[6] = 300
        return os.stat_result(shown)

    monkeypatch.setattr(os, "fstat", behind)
    records += followed.poll()
    monkeypatch.undo()
    append(path, lines(20))
    assert steps(records + drained(followed)) == [(1, s) for s in range(1, 21)]


def test_a_log_that_was_cut_behind_its_first_lines_is_read_again(path: Path) -> None:
    path.write_text(lines(*range(1, 20)))
    followed = FollowedLog(path)
    records = drained(followed)
    path.write_text(lines(1, 2, 3, loss=3.0))
    assert steps(records + drained(followed))[-3:] == [(2, 1), (2, 2), (2, 3)]


def test_a_restart_in_a_log_that_was_begun_anew_is_a_new_attempt(path: Path) -> None:
    path.write_text(lines(*range(1, 20)))
    followed = FollowedLog(path)
    records = drained(followed)
    path.write_text(lines(11, 12, loss=2.9))
    records += drained(followed)
    assert steps(records)[-2:] == [(2, 11), (2, 12)]
    assert (starts(records)[-1].parent_attempt, starts(records)[-1].resumed_from) == (1, 10)


def test_a_hole_of_zeros_that_a_cut_leaves_is_no_line(path: Path) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path)
    followed.poll()
    path.write_bytes(b"\0" * 300 + lines(3, 4).encode())
    assert steps(drained(followed)) == [(1, 3), (1, 4)]
    assert followed.unreadable == 0


def test_a_link_to_the_newest_jobs_log_is_followed_to_its_new_target(tmp_path: Path, path: Path) -> None:
    (tmp_path / "job-1.out").write_text(lines(1, 2))
    (tmp_path / "job-2.out").write_text(lines(3, 4))
    path.symlink_to("job-1.out")
    followed = FollowedLog(path)
    records = drained(followed)
    path.unlink()
    assert followed.poll() == []
    path.symlink_to("job-2.out")
    assert steps(records + drained(followed)) == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_log_that_is_deleted_and_written_again_is_read_again(path: Path) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path)
    records = drained(followed)
    path.unlink()
    records += drained(followed)
    path.write_text(lines(3))
    assert steps(records + drained(followed)) == [(1, 1), (1, 2), (1, 3)]


def test_files_of_several_ranks_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank-{rank}.log").write_text(lines(1, 2, 3, loss=3.0 + rank))
    followed = FollowedLog(tmp_path / "rank-*.log")
    read = samples(drained(followed))
    assert [(s.global_step, s.loss, s.loss_spread) for s in read] == [(1, 4.0, 2.0), (2, 4.0, 2.0), (3, 4.0, 2.0)]
    append(tmp_path / "rank-0.log", lines(4, 5))
    append(tmp_path / "rank-1.log", lines(4, 5))
    assert followed.poll() == []  # rank 2 may yet come
    append(tmp_path / "rank-2.log", lines(4, 5))
    assert [s.loss_spread for s in samples(drained(followed))] == [0.0, 0.0]


def test_a_dead_rank_does_not_hold_the_run_back(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank-{rank}.log").write_text(lines(1, 2, 3))
    followed = FollowedLog(tmp_path / "rank-*.log")
    drained(followed)
    append(tmp_path / "rank-0.log", lines(*range(4, 200)))
    assert [s.global_step for s in samples(followed.poll())] == list(range(4, 136))
    assert [s.global_step for s in samples(followed.poll())] == list(range(136, 200))


def test_begun_anew_it_gives_the_same_records(path: Path) -> None:
    path.write_text(lines(*range(1, 50)) + "a warning\n" + lines(*range(30, 60)))
    live = FollowedLog(path)
    records = drained(live)
    append(path, lines(60, 61))
    records += [r for r in drained(live)]  # noqa: C416 - the stamped ones
    assert steps(records) == steps(drained(FollowedLog(path)))


def test_live_samples_without_a_clock_get_the_time_of_their_reading(path: Path) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path, now=lambda: 5000.0)
    before = samples(followed.poll())
    append(path, lines(3))
    assert math.isnan(before[0].time_unix_s)
    assert [s.time_unix_s for s in samples(followed.poll())] == [5000.0]


def test_a_stale_handle_is_asked_for_again_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(lines(1, 2))
    followed = FollowedLog(path)
    records = drained(followed)
    append(path, lines(3, 4))
    real, failures = os.pread, [OSError(errno.ESTALE, "Stale file handle")]

    def stale_once(fd: int, count: int, offset: int) -> bytes:
        if failures:
            raise failures.pop()
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", stale_once)
    records += drained(followed) + followed.poll()
    assert steps(records) == [(1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    "tear", [lambda p: p.mkdir(), lambda p: p.symlink_to(p)], ids=["a folder", "a circle of links"]
)
def test_what_can_not_be_read_is_an_oserror_as_a_journals(path: Path, tear: Callable[[Path], None]) -> None:
    tear(path)
    with pytest.raises(OSError, match=str(path.name) + "|directory"):
        FollowedLog(path).poll()


def test_a_step_whose_rank_comes_after_it_was_given_is_not_given_twice(path: Path) -> None:
    step = "[titan] step: {}  loss:  {}  grad_norm: 1.0\n"
    path.write_text(step.format(1, 7.0) + step.format(2, 6.5))
    followed = FollowedLog(path)
    records = drained(followed)
    append(path, step.format(2, 6.6) + step.format(3, 6.0))
    assert steps(records + drained(followed)) == [(1, 1), (1, 2), (1, 3)]


def test_what_is_held_is_a_sample_of_the_vocabulary(path: Path) -> None:
    path.write_text(lines(1))
    assert all(isinstance(r, Sample) or r.attempt == 1 for r in drained(FollowedLog(path, format_name="megatron")))
