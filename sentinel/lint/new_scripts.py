"""The job scripts that carry a decision out, looked over before anything is started with them."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.jobscript import Rewritten, rewrite
from sentinel.jobscript.megatron_options import changes_at
from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import changes_of
from sentinel.lint import lint_before_restart
from sentinel.vocabulary.errors import ScriptRefused
from sentinel.vocabulary.overrides import Overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class NewScripts:
    """The job script for the start at the anchor, and the one for all later starts: without what is done once."""

    first: Rewritten
    later: Rewritten
    remarks: tuple[str, ...] = ()  # What lint says of the changed run and did not say of the run as it was; sentences


def new_scripts(text: str, overrides: Overrides) -> NewScripts:
    """The scripts that carry a decision out. ScriptRefused names the line; ConfigError says what can't be done so.

    `text` is the run's own script: each decision changes that, not what the last one left. ScriptRefused also where
    lint finds an error that the change brings in.
    """
    marked = changes_of(text, overrides)
    first, later = rewrite(text, changes_at(marked, "first")), rewrite(text, changes_at(marked, "later"))
    before, after = read_text(text).facts, read_text(first.text).facts
    findings = lint_before_restart(before, after, resume_step=overrides.anchor.global_step)
    if (wrong := next((f for f in findings if f.severity == "error"), None)) is not None:
        raise ScriptRefused(None, f"the changed run would be wrong: {wrong.sentence}")
    return NewScripts(first=first, later=later, remarks=tuple(f"{f.severity}: {f.sentence}" for f in findings))
