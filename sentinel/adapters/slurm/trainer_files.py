"""What a job's trainer says of its own options, and the files that its script names: read, never run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sentinel import bounded
from sentinel.jobscript.facts import LrScheduler
from sentinel.jobscript.named_files import ARGUMENT_FILES, named_files, program_paths, with_files
from sentinel.jobscript.option_facts import SCHEDULERS, defined_in
from sentinel.vocabulary.errors import ScriptRefused

log = logging.getLogger(__name__)

_LARGEST_NAMED = 256 << 10  # bytes of a trainer's YAML or DeepSpeed JSON; they have some KiB
_LARGEST = 4 << 20  # bytes of one of the files; Megatron-LM's arguments.py has 0.2 MB


def scheduler_of(script: str, folder: Path, configured: str | None) -> LrScheduler | None:
    """The LR scheduler of a job script's trainer: as configured (the whole option), else as the files beside the
    program define it; `folder` is the job's. None where neither is known."""
    for name in SCHEDULERS:
        if configured == f"--override-{name}":
            return name
    try:
        programs = [folder / path for path in program_paths(script)]
    except ScriptRefused:
        return None
    for program in programs:
        files = [path for pattern in ARGUMENT_FILES for path in sorted(program.parent.glob(pattern))]
        if files and program.is_file() and (found := defined_in(_texts(files))) is not None:
            return found
    return None


def with_named_files(script: str, folder: Path, copies: str) -> str:
    """The script with the trainer's YAML and DeepSpeed JSON inside, where it only names them; `folder` is the job's.

    `copies` begins the path of each copy, which the script writes. A file that is not there, is not text or lies in
    several places is left out: what needs it is then refused, and says so.
    """
    found = files_named_in(script, [folder])
    return with_files(script, {path: (f"{copies}{file.name}", text) for path, (file, text) in found.items()})


def files_named_in(script: str, folders: Sequence[Path]) -> dict[str, tuple[Path, str]]:
    """{path, as the trainer gets it: the file and its text}; the job starts in one of the folders."""
    found: dict[str, tuple[Path, str]] = {}
    for path, places in named_files(script).items():
        may_be = (folder / place for folder in folders for place in places)
        there = {file.resolve(): file for file in may_be if file.is_file()}
        if len(there) == 1:
            (file,) = there.values()
            try:
                found[path] = file, bounded.read_text(file, _LARGEST_NAMED)
            except (OSError, ValueError) as error:
                log.warning("the trainer's configuration: %s", error)
    return found


def _texts(files: list[Path]) -> list[str]:
    texts = []
    for path in files:
        try:
            texts.append(bounded.read_text(path, _LARGEST, errors="replace"))
        except OSError as error:
            log.warning("the trainer's options: %s", error)
    return texts
