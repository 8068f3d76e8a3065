"""The run's own command or job script, with a probe's folders in it: a probe may not touch what is the run's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.jobscript import SetOption, rewrite
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.given import Given, given
from sentinel.lab.probes.guard import Guard
from sentinel.lint import THE_SCRIPT_ALONE, KnownSettings, new_scripts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Overrides

OWN_TRAINER = "trainer_hooks.gpt"
_ASSIGNED = re.compile(
    r"(?P<before>\s*(?:(?:export|readonly|local|declare)\s+)?(?P<name>[A-Za-z_]\w*)=)"
    r"(?P<value>\"[^\"`]*\"|'[^']*'|[^\s\"'`;&|()]*)(?=\s*(?:#.*)?$)"
)
_NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where the run keeps its things, and where a probe keeps its own."""

    working_directory: Path  # What the run's relative paths count from
    moved: Mapping[Path, Path]  # The run's folder -> the probe's. The first is the checkpoints'.
    table: str = "[tune]"  # Of the configuration, whose `options` a probe's trainer gets
    inputs: tuple[Path, ...] = ()  # What of the run's a probe is meant to read
    others: tuple[Path, ...] = ()  # The run's files that no probe has in place of: its logs

    @property
    def checkpoints(self) -> str:
        """The probe's own."""
        return str(next(iter(self.moved.values())))

    def stand_in(self, word: str) -> str | None:
        """The probe's folder for a word that names one of the run's, or what is in its checkpoints; None for any other
        word."""
        if not word:
            return None
        named = (self.working_directory / word).resolve()
        if any(named.is_relative_to(own) for own in self.moved.values()):
            return None
        if (own := next((own for theirs, own in self.moved.items() if theirs.resolve() == named), None)) is not None:
            return str(own)
        theirs, own = next(iter(self.moved.items()))
        is_path = Path(word).is_absolute() or not self.working_directory.is_relative_to(theirs.resolve())
        if not is_path or not named.is_relative_to(theirs.resolve()) or named.is_file():  # a file there is only read
            return None
        return str(own / named.relative_to(theirs.resolve()))

    def guard(self, own: Path) -> Guard:
        """What tells whether a word still names a path of the run; `own` is the probe's folder."""
        return Guard((*self.moved, *self.others), own, self.working_directory, self.inputs)

    def own_word(self, word: str) -> str:
        """The word of a command line with the probe's folder in it: `--save=FOLDER`, and Hydra's `save=FOLDER`."""
        flag, equals, value = word.partition("=")
        if equals and (own := self.stand_in(value)) is not None:
            return f"{flag}={own}"
        return self.stand_in(word) or word


def own_trainer_options(folder: Path, facts: ScriptFacts, *, until_step: int, tensorboard: bool) -> tuple[str, ...]:
    """The reference trainer's options: it saves nothing, ends by itself after that step, and keeps its learning rate's
    decay."""
    options = [f"--state-dir={folder}", f"--save={folder / 'checkpoints'}", "--metrics-port=0", "--save-interval=0"]
    options.append(f"--steps={until_step}")
    decay = facts.lr_decay_iters or facts.train_iters
    if facts.lr_warmup_iters is not None and decay is not None:
        options.append(f"--lr-decay={decay}")
    return (*options, *[f"--tensorboard={folder / 'tensorboard'}"] * tensorboard)


def command_of(
    words: Sequence[str], folders: Folders, options: Sequence[str], variables: Sequence[str] = ()
) -> tuple[str, ...]:
    """The probe's command: the options are added, and win. `variables`: values of those by which the trainer may find
    its folders. ConfigError where the checkpoints would be the run's."""
    made = (*map(folders.own_word, words), *_filled(options, folders))
    if OWN_TRAINER not in words and not any(folders.checkpoints in word for word in (*made, *variables)):
        raise _not_named("[launcher] command", folders)
    return made


def script_of(
    text: str,
    folders: Folders,
    options: Sequence[str],
    overrides: Overrides | None,
    known: KnownSettings = THE_SCRIPT_ALONE,
) -> str:
    """The probe's job script. `overrides`: make them in the script, for a trainer that does not read overrides.json.

    ConfigError where the checkpoints would be the run's; ScriptRefused names the line that can't be changed.
    """
    found, filled = given(text), _filled(options, folders)
    changes = [
        SetOption(flag=option.flag, value=own)
        for option in found.options
        if option.values and (own := folders.stand_in(option.values[0])) is not None
    ]
    for flag, equals, value in (option.partition("=") for option in filled):
        changes.append(SetOption(flag=flag, value=value if equals else None))
    if found.program != OWN_TRAINER:
        _refuse_the_runs_own(found, changes, folders)
    if overrides is not None:
        text = new_scripts(text, overrides, known).first.text
    return _own_assignments(rewrite(text, changes).text, folders)


def refuse_the_runs(guard: Guard, words: Iterable[str], variables: Mapping[str, str], where: str, table: str) -> None:
    """ConfigError where a word or a variable still names a path of the run. `variables`: all that the probe gets."""
    if (found := guard.named_in(words, variables)) is not None:
        word, path = found
        shown = word if len(word) <= 120 else f"{word[:117]}..."
        raise ConfigError(
            f"{where}: {shown!r} still names {path}, which is the run's: a probe may not write there; {table} options "
            "or environment can say another folder, as {checkpoints}, and inputs what a probe only reads"
        )


def script_lines(text: str) -> list[str]:
    """Those of a job script that are not comments."""
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def _own_assignments(text: str, folders: Folders) -> str:
    """The script with the probe's folders in those variables that hold a folder of the run."""
    variables, lines = dict[str, str](), list[str]()
    for written in text.splitlines(keepends=True):
        line = written
        if (found := _ASSIGNED.match(line)) is not None:
            value = _NAMED.sub(lambda m: variables.get(m[1] or m[2], m[0]), found["value"].strip("\"'"))
            if (own := folders.stand_in(value)) is not None:
                line = f"{found['before']}{shlex.quote(own)}{line[found.end('value') :]}"
                value = own
            variables[found["name"]] = value
        lines.append(line)
    return "".join(lines)


def _filled(options: Sequence[str], folders: Folders) -> list[str]:
    return [option.replace("{checkpoints}", folders.checkpoints) for option in options]


def _refuse_the_runs_own(found: Given, changes: Sequence[SetOption], folders: Folders) -> None:
    """Nothing may be left by which a probe would load or save the run's checkpoints."""
    if not any(change.value == folders.checkpoints for change in changes):
        raise _not_named("the job script", folders)
    changed = {change.flag for change in changes}
    for option in found.options:
        if option.flag in ("--save", "--load") and option.unread is not None and option.flag not in changed:
            raise ConfigError(
                f"line {option.unread.line} of the job script: {option.flag}: {option.unread.why}; "
                f'{folders.table} options can say "{option.flag}={{checkpoints}}", which is the probe\'s own folder'
            )


def _not_named(where: str, folders: Folders) -> ConfigError:
    theirs = next(iter(folders.moved))
    return ConfigError(
        f"{where} does not name the checkpoints folder {theirs}: a probe would load and overwrite the run's own; "
        f'name it there as an option\'s value, or let {folders.table} options say, as "--save={{checkpoints}}", '
        "where a probe's go"
    )
