"""Every file that a command reads, replaced by what no program of ours writes; what the command then costs, and says.

    python -m tests.cli.hostile_files [--few] [COMMAND ...]

prints one line for each case that is wrong, and how many cases there were. A command runs in a fork of its own. Which
of the run's files it reads is found by watching it open them once, so that a new reader is tried without being listed.
"""

from __future__ import annotations

import ctypes
import gzip
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
CPU_S = 30
"""Of processor time that a command may take."""

CLOCK_S = 300
"""After which a command that waits is killed; long, since the machine may be busy with other work."""

GROWN_BYTES = 400 * MIB
"""Of memory that a command may take beside what the interpreter holds with all its libraries."""

DATA = Path(__file__).parents[1] / "data"
LOGS = ("hf_trainer_dict", "nanotron", "megatron_lm_new", "torchtitan", "nemo2", "dion_jsonl", "dllogger_bert")
_NUMBER = re.compile(rb"(?<=[:\[,= ])-?\d[\d.e+-]*(?=[,}\]\s])")

Variant = Callable[[Path, bytes], object]
"""Writes something in the place of the file; the bytes are what was there."""


def _blocks(path: Path, before: bytes, after: bytes) -> None:
    with path.open("wb") as file:
        file.write(before)
        for _ in range(100):
            file.write(b"x" * MIB)
        file.write(after)


def _gzip_bomb(path: Path, _: bytes) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _number in range(300):
            file.write(bytes(MIB))


def _folder(path: Path, _: bytes) -> None:
    path.mkdir()
    (path / "a").write_text("b")


def _forbidden(path: Path, was: bytes) -> None:
    path.write_bytes(was)
    path.chmod(0)


VARIANTS: dict[str, Variant] = {
    "empty": lambda path, _: path.touch(),
    "truncated": lambda path, was: path.write_bytes(was[: len(was) * 2 // 3]),
    "nul": lambda path, was: path.write_bytes(bytes(2000) + was[:100] + bytes(2000)),
    "not_utf8": lambda path, was: path.write_bytes(b"\xff\xfe\xc3(" + was.replace(b'"', b'"\xf0\x28\x8c')),
    "huge_integers": lambda path, was: path.write_bytes(re.sub(rb"\d+", b"1" + b"0" * 400, was)),
    "nan_numbers": lambda path, was: path.write_bytes(_NUMBER.sub(b"NaN", was)),
    "nested": lambda path, _: path.write_bytes(b'{"a": ' + b"[" * 200_000 + b"\n"),
    "nested_toml": lambda path, _: path.write_bytes(b"a = " + b"[" * 200_000 + b"\n"),
    "a_list": lambda path, _: path.write_bytes(b"[1, 2]\n"),
    "a_number": lambda path, _: path.write_bytes(b"7\n"),
    "long_line": lambda path, was: _blocks(path, was, b"\n" + was),
    "long_string": lambda path, _: _blocks(path, b'{"a": "', b'"}\n'),
    "gzip_bomb": _gzip_bomb,
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": _folder,
    "loop": lambda path, _: path.symlink_to(path.name),
    "endless": lambda path, _: path.symlink_to("/dev/zero"),
    "forbidden": _forbidden,
}

RUN, SLURM = ("--run", "run.toml"), ("--run", "slurm.toml")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status", *RUN),
    ("watch", "--once", *RUN),
    ("incidents", *RUN),
    ("incident", "incident-1", *RUN),
    ("chronicle", *RUN),
    ("triage", "--texts", "texts.jsonl", *RUN),
    ("doctor", *RUN),
    ("undo", "--yes", *RUN),
    ("rollback", "--to", "global_step20", "--dry-run", *RUN),
    ("rollback", "--to", "scratch", "--rung", "reseed", "--dry-run", *RUN),
    ("manifest", "global_step20", *RUN),
    ("pin", "global_step20", *RUN),
    ("approve", "incident-1", "--yes", *RUN),
    ("purge", "incident-1", "--yes", *RUN),
    ("page", *RUN),
    ("pause", *RUN),
    ("resume", *RUN),
    ("lint", "job.sh"),
    ("lint", *SLURM),
    ("doctor", *SLURM),
    ("status", *SLURM),
    ("rollback", "--to", "global_step20", "--dry-run", *SLURM),
    ("watch", "--once", *SLURM),
    ("replay", "state"),
    ("replay", "state", *RUN),
    ("correlate", *RUN),
    ("correlate", "--incident", "incident-1", *RUN),
    ("compare", "run.toml", "state"),
    ("export", *RUN, "-o", "o.csv"),
    ("tune", "slw", *SLURM),
)
"""What reads files of the run. What reads a source that is named is in `cases`."""

FEW = (
    ("status", "run.toml", "huge_integers"),
    ("status", "run.toml", "pipe"),
    ("status", "kept-whole.json", "truncated"),
    ("status", "overrides.json", "nested"),
    ("status", "incidents.jsonl", "forbidden"),
    ("watch", "0001.jsonl", "pipe"),
    ("watch", "0001.jsonl", "huge_integers"),
    ("triage", "texts.jsonl", "nested"),
    ("undo", "files.json", "a_list"),
    ("rollback", "global_step20.json", "gzip_bomb"),
    ("lint", "job.sh", "long_string"),
    ("lint", "job.sh", "huge_integers"),
    ("replay", "trainer_state.json", "gzip_bomb"),
    ("replay", "t.parquet", "truncated"),
    ("replay", "t.csv", "endless"),
)
"""The command's first word, the file's name and the variant: what is tried each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """Its exit code; negative for a signal."""

    said: str
    cpu_s: float
    grown_bytes: int
    opened: frozenset[Path]


def run(folder: Path, words: Sequence[str], *, watch: bool = False) -> Ended:
    """The command in a fork, from within the folder, without root's rights over files."""
    said, seen = folder.parent / "said", folder.parent / "seen"
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    child = os.fork()
    if child == 0:
        _become(folder, words, said, seen if watch else None)
    killer = threading.Timer(CLOCK_S, os.kill, (child, signal.SIGKILL))
    killer.start()
    _, status, usage = os.wait4(child, 0)
    killer.cancel()
    return Ended(
        code=os.waitstatus_to_exitcode(status),
        said=said.read_text(errors="replace"),
        cpu_s=usage.ru_utime + usage.ru_stime,
        grown_bytes=usage.ru_maxrss * 1024 - held,
        opened=frozenset(map(Path, seen.read_text().splitlines())) if watch else frozenset(),
    )


def _become(folder: Path, words: Sequence[str], said: Path, seen: Path | None) -> None:
    os.chdir(folder)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for old, new in ((os.open(os.devnull, os.O_RDONLY), 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(old, new)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", errors="backslashreplace") for number in (1, 2))
    opened: set[str] = set()

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.add(str(folder / os.fspath(arguments[0])))

    if seen is not None:
        sys.addaudithook(look)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    ctypes.CDLL(None).capset(header, sets)  # without capabilities root is bound by the modes of files
    sys.argv, code = ["sentinel", *words], 70
    try:
        from sentinel.cli import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - this is what is looked for
        traceback.print_exc()
    finally:
        if seen is not None:
            seen.write_text("\n".join(sorted(opened)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wrong(ended: Ended, file: Path) -> list[str]:
    """What is not as it should be, in phrases."""
    said, found = "".join(ended.said.split()), []
    if "Traceback" in ended.said:
        found.append("traceback: " + ended.said.strip().splitlines()[-1][:200])
    if ended.code not in range(5):
        found.append(f"exit {ended.code}")
    if ended.cpu_s > CPU_S:
        found.append(f"{ended.cpu_s:.0f} s of CPU")
    if ended.grown_bytes > GROWN_BYTES:
        found.append(f"{ended.grown_bytes >> 20} MiB")
    if ended.code in (2, 4) and not any(name in said for name in (file.name, f"{file.parent}", *_INSTEAD)):
        found.append(f"exit {ended.code} without the file's name: {' '.join(ended.said.split())[-160:]}")
    return found


_INSTEAD = (
    *("thereisno'incident-1'", "thereisnorollbacktoundo", "theLRwarmup", "nothingtosayyesto", "nocommandinit"),
    *("compareneeds8ormore", "nothingtoexport", "openedbyhandandhasnoonset", "onlyaclosedincident'squarantine"),
)
"""Answers, without blanks, that are right about a file that is whole and holds nothing."""


def build(folder: Path) -> Path:
    """A run that was rolled back by hand, a job script, and the sources of its readings in other formats."""
    made = "import sys, pathlib; from tests.e2e.kill_points import build; build(pathlib.Path(sys.argv[1]), ill=True)"
    subprocess.run([sys.executable, "-c", made, str(folder)], check=True)  # torch stays out of this process
    (folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --job-name=small\nsrun python pretrain_gpt.py --num-layers 2 --hidden-size 64 "
        "--num-attention-heads 4 --seq-length 32 --seed 1 --lr 1e-4 --train-iters 60 --micro-batch-size 4 "
        "--global-batch-size 16 --save checkpoints\n"
    )
    (folder / "slurm.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[launcher]\nkind = "slurm"\n'
        'script = "job.sh"\nchanges_in_script = true\nslurm_timeout_s = 1\n'
    )
    (folder / "texts.jsonl").write_text('{"position": 1, "text": "a"}\n')
    (folder / "sources" / "hf").mkdir(parents=True)
    for words in (
        ("manifest", "global_step20", *RUN),
        ("pin", "global_step20", *RUN),
        ("rollback", "--to", "global_step20", "--yes", "--no-start", *RUN),
        *(("export", "state", "-o", f"sources/t.{suffix}") for suffix in ("csv", "parquet", "jsonl")),
    ):
        ended = run(folder, words)
        if ended.code != 0:
            raise RuntimeError(f"{words}: {ended.said}")
    (folder / "state" / "KILL").write_text("stop\n")
    (folder / "state" / "approvals").mkdir(exist_ok=True)
    (folder / "state" / "approvals" / "incident-1.json").write_text('{"digest": "ab", "by": "me", "time_unix_s": 5.0}')
    _sources(folder / "sources", folder / "tensorboard")
    return folder


def _sources(folder: Path, tensorboard: Path) -> None:
    rows = (folder / "t.jsonl").read_text().splitlines()
    (folder / "t.json").write_text("[" + ",".join(rows) + "]")
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    history = [{"step": n, "loss": 2.0 + n % 3 / 10, "learning_rate": 1e-4} for n in range(1, 61)]
    (folder / "hf" / "trainer_state.json").write_text(json.dumps({"global_step": 60, "log_history": history}))
    for path in (*(DATA / "log_samples" / f"{name}.log" for name in LOGS), *(DATA / "wandb_files").rglob("*.wandb")):
        shutil.copy(path, folder)
    shutil.copytree(
        tensorboard, folder / "tb", ignore=lambda _, names: [n for n in names if not n.startswith("events")]
    )


def cases(folder: Path, work: Path, only: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Path]]:
    """(words, file) of each command and each file of the run that it reads."""
    for words in COMMANDS:
        if only and words[0] not in only:
            continue
        for path in run(_copy(folder, work), words, watch=True).opened:
            if path.is_relative_to(work) and (folder / path.relative_to(work)).is_file():
                yield words, path.relative_to(work)
    for source in sorted((folder / "sources").rglob("*")):
        if source.is_file():
            named = source.relative_to(folder)
            what = str(named.parent if named.parent.name == "tb" else named)
            for more in (("replay",), ("correlate",), ("compare", "state"), ("export", "-o", "o.parquet")):
                if not only or more[0] in only:
                    yield (more[0], what, *more[1:]), named


def _copy(folder: Path, to: Path) -> Path:
    for path in (to, *to.rglob("*")) if to.exists() else ():
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, symlinks=True)
    (to / "checkpoints" / ".sentinel-quarantine" / "state-folder.json").unlink(missing_ok=True)  # it names the original
    log = to / "state" / "incidents.jsonl"  # so does it
    log.write_text(log.read_text().replace(str(folder / "checkpoints"), str(to / "checkpoints")))
    return to


def main() -> None:
    """Tries all cases, or the few."""
    few, only = "--few" in sys.argv, [word for word in sys.argv[1:] if word != "--few"]
    for name in ("cli.commands", "reports.pictures", "reports.triage.document", "adapters.export"):
        importlib.import_module(f"sentinel.{name}")
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder, work = build(Path(name).resolve() / "run"), Path(name).resolve() / "work"
        tried = set()
        for words, file in cases(folder, work, sorted({first for first, _, _ in FEW}) if few else only):
            for variant, write in VARIANTS.items():
                case = (words[0], file.name, variant)
                if few and (case not in FEW or case in tried):
                    continue
                tried.add(case)
                at = _copy(folder, work) / file
                was = (folder / file).read_bytes()
                at.unlink(missing_ok=True)
                write(at, was)
                if found := wrong(run(work, words), file):
                    print(f"sentinel {' '.join(words)}: {file}, {variant}: {'; '.join(found)}", flush=True)
                count += 1
    print(f"{count} cases", flush=True)


if __name__ == "__main__":
    main()
