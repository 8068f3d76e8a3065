"""TrainingArguments in a YAML file (LLaMA-Factory, axolotl, `--config` of TRL) as options: read, and set in its text.

The file is a here-document of the script: its own, or one that `named_files` has put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from sentinel.jobscript.arguments import Reached, Reading
from sentinel.jobscript.change import Edit, RemoveOption, SetOption
from sentinel.jobscript.here_documents import (
    Document,
    Fill,
    documents,
    filled,
    in_script,
    names_of,
    refuse_later_editors,
)
from sentinel.jobscript.made_json import bare
from sentinel.jobscript.trainer import refuse_conditional, trainers
from sentinel.vocabulary.errors import LineError

# axolotl's names for TrainingArguments, and what it takes where TrainingArguments have another default.
_AXOLOTL: Mapping[str, str] = {
    "lr_scheduler": "lr_scheduler_type",
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
}
TRAINING_ARGUMENTS = frozenset(
    (
        *("gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "max_grad_norm", "max_steps"),
        *("num_train_epochs", "output_dir", "per_device_train_batch_size", "resume_from_checkpoint", "save_strategy"),
        "warmup_ratio",
    )
)
"""Three of these together are TrainingArguments."""
_AXOLOTLS_OWN: Mapping[str, str] = {
    "lr_scheduler_type": "cosine",
    "per_device_train_batch_size": "1",
    "warmup_steps": "as axolotl works it out",  # From a ratio or from the number of steps, rounded its own way
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One `key: value` at the top of the document; positions are of the value in its text."""

    key: str
    key_start: int
    start: int
    end: int
    text: str | None  # A scalar as it is written; None for null, a list or a mapping
    scalar: bool


def yaml_words(reading: Reading) -> tuple[Reached, ...]:
    """The words of the trainer's arguments that name a YAML file, one of each name."""
    named = {
        reached.word.raw: reached
        for launch in trainers(reading)
        for reached in launch.arguments
        if re.search(r"\.ya?ml[\"']?\Z", reached.word.raw)
    }
    return tuple(named.values())


def yaml_options(reading: Reading, fill: Fill) -> dict[str, tuple[str, ...]] | None:
    """Option -> its values, by TrainingArguments' names; None where the script holds no such document.

    ScriptRefused where the document is not the last word, LineError where it can't be read.
    """
    if (document := _document(reading)) is None:
        return None
    pairs = _pairs(filled(reading, document, fill))
    known = (pair for pair in pairs if pair.text is not None or not pair.scalar)
    given: dict[str, tuple[str, ...]] = {pair.key: () if pair.text is None else (pair.text,) for pair in known}
    if "base_model" in given:
        given = {_AXOLOTL.get(key, key): values for key, values in given.items()}
        for key, value in _AXOLOTLS_OWN.items():
            given.setdefault(key, (value,))
    return {f"--{key}": values for key, values in given.items()}


def set_in_yaml(reading: Reading, change: SetOption | RemoveOption) -> tuple[Edit, ...] | None:
    """The edits that set the key, or take it out; None where no YAML document of the script holds the options, or the
    command line gives this one, which then counts."""
    key = change.flag.removeprefix("--").replace("-", "_")
    for reached in (reached for launch in trainers(reading) for reached in launch.arguments):
        name, joined, _ = (reached.word.text or reached.word.raw).partition("=")
        if name.lstrip("-").replace("-", "_") != key:
            continue
        if name.startswith("--"):
            return None
        if joined and _document(reading) is not None:
            raise reading.script.refusal(reached.word.start, f"{key} there counts, and not the YAML's")
    try:
        if (document := _document(reading)) is None:
            return None
        edit = _edit(document.masked, key, change)
        _check(document.masked, edit, key)
    except LineError as error:
        start = yaml_words(reading)[0].word.start
        raise reading.script.refusal(start, f"in the YAML that is named there, {error}") from error
    return () if edit is None else (in_script(document, edit),)


def _document(reading: Reading) -> Document | None:
    names = {name for reached in yaml_words(reading) for name in names_of(reached)}
    found = [*documents(reading, lambda path, _: bare(path) in names)] if names else []
    found = [document for document in found if len(_members(document.masked) & TRAINING_ARGUMENTS) >= 3]
    if not found:
        return None
    if len(found) > 1:
        raise reading.script.unclear("here-documents with YAML begin", [document.start for document in found])
    refuse_conditional(reading, found[0].node, found[0].start, "YAML")
    refuse_later_editors(reading, found[0].destination, found[0].start, "YAML")
    return found[0]


def _members(text: str) -> frozenset[str]:
    return frozenset(_AXOLOTL.get(pair.key, pair.key) for pair in _pairs(text))


def _pairs(text: str) -> list[_Pair]:
    """The members of the mapping at the top. LineError where it is none, or names a key twice."""
    try:
        root = yaml.compose(re.sub(r"[^\n\t -~]", "x", text), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "it" if mark is None else f"its line {mark.line + 1}"
        raise LineError(f"{where} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise LineError("there is no mapping of names to values")
    found = [_pair(key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)]
    names = [pair.key for pair in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LineError(f"{twice} is given twice")
    return found


def _pair(key: Any, value: Any) -> _Pair:
    scalar = isinstance(value, yaml.ScalarNode)
    known = scalar and not value.tag.endswith(":null")
    start, end = value.start_mark.index, value.end_mark.index
    return _Pair(
        key=str(key.value),
        key_start=key.start_mark.index,
        start=start,
        end=end,
        text=value.value if known else None,
        scalar=scalar,
    )


def _edit(text: str, key: str, change: SetOption | RemoveOption) -> Edit | None:
    pairs = _pairs(text)
    named = next((pair for pair in pairs if pair.key == key), None)
    line_start = 0 if named is None else text.rfind("\n", 0, named.key_start) + 1
    if isinstance(change, RemoveOption):
        if named is None:
            return None
        line_end = text.find("\n", named.end) + 1
        if text[line_start : named.key_start].strip() or "\n" in text[named.key_start : named.end] or not line_end:
            raise LineError(f"{key} is not on a line of its own")
        return Edit(start=line_start, end=line_end, new="")
    value = _scalar("true" if change.value is None else change.value)
    if named is not None:
        if not named.scalar or named.start < named.key_start or "\n" in text[named.key_start : named.end]:
            raise LineError(f"the value of {key} is not one on the key's own line")
        if named.text is not None and _same(named.text, value):
            return None
        blank = "" if text[named.start - 1 : named.start].isspace() else " "
        return Edit(start=named.start, end=named.end, new=f"{blank}{value}")
    first = min(pairs, key=lambda pair: pair.key_start)
    indent = text[text.rfind("\n", 0, first.key_start) + 1 : first.key_start]
    if indent.strip():
        raise LineError(f"{key} is not there, and its lines are not one `key: value` each")
    at = len(text.rstrip())
    return Edit(start=at, end=at, new=f"\n{indent}{key}: {value}")


def _scalar(value: str) -> str:
    """The value as every YAML reader takes it: `1e-05` is a text to most, `1.0e-05` a number to all."""
    if (number := re.fullmatch(r"(-?\d+)(\.\d+)?([eE][-+]\d+)", value)) is not None:
        return f"{number[1]}{number[2] or '.0'}{number[3]}"
    return value if re.fullmatch(r"[\w./-]+", value) else json.dumps(value)


def _same(one: str, other: str) -> bool:
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def _check(text: str, edit: Edit | None, key: str) -> None:
    """After the edit every other member is, byte for byte, what it was: anything else is a mistake of ours."""
    if edit is None:
        return
    new = text[: edit.start] + edit.new + text[edit.end :]
    before, after = (
        [(pair.key, each[pair.start : pair.end]) for pair in _pairs(each) if pair.key != key] for each in (text, new)
    )
    if before != after:
        raise LineError("the change would reach further than its key")
