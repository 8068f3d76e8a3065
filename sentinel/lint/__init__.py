"""Looking at a run before it starts: what is wrong by formula, and what others lost time to.

tr8-104B trained five experiments with a model of 57B, for one number that had been left from another shape. Each rule
here is one formula with its source; it takes what is known of the run and says nothing about what is not.

In: facts of a job script or of a configuration. Out: findings, each with its rule and its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature

from sentinel.jobscript import Rewritten, rewrite
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.megatron_options import changes_at
from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import THE_SCRIPT_ALONE, KnownSettings, changes_of
from sentinel.lint import batches, numerics, saves, schedules, shape, slw
from sentinel.lint.finding import LintFinding, Severity, applied, in_its_words, rules_of
from sentinel.vocabulary.errors import ScriptRefused
from sentinel.vocabulary.overrides import Overrides

__all__ = [
    "RESTART_RULES",
    "RULES",
    "THE_SCRIPT_ALONE",
    "KnownSettings",
    "LintFinding",
    "NewScripts",
    "in_its_words",
    "lint",
    "lint_before_restart",
    "new_scripts",
]

_ALL = tuple(rule for family in (shape, batches, schedules, slw, numerics, saves) for rule in rules_of(family))
RESTART_RULES = tuple(rule for rule in _ALL if "before" in signature(rule).parameters)
RULES = tuple(rule for rule in _ALL if rule not in RESTART_RULES)
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


def lint(facts: ScriptFacts) -> tuple[LintFinding, ...]:
    """All that the rules say of the run: errors first, each severity in the order of the rules."""
    return _sorted([finding for rule in RULES for finding in applied(rule, facts)])


def lint_before_restart(before: ScriptFacts, after: ScriptFacts, *, resume_step: int) -> tuple[LintFinding, ...]:
    """What a restart would bring in: findings of the changed run that the run as it was does not have, and its own.

    What the run has lived with so far is no reason to leave it stopped. `resume_step` is the last completed optimizer
    step of the checkpoint; 0 is a start from scratch.
    """
    lived_with = set(lint(before))
    brought_in = [finding for finding in lint(after) if finding not in lived_with]
    own = [
        finding for rule in RESTART_RULES for finding in applied(rule, after, before=before, resume_step=resume_step)
    ]
    return _sorted([*own, *brought_in])


def _sorted(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewScripts:
    """The job script for the start at the anchor, and the one for all later starts: without what is done once."""

    first: Rewritten
    later: Rewritten
    remarks: tuple[str, ...] = ()  # What lint says of the changed run and did not say of the run as it was; sentences


def new_scripts(text: str, overrides: Overrides, known: KnownSettings = THE_SCRIPT_ALONE) -> NewScripts:
    """The scripts that carry a decision out. ScriptRefused names the line; ConfigError says what can't be done so.

    `text` is the run's own script: each decision changes that, not what the last one left. `known` as for
    `changes_of`. ScriptRefused also where lint finds an error that the change brings in.
    """
    marked = changes_of(text, overrides, known)
    first, later = rewrite(text, changes_at(marked, "first")), rewrite(text, changes_at(marked, "later"))
    before, after = read_text(text).facts, read_text(first.text).facts
    findings = lint_before_restart(before, after, resume_step=overrides.anchor.global_step)
    if (wrong := next((f for f in findings if f.severity == "error"), None)) is not None:
        raise ScriptRefused(None, f"the changed run would be wrong: {wrong.sentence}")
    return NewScripts(first=first, later=later, remarks=tuple(f"{f.severity}: {f.sentence}" for f in findings))
