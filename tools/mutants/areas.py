"""Which code is changed, and which tests are to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AREAS", "Area", "files_of", "tests_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A part of the code whose breakage would harm a run, and the tests that stand for it."""

    name: str
    code: tuple[str, ...]
    """Patterns of files, relative to the root."""

    tests: tuple[str, ...]
    """How the paths of its tests begin; they run within pytest's own process, or in processes that they start."""


AREAS: tuple[Area, ...] = (
    Area(
        name="judge",
        code=("sentinel/judge/*.py", "sentinel/judge/*/*.py"),
        tests=("tests/judge", "tests/plan/test_planned_", "tests/cli/test_compare_command.py"),
    ),
    Area(
        name="plan",
        code=("sentinel/plan/*.py", "sentinel/plan/*/*.py"),
        tests=("tests/plan", "tests/jobscript/test_script_changes.py", "tests/judge/test_onset.py"),
    ),
    Area(
        name="job script",
        code=("sentinel/jobscript/*.py",),
        tests=("tests/jobscript", "tests/lint"),
    ),
    Area(
        name="slurm's jobs",
        code=("sentinel/adapters/slurm/jobs.py", "sentinel/adapters/slurm/whose_jobs.py"),
        tests=("tests/adapters/test_slurm_jobs.py", "tests/adapters/test_whose_jobs.py"),
    ),
    Area(
        name="lock",
        code=("sentinel/adapters/lock.py", "sentinel/durable.py"),
        tests=("tests/adapters/test_one_sentinel_acts.py", "tests/adapters/test_state_files.py"),
    ),
    Area(
        name="quarantine and latest",
        code=tuple(f"sentinel/adapters/checkpoints/{name}.py" for name in ("quarantine", "trackers", "folder", "pins")),
        tests=("tests/adapters/test_checkpoint", "tests/adapters/test_perform.py", "tests/adapters/test_undo_order.py"),
    ),
    Area(
        name="checkpoints of trainers",
        code=tuple(f"sentinel/adapters/checkpoints/{name}.py" for name in ("walk", "probes", "layouts/*")),
        tests=("tests/adapters/test_checkpoint", "tests/adapters/test_what_may_be_old.py"),
    ),
    Area(
        name="bisect",
        code=("sentinel/lab/bisect/*.py", "sentinel/lab/bisect/*/*.py", "sentinel/lab/probes/probe.py"),
        tests=("tests/probes", "tests/plan/test_cut_short.py"),
    ),
    Area(
        name="probes and witnesses",
        code=(
            *(f"sentinel/lab/probes/{name}.py" for name in ("guard", "at_work")),
            *(f"sentinel/act/{name}.py" for name in ("starts", "liveness_evidence", "fence")),
        ),
        tests=("tests/probes", "tests/daemon/test_overlap.py", "tests/adapters/test_perform.py"),
    ),
    Area(
        name="wandb",
        code=("sentinel/act/wandb_*.py", "sentinel/adapters/wandb/*.py"),
        tests=("tests/adapters/test_wandb_",),
    ),
    Area(
        name="TensorBoard cut",
        code=("sentinel/adapters/tensorboard/*.py", "sentinel/adapters/event_files/*.py"),
        tests=(
            "tests/adapters/test_tensorboard",
            "tests/adapters/test_event_files",
            "tests/sources/test_tensorboard",
        ),
    ),
    Area(
        name="pacing and schedules",
        code=("sentinel/vocabulary/pacing/*.py", "trainer_hooks/gpt/schedules.py", "trainer_hooks/restart.py"),
        tests=(
            "tests/vocabulary/test_pacing.py",
            "tests/vocabulary/test_deepspeed_blocks.py",
            "tests/vocabulary/test_overrides.py",
            "tests/plan/test_price.py",
            "tests/plan/test_coming.py",
            "tests/hooks/test_custom_pacing.py",
            "tests/hooks/test_deepspeed_pacing.py",
            "tests/hooks/test_gpt_settings.py",
        ),
    ),
)


def files_of(area: Area, root: Path) -> list[str]:
    """The area's files, relative to the root, in order."""
    found = {p.relative_to(root).as_posix() for pattern in area.code for p in root.glob(pattern)}
    return sorted(found)


def tests_of(area: Area, root: Path) -> list[str]:
    """The area's files and folders of tests, relative to the root, in order."""
    found = {p for begin in area.tests for p in root.glob(begin if (root / begin).exists() else f"{begin}*.py")}
    return sorted(p.relative_to(root).as_posix() for p in found)
