"""The hook, the log and a restart that takes effect, in a training with Microsoft's Megatron-DeepSpeed itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lint import KnownSettings, new_scripts
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import changes, overrides_for
from sentinel.plan.incident.baseline import Baseline, baseline_of, filled
from sentinel.plan.incident.incident import Proof, Rollback
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import Check, outcome, prove
from sentinel.sources.log_file import read_log
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample, decode
from tests.megatron.fork import Fork, found, missing

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200), pytest.mark.skipif(bool(missing()), reason=str(missing()))]

OPTIONS = (
    "--lr 1e-3 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-iters 20 --train-iters 400 --exit-interval 30 "
    "--seed 7 --clip-grad 1.0 --adam-beta2 0.999 --save-interval 10 --save checkpoints --load checkpoints "
    "--tensorboard-dir tb --log-optimizer-states-to-tensorboard"
)
RUNG = {"reseed": True, "lr_factor": 0.5, "lr_warmup_factor": 4, "clip_grad": 0.25}
SLW = {"seqlen_start": 8, "seqlen_total_steps": 40}


class Trained:
    """An attempt of 30 steps, a rollback to step 10 with a rung in the job script, and 20 more steps."""

    def __init__(self, folder: Path) -> None:
        source = found()
        assert source is not None
        self.fork = Fork(source, folder)
        self.takes_slw = self.fork.deepspeed() < "0.19"
        script = self.fork.script(OPTIONS)
        self.log = folder / "first.log"
        self.log.write_text(self.fork.train(script, SENTINEL_STATE_DIR=str(folder / "state")))
        self.baseline = filled(baseline_of(self.started(1)), baseline_of_script(script))
        rung = Rung(name="all", hypothesis="…", **RUNG, **(SLW if self.takes_slw else {}))  # type: ignore[arg-type]
        at = Anchor(global_step=10, consumed_samples=40, consumed_tokens=2560)
        named = {"incident": "incident-1", "rollback": "incident-1-r1"}
        self.overrides = overrides_for(rung, self.baseline, **named, anchor=at, new_seed=44)
        known = KnownSettings(scheduler="opt_param-scheduler", reported=baseline_of(self.started(1)))
        self.script = new_scripts(script, self.overrides, known).first
        self.fork.go_back(10)
        names = {"SENTINEL_INCIDENT": "incident-1", "SENTINEL_ROLLBACK": "incident-1-r1"}
        self.second_log = folder / "second.log"
        self.second_log.write_text(self.fork.train(self.script.text, SENTINEL_STATE_DIR=str(folder / "state"), **names))

    def journal(self, attempt: int) -> list[Record]:
        lines = (self.fork.folder / "state" / "attempts" / f"{attempt:04}.jsonl").read_text().splitlines()
        return [record for line in lines if (record := decode(line)) is not None]

    def started(self, attempt: int) -> RunStarted:
        return next(record for record in self.journal(attempt) if isinstance(record, RunStarted))

    def proof(self, baseline: Baseline, records: list[Record], before: list[Record]) -> dict[str, Check]:
        """The checks of the restart, by what an attempt reported."""
        decided = Rollback(
            id="incident-1-r1",
            rung="all",
            hypothesis="…",
            target_tag="global_step10",
            target_step=10,
            overrides=self.overrides,
            changes=changes(self.overrides, baseline),
            decided_unix_s=0.0,
            lost_steps=20,
            in_script=True,
            unconfirmed=("one-shot changes of incident-1-r1",),
        )
        evidence = Evidence(
            started=next(r for r in records if isinstance(r, RunStarted)),
            samples=tuple(r for r in records if isinstance(r, Sample))[:3],
            lr_before={r.global_step: r.lr for r in before if isinstance(r, Sample) and r.lr is not None},
        )
        checks = prove(decided, evidence, baseline)
        print(*checks, sep="\n")
        return {check.what: check for check in checks}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("megatron"))


def samples(records: list[Record]) -> dict[int, Sample]:
    return {record.global_step: record for record in records if isinstance(record, Sample)}


def logged(path: Path) -> list[Record]:
    return list(read_log(path))


def test_thirty_steps_are_those_of_its_log(trained: Trained) -> None:
    seen, written = samples(trained.journal(1)), samples(logged(trained.log))
    assert set(seen) == set(written) == set(range(1, 31))
    for step, sample in written.items():
        assert seen[step].loss == pytest.approx(sample.loss, rel=1e-5)
        told = (sample.consumed_samples, sample.consumed_tokens, sample.seqlen)
        assert (seen[step].consumed_samples, seen[step].consumed_tokens, seen[step].seqlen) == told
    for records in (trained.journal(1), logged(trained.log)):
        assert [r.tag for r in records if isinstance(r, CheckpointSaved)] == [f"global_step{n}" for n in (10, 20, 30)]


def test_the_variance_is_what_its_own_option_measures(trained: Trained) -> None:
    board = EventAccumulator(str(trained.fork.folder / "tb"), size_guidance={"scalars": 0}).Reload()
    tags = ("optimizer/variance_sqrt_l1", "optimizer/variance_sqrt_abs_max")
    sums, largest = ({each.step: each.value for each in board.Scalars(tag)[:30]} for tag in tags)
    seen = samples(trained.journal(1))
    assert set(sums) == set(largest) == set(range(1, 31))
    for step in sums:
        assert seen[step].adam_variance_l1 == pytest.approx(sums[step], rel=1e-5)
        assert seen[step].adam_variance_max == pytest.approx(largest[step], rel=1e-6)


def test_a_restart_by_its_job_script_takes_effect_and_the_hook_proves_it(trained: Trained) -> None:
    checks = trained.proof(trained.baseline, trained.journal(2), trained.journal(1))
    assert outcome(tuple(checks.values())) is Proof.CONFIRMED
    wanted = {"seed", "lr_schedule", "lr of the first steps", "gradient_clipping"}
    wanted |= {"seqlen_schedule", "seqlen of the first steps"} if trained.takes_slw else set()
    assert {what for what in wanted if checks[what].answer is Proof.CONFIRMED} == wanted


def test_the_log_alone_proves_what_it_prints(trained: Trained) -> None:
    before, records = logged(trained.log), logged(trained.second_log)
    checks = trained.proof(trained.baseline, records, before)
    answers = {what: check.answer for what, check in checks.items()}
    assert answers["seed"] is Proof.CONFIRMED
    assert answers["lr of the first steps"] is Proof.CONFIRMED
    assert answers["gradient_clipping"] is Proof.NOT_VERIFIED
    if trained.takes_slw:
        assert answers["seqlen of the first steps"] is Proof.CONFIRMED
    assert Proof.CONTRADICTED not in {answers[what] for what in answers if what != "rollback"}
