"""What a page shows of a dead job's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.act.last_lines import last_lines


def test_of_a_long_log_the_end_alone_is_read_and_shown(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"x" * 40_000 + b"\n" + b"y" * 1000 + b"\n" + b"".join(b"line %d\n" % n for n in range(11)) + b"\n")
    shown = last_lines(log, since_unix_s=None).split("\n")
    assert shown == ["y" * 240 + "…", *(f"line {n}" for n in range(11))]


def test_a_progress_bar_is_its_last_state_and_colours_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b" 1%|\r 2%|\r 3%|\n\x1b[31mRuntimeError\x1b[0m: \xff\x07 bad\n")
    assert last_lines(log, since_unix_s=None) == " 3%|\nRuntimeError: \ufffd bad"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("WANDB_API_KEY=0123abc wandb up", "WANDB_API_KEY=*** wandb up"),
        ('{"token": "abc", "lr": 1e-4}', '{"token": "***", "lr": 1e-4}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("cloning https://me:pass@host/repo", "cloning https://me:***@host/repo"),
        ("login with hf_AbCdEfGhIjKlMnOp failed", "login with *** failed"),
        ("key " + "0a" * 20, "key ***"),
        ("consumed tokens: 12 | token ids", "consumed tokens: *** | token ids"),
        ("ImportError: no module named torchvision", "ImportError: no module named torchvision"),
    ],
)
def test_what_may_be_a_secret_is_masked(tmp_path: Path, line: str, shown: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{line}\n")
    assert last_lines(log, since_unix_s=None) == shown


def test_what_was_not_written_since_the_start_or_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    assert last_lines(log, since_unix_s=None) == ""
    log.write_text("of the attempt before\n")
    os.utime(log, (1000, 1000))
    assert last_lines(log, since_unix_s=1010) == ""
    assert last_lines(log, since_unix_s=1001) == "of the attempt before"
    os.mkfifo(tmp_path / "pipe")
    assert last_lines(tmp_path / "pipe", since_unix_s=None) == ""
