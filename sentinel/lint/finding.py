"""What a rule says, and how it says a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, isfunction, signature
from operator import attrgetter
from types import ModuleType
from typing import Any, Literal

from sentinel.jobscript.derived import parameter_count, replicas, scale, total_steps, warmup_steps
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.reading import Read

# error: it can't start, or it is not the run that is meant. warning: others lost time to it. note: worth knowing.
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing about a run that a person should look at before it starts."""

    severity: Severity
    what: str  # The rule's name
    sentence: str  # The numbers, and what would be right
    source: str  # Who says so


@dataclass(frozen=True, slots=True)
class Remark:
    """What a rule has to say of a run; its name and source are its own.

    A rule is one formula, as a public function of a module of rules. Its parameters are the facts that it needs, by the
    names below or those of `ScriptFacts`; it is not asked where one of them is not known, but for those with a default.
    Its docstring says what it looks at, and after `Source:` who says so.
    """

    severity: Severity
    sentence: str


error, warning, note = partial(Remark, "error"), partial(Remark, "warning"), partial(Remark, "note")
Rule = Callable[..., Iterator[Remark]]
_SHORT = {
    "h": "hidden_size",
    "f": "ffn_hidden_size",
    "layers": "num_layers",
    "method": "pp_partition_method",
    "world": "world_size",
    "tensor": "tensor_model_parallel_size",
    "stages": "pipeline_model_parallel_size",
    "batch": "global_batch_size",
    "micro": "micro_batch_size",
    "leaves": "exit_duration_min",
    "limit": "time_limit_min",
    "slw": "curriculum",
    "ramp": "rampup_batch_size",
    "declared": "declared_parameters",
    "std": "init_method_std",
}
_DERIVED: Mapping[str, Callable[[ScriptFacts], Any]] = {
    "facts": lambda facts: facts,
    "size": scale,
    "copies": replicas,
    "count": parameter_count,
    "total": total_steps,
    "warmup": warmup_steps,
    **{short: attrgetter(name) for short, name in _SHORT.items()},
}


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """The rules of a module, in their order: its public functions."""
    functions = [found for name, found in vars(module).items() if isfunction(found) and not name.startswith("_")]
    return tuple(found for found in functions if found.__module__ == module.__name__)


def applied(rule: Rule, facts: ScriptFacts, **of_a_restart: Any) -> Iterator[LintFinding]:
    """What the rule says of these facts. A rule of restarts also takes those `before`, and the `resume_step`."""
    known = {}
    for name, parameter in signature(rule).parameters.items():
        value = of_a_restart[name] if name in of_a_restart else _DERIVED.get(name, attrgetter(name))(facts)
        if value is None and parameter.default is Parameter.empty:
            return
        known[name] = value
    for remark in rule(**known):
        yield LintFinding(
            severity=remark.severity, what=rule.__name__, sentence=remark.sentence, source=source_of(rule)
        )


def source_of(rule: Rule) -> str:
    """What stands after `Source:` in the rule's docstring, on one line."""
    return " ".join((rule.__doc__ or "").partition("Source:")[2].split()).rstrip(".")


def big(number: float) -> str:
    """A count as people say it: 104B, 58.0B, 345M; small ones as they are."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.6g}"


def in_its_words(read: Read, findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    """The findings with the trainer's own names for its options."""
    return tuple(
        replace(finding, sentence=re.sub(r"--[a-z0-9-]+", lambda m: read.names.get(m[0], m[0]), finding.sentence))
        for finding in findings
    )
