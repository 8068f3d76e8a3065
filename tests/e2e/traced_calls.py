"""`python -m tests.e2e.traced_calls RECORD MODULE ARGUMENT...`: runs a module as `python -m` does, and writes down each
call of a function that the sequence diagram of CONTRIBUTING.md names."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
_PARTICIPANT = re.compile(r"^ *participant (\w+) as ([\w/]+\.py)$", re.MULTILINE)
_NOTE = re.compile(r"^ *Note over [\w,]+: ", re.MULTILINE)
_MESSAGE = re.compile(r"^ *(\w+)->>(\w+): (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """One arrow: a function of `callee` is called by `caller`; both are files."""

    caller: str
    callee: str
    function: str


@dataclass(frozen=True)
class Section:
    """The messages below one note; `at_once`: none begins again before the last."""

    messages: tuple[Message, ...]
    at_once: bool


def diagram() -> tuple[dict[str, str], list[Section]]:
    """The files of the participants by their short names, and the messages in order."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("```mermaid\n")[2].partition("```")[0]
    files = dict(_PARTICIPANT.findall(text))
    found = []
    for part in _NOTE.split(text)[1:]:
        messages = tuple(Message(files[a], files[b], function) for a, b, function in _MESSAGE.findall(part))
        found.append(Section(messages, at_once=", in one " in part.partition("\n")[0]))
    return files, found


class Record:
    """A line for each call: when (ns of the machine's monotonic clock), what, and which file called it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self._wanted = {(str(ROOT / m.callee), m.function) for section in diagram()[1] for m in section.messages}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and (code.co_filename, code.co_name) in self._wanted:
            callee = str(Path(code.co_filename).relative_to(ROOT))
            line = (time.monotonic_ns(), callee, code.co_name, caller_of(frame))
            self._file.write(json.dumps(line) + "\n")


def caller_of(frame: FrameType) -> str | None:
    """The file of ours that the call came from: another one than the function's own."""
    own, outer = frame.f_code.co_filename, frame.f_back
    while outer is not None:
        name = outer.f_code.co_filename
        if name != own and name.startswith((f"{ROOT}/sentinel/", f"{ROOT}/trainer_hooks/")):
            return str(Path(name).relative_to(ROOT))
        outer = outer.f_back
    return None


def recorded(folder: Path) -> Iterator[Message]:
    """The calls of all processes, in the order in which they were made."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    for _, callee, function, caller in sorted(lines, key=lambda line: line[0]):
        yield Message(caller or "", callee, function)


def main() -> None:
    record = Record(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    threading.setprofile(record)
    sys.setprofile(record)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
