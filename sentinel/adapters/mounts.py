"""On which filesystem a folder lies: one of this machine alone, or one that others share."""

from __future__ import annotations

import re
from pathlib import Path

LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""Types that are this machine's alone; any other may be shared (Lustre, GPFS, NFS, BeeGFS, FUSE …)."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_type(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """As /proc/self/mountinfo names it: `ext4`, `lustre`, `nfs4`. None where that can't be read."""
    try:
        real = folder.resolve()
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (OSError, RuntimeError):
        return None
    found: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        if len(words) < 5 or not kinds[0]:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), words[4]))
        depth = len(point.parts)
        if real.is_relative_to(point) and (found is None or depth >= found[0]):  # the last one mounted hides others
            found = (depth, kinds[0])
    return None if found is None else found[1]


def is_local(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether it is known to lie on a filesystem of this machine alone."""
    return filesystem_type(folder, mounts) in LOCAL
