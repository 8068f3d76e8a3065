"""TrainingArguments in a YAML file (LLaMA-Factory, axolotl, `--config` of TRL) as options: read, and set in its text.

The file is a here-document of the script: its own, or one that `named_files` has put there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import yaml

from sentinel.jobscript.arguments import Reached, ScriptReading
from sentinel.jobscript.change import Edit, RemoveOption, SetOption
from sentinel.jobscript.here_documents import Document, Fill, documents, filled, in_script, names_of, the_only
from sentinel.jobscript.made_json import bare
from sentinel.jobscript.trainer import trainers
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.training_settings import wanted_number

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


def yaml_words(reading: ScriptReading) -> tuple[Reached, ...]:
    """The words of the trainer's arguments that name a YAML file, one of each name."""
    named = {
        reached.word.raw: reached
        for launch in trainers(reading)
        for reached in launch.arguments
        if re.search(r"\.ya?ml[\"']?\Z", reached.word.raw)
    }
    return tuple(named.values())


def yaml_options(reading: ScriptReading, fill: Fill) -> dict[str, tuple[str, ...]] | None:
    """Option -> its values, by TrainingArguments' names; None where the script holds no such document.

    ScriptRefused where the document is not the last word, LineError where it can't be read.
    """
    if (document := _document(reading)) is None:
        return None
    given: dict[str, tuple[str, ...]] = {
        key: (value.value,) if isinstance(value, yaml.ScalarNode) else ()
        for key, (_, value) in _pairs(filled(reading, document, fill)).items()
        if not _is_null(value)
    }
    if "base_model" in given:
        given = {_AXOLOTL.get(key, key): values for key, values in given.items()}
        for key, value in _AXOLOTLS_OWN.items():
            given.setdefault(key, (value,))
    return {f"--{key}": values for key, values in given.items()}


def set_in_yaml(reading: ScriptReading, change: SetOption | RemoveOption) -> tuple[Edit, ...] | None:
    """The edits that set the key, or take it out; None where no YAML document of the script holds the options, or the
    command line gives this one, which then counts."""
    key = change.flag.removeprefix("--").replace("-", "_")
    for reached in (reached for launch in trainers(reading) for reached in launch.arguments):
        name, joined, _ = reached.word.shown.partition("=")
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


def _document(reading: ScriptReading) -> Document | None:
    names = {name for reached in yaml_words(reading) for name in names_of(reached)}
    found = [*documents(reading, lambda path, _: bare(path) in names)] if names else []
    found = [
        each for each in found if len(TRAINING_ARGUMENTS & {_AXOLOTL.get(key, key) for key in _pairs(each.masked)}) >= 3
    ]
    return the_only(reading, found, "YAML") if found else None


def _pairs(text: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Key -> its node and its value's, of the mapping at the top; their marks are positions in the text. LineError
    where it is no mapping, or names a key twice."""
    try:
        root = yaml.compose(re.sub(r"[^\n\t -~]", "x", text), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "it" if mark is None else f"its line {mark.line + 1}"
        raise LineError(f"{where} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise LineError("there is no mapping of names to values")
    scalars = [key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)]
    if twice := next((name for name in scalars if scalars.count(name) > 1), None):
        raise LineError(f"{twice} is given twice")
    return {key.value: (key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)}


def _is_null(value: yaml.Node) -> bool:
    return isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null")


def _edit(text: str, key: str, change: SetOption | RemoveOption) -> Edit | None:
    pairs = _pairs(text)
    if key in pairs:
        return _change(text, key, *pairs[key], change)
    if isinstance(change, RemoveOption):
        return None
    first = min(node.start_mark.index for node, _ in pairs.values())
    indent = text[text.rfind("\n", 0, first) + 1 : first]
    if indent.strip():
        raise LineError(f"{key} is not there, and its lines are not one `key: value` each")
    at = len(text.rstrip())
    return Edit(start=at, end=at, new=f"\n{indent}{key}: {_scalar(change.value)}")


def _change(text: str, key: str, at: yaml.Node, value: yaml.Node, change: SetOption | RemoveOption) -> Edit | None:
    """The edit of a key that is there, with its value; None where it has this one."""
    key_start, start, end = at.start_mark.index, value.start_mark.index, value.end_mark.index
    one_line = "\n" not in text[key_start:end]
    if isinstance(change, RemoveOption):
        line_start, line_end = text.rfind("\n", 0, key_start) + 1, text.find("\n", end) + 1
        if text[line_start:key_start].strip() or not one_line or not line_end:
            raise LineError(f"{key} is not on a line of its own")
        return Edit(start=line_start, end=line_end, new="")
    if not isinstance(value, yaml.ScalarNode) or start < key_start or not one_line:
        raise LineError(f"the value of {key} is not one on the key's own line")
    new = _scalar(change.value)
    number = wanted_number(new)
    same = new == value.value or (number is not None and number == wanted_number(value.value))
    if same and not _is_null(value):
        return None
    blank = "" if text[start - 1 : start].isspace() else " "
    return Edit(start=start, end=end, new=f"{blank}{new}")


def _scalar(value: str | None) -> str:
    """The value as every YAML reader takes it: `1e-05` is a text to most, `1.0e-05` a number to all."""
    if value is None:
        return "true"  # a switch
    if (number := re.fullmatch(r"(-?\d+)(\.\d+)?([eE][-+]\d+)", value)) is not None:
        return f"{number[1]}{number[2] or '.0'}{number[3]}"
    return value if re.fullmatch(r"[\w./-]+", value) else json.dumps(value)


def _check(text: str, edit: Edit | None, key: str) -> None:
    """After the edit every other member is, byte for byte, what it was: anything else is a mistake of ours."""
    if edit is None:
        return
    new = text[: edit.start] + edit.new + text[edit.end :]
    before, after = (
        [(name, each[v.start_mark.index : v.end_mark.index]) for name, (_, v) in _pairs(each).items() if name != key]
        for each in (text, new)
    )
    if before != after:
        raise LineError("the change would reach further than its key")
