"""The option that overrides a trainer's LR schedule, asked of the files beside the program that a job script starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.adapters.slurm.trainer_files import scheduler_of

OLDER = "group.add_argument('--override-lr-scheduler', action='store_true')\n"
NEWER = "group.add_argument('--override-opt_param-scheduler', action='store_true')\n"
NEWEST = (
    'x: bool = field(metadata={"arg_names": ["--override-opt_param-scheduler", "--override-opt-param-scheduler"]})\n'
)
BARE = "torchrun pretrain_gpt.py --lr 1 --num-layers 2\n"


def trainer(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (root / "pretrain_gpt.py").touch()


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("megatron/arguments.py", OLDER, "lr-scheduler"),
        ("megatron/arguments.py", NEWER, "opt_param-scheduler"),
        ("megatron/training/arguments.py", NEWER, "opt_param-scheduler"),
        ("megatron/training/config/training_config.py", NEWEST, "opt_param-scheduler"),
        ("megatron/training/config/training_config.py", NEWEST.split(",")[1], "opt-param-scheduler"),
        ("megatron/arguments.py", "# --override-lr-scheduler was here\n", None),
        ("elsewhere/arguments.py", OLDER, None),
    ],
)
def test_the_trainers_own_files_define_the_option(tmp_path: Path, name: str, text: str, found: str | None) -> None:
    trainer(tmp_path, name, text)
    assert scheduler_of(BARE, tmp_path, None) == found
    assert scheduler_of(BARE, tmp_path, "--override-lr-scheduler") == "lr-scheduler"


@pytest.mark.parametrize(
    "script",
    [
        "dir=`pwd`\ndeepspeed ${dir}/../../pretrain_gpt.py --lr 1\n",
        'cd $REPO\nX="--lr 1"\ndeepspeed $(pwd)/pretrain_gpt.py $X\n',
        "REPO={root}\ncd $REPO\npython -u -m torch.distributed.run --nnodes 1 pretrain_gpt.py --lr 1\n",
        'CMD="$PWD/../../pretrain_gpt.py --lr 1"\ntorchrun $CMD\n',
    ],
)
def test_the_program_is_found_from_the_jobs_folder_and_where_the_script_goes(tmp_path: Path, script: str) -> None:
    trainer(tmp_path, "megatron/arguments.py", NEWER)
    job = tmp_path / "examples" / "rebase"
    job.mkdir(parents=True)
    unset = "cd $REPO" in script and "{root}" not in script
    found = scheduler_of(script.replace("{root}", str(tmp_path)), job, None)
    assert found == (None if unset else "opt_param-scheduler")
