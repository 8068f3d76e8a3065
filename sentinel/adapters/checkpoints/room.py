"""How much a folder's filesystem still takes: bytes, files, and the user's quota where it can be known without root."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_QUOTACTL_FD = 443  # the system call's number in Linux 5.14 and newer, on every architecture but alpha
_GET_USER_QUOTA = 0x800007 << 8
_QUOTA_BYTES = 72  # struct if_dqblk of <linux/quota.h>: two limits in blocks, the use in bytes, and files and times
_QUOTA_BLOCK_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a filesystem has left, and whether that is enough."""

    needed_bytes: int
    needed_files: int
    free_bytes: int  # what an ordinary user may still write
    quota_bytes: int | None  # what the user's own quota leaves; None where there is none or only root can read it
    problem: str | None  # what there is too little of, as a sentence


def quota_left(folder: Path) -> int | None:
    """Bytes that the user's quota leaves, from the kernel; None where there is none.

    Network filesystems keep their quotas on the server (Lustre's `lfs quota`, NFS's rquotad): None there. A project's
    quota shows in the free bytes themselves, on ext4 and XFS.
    """
    quota = ctypes.create_string_buffer(_QUOTA_BYTES)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(_QUOTACTL_FD, descriptor, _GET_USER_QUOTA, os.geteuid(), quota)
    finally:
        os.close(descriptor)
    hard_limit_blocks, soft_limit_blocks, used_bytes = struct.unpack_from("=3Q", quota)
    limit = min((blocks for blocks in (hard_limit_blocks, soft_limit_blocks) if blocks), default=0) * _QUOTA_BLOCK_BYTES
    return None if failed or not limit else max(0, limit - used_bytes)


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
    free_bytes, quota_bytes, problem = status.f_bavail * status.f_frsize, quota(folder), None
    if free_bytes < needed_bytes:
        problem = f"{folder} has {_gb(free_bytes)} free, and {_gb(needed_bytes)} are needed"
    elif quota_bytes is not None and quota_bytes < needed_bytes:
        problem = f"the quota leaves {_gb(quota_bytes)} on {folder}, and {_gb(needed_bytes)} are needed"
    elif status.f_files and status.f_favail < needed_files:  # a filesystem without inodes counts no files
        problem = f"{folder} has room for {status.f_favail} more files, and {needed_files} are needed"
    return Room(
        needed_bytes=needed_bytes,
        needed_files=needed_files,
        free_bytes=free_bytes,
        quota_bytes=quota_bytes,
        problem=problem,
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
