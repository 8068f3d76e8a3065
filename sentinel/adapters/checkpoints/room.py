"""How much a folder's filesystem still takes: bytes, files, and the user's quota where it can be known without root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Room", "quota_left", "room_for"]

_QUOTACTL_FD = 443
"""The system call's number, the same on every architecture that Linux 5.14 and newer runs on but alpha."""

_GET_USER_QUOTA = 0x800007 << 8
_QUOTA_BLOCK_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a filesystem has left, and whether that is enough."""

    needed_bytes: int
    needed_files: int
    free_bytes: int
    """What an ordinary user may still write."""

    free_files: int | None
    """Inodes; None where the filesystem does not count them."""

    quota_bytes: int | None
    """What the user's own quota leaves; None where there is none, or none that can be asked for without root."""

    problem: str | None
    """What it is too little of, as a sentence; None when there is enough."""


class _Quota(ctypes.Structure):
    """struct if_dqblk of <linux/quota.h>; limits in blocks of 1024 bytes, use in bytes."""

    _fields_ = (
        ("hard_limit_blocks", ctypes.c_uint64),
        ("soft_limit_blocks", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
        ("hard_limit_files", ctypes.c_uint64),
        ("soft_limit_files", ctypes.c_uint64),
        ("used_files", ctypes.c_uint64),
        ("byte_deadline_s", ctypes.c_uint64),
        ("file_deadline_s", ctypes.c_uint64),
        ("valid", ctypes.c_uint32),
    )


def quota_left(folder: Path) -> int | None:
    """Bytes that the user's quota leaves, as the kernel knows it; None where it does not say.

    Network filesystems keep their quotas on the server (Lustre's `lfs quota`, NFS's rquotad): None there. A project's
    quota shows in the free bytes themselves, on ext4 and XFS.
    """
    quota = _Quota()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(_QUOTACTL_FD, descriptor, _GET_USER_QUOTA, os.geteuid(), ctypes.byref(quota))
    finally:
        os.close(descriptor)
    limit = min((b for b in (quota.hard_limit_blocks, quota.soft_limit_blocks) if b), default=0) * _QUOTA_BLOCK_BYTES
    return None if failed or not limit else max(0, limit - quota.used_bytes)


def room_for(
    folder: Path,
    needed_bytes: int,
    needed_files: int = 0,
    *,
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    quota: Callable[[Path], int | None] = quota_left,
) -> Room:
    """Whether so much can still be written below this folder, now. OSError when it can't be looked at."""
    status = statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    free_files = status.f_favail if status.f_files else None
    quota_bytes = quota(folder)
    problem = None
    if free_bytes < needed_bytes:
        problem = f"{folder} has {_gb(free_bytes)} free, and {_gb(needed_bytes)} are needed"
    elif quota_bytes is not None and quota_bytes < needed_bytes:
        problem = f"the quota leaves {_gb(quota_bytes)} on {folder}, and {_gb(needed_bytes)} are needed"
    elif free_files is not None and free_files < needed_files:
        problem = f"{folder} has room for {free_files} more files, and {needed_files} are needed"
    return Room(
        needed_bytes=needed_bytes,
        needed_files=needed_files,
        free_bytes=free_bytes,
        free_files=free_files,
        quota_bytes=quota_bytes,
        problem=problem,
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
