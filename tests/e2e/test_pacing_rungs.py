"""Rungs that switch schedules on: decided by a rollback, performed by the real trainer, proved by the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Proof, Rollback
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import prove
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.e2e.kill_points import copy_run
from tests.hooks.scheduled import Runs, index_of
from tests.hooks.trainer import SMALL, command
from tests.support.log_lines import lines_of
from tests.support.watch_command import SENTINEL

pytestmark = pytest.mark.full

FULL, BATCH, AT, STEPS = 32, 4, 6, 14
WORDS = (*SMALL, "--steps", str(STEPS), "--save-interval", str(AT), "--validate-every", "2", "--run", "small")
WORDS = (*WORDS, "--lr-warmup", str(AT + 3))

RUNGS: dict[str, dict[str, Any]] = {
    "linear": {"seqlen_start": "by_size", "seqlen_total_steps": 6},
    "root": {"seqlen_start": 8, "seqlen_pacing": "fixed_root", "seqlen_total_steps": 6, "seqlen_shorten": "reshape"},
    "adaptive": {"seqlen_start": 8, "seqlen_pacing": "adaptive"},
    "custom": {"seqlen_start": 8, "seqlen_pacing": "custom", "seqlen_function": "users_own:by_fours"},
    "no such function": {"seqlen_start": 8, "seqlen_pacing": "custom", "seqlen_function": "users_own:by_sixes"},
    "mixed": {"seqlen_start": 8, "seqlen_pacing": "mixed", "seqlen_shorten": "truncate_keep"},
    "batch": {"batch_size_start": 1, "batch_size_samples": 12},
    "random-LTD": {"random_ltd_start": 8, "random_ltd_total_steps": 6},
    "voc": {"curriculum_metric": "voc", "curriculum_start": 5, "curriculum_total_steps": 6},
}
"""The keys of each rung's table, beside its name and hypothesis."""

PERFORMED = [name for name in RUNGS if name != "no such function"]


def configure(run: Path, line: list[str], index: str) -> Path:
    """The run's TOML, with every rung on its ladder."""
    ladder = ""
    for name, keys in RUNGS.items():
        told = keys | ({"curriculum_index": index} if name == "voc" else {})
        table = {"name": name, "hypothesis": "it helps"} | told
        ladder += "[[policy.ladder]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    path = run / "small.toml"
    path.write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f"[launcher]\ncommand = {json.dumps(line)}\nworking_directory = '.'\nstop_grace_s = 20\n"
        "[watch]\npoll_interval_s = 0.2\n[policy]\nmode = 'act'\n" + ladder
    )
    return path


def sentinel(configuration: Path, verb: str, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    line = [*SENTINEL, verb, "--run", str(configuration), *words]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    ran = subprocess.run(
        line, capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL, env=env
    )
    assert ran.returncode == expect, f"{verb} {words}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


def rolled_back(run: Path) -> Rollback:
    (incident,) = fold(IncidentLog(run / "state" / "incidents.jsonl").read())
    (rollback,) = incident.rollbacks
    return rollback


def starts(run: Path) -> list[RunStarted]:
    return [r for r in Journals(run / "state").poll() if isinstance(r, RunStarted)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    return index_of(tmp_path_factory.mktemp("index"), FULL)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has gone all the way to its end, with nobody watching."""
    runs = Runs(tmp_path_factory.mktemp("trained"))
    runs.add("run", *WORDS, "--micro-batch", "1")
    assert runs.run() == {"run": "finished"}
    return runs.root / "run"


@pytest.fixture(scope="module")
def performed(tmp_path_factory: pytest.TempPathFactory, trained: Path, index: str) -> tuple[Runs, dict[str, str]]:
    """Each rung, decided by `sentinel rollback` on a run of its own; then all of them trained, and how they ended."""
    runs = Runs(tmp_path_factory.mktemp("performed"))
    (runs.root / "users_own.py").write_text("def by_fours(step: int) -> int:\n    return 8 + 4 * step\n")
    for name in RUNGS:
        run = runs.root / name
        copy_run(trained, run)
        to = ("--to", f"global_step{AT}", "--rung", name, "--no-start", "--yes")
        sentinel(configure(run, ["false"], index), "rollback", *to)
        decided = (run / "state" / "overrides.json").read_text()
        runs.add(name, *WORDS, "--micro-batch", "1", overrides=decided)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(runs.root), *sys.path])  # where the trainer finds the user's own module
        return runs, runs.run()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("rung", PERFORMED)
def test_what_a_rung_switches_on_is_performed_and_confirmed(performed: tuple[Runs, dict[str, str]], rung: str) -> None:
    runs, ended = performed
    assert ended[rung] == "finished"
    decision, (before, after) = rolled_back(runs.root / rung), starts(runs.root / rung)
    assert decision.unconfirmed == ()
    checks = prove(decision, Evidence(started=after))
    assert [check for check in checks if check.answer is not Proof.CONFIRMED] == []
    read = {key: getattr(after, key) for key in ("resumed_from", "first_sample_index", "consumed_tokens", "rollback")}
    ignored = replace(before, **read)  # it has read what was decided, and goes on as it was
    assert Proof.CONTRADICTED in {check.answer for check in prove(decision, Evidence(started=ignored))}


def test_each_of_them_counts_from_the_checkpoint_that_was_gone_back_to(
    performed: tuple[Runs, dict[str, str]],
) -> None:
    runs, _ = performed
    first: dict[str, Sample] = {}
    for rung in PERFORMED:
        made = [r for r in Journals(runs.root / rung / "state").poll() if isinstance(r, Sample) and r.attempt == 2]
        assert [s.global_step for s in made][: STEPS - AT] == list(range(AT + 1, STEPS + 1))
        first[rung] = made[0]
    lengths = {rung: first[rung].seqlen for rung in ("root", "adaptive", "custom", "mixed")}
    assert lengths == {"root": 16, "adaptive": 8, "custom": 8, "mixed": 8}
    assert first["batch"].global_batch_samples == 1
    assert first["random-LTD"].kept_tokens == 8
    share = first["voc"].curriculum_share
    assert share is not None
    assert share < 0.6


def test_slw_is_five_changes_on_the_reference_trainer_too(performed: tuple[Runs, dict[str, str]]) -> None:
    """The length, the end and the LR's decay by tokens, its warmup re-sized; the batch had no ramp."""
    runs, _ = performed
    before, after = starts(runs.root / "linear")
    assert before.parameters is not None
    assert before.parameters < 10**9
    made = {
        r.global_step: r
        for r in Journals(runs.root / "linear" / "state").poll()
        if isinstance(r, Sample) and r.attempt == 2
    }
    lengths = [made[step].seqlen for step in sorted(made)]
    assert (lengths[0], lengths[-1]) == (8, FULL)
    assert (after.total_steps, after.total_tokens) == (None, STEPS * BATCH * FULL)
    seen = made[max(made)].consumed_tokens or 0
    assert max(made) > STEPS  # short steps take fewer tokens
    assert 0 <= seen - STEPS * BATCH * FULL < BATCH * FULL
    own, lr = (LrSchedule.from_json(started.lr_schedule or {}) for started in (before, after))
    assert (lr.decay_unit, lr.decay_end) == ("tokens", STEPS * BATCH * FULL)
    x = own.warmup * BATCH * FULL  # the tokens of the run's own warmup
    assert 0 <= (made[lr.warmup].consumed_tokens or 0) - x < BATCH * FULL
    assert (made[lr.warmup - 1].consumed_tokens or 0) < x
    for step, sample in made.items():
        tokens = AT * BATCH * FULL if step == AT + 1 else made[step - 1].consumed_tokens or 0
        assert sample.lr == pytest.approx(lr.lr(step=step, consumed_tokens=tokens))
        assert step > own.warmup or sample.lr < own.lr(step=step)


def test_a_function_that_the_trainer_does_not_find_ends_it_before_its_first_step(
    performed: tuple[Runs, dict[str, str]],
) -> None:
    runs, ended = performed
    assert ended["no such function"].startswith("ConfigError: the custom pacing users_own:by_sixes can't be imported")
    assert len(starts(runs.root / "no such function")) == 1  # of the attempt before


def test_two_warmups_that_take_tokens_out_of_one_batch_are_refused_by_the_plan(
    performed: tuple[Runs, dict[str, str]], tmp_path: Path, index: str
) -> None:
    runs, _ = performed
    run = tmp_path / "run"
    copy_run(runs.root / "mixed", run)  # where the length goes back and forth for ever
    (run / "state" / "incidents.jsonl").unlink()
    words = ("rollback", "--to", f"global_step{2 * AT}", "--rung", "batch", "--dry-run")
    refused = sentinel(configure(run, ["false"], index), *words, expect=1)
    assert "sequence length warmup and batch-size warmup both take tokens out of a batch" in refused.stdout


DEAF = """\
import runpy
from dataclasses import replace
from trainer_hooks.gpt.schedules import Schedules

of = Schedules.of
Schedules.of = lambda settings, told, standing: of(settings, told, replace(standing, random_ltd=None))
runpy.run_module("trainer_hooks.gpt", run_name="__main__")
"""
"""A trainer that reads what was decided, and does not drop any token."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deaf", [False, True], ids=["that listens", "that is deaf"])
def test_watch_proves_a_trainer(trained: Path, tmp_path: Path, index: str, deaf: bool) -> None:
    run = tmp_path / "run"
    copy_run(trained, run)
    line = [*command(run, *WORDS, "--micro-batch", "1")]
    if deaf:
        (run / "deaf.py").write_text(DEAF)
        line = [line[0], str(run / "deaf.py"), *line[line.index("trainer_hooks.gpt") + 1 :]]
    configuration = configure(run, line, index)
    sentinel(configuration, "rollback", "--to", f"global_step{AT}", "--rung", "random-LTD", "--yes")
    watched = sentinel(configuration, "watch", expect=4 if deaf else 0)
    events = {e["event"]: e for e in lines_of(run / "state" / "incidents.jsonl")}
    assert ("proved" in events, "not_proved" in events) == (not deaf, deaf)
    if deaf:
        assert "did not take effect: random_ltd_schedule should be" in watched.stderr
    else:
        assert events["closed"]["outcome"] == "proved"
