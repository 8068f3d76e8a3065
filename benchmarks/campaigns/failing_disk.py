"""EIO by a device that fails: a rollback and an undo on ext4 whose blocks can't be written any more, part of the way.

The filesystem is a loop device in a file of a tmpfs; once the command has recorded so many events, the tmpfs is filled,
and the kernel answers EIO to what has to reach the device. Then there is room again, the filesystem is checked and
mounted, and the command is run once more. Needs root and loop devices.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.campaigns.kills import UNDO, WATCH, ended, events, without_overrides
from benchmarks.campaigns.table import NotHereError, Row, campaign
from tests.e2e.kill_points import build, copy_run, inventory, line, live

AFTER, SHORT_AFTER = (0, 1, 2, 3, 4, 6, 8, 10, 12), (3,)
LEASE_S = 180.0


def call(*words: str | Path, may_fail: bool = False) -> None:
    """A command of the system. NotHereError where it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 and not may_fail:
        raise NotHereError(f"{words[0]}: {done.stderr.strip()[:200]}")


@contextmanager
def device(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Where the filesystem is mounted, and the file that fills the room below it."""
    below, above = folder / "below", folder / "above"
    below.mkdir()
    above.mkdir()
    call("mount", "-t", "tmpfs", "-o", "size=24m", "none", below)
    try:
        with (below / "image").open("wb") as image:
            image.truncate(64 << 20)
        call("mkfs.ext4", "-q", "-F", below / "image")
        call("mount", "-o", "loop", below / "image", above)
        try:
            yield above, below / "filling"
        finally:
            call("umount", above, may_fail=True)
    finally:
        call("umount", below, may_fail=True)


def struck(above: Path, filling: Path, run: Path, words: tuple[str, ...], after: int) -> tuple[int, str]:
    """Runs the command with a device that fails after so many events, mends the device; exit code and stderr."""
    before = events(run)
    process = subprocess.Popen(line(run, words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and events(run) < before + after:
        time.sleep(0.0005)
    with suppress(OSError), filling.open("wb") as full:
        while True:
            full.write(b"\1" * 65536)
            full.flush()
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    filling.unlink()
    image = filling.with_name("image")
    call("umount", above, may_fail=True)
    call("e2fsck", "-fy", image, may_fail=True)
    call("mount", "-o", "loop", image, above)
    return process.returncode, said


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """One for each command and number of events."""
    if os.geteuid() != 0:
        raise NotHereError("mounting needs root")
    table, wrong = list[Row](), list[str]()
    with tempfile.TemporaryDirectory(prefix="failing-") as name:
        root = Path(name).resolve()
        ill = build(root / "ill", ill=True)
        recovered = copy_run(ill, root / "recovered")
        ended(recovered, WATCH)
        ends = {"watch": without_overrides(live(recovered)), "undo": without_overrides(live(ill))}
        for after in SHORT_AFTER if short else AFTER:
            place = root / f"after{after}"
            place.mkdir()
            with device(place) as (above, filling):
                run = copy_run(ill, above / "run")
                call("sync")
                for words in (WATCH, UNDO):
                    code, said = struck(above, filling, run, words, after)
                    done, until_s = ended(run, words), time.monotonic() + LEASE_S
                    while done.returncode == 3 and time.monotonic() < until_s:  # a lock that was torn has a lease
                        time.sleep(1)
                        done = ended(run, words)
                    lost = inventory(ill) - inventory(run)
                    same = without_overrides(live(run)) == ends[words[0]]
                    failed = "Input/output" in said or "I/O" in said or "Read-only" in said or "No space" in said
                    table.append((words[0], after, code, failed, done.returncode, len(lost), same))
                    if lost or not same or "Traceback" in said + done.stderr:
                        why = (said + done.stderr)[-300:]
                        wrong.append(f"{words[0]} after {after}: lost {len(lost)}, same {same}: {why}")
    return table, wrong


if __name__ == "__main__":
    head = ("command", "events before", "exit", "said the error", "then exit", "files lost", "as without")
    campaign(__doc__, head, rows)
