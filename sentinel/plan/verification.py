"""What was read of a checkpoint to know that it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a verification has read, and what it took from an earlier one of the very same files."""

    files: int  # of the whole checkpoint
    size_bytes: int
    files_read: int  # now; the others were read before, and are unchanged since
    bytes_read: int
    oldest_unix_s: float  # when the file that was read longest ago was read

    @property
    def sentence(self) -> str:
        """As `17 files of 2.1 GB, read at 2026-11-23 18:02:11 UTC and unchanged since`."""
        when = datetime.fromtimestamp(self.oldest_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        whole = f"{_files(self.files)} of {self.size_bytes / 1e9:.1f} GB"
        if self.files_read == self.files:
            return f"{whole}, read at {when}"
        if not self.files_read:
            return f"{whole}, read at {when} and unchanged since"
        again = f"{_files(self.files_read)} of {self.bytes_read / 1e9:.1f} GB read now"
        return f"{whole}: {again}, the others at {when} or later and unchanged since"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
