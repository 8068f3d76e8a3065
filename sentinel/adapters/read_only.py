"""The small program that a probe starts through: it takes from itself the right to write to the run's folders, and
becomes the probe's command.

    python -I -S read_only.py [--by landlock|mounts] --own DIR [--also DIR]... --run PATH... -- COMMAND

landlock (Linux 5.13, no privilege): the command writes below its own folder, in temporary folders, caches, /dev and
/proc, below each `--also`, and nowhere else; of these, never below a run's path but its own folder. mounts (a user and
mount namespace): each path of the run is a read-only bind mount. Tried in this order; where neither works the command
runs as it is, and its log says so. Standard library only, and no import of sentinel: it runs on compute nodes, in any
working directory.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PROGRAM = Path(__file__)
REFUSED, NOT_FOUND = 126, 127  # exit codes, as a shell's
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls of Landlock, the same on every architecture but Alpha
_WRITE_FILE, _TRUNCATE, _IOCTL = 1 << 1, 1 << 14, 1 << 15
_WRITES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))  # write, remove and make, in the kernel's landlock.h
_SINCE = ((2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL))  # (ABI, right that it brought): refer, truncate, ioctl of devices
_ON_A_FILE = _WRITE_FILE | _TRUNCATE | _IOCTL
_NO_NEW_PRIVS = 38
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_BIND, _REC, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 1 << 18, 0x20, 0x1
_KEPT = {
    1024: 1024,
    2048: 2048,
    4096: 1 << 21,
    2: 2,
    4: 4,
    8: 8,
}  # a mount's flags as statvfs tells them -> as mount(2)
_CACHES = (
    *("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH"),
    *("HF_HOME", "HF_DATASETS_CACHE", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "SLURM_TMPDIR"),
)
_OF_HOME = (".cache", ".triton", ".nv")

_libc = ctypes.CDLL(None, use_errno=True)


def command_through(
    own: Path, run: Sequence[Path], also: Sequence[Path] = (), *, python: str = sys.executable
) -> tuple[str, ...]:
    """The words to put before a probe's command."""
    given = [f"--own={own}", *(f"--also={folder}" for folder in also), *(f"--run={path}" for path in run)]
    return (python, "-I", "-S", str(PROGRAM), *given, "--")


def held_by() -> tuple[str | None, str]:
    """("landlock", "mounts" or None, how it is held or why it is not), by trying each on a scratch folder."""
    why = []
    for means in _MEANS:
        with tempfile.TemporaryDirectory() as scratch:
            run, own = Path(scratch, "run"), Path(scratch, "run", "own")
            own.mkdir(parents=True)
            words = list(command_through(own, [run]))
            words[4:4] = [f"--by={means}"]
            write = 'echo 1 > "$1/own/made" && ! echo 1 2>/dev/null > "$1/made"'
            try:
                tried = subprocess.run(
                    [*words, "/bin/sh", "-c", write, "sh", str(run)],
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                why.append(f"{means}: {error}")
                continue
            if tried.returncode == 0 and not (run / "made").exists():
                return means, _WORDS[means]
            why.append(f"{means}: {tried.stderr.strip() or 'a write came through'}")
    return None, "; ".join(why)


def words_alone(why: str) -> str:
    """What stands between a probe and the run's folders where nothing holds them read-only, as a sentence."""
    return f"not read-only to a probe on this machine ({why}): only the words of its command and variables are checked"


_WORDS = {
    "landlock": "Landlock: a probe writes below its own folder, temporary folders and caches alone",
    "mounts": "a user and mount namespace: a probe sees the run's folders as read-only mounts",
}


def by_landlock(own: Path, run: Sequence[Path], also: Sequence[Path]) -> None:
    """OSError where the kernel has none, or has it switched off."""
    abi = _checked(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    rights = _WRITES | sum(right for since, right in _SINCE if abi >= since)
    handled = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    rules = _checked(_libc.syscall(_CREATE, handled, ctypes.c_size_t(8), ctypes.c_uint32(0)))
    for path in granted(own, run, also, os.environ):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            _grant(rules, path, rights)
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0)))
    os.close(rules)


def _grant(rules: int, path: Path, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):  # where it leads is granted by itself, or not
            return
        allowed = rights if stat.S_ISDIR(mode) else rights & _ON_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place), 12)
        _checked(_libc.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0)))
    finally:
        os.close(place)


def granted(own: Path, run: Sequence[Path], also: Sequence[Path], variables: Mapping[str, str]) -> Iterator[Path]:
    """What may be written to: a folder that holds a path of the run is replaced by all else that is in it."""
    theirs = [path.resolve() for path in run]
    home = variables.get("HOME")
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev", "/proc"]  # noqa: S108 - what any trainer may write to
    places += [variables[name] for name in _CACHES if variables.get(name)]
    places += [f"{home}/{name}" for name in _OF_HOME] if home else []
    yield own.resolve()
    for place in dict.fromkeys(Path(path).resolve() for path in (*places, *map(str, also))):
        yield from _without(place, theirs)


def _without(place: Path, theirs: Sequence[Path]) -> Iterator[Path]:
    if any(place.is_relative_to(path) for path in theirs) or not place.exists():
        return
    if not any(path.is_relative_to(place) for path in theirs):
        yield place
        return
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.is_symlink():
                yield from _without(Path(entry.path), theirs)


def by_mounts(own: Path, run: Sequence[Path], _: Sequence[Path]) -> None:
    """OSError where this account may not make namespaces. A path that does not exist can't be mounted."""
    user, group = os.getuid(), os.getgid()
    theirs = [path.resolve() for path in run if path.exists()]
    _checked(_libc.unshare(_NEW_USER | _NEW_MOUNTS))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(None, "/", _REC | _PRIVATE)
    for path in theirs:
        _mount(path, path, _BIND | _REC)
        _mount(None, path, _REMOUNT | _BIND | _READ_ONLY | _flags(path))
    _mount(own, own, _BIND | _REC)
    _mount(None, own, _REMOUNT | _BIND | _flags(own))
    os.chdir(Path.cwd())  # the old working directory is the one below the new mounts


def _flags(path: Path) -> int:
    """Those of the mount that a remount may not drop."""
    now = os.statvfs(path).f_flag
    return sum(flag for shown, flag in _KEPT.items() if now & shown)


def _mount(source: Path | None, target: str | Path, flags: int) -> None:
    given = None if source is None else os.fsencode(source)
    _checked(_libc.mount(given, os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


_MEANS: Mapping[str, Callable[[Path, Sequence[Path], Sequence[Path]], None]] = {
    "landlock": by_landlock,
    "mounts": by_mounts,
}


def _apply(means: Sequence[str], own: Path, run: Sequence[Path], also: Sequence[Path]) -> list[str]:
    """Why each of the means does not work here; [] once one does. Tried in a child before: what is half made, such as a
    namespace whose mounts are refused, can't be left again."""
    why = []
    for name in means:
        try:
            _tried_in_a_child(_MEANS[name], own, run, also)
            _MEANS[name](own, run, also)
        except OSError as error:
            why.append(f"{name}: {error.strerror or error}")
        else:
            return []
    return why


def _tried_in_a_child(
    means: Callable[[Path, Sequence[Path], Sequence[Path]], None], own: Path, run: Sequence[Path], also: Sequence[Path]
) -> None:
    """OSError, as the means raised it there."""
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            means(own, run, also)
            code = 0
        except OSError as error:
            code = min(error.errno or errno.EIO, 255)
        finally:
            os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(abs(code), os.strerror(abs(code)))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=list(_MEANS))
    parser.add_argument("--own", type=Path, required=True)
    parser.add_argument("--also", type=Path, action="append", default=[])
    parser.add_argument("--run", type=Path, action="append", default=[])
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    why = _apply([asked.by] if asked.by else list(_MEANS), asked.own, asked.run, asked.also)
    if why and asked.by:
        return _say("; ".join(why), REFUSED)
    if why:
        _say(f"the run's folders are not read-only to this probe: {'; '.join(why)}")
    elif not _can_make_files(tempfile.gettempdir()):  # the temporary folder holds the run
        temporary = asked.own / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = str(temporary)
    if shutil.which(asked.command[0]) is None:
        return _say(f"program {asked.command[0]!r} not found", NOT_FOUND)
    try:
        os.execvp(asked.command[0], asked.command)  # noqa: S606 - a list of words, without a shell
    except OSError as error:
        return _say(f"{asked.command[0]!r} could not be started: {error}", NOT_FOUND)


def _say(what: str, code: int = 0) -> int:
    sys.stderr.write(f"sentinel: {what}\n")
    return code


def _can_make_files(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
