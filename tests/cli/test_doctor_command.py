"""`sentinel doctor` and `tune slw` on configurations of other people's trainers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sentinel.cli.commands import app
from sentinel.cli.tune import search
from sentinel.config import Config, load_config
from sentinel.plan.choose.policy import Policy
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, encode
from tests.support.curves import sample

RUN = '[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "state"\n'

LADDER = """
[[policy.ladder]]
name = "wait"
hypothesis = "it heals by itself"
wait_steps = 200
[[policy.ladder]]
name = "the model"
hypothesis = "the model's shape is wrong"
page = true
"""


def configured(folder: Path, text: str) -> Config:
    (folder / "a.toml").write_text(RUN + text)
    return load_config(folder / "a.toml")


def test_rungs_that_wait_or_ask_for_a_person_are_not_bad(tmp_path: Path) -> None:
    configured(tmp_path, LADDER)
    (tmp_path / "state").mkdir()
    told = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml"), "--json"])
    ladder = [finding for finding in json.loads(told.stdout) if finding["what"] == "ladder"]
    assert [finding["answer"] for finding in ladder] == ["ok"]
    assert "2 rungs: wait, the model" in ladder[0]["sentence"]


def test_an_lr_rung_that_the_trainers_schedule_does_not_take_is_named_with_the_trainers_reason(tmp_path: Path) -> None:
    configured(tmp_path, "")
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    why = "DeepSpeed's WarmupLR warms up along a logarithm"
    started = RunStarted(attempt=1, time_unix_s=1.0, lr_schedule_unknown=why, applies=("lr",), seed=1)
    (tmp_path / "state" / "attempts" / "0001.jsonl").write_text(encode(started) + "\n")
    told = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml"), "--json"])
    ladder = [finding["sentence"] for finding in json.loads(told.stdout) if finding["what"] == "ladder"]
    skipped = [rung.name for rung in Policy().ladder if rung.lr_factor or rung.lr_warmup_factor]
    assert len(skipped) >= 2
    for name in skipped:
        assert any(f"rung {name!r}: it changes the LR, and {why}" in sentence for sentence in ladder)


def test_a_program_of_the_commands_that_is_not_there_is_found_before_it_is_needed(tmp_path: Path) -> None:
    """Also one beside the recipe's other files."""
    table = '[launcher]\nkind = "commands"\nworking_directory = "own"\n[commands]\nlist = ["true"]\n'
    configured(tmp_path, table + 'start = ["./start", "{name}"]\nstop = ["no-such-qdel", "{job}"]\n')
    (tmp_path / "own").mkdir()
    told = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml"), "--json"]).stdout
    assert "[commands] start: program './start' not found" in told
    (tmp_path / "own" / "start").symlink_to("/bin/true")
    told = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml"), "--json"]).stdout
    assert ("[commands] start" in told, "[commands] stop: program 'no-such-qdel' not found" in told) == (False, True)


def doctored(folder: Path, policy: str, *records: Record) -> dict[str, tuple[str, str]]:
    """{what was checked: answer and sentence}, of an attempt that has left these records."""
    configured(folder, f"[launcher]\ncommand = ['true']\n{policy}")
    (folder / "state" / "attempts").mkdir(parents=True, exist_ok=True)
    (folder / "state" / "attempts" / "0001.jsonl").write_text("".join(f"{encode(record)}\n" for record in records))
    told = CliRunner().invoke(app, ["doctor", "--run", str(folder / "a.toml"), "--json"])
    return {finding["what"]: (finding["answer"], finding["sentence"]) for finding in json.loads(told.stdout)}


def test_an_attempt_without_a_sample_is_told_what_measures_a_step(tmp_path: Path) -> None:
    started = RunStarted(attempt=1, time_unix_s=1.0)
    saved = CheckpointSaved(attempt=1, global_step=10, time_unix_s=2.0, tag="step-10")
    for records, answer, says in (
        ((started,), "note", "attempt 1 is there and has made no sample yet"),
        ((started, saved), "bad", "attempt 1 has saved step-10 and has made no sample: its steps are not measured"),
    ):
        found = doctored(tmp_path, "", *records)["journal"]
        assert found[0] == answer
        assert found[1].startswith(says)
        assert "hook.loss(loss) is called before each loss.backward()" in found[1]
    assert doctored(tmp_path, "", started, sample(1, 3.0))["journal"][0] == "ok"


@pytest.mark.parametrize(
    ("mode", "applies", "answer", "says"),
    [
        ("act", (), "bad", "mine.py applies nothing of overrides.json: a restart can change the checkpoint alone"),
        ("observe", (), "note", "trainer_hooks.decisions(…), given to attach"),
        ("act", None, "note", "mine.py does not say which keys of overrides.json it applies"),
        ("act", ("lr", "seed"), "ok", "mine.py applies lr, seed"),
    ],
)
def test_that_a_trainer_would_ignore_what_is_decided_is_said_before_the_first_incident(
    tmp_path: Path, mode: str, applies: tuple[str, ...] | None, answer: str, says: str
) -> None:
    started = RunStarted(attempt=1, time_unix_s=1.0, applies=applies, trainer="mine.py", seed=1)
    found = doctored(tmp_path, f'[policy]\nmode = "{mode}"\n', started, sample(1, 3.0))
    assert found["changes"][0] == answer
    assert says in found["changes"][1]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["python", "run_clm.py", "--learning_rate=1e-4"], "run_clm.py can't be shortened: it takes no options that"),
        (
            ["python", "pretrain_gpt.py", "--train-iters=100", "--seq-length=64"],
            "pretrain_gpt.py takes its sequence lengths from options, and sentinel may not change them",
        ),
    ],
)
def test_tune_refuses_a_trainer_that_can_not_be_shortened(tmp_path: Path, command: list[str], says: str) -> None:
    config = configured(tmp_path, f"[launcher]\ncommand = {json.dumps(command)}\n")
    with pytest.raises(ConfigError, match=says):
        search(config, tmp_path / "search", parallel=None, say=print)
    assert not (tmp_path / "search").exists()


def test_tune_refuses_a_trainer_whose_curriculum_it_can_not_change(tmp_path: Path) -> None:
    config = configured(tmp_path, '[launcher]\ncommand = ["python", "pretrain_gpt.py", "--train-iters=100"]\n')
    with pytest.raises(ConfigError, match=r"the curriculum of pretrain_gpt.py: no attempt .* has reported"):
        search(config, tmp_path / "search", "voc", parallel=None, say=print)


def test_tune_takes_a_trainer_that_has_reported_its_sequence_lengths(tmp_path: Path) -> None:
    config = configured(tmp_path, '[launcher]\ncommand = ["python", "mine.py"]\n')
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    started = RunStarted(attempt=1, time_unix_s=0.0, seqlen_schedule={"start": 8})
    (tmp_path / "state" / "attempts" / "0001.jsonl").write_text(encode(started) + "\n")
    with pytest.raises(ConfigError) as refused:  # the next thing that is not known
        search(config, tmp_path / "search", parallel=None, say=print)
    assert "shortened" not in str(refused.value)
