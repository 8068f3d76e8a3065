"""What a rule says, and how it says a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import isfunction
from types import ModuleType
from typing import Literal

from sentinel.jobscript.facts import Facts
from sentinel.jobscript.reading import Read

Severity = Literal["error", "warning", "note"]
"""error: it can't start, or it is not the run that is meant. warning: others lost time to it. note: worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing about a run that a person should look at before it starts."""

    severity: Severity
    what: str  # The rule's name
    sentence: str  # The numbers, and what would be right
    source: str  # Who says so


@dataclass(frozen=True, slots=True)
class Remark:
    """What a rule has to say of a run; its name and source are its own.

    A rule is one formula, as a public function of a module of rules: facts to remarks. Its docstring says what it
    looks at, and after `Source:` who says so.
    """

    severity: Severity
    sentence: str


def rules_of(module: ModuleType) -> tuple[Callable[..., Iterator[Remark]], ...]:
    """The rules of a module, in their order: its public functions."""
    return tuple(
        found
        for name, found in vars(module).items()
        if isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    )


def applied(rule: Callable[..., Iterator[Remark]], *facts: Facts | int) -> Iterator[Finding]:
    """What the rule says of these facts; a rule of restarts takes those before, those after, and the step."""
    for remark in rule(*facts):
        yield Finding(severity=remark.severity, what=rule.__name__, sentence=remark.sentence, source=source_of(rule))


def source_of(rule: Callable[..., Iterator[Remark]]) -> str:
    """What stands after `Source:` in the rule's docstring, on one line."""
    return " ".join((rule.__doc__ or "").partition("Source:")[2].split()).rstrip(".")


def error(sentence: str) -> Remark:
    return Remark("error", sentence)


def warning(sentence: str) -> Remark:
    return Remark("warning", sentence)


def note(sentence: str) -> Remark:
    return Remark("note", sentence)


def big(number: float) -> str:
    """A count as people say it: 104B, 58.0B, 345M; small ones as they are."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.6g}"


def in_its_words(read: Read, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with the trainer's own names for its options."""
    return tuple(
        replace(finding, sentence=re.sub(r"--[a-z0-9-]+", lambda m: read.names.get(m[0], m[0]), finding.sentence))
        for finding in findings
    )
