"""`sentinel lint`: what it prints, and the exit code that a script can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.called import Sentinel
from tests.support.wide_scripts import WIDE, script

CORRECTED = WIDE.replace("--ffn-hidden-size $FFN_HIDDEN_SIZE ", "")


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Sentinel:
    monkeypatch.chdir(tmp_path)
    return Sentinel(monkeypatch, capsys, ("lint",))


def test_an_error_is_exit_1_with_the_numbers_and_the_source(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "tr8-104B.slurm").write_text(WIDE)
    answer = lint("tr8-104B.slurm")
    assert answer.code == 1
    assert "tr8-104B.slurm (job script): 2 errors, " in answer.out
    assert "  error: ffn_hidden_size 20480 is 1.25 x hidden_size 16384" in answer.out
    assert "    ffn_size: tr8-104B chronicle, experiment 6" in answer.out
    assert "  not known: the DeepSpeed JSON (line 18): $ZERO_STAGE is not set in the script" in answer.out


def test_no_error_is_exit_0(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(CORRECTED)
    assert lint("job.sh").code == 0
    (tmp_path / "bare.sh").write_text(script("--save x --save-interval 10 --lr-warmup-iters 100 --adam-beta2 0.95"))
    answer = lint("bare.sh")
    assert answer.code == 0
    assert "bare.sh (job script): no finding; " in answer.out


@pytest.mark.parametrize("text", [None, "echo hello\n", '{"fp16": '])
def test_what_can_t_be_read_is_exit_2_and_names_the_file(text: str | None, lint: Sentinel, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "job.sh").write_text(text)
    answer = lint("job.sh")
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("sentinel: job.sh: ")


def test_json_is_one_document_for_all_the_files(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "wrong.sh").write_text(WIDE)
    (tmp_path / "right.sh").write_text(CORRECTED)
    answer = lint("right.sh", "wrong.sh", "--json")
    right, wrong = json.loads(answer.out)
    assert answer.code == 1
    assert [each["path"] for each in (right, wrong)] == ["right.sh", "wrong.sh"]
    assert set(wrong) == {"path", "format", "facts", "unread", "findings"}
    assert wrong["facts"]["rampup_batch_size"] == {"start": 16, "increment": 16, "samples": 6_000_000}
    assert set(wrong["findings"][0]) == {"severity", "what", "sentence", "source"}
    assert [f["what"] for f in wrong["findings"] if f["severity"] == "error"] == ["ffn_size", "parameters_as_declared"]
    assert all(f["severity"] != "error" for f in right["findings"])


def test_what_a_person_says_counts_before_what_was_read(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(CORRECTED)
    answer = lint("job.sh", "--parameters", "13B", "--gpus", "512", "--step-time", "18.7", "--consumed-samples", "100")
    assert answer.code == 1
    assert "the run calls itself 13B" in answer.out
    assert "1995 GPU-hours" in answer.out
    assert lint("job.sh", "--parameters", "many").code == 2
    assert lint("job.sh", "--gpus", "0").code == 2
    failures = lint("job.sh", "--step-time", "100", "--save-time", "40", "--failures-per-day", "2", "--json")
    facts = json.loads(failures.out)[0]["facts"]
    assert (facts["step_time_s"], facts["save_time_s"], facts["node_failures_per_day"]) == (100, 40, 2)


def test_without_a_path_it_is_the_run_s_own_script_or_command(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "job.sh").write_text(WIDE.replace("tr8-104B", "no-size"))
    toml = tmp_path / "runs" / "tr8-104B.toml"
    run = '[run]\nname = "tr8-104B"\ncheckpoints = "x"\n[launcher]\n'
    toml.write_text(f'{run}kind = "slurm"\nscript = "../job.sh"\n')
    by_script = lint("--run", "tr8-104B")
    assert by_script.code == 1
    assert "the run calls itself 104B" in by_script.out
    toml.write_text(f'{run}command = ["python", "-m", "trainer_hooks.gpt", "--steps", "10"]\n')
    by_command = lint()
    assert by_command.code == 1
    assert "[launcher] command (command): " in by_command.out
    assert "the run never saves" in by_command.out
    toml.write_text(run)
    nothing = lint()
    assert nothing.code == 2
    assert (
        "tr8-104B has neither [launcher] script nor command: name a file, as in `sentinel lint train.sh`" in nothing.err
    )
    toml.write_text(f'{run}command = ["sleep", "1"]\n')
    assert lint().code == 2


@pytest.mark.parametrize(
    "command",
    [
        "deepspeed run_clm.py --model_name_or_path gpt2 --learning_rate 1e-4 --deepspeed ds.json",
        "torchrun --nproc_per_node 8 train.py --lr 1e-4 --warmup 0 --save-interval 0 --micro-batch-size 4",
    ],
)
def test_another_trainer_s_script_is_not_understood_and_no_error(lint: Sentinel, tmp_path: Path, command: str) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{command}\n")
    answer = lint("job.sh")
    assert (answer.code, answer.err) == (0, "")
    assert "job.sh: not understood: " in answer.out
    assert "are neither Megatron's, Hugging Face's nor trainer_hooks.gpt" in answer.out
    (document,) = json.loads(lint("job.sh", "--json").out)
    assert (document["format"], document["findings"]) == ("not understood", [])


YAML = """\
stage: pt
per_device_train_batch_size: 2
learning_rate: 1.0e-4
max_steps: 3000
warmup_steps: 10
adam_beta2: often
output_dir: out
"""
FACTORY = "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nllamafactory-cli train conf/run.yaml $MORE\n"


@pytest.mark.parametrize("place", [".", "jobs"])  # the job starts beside its script, or where lint was called
def test_a_yaml_that_the_script_names_is_read_and_lines_are_the_script_s(
    lint: Sentinel, tmp_path: Path, place: str
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.sh").write_text(FACTORY)
    missing = lint("jobs/job.sh", "--json")
    assert json.loads(missing.out)[0]["format"] == "not understood"
    (tmp_path / place / "conf").mkdir()
    (tmp_path / place / "conf" / "run.yaml").write_text(YAML)
    (document,) = json.loads(lint("jobs/job.sh", "--json").out)
    assert document["format"] == "job script"
    read = {name: document["facts"][name] for name in ("lr", "train_iters", "micro_batch_size")}
    assert read == {"lr": 1e-4, "train_iters": 3000, "micro_batch_size": 2}
    assert [(unread["what"], unread["line"]) for unread in document["unread"]] == [("$MORE", 4), ("--adam_beta2", None)]


def test_a_deepspeed_json_that_the_script_names_is_read(lint: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 1.0}')
    options = "--num-layers 4 --hidden-size 64 --deepspeed --deepspeed_config ds.json"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\ndeepspeed pretrain_gpt.py {options}\n")
    (document,) = json.loads(lint("job.sh", "--json").out)
    assert document["facts"]["deepspeed"]["gradient_clipping"] == 1.0
    assert document["unread"] == []
