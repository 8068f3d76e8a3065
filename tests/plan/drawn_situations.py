"""States of a run, its policy and its incident, drawn at random: what tests/plan/planned_situations.py plans for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from sentinel.judge.unhealthy_spans import UnhealthySpan
from sentinel.judge.verdict import UNAVAILABLE, Context
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.incident.other_rungs import Skip, Wait
from sentinel.plan.observation import (
    AttemptSeen,
    Checkpoint,
    FileSeen,
    JobsSeen,
    Life,
    ProcessState,
    StartSeen,
    WriterSeen,
)
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Free
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedLinear,
    LrSchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from sentinel.vocabulary.training_settings import SkippedRange
from tests.support.facts import facts_of, journals_for

__all__ = ["OURS", "Drawn"]

OURS = "incident-7-r1"
_T = TypeVar("_T")


class Drawn:
    """Draws the parts of a situation, the same for the same seed; `odd` is what is rarely so."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def maybe(self, value: _T, odds: float = 0.5) -> _T | None:
        return value if self.rng.random() < odds else None

    def odd(self) -> bool:
        return self.rng.random() < 0.06

    def one(self, *values: _T) -> _T:
        return self.rng.choice(values)

    def lr(self) -> LrSchedule:
        unit = self.one("steps", "steps", "samples", "tokens")
        per_step = {"steps": 1, "samples": 16, "tokens": 16 * 128}[unit]
        return LrSchedule(
            peak=self.one(1e-2, 3e-4),
            warmup=per_step * self.one(0, 20, 60),
            decay_start=per_step * self.one(20, 60),
            decay_end=per_step * self.one(240, 1000),
            minimum=self.one(0.0, 1e-4),
            unit=unit,
            decay_unit=self.maybe("tokens", 0.1),
        )

    def baseline(self) -> Baseline:
        metric = MetricSchedule(
            difficulty=DifficultySchedule(kind="percentile", start=1, full=100, total_steps=50), index="/idx"
        )
        batch = BatchSizeSchedule(start=self.one(4, 16), full=16, increment=4, ramp_samples=self.one(0, 400))
        return Baseline(
            seed=self.maybe(3, 0.8),
            lr=self.maybe(self.lr(), 0.9),
            seqlen=self.maybe(FixedLinear(start=8, full=128, total_steps=self.one(10, 300)), 0.2),
            full_seqlen=self.maybe(128, 0.9),
            shorten=self.maybe(self.one("truncate", "reshape"), 0.2),
            total_steps=self.maybe(2000, 0.8),
            total_tokens=self.maybe(4_000_000, 0.3),
            total_samples=self.maybe(32_000, 0.2),
            lr_from_start=self.maybe(True, 0.2),
            parameters=self.maybe(self.one(1e8, 1e9, 2e9)),
            batch_size=self.maybe(batch, 0.8),
            random_ltd=self.maybe(
                RandomLtdSchedule(start=16, full=128, total_steps=self.one(0, 40), layers=(1, 2)), 0.1
            ),
            curriculum=self.maybe(CurriculumSchedule(metrics={"old": metric}), 0.1),
            adam_beta1=self.maybe(0.9),
            adam_beta2=self.maybe(0.999),
            weight_decay=self.maybe(0.1),
            clip_grad=self.maybe(self.one(0.0, 1.0)),
            precision=self.maybe(self.one("fp16", "bf16")),
            skipped=self.maybe(self.one((), (SkippedRange(begin=80, end=96),)), 0.6),
            moments_reset_steps=self.maybe((), 0.5),
            free=self.maybe(Free(environment={"A": "1"}, options=("--x=1", "--seed=2"), removed=("--y",)), 0.1),
            from_arguments=self.one((), (), ("clip_grad", "adam_beta2")),
            by_script=self.one((), (), (), ("seed", "weight_decay")),
        )

    def rung(self, among: Sequence[str] = ()) -> Rung:
        """Of one to three kinds of changes. ConfigError where what is drawn does not go together."""
        any_of: dict[str, Callable[[], dict[str, Any]]] = {
            "reseed": lambda: {"reseed": True},
            "skip": lambda: {"skip_samples": self.one("past_onset", "past_onset", 320)},
            "seqlen": lambda: {
                "seqlen_start": self.one("by_size", "by_size", 16, 256),
                "seqlen_total_steps": self.maybe(100),
                "seqlen_pacing": self.one(None, "fixed_linear", "fixed_root", "fixed_discrete", "mixed", "adaptive"),
                "seqlen_root_degree": self.maybe(3.0, 0.1),
                "seqlen_multiple": self.maybe(16, 0.1),
                "seqlen_shorten": self.maybe(self.one("truncate", "reshape", "truncate_keep"), 0.2),
                "seqlen_by_tokens": self.maybe(self.one(True, False), 0.3),
            },
            "custom": lambda: {"seqlen_start": 8, "seqlen_pacing": "custom", "seqlen_function": self.maybe("m:f", 0.8)},
            "batch": lambda: {
                "batch_size_start": 2,
                "batch_size_samples": self.maybe(160, 0.9),
                "batch_size_increment": self.maybe(self.one(2, 3)),
            },
            "ltd": lambda: {"random_ltd_start": self.one(16, 512), "random_ltd_total_steps": self.maybe(40, 0.9)},
            "curriculum": lambda: {
                "curriculum_metric": "voc",
                "curriculum_index": "/voc",
                "curriculum_total_steps": 60,
                "curriculum_kind": self.maybe(self.one("value", "percentile"), 0.3),
                "curriculum_start": self.maybe(self.one(10, 2000), 0.3),
                "curriculum_full": self.maybe(1000, 0.2),
                "curriculum_root_degree": self.maybe(1.0, 0.2),
            },
            "warmup": lambda: {"lr_warmup_factor": self.one(2, 8)},
            "peak": lambda: {"lr_factor": self.one(0.5, 0.005)},
            "betas": lambda: {"adam_beta1": 0.8, "adam_beta2": self.one(0.95, 1.0), "weight_decay": self.maybe(0.0)},
            "clip": lambda: {"clip_grad": self.maybe(0.5, 0.3), "clip_grad_factor": self.maybe(0.5, 0.8)},
            "moments": lambda: {"reset_moments": True},
            "scale": lambda: {"loss_scale": 1024.0},
            "free": lambda: {
                "environment": (self.one("B=2", "A=3", "=2"),),
                "options": (self.one("--x=2", "--lr=1", "--z", "z"),),
                "remove_options": (self.one("--x", "--w", "w=1"),),
            },
            "wait": lambda: {"wait_steps": 50},
            "page": lambda: {"page": True},
        }  # fmt: skip
        keys: dict[str, Any] = {}
        for name in self.rng.sample(among or sorted(any_of), self.one(1, 1, 2, 3)):
            keys |= any_of[name]()
        target = self.one("near", "near", "earlier", "before_risky_window", "scratch")
        return Rung(name="drawn", hypothesis="so it is drawn", target=target, **keys)

    def policy(self) -> Policy:
        ladder = []
        while len(ladder) < 4:
            try:
                ladder.append(replace(self.rung(), name=f"rung {len(ladder)}"))
            except ConfigError:
                continue
        return Policy(
            mode="act",
            ladder=tuple(ladder),
            margin_steps=self.one(0, 10, 10, 25),
            rollback_budget=self.one(2, 3, 9),
            start_budget=self.one(1, 3),
            max_starts_per_hour=self.one(2, 6),
            lost_steps_budget=self.one(60, 100_000, 100_000),
            gpu_hours_budget=self.maybe(self.one(0.5, 1.0, 9.0)),
            quiet_hours=self.one((), (), (), ("22:00-06:00",), ("09:00-17:30", "00:00-01:00")),
            cooldown_s=self.one(0.0, 0.0, 500.0),
            restart_on_crash=self.rng.random() < 0.8,
            restart_on_hang=self.rng.random() < 0.8,
        )

    def incident(self, made: tuple[Rollback, ...]) -> Incident:
        onset = self.one(47, 47, 90, 230)
        wait = Wait(rung="w", hypothesis="…", from_step=80, until_step=130, failed=self.maybe("no", 0.7))
        opened = Incident(
            id="incident-7",
            opened_unix_s=900.0,
            attempt=2,
            onset_range=self.maybe((onset, onset + 3), 0.9),
            alarm_step=onset + 40,
            onset_tokens=self.maybe(onset * 2048),
            onset_samples=self.maybe(onset * 16, 0.8),
            batch_samples=self.maybe(16, 0.8),
            best_mean=3.6,
            reason="it does not come back",
            baseline=self.baseline(),
            status=self.one("open", "open", "open", "open", "decided", "stopped"),
        )
        for each in made:
            each.failed = self.maybe("diverged again", 0.9)
        opened.rollbacks += made
        opened.waits += [wait] * self.odd()
        opened.skips += [Skip(rung="s", hypothesis="…", reason="can't")] * self.odd()
        return opened

    def jobs(self) -> JobsSeen:
        writer = WriterSeen(
            id=self.one("job 33", "process 4"),
            rollback=self.maybe(OURS, 0.1),
            pending=self.rng.random() < 0.2,
            foreign=self.maybe("job 33 is bob's", 0.03),
        )
        process_state = ProcessState(
            life=self.one(Life.ALIVE, Life.GONE, Life.UNKNOWN),
            sentence="Slurm shows job 33 as FAILED",
            certain=not self.odd(),
        )
        writers = self.one((), (writer,), (writer, WriterSeen(id="job 34", pending=self.odd())))
        known, prepares = not self.odd(), self.rng.random() < 0.4
        prepared, restart_prepared = frozenset({OURS} if self.odd() else ()), self.rng.random() < 0.5
        incomplete = frozenset({OURS} if self.odd() else ())
        return JobsSeen(
            writers=writers,
            known=known,
            why_unknown="squeue timed out",
            start=StartSeen(
                prepares=prepares,
                prepared=prepared,
                restart_prepared=restart_prepared,
                carries=frozenset({"lr", "seed", "seqlen", "free", "adam_beta2", "clip_grad"}),
                rewrites_script=self.rng.random() < 0.2,
            ),
            incomplete=incomplete,
            process_states={None: process_state} if self.odd() else {},
            lost={OURS: "job 35 can't be found"} if self.odd() else {},
        )

    def attempt(self, number: int) -> AttemptSeen:
        process_state = ProcessState(
            life=self.one(Life.GONE, Life.GONE, Life.GONE, Life.ALIVE, Life.UNKNOWN),
            sentence=f"Slurm shows job 3{number}",
            certain=self.rng.random() < 0.8,
        )
        return AttemptSeen(
            number=number,
            rollback=self.maybe(OURS, 0.1),
            finished=self.odd(),
            process_state=self.maybe(process_state, 0.8),
            grew_after_end=self.odd(),
        )

    def file_seen(self, attempt: int | None) -> FileSeen:
        age_s = self.one(-5.0, 10.0, 59.0, 61.0, 200.0, *[5000.0] * 5, 90_000.0)
        return FileSeen(what=f"file of {attempt}", age_s=age_s, attempt=attempt, checkpoint=attempt is None)

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(
            tag=f"global_step{step}",
            global_step=step,
            complete=not self.odd(),
            verified=self.one(True, True, True, True, None, False),
            problem="a shard is missing",
            only_pinned=self.odd(),
        )

    def run(self, incident: Incident) -> Facts:
        last = self.one(88, 140, 300)
        interval = self.one(10, 25)
        checkpoints = tuple(map(self.checkpoint, range(interval, last, interval)))
        ill = UnhealthySpan(
            first_step=self.one(20, 85), last_step=120, words="the loss", worst=9.0, usual=self.maybe(2.0)
        )
        known = 1 if self.rng.random() < 0.9 else 30
        at = {
            step: Anchor(global_step=step, consumed_samples=self.maybe(16 * step, 0.9), consumed_tokens=2048 * step)
            for step in range(0, last, known)
        }
        return facts_of(
            now_unix_s=2000.0,
            minute_of_day=self.maybe(self.one(0, 359, 360, 540, 1049, 1050, 1319, 1320)),
            jobs=self.jobs(),
            attempts=self.one((), (self.attempt(1), self.attempt(2)), (self.attempt(2),)),
            files_seen=tuple(self.file_seen(n) for n in self.rng.sample((None, None, 1, 2), self.one(0, 1, 2))),
            gone_after_s=self.one(3600.0, 3600.0, 86_400.0),
            overlap=self.maybe("attempts 2 and 3 train", 0.03),
            starts_unix_s=self.one((), (), (-1600.0, -1599.0, 1900.0), (1000.0, 1900.0)),
            checkpoints=checkpoints if not self.odd() else (),
            latest_tag=self.maybe(self.one("global_step50", f"global_step{checkpoints[-1].global_step}"), 0.9),
            disagreement=self.maybe("the trackers disagree", 0.1),
            room_problem=self.maybe("2 GB are free", 0.03),
            tensorboard_past=self.maybe(self.one(10, 300), 0.8),
            tensorboard_samples=self.maybe(self.one(10, 4800), 0.2),
            journals=journals_for(OURS) if self.odd() else (),
            baseline=incident.baseline,
            applies=self.maybe(frozenset(f.name for f in fields(Baseline)) | {"skip_samples", "reset_moments"}, 0.3),
            trainer=self.maybe("nanotrainer", 0.3),
            seeds_used=self.one(frozenset(), frozenset({3, 8})),
            positions=at if not self.odd() else {},
            unhealthy_spans=(ill,) if self.rng.random() < 0.3 else (),
            last_step=self.maybe(last, 0.9),
            step_time_s=self.maybe(self.one(3.0, 30.0), 0.8),
            world_size=self.maybe(self.one(8, 64), 0.8),
            incidents=(incident,),
            quarantined=self.one(frozenset(), frozenset({"incident-11"})),
            kill_file=self.rng.random() < 0.02,
            paused=self.rng.random() < 0.02,
        )

    def context(self) -> Context:
        ago = (1000.0, 999.0, 400.0, 399.0, 401.0, 0.0)
        return Context(
            now_unix_s=1000.0,
            job_alive=self.one(True, True, False, None),
            why_unknown=self.maybe("squeue timed out", 0.2),
            elsewhere=self.rng.random() < 0.3,
            job_was_seen=self.rng.random() < 0.5,
            pending=self.odd(),
            unavailable=UNAVAILABLE if self.odd() else None,
            attempt=self.maybe(2, 0.8),
            finished_reason=self.maybe(self.one("finished", "sigterm"), 0.2),
            last_sample_unix_s=self.maybe(self.one(*ago, math.nan, 9e9, 1601.0), 0.8),
            attempt_started_unix_s=self.maybe(self.one(*ago), 0.5),
            second_witness_unix_s=self.maybe(self.one(*ago), 0.7),
            warmup_end_step=self.maybe(self.one(200, 203, 500), 0.3),
        )
