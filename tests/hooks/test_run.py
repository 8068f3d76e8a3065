"""`python -m trainer_hooks.run`: a program that has no line of ours is watched, and is otherwise as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import pytest

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("plain_trainer.py"))
RUN = ("-m", "trainer_hooks.run", "--run", "plain")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=250, check=False
    )


def told(folder: Path, kind: type[T]) -> list[T]:
    return [record for record in Journals(folder / "state").poll() if isinstance(record, kind)]


@pytest.mark.full
def test_a_program_that_knows_nothing_of_the_hook_is_watched_and_ends_as_it_does_alone(tmp_path: Path) -> None:
    alone = run(PROGRAM, str(tmp_path))
    ours = (*RUN, "--state-dir", str(tmp_path / "state"), "--", PROGRAM, str(tmp_path))
    watched = run(*ours)  # the checkpoints of the first are there: the program does not ask for them
    assert alone.returncode == watched.returncode == 3, watched.stderr
    assert watched.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
    assert "ends with" in watched.stdout
    assert "sentinel" not in watched.stderr
    assert [sample.global_step for sample in told(tmp_path, Sample)] == [1, 2, 3, 4, 5, 6]
    assert [end.reason for end in told(tmp_path, RunFinished)] == ["finished"]
    run(*ours, SENTINEL_ROLLBACK="incident-1-r1")  # as sentinel starts it
    assert [start.resumed_from for start in told(tmp_path, RunStarted)] == [None, 6]


@pytest.mark.full
def test_the_ranks_that_torchrun_starts_are_watched_as_one_training(tmp_path: Path) -> None:
    torchrun = ("torchrun", "--standalone", "--nproc_per_node=2")
    run(*RUN, "--", *torchrun, PROGRAM, str(tmp_path), SENTINEL_STATE_DIR=str(tmp_path / "state"))
    (start,) = told(tmp_path, RunStarted)
    assert start.world_size == 2
    assert [sample.global_step for sample in told(tmp_path, Sample)] == [1, 2, 3, 4, 5, 6]


def test_a_training_that_cannot_be_watched_says_so_once_and_trains(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()  # has no TrainerCallback
    (tmp_path / "transformers" / "__init__.py").touch()
    trainer = "class Trainer:\n    def train(self, resume_from_checkpoint=None): return resume_from_checkpoint\n"
    (tmp_path / "transformers" / "trainer.py").write_text(trainer)
    program = "from transformers.trainer import Trainer; print([Trainer().train(), Trainer().train('its own')])"
    ran = run(*RUN, "--", "-c", program, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert ran.stdout == "[None, 'its own']\n"
    assert ran.stderr.count("sentinel could not watch this training") == 1, ran.stderr


def test_a_sitecustomize_that_is_there_already_is_run_as_before(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('of the cluster')\nmarked = True\n")
    see = "import sys; print(sys.modules['sitecustomize'].marked)"
    ran = run(*RUN, "--", "-c", see, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert ran.stdout.split("\n")[-3:] == ["of the cluster", "True", ""]  # the launcher itself has run it before


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("-c", "import os; os.kill(os.getpid(), 15)"), -15),
        (("sh", "-c", "exit 7"), 7),
        (("no-such-program",), 127),
        ((str(ROOT),), 126),
    ],
)
def test_the_end_is_the_commands_own(command: tuple[str, ...], code: int) -> None:
    assert run(*RUN, "--", *command).returncode == code


def test_without_a_command_the_usage_is_said() -> None:
    ran = run(*RUN)
    assert (ran.returncode, "no command after --" in ran.stderr) == (2, True)
