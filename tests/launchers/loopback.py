"""A network of its own for a cluster of the tests: nothing in it but loopback, so that no port of it, whatever the
cluster binds it to, is reached from this machine's network or from another machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.cluster import until

_SETUP = """set -e
ip link set lo up
{more}
: > "$1"
exec sleep 86400
"""


def missing() -> str | None:
    """Why no network of its own can be made here; None when one can."""
    if absent := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"{', '.join(absent)} not installed (apt-get install util-linux iproute2)"
    return None if os.getuid() == 0 else "a network of its own needs root"


class Loopback:
    """The namespaces, held open by a process that sleeps in them."""

    def __init__(self, holder: subprocess.Popen[bytes], kinds: Sequence[str]) -> None:
        self.prefix = ["nsenter", *(f"--{kind}=/proc/{holder.pid}/ns/{_FILES[kind]}" for kind in kinds), "--"]
        self._network = Path(f"/proc/{holder.pid}/ns/net").readlink()

    def kill_all(self) -> None:
        """All that runs in there, until nothing does."""
        end = time.monotonic() + 60
        while pids := [pid for pid in _pids() if _network_of(pid) == self._network]:
            assert time.monotonic() < end, f"processes {pids} do not end"
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


_FILES = {"net": "net", "mount": "mnt", "uts": "uts"}


@contextmanager
def loopback(folder: Path, more: str = "", kinds: Sequence[str] = ("net",)) -> Iterator[Loopback]:
    """`more`: what its holder does first, in sh, as root in these namespaces."""
    ready = folder / "ready"
    line = ["unshare", *(f"--{kind}" for kind in kinds), "sh", "-c", _SETUP.format(more=more), "sh", str(ready)]
    with (folder / "holder.log").open("wb") as log:
        holder = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: ready.exists() or holder.poll() is not None)
        assert ready.exists(), (folder / "holder.log").read_text()
        inside = Loopback(holder, kinds)
        try:
            yield inside
        finally:
            inside.kill_all()
    finally:
        holder.kill()
        holder.wait(60)


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _network_of(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return None  # ended, or a zombie
