"""What a Megatron log shows of a run: the arguments of its last start, its vocabulary, its pace."""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.jobscript.given import Given, Option, Unread
from sentinel.jobscript.option_facts import Known

HEADER = re.compile(r"-{3,} (end of )?arguments -{3,}\s*$")
_LINE = re.compile(r"\b(?P<name>[A-Za-z_]\w*) \.{2,} ?(?P<value>.*)$")
_PREFIX = re.compile(r"^(?:\s*(?:\[default\d+\]|\d+|slurm_procid \d+ )\s*:)?")
_DECIMAL = r"(\d{1,15}(?:\.\d{0,15})?)"
_STEP = re.compile(rf"elapsed time per iteration \((ms|s)\): {_DECIMAL}.*?global batch size:\s*(\d{{1,15}})")
_VOCABULARY = re.compile(r"> padded vocab \(size: (\d{1,15})\) with \d+ dummy tokens \(new size: (\d{1,15})\)")
_SAVE = re.compile(rf"\bsave-checkpoint[ .]*:\s*\(?{_DECIMAL}(?:,\s*{_DECIMAL}\))?")


def is_megatron_log(text: str) -> bool:
    """Whether a trainer of Megatron's family has printed its arguments in it."""
    return any(found[1] is None for line in text.splitlines() if (found := HEADER.search(line)))


def given_by_log(text: str) -> Given:
    """The arguments that the last start in the log printed: all of them, with their defaults."""
    lines = text.splitlines()
    start = _last_start(lines)
    options = tuple(_options(lines[start + 1 :]))
    closed = any((found := HEADER.search(line)) and found[1] for line in lines[start + 1 :])
    torn = () if closed else (Unread(what="the arguments", why="the log ends before they do", line=start + 1),)
    deepspeed = _printed_json(lines[start:])
    named = any(option.flag == "--deepspeed-config" for option in options)
    if named and deepspeed is None:
        torn = (*torn, Unread(what="the DeepSpeed JSON", why="the log does not show it: lint its file, too"))
    return Given(program="the log", options=options, deepspeed=deepspeed, unread=torn, complete=closed)


def measured(text: str) -> Known:
    """Seconds per step at the largest batch since the last start (the median), those of a save, and the vocabulary."""
    lines = text.splitlines()
    since = lines[_last_start(lines) :]
    known: Known = {}
    found_steps = [found for line in since if (found := _STEP.search(line))]
    steps = [(int(found[3]), float(found[2]) / (1000 if found[1] == "ms" else 1)) for found in found_steps]
    largest = max((batch for batch, _ in steps), default=0)
    if steps and (pace := statistics.median(seconds for batch, seconds in steps if batch == largest)):
        known["step_time_s"] = pace
    saves = [float(found[2] or found[1]) / 1000 for line in since if (found := _SAVE.search(line))]
    if saves and statistics.median(saves) > 0:
        known["save_time_s"] = statistics.median(saves)
    for line in since:
        if (found := _VOCABULARY.search(line)) is not None:
            known |= {"vocab_size": int(found[1]), "padded_vocab_size": int(found[2])}
    return known


def _last_start(lines: Sequence[str]) -> int:
    return max(i for i, line in enumerate(lines) if (found := HEADER.search(line)) and found[1] is None)


def _options(lines: Sequence[str]) -> Iterator[Option]:
    for number, line in enumerate(lines):
        if HEADER.search(line):
            return
        found = _LINE.search(_PREFIX.sub("", line, count=1).strip())
        if found is None or found["value"].strip() in ("None", "False", ""):
            continue
        value, flag = found["value"].strip(), f"--{found['name'].replace('_', '-')}"
        values: tuple[str, ...] = () if value == "True" else (value,)
        if value.startswith("["):
            values = _list(value)
        last = number + 1 == len(lines)  # of a log that ends in the middle of its arguments: it may itself be cut
        yield Option(
            flag=flag, values=values, unread=Unread(what=flag, why="the log ends in this line") if last else None
        )


def _list(text: str) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        return (text,)
    return tuple(map(str, value)) if isinstance(value, list) else (text,)


def _printed_json(lines: Sequence[str]) -> Mapping[str, Any] | None:
    """The configuration that DeepSpeed prints when its engine starts: `json = {…}` over several lines."""
    for number, line in enumerate(lines):
        if re.search(r"\bjson = \{\s*$", line):
            body = "\n".join(["{", *(_PREFIX.sub("", each, count=1) for each in lines[number + 1 :])])
            try:
                data, _ = json.JSONDecoder().raw_decode(body)
            except (ValueError, RecursionError):
                return None
            return data if isinstance(data, dict) else None
    return None
