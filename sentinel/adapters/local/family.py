"""What /proc says of processes: which started which, their words and variables, and whose heartbeat they hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import psutil

from sentinel.vocabulary.heartbeat import FOLDER

_READ = ("SENTINEL_", "MASTER_", "WORLD_SIZE=", "PMIX_NAMESPACE=")


class Family:
    """Which process started which, as it is now."""

    def __init__(self, parents: Mapping[int, int]) -> None:
        self.parents = parents
        self._before = {os.getpid(), *self.ancestors(os.getpid())}

    @classmethod
    def of_all(cls) -> Family:
        return cls({pid: found[0] for pid in psutil.pids() if (found := parent_and_group(pid)) is not None})

    def ancestors(self, pid: int) -> Iterator[int]:
        seen = {pid}
        while (pid := self.parents.get(pid, 0)) > 1 and pid not in seen:
            seen.add(pid)
            yield pid

    def with_kin(self, ours: set[int], carry: set[int]) -> set[int]:
        """With the carriers of the variable that descend from one of ours, and those that one of ours descends from and
        that have started nothing else of them, as a launcher of ranks. Nothing that sentinel itself descends from."""
        children = {pid for pid in carry if ours.intersection(self.ancestors(pid))}
        ours = ours | (children - self._before)
        above = {a for pid in ours for a in self.ancestors(pid)} & carry - self._before
        return ours | {a for a in above if all(pid in ours | above for pid in carry if a in self.ancestors(pid))}

    def groups(self, pids: Sequence[int], meets: Mapping[int, tuple[str, ...]]) -> dict[int, int]:
        """Of each the lowest number among those that were started together with it: it descends from them, or they from
        it, or they are ranks that find one another at the same place."""
        group = {pid: pid for pid in sorted(pids)}
        for pid in group:
            place = meets.get(pid)
            kin = {group[a] for a in self.ancestors(pid) if a in group} | {group[pid]}
            kin |= {group[one] for one in group if place and meets.get(one) == place}
            group |= {one: min(kin) for one, of in group.items() if of in kin}
        return group

    def is_sentinels(self, pid: int) -> bool:
        """Whether sentinel runs in it, here or for another run, or what sentinel was typed in: neither trains."""
        words = words_of(pid)[:3]
        return pid in self._before or words[1:] == ("-m", "sentinel") or "sentinel" in {Path(w).name for w in words[:2]}


def parent_and_group(pid: int) -> tuple[int, int] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[2])
    except (OSError, ValueError, IndexError):
        return None


def words_of(pid: int) -> tuple[str, ...]:
    """Its command line; empty where it is gone, a zombie, or another account's that hides it."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return tuple(text.rstrip("\0").split("\0")) if text else ()
    return ()


def homes_of(pid: int) -> set[str]:
    """The state folders of which the process holds a heartbeat open: its hook reports there."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held = descriptor.readlink()
                if held.parent.name == FOLDER:
                    found.add(str(held.parent.parent))
    return found


def meets_at(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where the ranks of one job find one another; empty for a process that is none of several. One rank of a node has
    a heartbeat: the others are its job's by this."""
    if job := environment.get("PMIX_NAMESPACE"):
        return (job,)
    found = tuple(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    return found if all(found) else ()


def environment_of(pid: int) -> dict[str, str] | None:
    """Of the process's environment sentinel's variables, and those by which ranks find one another. None where it can't
    be read: the process is gone, it is another account's, or it ends: then it gives up its memory, the environment
    too, some time before it is a zombie. A process is a zombie as soon as its first thread has ended: the others show
    the environment still, and may hang in a write."""
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for place in chain([process], process.glob("task/*")):
            try:
                text = (place / "environ").read_bytes().decode(errors="surrogateescape")
            except PermissionError:
                return None
            except OSError:
                continue
            if text:
                return dict(pair.split("=", 1) for pair in text.split("\0") if pair.startswith(_READ))
    return None
