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


def _core(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/core/test_{name}" for name in names)


_JUDGE = (
    *("judged_", "series", "regime", "episode", "onset", "compared", "replay", "first_moved", "references"),
    *("events_hold_together", "scheduled_runs", "recovered", "following", "end_of_a_run"),
)

AREAS: tuple[Area, ...] = (
    Area(
        name="judge",
        code=("sentinel/judge/*.py", "sentinel/judge/*/*.py"),
        tests=(
            *(f"tests/judge/test_{name}" for name in _JUDGE),
            *_core("compare_command", "planned_", "hostile_records"),
        ),
    ),
    Area(
        name="plan",
        code=("sentinel/plan/*.py",),
        tests=(
            "tests/plan",
            *_core("planned_", "told_", "recovery_plan", "alive", "applying", "coming", "price"),
            *_core("mitigations", "incident", "marks", "overlays", "page", "proof", "slurm_jobs"),
            *_core("bell", "script_changes", "written_", "megatron_options"),
            *("tests/judge/test_onset.py", "tests/judge/test_events_hold_together.py"),
        ),
    ),
    Area(
        name="job script",
        code=("sentinel/jobscript/*.py",),
        tests=_core("job_script", "written_", "megatron_options", "script_changes", "lint_reading", "lint_command"),
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
        name="TensorBoard cut",
        code=("sentinel/adapters/tensorboard.py", "sentinel/adapters/event_files/*.py"),
        tests=(
            "tests/adapters/test_tensorboard",
            "tests/adapters/test_event_files",
            "tests/sources/test_tensorboard",
        ),
    ),
    Area(
        name="pacing and schedules",
        code=("sentinel/vocabulary/pacing/*.py", "trainer_hooks/gpt/schedules.py", "trainer_hooks/gpt/decided.py"),
        tests=(
            "tests/core/test_pacing.py",
            "tests/core/test_deepspeed_blocks.py",
            "tests/core/test_overrides.py",
            "tests/core/test_price.py",
            "tests/core/test_coming.py",
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
