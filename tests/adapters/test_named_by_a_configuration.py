"""Files that a configuration names: a pipe in their place is waited for by nobody, and what they hold is not quoted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel import bounded


def test_a_log_is_appended_to_and_a_pipe_in_its_place_is_waited_for_by_nobody(tmp_path: Path) -> None:
    for text in (b"a", b"b"):
        with bounded.append_to(tmp_path / "job.log") as log:
            log.write(text)
            assert os.get_blocking(log.fileno())
    assert (tmp_path / "job.log").read_bytes() == b"ab"
    bounded.append_to(Path(os.devnull)).close()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        bounded.append_to(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="no regular file"):
            bounded.append_to(tmp_path / "pipe")
    finally:
        os.close(reader)


@pytest.mark.parametrize("text", ["", " \n", "one\ntwo", "a\x00b", "a\x1b[2Jb", "a\u202eb"])
def test_a_secret_is_one_line_that_can_be_seen_and_is_not_quoted(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(OSError, match="one line, of characters that can be seen") as refused:
        bounded.read_secret(tmp_path / "secret")
    assert "one\ntwo" not in str(refused.value)
    (tmp_path / "secret").write_text(" größer; \n")
    assert bounded.read_secret(tmp_path / "secret") == "größer;"


def test_a_private_copy_is_what_the_file_was_when_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(b"whole")
    with bounded.private_copy(tmp_path / "key.pem") as copy:
        (tmp_path / "key.pem").write_bytes(b"half")
        assert copy.read_bytes() == b"whole"
