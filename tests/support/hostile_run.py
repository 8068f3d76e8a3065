"""A run's folder for damaged records, and what a command answers."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cli import main


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "a" / "b"
        (root / "runs").mkdir(parents=True)
        (root / "checkpoints").mkdir()
        (root / "runs" / "tr8.toml").write_text('[run]\nname = "tr8"\ncheckpoints = "../checkpoints"\n')
        (root / ".sentinel" / "tr8" / "attempts").mkdir(parents=True)
        os.chdir(root)
        try:
            yield root
        finally:
            os.chdir(before)


def answer(*arguments: str) -> str:
    """What the command says, on both streams; anything but an exit of its own is an error here."""
    said, old = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), sys.argv
    sys.argv = ["sentinel", *arguments]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = old
    text = said.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert ended.value.code in (0, 1, 2, 3, 4), text
    return text
