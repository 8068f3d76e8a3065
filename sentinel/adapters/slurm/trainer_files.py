"""What a job's trainer says of its own options: read in its files, never run."""

from __future__ import annotations

import logging
from pathlib import Path

from sentinel import bounded
from sentinel.jobscript.facts import LrScheduler
from sentinel.jobscript.lr_scheduler import ARGUMENT_FILES, SCHEDULERS, defined_in, program_paths
from sentinel.vocabulary.errors import ScriptRefused

log = logging.getLogger(__name__)

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


def _texts(files: list[Path]) -> list[str]:
    texts = []
    for path in files:
        try:
            texts.append(bounded.read_text(path, _LARGEST, errors="replace"))
        except OSError as error:
            log.warning("the trainer's options: %s", error)
    return texts
