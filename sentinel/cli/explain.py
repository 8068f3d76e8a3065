"""`sentinel explain`: why a turn of an incident was decided as it was, from the facts that were kept of it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.act.kept_turns import KeptTurns, read_packed
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, local_time, print_json, to_stderr
from sentinel.config import load_config
from sentinel.config.run_files import find_config, incident_log_of, state_dir_of
from sentinel.durable import write_atomically
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.review.kept_turn import KeptTurn, told
from sentinel.plan.review.what_if import comes_to, what_was_seen, what_would_change
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import ConfigError, LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.texts import without_secrets

FORMAT = "sentinel incident 1"  # of a bundle
_DECISIONS = frozenset({"decided", "proposed", "shadow", "stopped"})
_DOING = ("records", "actions", "undo")
_DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, SentinelError)


@dataclass(frozen=True, slots=True)
class _Kept:
    """One kept turn as it was read, unchecked."""

    number: int
    document: Mapping[str, Any]  # empty where it can't be read
    problem: str | None = None  # why it can't be read, as a sentence

    @property
    def told(self) -> Mapping[str, Any]:
        found = self.document.get("turn")
        return found if isinstance(found, Mapping) else {}

    @property
    def records(self) -> list[str]:
        """The kinds of the events that it recorded."""
        found = self.told.get("records")
        return [str(e.get("event")) for e in found if isinstance(e, Mapping)] if isinstance(found, list) else []

    @property
    def line(self) -> str:
        """Number, time and what it did."""
        if self.problem is not None:
            return f"{self.number}  {self.problem}"
        actions, undo = self.told.get("actions"), self.told.get("undo")
        kinds = [str(a.get("kind")) for a in actions if isinstance(a, Mapping)] if isinstance(actions, list) else []
        parts = [f"records {', '.join(self.records)}"] if self.records else []
        parts += [f"does {', '.join(kinds)}"] if kinds else []
        parts += [f"undoes {', '.join(map(str, undo))}"] if undo and isinstance(undo, list) else []
        parts += ["ends the watch"] if self.told.get("outcome") is not None else []
        return f"{self.number}  {self._time}  {'; '.join(parts) or 'nothing'}".replace("_", " ")

    @property
    def _time(self) -> str:
        try:
            return local_time(float(self.document["facts"]["now_unix_s"]))
        except (LookupError, TypeError, ValueError, OverflowError, OSError):
            return "time unknown"


@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns that were kept of one incident, and the log that they were decided from."""

    incident: str
    path: Path  # the folder or the bundle that holds them
    log: tuple[IncidentEvent, ...]
    turns: Sequence[_Kept]  # the oldest first

    def numbered(self, number: int | None) -> _Kept:
        """The turn of that number; without one, the newest with a decision, else the newest that recorded or did
        something, else the newest."""
        if not self.turns:
            raise ConfigError(f"{self.path} holds no turn of {self.incident}: it was never kept, or was deleted since")
        if number is None:
            whole = [one for one in self.turns if one.problem is None] or self.turns
            decides = [one for one in whole if _DECISIONS.intersection(one.records)]
            does = [one for one in whole if any(one.told.get(key) for key in _DOING)]
            return (decides or does or whole)[-1]
        found = next((one for one in self.turns if one.number == number), None)
        if found is None:
            known = ", ".join(str(one.number) for one in self.turns)
            raise ConfigError(f"{self.path} holds no turn {number} of {self.incident}; it holds {known}")
        return found

    def read(self, one: _Kept) -> KeptTurn:
        if one.problem is not None:
            raise ConfigError(one.problem)
        try:
            return KeptTurn.from_json(one.document, self.log)
        except _DAMAGED as error:
            raise self._refused(one, error) from error

    @contextmanager
    def decided_from(self, one: _Kept) -> Iterator[None]:
        """What was read may still be no state that a run can be in: then the file is named, not a line of ours."""
        try:
            yield
        except _DAMAGED as error:
            raise self._refused(one, error) from error

    def _refused(self, one: _Kept, error: Exception) -> ConfigError:
        why = str(error) if isinstance(error, SentinelError) else f"nothing can be decided from it ({error!r})"
        return ConfigError(f"{self.path}, turn {one.number} can't be explained: {why}")


def explain(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1; or a file of `incident --bundle`.")],
    turn: Annotated[
        int | None, typer.Option("--turn", help="Number of a kept turn; default: the last with a decision.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="A configuration: decide the turn again under its \\[policy].")
    ] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """What was seen, what was decided, and each single thing that would have changed it. Reads only."""
    kept = _from_file(Path(name)) if Path(name).is_file() else _of_the_run(name, run, config_dir)
    chosen = kept.numbered(turn)
    one = kept.read(chosen)
    rules = one.policy if policy is None else load_config(policy).policy
    with kept.decided_from(chosen):
        _show(kept, chosen, one, rules, policy, as_json=as_json)
    return 0


def _show(kept: _Turns, chosen: _Kept, one: KeptTurn, rules: Policy, policy: Path | None, *, as_json: bool) -> None:
    decided, before = decide(one.facts, rules, one.memory), decide(one.facts, one.policy, one.memory)
    changes, seen = what_would_change(one.facts, rules, one.memory), tuple(what_was_seen(one.facts))
    if dump_json(without_secrets(told(before))) != dump_json(without_secrets(dict(one.decided))):
        to_stderr("this version decides otherwise than the one that made the turn; what follows is of this version")
    if as_json:
        print_json(
            {
                "incident": kept.incident,
                "turn": chosen.number,
                "kept_turns": [each.number for each in kept.turns],
                "time_unix_s": one.facts.now_unix_s,
                "mode": rules.mode,
                "seen": dict(seen),
                "decided": told(decided),
                "would_change": [{"with": c.what, "comes_to": c.comes_to} for c in changes],
            }
        )
        return
    under = f"under {policy} (mode {rules.mode})" if policy is not None else f"in mode {rules.mode}"
    echo(f"{kept.incident}, turn {chosen.number}, {under}; kept turns:")
    for each in kept.turns:
        echo(f"{'>' if each is chosen else ' '} {each.line}")
    echo("seen")
    for topic, sentence in seen:
        echo(f"  {topic}: {sentence}")
    echo(f"decided\n  {comes_to(decided)}")
    if policy is not None:
        echo(f"  (in mode {one.policy.mode}, as it was: {comes_to(before)})")
    echo(
        "what would have changed it, each alone" if changes else "no single change that was tried would have changed it"
    )
    for change in changes:
        echo(f"  with {change.what}\n    {change.comes_to}")


def _of_the_run(name: str, run: str | None, config_dir: Path) -> _Turns:
    config = find_config(run, config_dir)
    log = tuple(incident_log_of(config).read())
    known = dict.fromkeys(e.incident for e in log if e.incident)
    if name not in known and name != "run":
        raise ConfigError(f"no incident {name!r}, and no such file; incidents.jsonl has {', '.join(known) or 'none'}")
    folder = state_dir_of(config) / "turns"
    return _Turns(name, folder, log, _all_of(KeptTurns(folder), name))


def _all_of(turns: KeptTurns, name: str) -> list[_Kept]:
    """One file that can't be read leaves the others readable."""
    found = []
    for number, path in turns.numbers(name):
        try:
            found.append(_Kept(number, turns.read(path)))
        except ConfigError as error:
            found.append(_Kept(number, {}, str(error)))
    return found


def _from_file(path: Path) -> _Turns:
    data = read_packed(path)
    if data.get("format") != FORMAT:
        raise ConfigError(f"{path} was not written by `sentinel incident NAME --bundle FILE`")
    try:
        turns = [_Kept(int(one["number"]), dict(one["turn"])) for one in data["turns"]]
        return _Turns(str(data["incident"]), path, tuple(map(event_of, data["events"])), turns)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, LineError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def _is_bundle(path: Path) -> bool:
    try:
        return read_packed(path).get("format") == FORMAT
    except ConfigError:
        return False


def write_bundle(path: Path, name: str, config: Any, events: Sequence[IncidentEvent]) -> int:
    """All that `explain` needs of an incident, in one file without secrets; the number of turns in it. ConfigError
    where the path is a file that is no bundle."""
    if path.exists() and not _is_bundle(path):
        raise ConfigError(f"{path} is there, and is no bundle: it is not overwritten")
    turns = _all_of(KeptTurns(state_dir_of(config) / "turns"), name)
    for one in turns:
        if one.problem is not None:
            to_stderr(f"left out: {one.problem}")
    whole = [{"number": one.number, "turn": one.document} for one in turns if one.problem is None]
    document = {
        "format": FORMAT,
        "sentinel": version("training-sentinel"),
        "incident": name,
        "events": [event.to_json() for event in events],
        "turns": whole,
    }
    write_atomically(path, gzip.compress(dump_json(without_secrets(document)).encode(), mtime=0))
    return len(whole)
