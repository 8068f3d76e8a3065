"""What a run holds while its trainer and its watch are killed, and what is wrong with it afterwards.

`Record` looks again and again: at the bytes of journals and logs, which may only grow, and at each checkpoint and event
file as it was before the first of them was moved. Each check gives sentences; none where nothing is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ASIDE = ".sentinel-quarantine"
MOVES = ("quarantine_checkpoints", "point_latest", "cut_tensorboard", "write_overrides")
Tag = frozenset[tuple[str, str]]
"""(name, digest) of each file of a checkpoint."""


_read: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = {}  # {file: its size and time, its lines}


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; none where there is no such file."""
    try:
        stat = path.stat()
        if (known := _read.get(path)) is not None and known[0] == (stat.st_size, stat.st_mtime_ns):
            return known[1]
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    _read[path] = (len(text), stat.st_mtime_ns), found
    return found


def journal(folder: Path, attempt: int) -> list[dict[str, Any]]:
    return lines(folder / "state" / "attempts" / f"{attempt:04d}.jsonl")


def attempts(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """{number: its records}."""
    return {int(path.stem): lines(path) for path in sorted((folder / "state" / "attempts").glob("*.jsonl"))}


def events(folder: Path) -> list[dict[str, Any]]:
    """The incident log."""
    return lines(folder / "state" / "incidents.jsonl")


def moves(folder: Path) -> bool:
    """Whether any file may have been moved yet."""
    intents = (e for e in events(folder) if e["event"] == "intent")
    return any(e["action"]["kind"] in MOVES for e in intents)


def decided(folder: Path) -> dict[str, Any] | None:
    """The newest decision."""
    return next((e for e in reversed(events(folder)) if e["event"] == "decided"), None)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tag_at(folder: Path) -> Tag:
    return frozenset((p.name, digest(p)) for p in folder.iterdir() if p.is_file())


def saves(folder: Path) -> list[Path]:
    """Every folder of a checkpoint, wherever it lies."""
    root = folder / "checkpoints"
    return [p for at in (root, root / ASIDE) for p in at.rglob("global_step*") if p.is_dir() and not _pinned(p)]


def _pinned(path: Path) -> bool:
    return ".sentinel-pinned" in path.parts


def boards(folder: Path) -> dict[str, bytes]:
    """The event files that TensorBoard shows."""
    return {p.name: p.read_bytes() for p in (folder / "tensorboard").glob("events.out.tfevents*")}


@dataclass(kw_only=True)
class Record:
    """Of one run."""

    folder: Path
    grown: dict[Path, bytes] = field(default_factory=dict)  # Journals and logs, as last seen
    tags: dict[tuple[int, str], Tag] = field(default_factory=dict)  # (attempt, tag) that is a part of the old line
    boards: dict[str, bytes] = field(default_factory=dict)  # Event files before anything was moved
    latest: str | None = None  # What it said then
    wrong: list[str] = field(default_factory=list)

    def look(self) -> None:
        state = self.folder / "state"
        for path in (*state.glob("attempts/*.jsonl"), *state.glob("*.log"), state / "incidents.jsonl"):
            self._grows(path)
        if moves(self.folder):
            return
        try:
            tags = {(a, tag): tag_at(self.folder / "checkpoints" / tag) for a, tag in self._saved()}
            seen, latest = boards(self.folder), (self.folder / "checkpoints" / "latest").read_text()
        except FileNotFoundError:  # moved a moment ago
            return
        if not moves(self.folder):
            self.wrong += [f"lost: {n}" for n, held in self.boards.items() if not seen.get(n, b"").startswith(held)]
            self.tags |= tags
            self.boards |= seen
            self.latest = latest

    def _grows(self, path: Path) -> None:
        now, before = path.read_bytes() if path.exists() else b"", self.grown.get(path, b"")
        whole = before[: before.rfind(b"\n") + 1]  # a last line that a kill has torn may be cut off
        if not now.startswith(whole):
            self.wrong.append(f"lost: {path.relative_to(self.folder)} no longer begins with what it held")
        self.grown[path] = now

    def _saved(self) -> Iterator[tuple[int, str]]:
        for number, records in attempts(self.folder).items():
            for record in records:
                if record["kind"] == "checkpoint_saved" and (number, record["tag"]) not in self.tags:
                    yield number, record["tag"]

    def lost(self) -> list[str]:
        """What was there before the rollback, and is neither in its place nor in the quarantine."""
        there = {(p.name, tag_at(p)) for p in saves(self.folder)}
        gone = [f"lost: {tag} of attempt {n}" for (n, tag), held in self.tags.items() if (tag, held) not in there]
        aside = [p.read_bytes() for p in self.folder.rglob("events.out.tf*events*")]  # originals: tf-events
        gone += [f"lost: {n}" for n, held in self.boards.items() if not any(one.startswith(held) for one in aside)]
        return [*self.wrong, *gone]

    def not_back(self) -> list[str]:
        """What an undo has not brought back to its place, and what it has left there that was not of the old line."""
        wrong, root = list[str](), self.folder / "checkpoints"
        old = {number for number, of in attempts(self.folder).items() if not _is_of_rollback(of)}
        kept = {tag for number, tag in self.tags if number in old}
        said = {r["tag"] for n in old for r in attempts(self.folder)[n] if r["kind"] == "checkpoint_saved"}
        for (number, tag), held in self.tags.items():
            if number in old and (not (root / tag).is_dir() or tag_at(root / tag) != held):
                wrong.append(f"not back: {tag} of attempt {number}")
        wrong += [f"not back: {tag}" for tag in said - kept if not (root / tag).is_dir()]
        shown = boards(self.folder)
        wrong += [f"not back: {n}" for n, held in self.boards.items() if not shown.get(n, b"").startswith(held)]
        latest = (root / "latest").read_text() if (root / "latest").exists() else "global_step0"
        if not (root / latest).is_dir() or _step(latest) < _step(self.latest or latest):
            wrong.append(f"not back: `latest` says {latest}, and said {self.latest}")
        if (self.folder / "state" / "overrides.json").exists():
            wrong.append("not back: overrides.json is there, and was not")
        return wrong


def _is_of_rollback(records: list[dict[str, Any]]) -> bool:
    return any(r["kind"] == "run_started" and r.get("rollback") is not None for r in records)


def _step(tag: str) -> int:
    return int(tag.removeprefix("global_step"))


def overlaps(folder: Path) -> list[str]:
    """Attempts that wrote while a later one did."""
    spans = [(n, [r["time_unix_s"] for r in of if "time_unix_s" in r]) for n, of in attempts(folder).items()]
    ends = [(n, min(times), max(times)) for n, times in spans if times]
    return [
        f"two write at once: attempt {a} until {last:.2f}, attempt {b} from {first:.2f}"
        for a, _, last in ends
        for b, first, _ in ends
        if a < b and first < last
    ]


def recovered(folder: Path, first_steps: int = 3) -> bool:
    """Whether the newest attempt trains for the decision: from its target, or from what an attempt of it has saved."""
    decision, told = decided(folder), attempts(folder)
    if decision is None or not told:
        return False
    of = {n: next((r for r in records if r["kind"] == "run_started"), {}) for n, records in told.items()}
    own = [n for n, started in of.items() if started.get("rollback") == decision["rollback"]]
    newest = max(told)
    steps = [r["global_step"] for r in told[newest] if r["kind"] == "sample"]
    if newest not in own or len(steps) < first_steps:
        return False
    begins = {of[n].get("resumed_from") or 0 for n in own}
    saved = {r["global_step"] for n in own for r in told[n] if r["kind"] == "checkpoint_saved"}
    return steps[0] - 1 == (of[newest].get("resumed_from") or 0) and begins <= {
        decision["target"]["global_step"],
        *saved,
    }


def taken_back(folder: Path, first_steps: int = 3) -> bool:
    """Whether the newest decision was taken back for what a person asked for, before that was decided, and the run
    trains on its old line."""
    log = events(folder)
    kinds = [e["event"] for e in log if e["event"] in ("decided", "closed")]
    told = attempts(folder)
    if kinds[-1:] != ["closed"] or not told or "superseded" not in {e.get("outcome") for e in log}:
        return False
    since_s = next(e["time_unix_s"] for e in reversed(log) if e["event"] == "closed")
    newest = told[max(told)]
    steps = [r for r in newest if r["kind"] == "sample" and r["time_unix_s"] > since_s]
    return not _is_of_rollback(newest) and len(steps) >= first_steps
