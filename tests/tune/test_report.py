"""What is handed on of an answer: the rung, the trainer's options and DeepSpeed's JSON are the pacing tuned."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from sentinel.config import load_config
from sentinel.jobscript.facts import ScriptFacts
from sentinel.lab.tune.report import deepspeed_block, ladder_rung, trainer_options
from sentinel.lab.tune.search import Pacing
from sentinel.lab.tune.task import SETTING, Task, What, task_of
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.pacings import curriculum_for, random_ltd_for
from sentinel.plan.choose.policy import Tuning
from sentinel.plan.incident.baseline import Baseline
from sentinel.vocabulary.overrides import Anchor, TrainingSettings
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, curriculum_learning, data_efficiency
from tests.support.there import there
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.schedules import Schedules

FACTS = ScriptFacts(seq_length=256, lr_warmup_iters=10, train_iters=400, global_batch_size=4)
INDEX = "/data/an index/voc"
PACING = Pacing(16, 640)
EVERY: tuple[What, ...] = ("slw", "voc", "random-ltd")


def task(what: What) -> Task:
    return task_of(Tuning(voc_index=INDEX), FACTS, what)


def tuned(what: What) -> Any:
    return getattr(task(what).settings(PACING), SETTING[what])


@pytest.mark.parametrize("what", EVERY)
def test_the_reference_trainer_makes_the_same_schedule_of_its_options(what: What) -> None:
    words = shlex.split(trainer_options(task(what), PACING))
    settings = parse(["--seqlen", "256", "--steps", "400", *words])
    made = Schedules.of(settings, DataEfficiency(), TrainingSettings())
    assert getattr(made, SETTING[what]) == tuned(what)


@pytest.mark.parametrize("what", EVERY)
def test_the_rung_from_scratch_is_the_same_schedule(what: What, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[run]\nname = "a"\ncheckpoints = "checkpoints"\n' + ladder_rung(task(what), PACING))
    (rung,) = load_config(path).policy.ladder
    assert isinstance(rung, Rung)
    if what == "slw":
        assert (rung.seqlen_start, rung.seqlen_total_steps) == (16, 640)
        return
    baseline, anchor = Baseline(full_seqlen=256), Anchor(global_step=0)
    of = {"voc": curriculum_for, "random-ltd": random_ltd_for}[what]
    assert of(rung, baseline, anchor) == tuned(what)


def test_what_deepspeed_is_told_is_read_back_as_the_same_schedule() -> None:
    slw = curriculum_learning({"curriculum_learning": deepspeed_block(task("slw"), PACING)})
    assert slw == tuned("slw")
    routing = deepspeed_block(task("random-ltd"), PACING)["data_routing"]
    ltd = {"enabled": True, "total_layer_num": 4, "random_ltd_layer_num": 2, "random_ltd_layer_id": [1, 2]}
    routing = {"enabled": True, "random_ltd": ltd | routing["random_ltd"]}
    sampling = deepspeed_block(task("voc"), PACING)["data_sampling"]
    voc = {"clustering_type": "schedule_based", "index_to_sample_path": f"{INDEX}/voc_index_to_sample"}
    voc |= sampling["curriculum_learning"]["curriculum_metrics"]["voc"]
    learning = {"enabled": True, "curriculum_metrics": {"voc": voc}}
    sampling = {"enabled": True, "curriculum_learning": learning}
    told = {"data_efficiency": {"enabled": True, "data_sampling": sampling, "data_routing": routing}}
    read = there(data_efficiency(json.loads(json.dumps(told))))
    assert there(read.random_ltd).to_json() | {"layers": None} == tuned("random-ltd").to_json()
    assert read.metrics["voc"].difficulty == tuned("voc").metrics["voc"].difficulty
