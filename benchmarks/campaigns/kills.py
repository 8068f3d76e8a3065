"""A watch that rolls back, and an undo, killed by SIGKILL at their events: nothing is lost, and the next one ends it.

A kill is timed to the incident log, from outside: so many events are there, and up to 20 ms later (sometimes before
the first) the process is killed. After one to three kills in a row the watch is run to its end, then the undo is
killed and run likewise. The run is then compared, byte for byte, with one where nothing was killed. 300 kills.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.campaigns.table import Row, campaign
from tests.e2e.kill_points import build, copy_run, inventory, line, live

KILLS, SHORT_KILLS = 300, 6
WATCH, UNDO = ("watch",), ("undo", "--yes")
_OVER = {"watch": 4, "undo": 0}


def events(folder: Path) -> int:
    """Lines of the incident log."""
    try:
        return (folder / "state" / "incidents.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def killed(folder: Path, words: tuple[str, ...], after: int, pause_s: float) -> bool:
    """Runs the command and kills it once it has recorded so many events more; whether it was killed."""
    before = events(folder)
    process = subprocess.Popen(line(folder, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and events(folder) < before + after:
        time.sleep(0.0005)
    time.sleep(pause_s)
    process.kill()
    return process.wait(60) == -9


def ended(folder: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(line(folder, words), capture_output=True, text=True, timeout=300, check=False)


def struck(folder: Path, words: tuple[str, ...], most: int, chance: random.Random, seen: Counter[str]) -> int:
    """One to three kills in a row, counted by the number of events that each let pass."""
    kills = 0
    for _ in range(min(most, chance.randint(1, 3))):
        after = chance.randint(0, most_events(words))
        pause_s = chance.uniform(0.0, 1.5) if after == 0 else chance.choice((0.0, chance.uniform(0.0, 0.02)))
        if killed(folder, words, after, pause_s):
            kills += 1
            seen[f"{words[0]}, {after} events"] += 1
    return kills


def most_events(words: tuple[str, ...]) -> int:
    """Events that such a command records when nothing is in its way, about."""
    return 14 if words == WATCH else 8


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Kills by command and events."""
    wanted, wrong = SHORT_KILLS if short else KILLS, list[str]()
    chance = random.Random(0)  # noqa: S311 - the same kills each time
    seen, kills, runs = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        root = Path(name).resolve()
        ill = build(root / "ill", ill=True)
        recovered = copy_run(ill, root / "recovered")
        if (done := ended(recovered, WATCH)).returncode != 4:
            return [], [f"without a kill the watch ends with {done.returncode}: {done.stderr[-300:]}"]
        ends = {"watch": without_overrides(live(recovered)), "undo": without_overrides(live(ill))}
        while kills < wanted:
            runs += 1
            run = copy_run(ill, root / f"run{runs}")
            for words in (WATCH, UNDO):
                kills += struck(run, words, max(1, wanted - kills), chance, seen)
                done = ended(run, words)
                wrong += [f"run {runs}, lost: {path}" for path, _ in inventory(ill) - inventory(run)]
                # an undo that has nothing left to take back says so (2): what it left is compared all the same
                if done.returncode not in (_OVER[words[0]], 2) or "Traceback" in done.stderr:
                    wrong.append(f"run {runs}, {words[0]} ended with {done.returncode}: {done.stderr[-300:]}")
                if (found := without_overrides(live(run))) != ends[words[0]]:
                    odd = sorted(dict(found.items() ^ ends[words[0]].items()))
                    wrong.append(f"run {runs}, after {words[0]} not as without a kill: {odd[:5]}")
    table: list[Row] = [(where, count) for where, count in sorted(seen.items())]
    return [*table, (f"all, in {runs} runs", kills), ("wrong", len(wrong))], wrong


def without_overrides(files: dict[str, str]) -> dict[str, str]:
    """Less what names a moment or an incident's number."""
    return {path: digest for path, digest in files.items() if "overrides" not in path}


if __name__ == "__main__":
    campaign(__doc__, ("killed at", "kills"), rows)
