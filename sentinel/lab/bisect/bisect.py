"""One incident's bisect, from where its record stands: STATE_DIR/bisect/INCIDENT holds its probes and its report."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from sentinel.act.following import anchor_at
from sentinel.adapters.checkpoints.probes import check_placeable
from sentinel.adapters.lock import RunLock
from sentinel.durable import make_folders, write_atomically
from sentinel.judge.history import Attempt, History
from sentinel.judge.thresholds import Thresholds
from sentinel.lab.bisect.answer import answer
from sentinel.lab.bisect.begin import bad_start_in, of_its_line, of_the_attempt, refuse_after_the_onset
from sentinel.lab.bisect.causes import CONTROL, Question, Results, next_probes
from sentinel.lab.bisect.proof.proving import contradicted, shown_by
from sentinel.lab.bisect.question import Means, question_of
from sentinel.lab.bisect.record.changes import changes_before
from sentinel.lab.bisect.record.evidence import sound_until
from sentinel.lab.bisect.seen import seen_of
from sentinel.lab.probes.at_work import COPIES, ProbeJob, Probes
from sentinel.lab.probes.probe import Limits, Probe, ProbeResult, Window, over
from sentinel.lab.probes.record import ProbeRecord
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import Target, choose_target
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import BisectSeen
from sentinel.plan.starts.audit import StartAudit
from sentinel.vocabulary.codec import document
from sentinel.vocabulary.errors import CheckpointError, ConfigError, FilesystemRefused, LockHeld, PermanentError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import Sample

REPORT = "bisect.json"
_BEFORE = 4096  # Steps before the checkpoint that a probe is judged with
_AFTER = 1 << 16  # Steps after it that are kept to be compared with


def question_about(
    incident: Incident,
    history: History,
    facts: Facts,
    thresholds: Thresholds,
    policy: Policy,
    means: Means,
    audits: Mapping[int, StartAudit] = MappingProxyType({}),
) -> Question:
    """The question of an incident: from the last healthy checkpoint before its onset. `audits`: attempt -> what the
    audit of its start found. ConfigError."""
    attempt = history.attempts.get(incident.attempt)
    if incident.onset_range is None or attempt is None:
        raise ConfigError(
            f"{incident.id} has no onset, or no readings of attempt {incident.attempt}: nothing to repeat"
        )
    sound = sound_until(history.lineage(attempt), incident.onset_range[0])
    checkpoints = of_its_line(facts.folders.checkpoints, history, attempt)
    facts = facts.changed(checkpoints=tuple(c for c in checkpoints if sound is None or c.global_step <= sound))
    rung = Rung(name="bisect", hypothesis="", reseed=True)
    target = choose_target(replace(incident, rollbacks=[]), rung, facts.folders, facts.readings, policy)
    target = of_the_attempt(target, attempt, facts, incident.onset_range[0])
    window = window_of(incident, history, attempt, target, thresholds)
    refuse_after_the_onset(incident, target, window)
    anchor = _anchor(target, window, facts)
    changes = changes_before(history.descent(attempt), target.global_step, incident.onset_range[0])
    made = question_of(incident, facts, window, tag=target.tag, anchor=anchor, means=means, changes=changes)
    bad_start = bad_start_in(history, attempt, audits, window.until_step)
    return replace(made, evidence=replace(made.evidence, bad_start=bad_start))


def _anchor(target: Target, window: Window, facts: Facts) -> Anchor:
    if target.tag is None:
        return Anchor(global_step=0, consumed_samples=0, consumed_tokens=0)
    at = next((s for s in reversed(window.before) if s.global_step == target.global_step), None)
    return facts.readings.anchor(target.global_step) if at is None else anchor_at(at)


def window_of(incident: Incident, history: History, attempt: Attempt, target: Target, thresholds: Thresholds) -> Window:
    """The readings of the attempt's lineage around the divergence."""
    before, after = deque[Sample](maxlen=_BEFORE), dict[int, Sample]()
    onset = incident.onset_range[0] if incident.onset_range else target.global_step + 1
    for sample in history.lineage(attempt):
        if sample.global_step <= target.global_step:
            before.append(sample)
        elif len(after) < _AFTER:
            after[sample.global_step] = sample
    until = incident.alarm_step or max(after, default=onset)
    return Window(before=tuple(before), after=after, onset_step=onset, until_step=until, thresholds=thresholds)


class Bisect:
    """The probes of one question, and its report on the disk."""

    def __init__(
        self,
        question: Question,
        folder: Path,
        run_checkpoints: Path,
        job_of: Callable[[Probe, Path], ProbeJob],
        limits: Limits,
        say: Callable[[str], None],
    ) -> None:
        self.question, self.folder, self._limits, window = question, folder, limits, question.window
        self.lock = RunLock(folder, does=f"bisects {question.incident}")  # of its folder
        self.probes = Probes(
            folder,
            run_checkpoints,
            job_of,
            lambda probe, attempt: over(probe, attempt, window) or contradicted(probe, attempt, question),
            lambda probe, attempt, ended, s: shown_by(probe, attempt, question, ended, s),
            record=ProbeRecord(folder),
            limits=limits,
            asked=self._asked,
            say=say,
        )

    def run(self, *, poll_interval_s: float) -> dict[str, Any]:
        """To the answer, or to the end of the budget; returns the report. What was shown before a kill counts."""
        make_folders(self.folder)
        self.report(over=False)
        self.probes.run(self._next, poll_interval_s=poll_interval_s)
        waiting = next_probes(self.question, self.probes.results, narrow=True)
        stopped = self.probes.refusal if waiting else None
        return self.report(over=True, stopped=stopped)

    def step(self) -> None:
        """Looks once at the probes, and starts and stops what is due; a watch asks for it at each of its turns."""
        self.reread()
        wanted = next_probes(self.question, self.probes.results, self._limits.parallel)
        runs = self.probes.turn(wanted)
        self.report(over=not runs and not wanted, stopped=self.probes.refusal if wanted else None)

    def reread(self) -> None:
        """Takes the record as it stands on the disk: a person's own command may have gone on with it."""
        self.probes.record = ProbeRecord(self.folder, anew=False)

    @property
    def seen(self) -> BisectSeen:
        """Where it stands, for the rung of the ladder that asks for it."""
        probes = self.probes
        return seen_of(self.question, probes.results, running=bool(probes.record.running), refusal=probes.refusal)

    def refusals(self) -> dict[str, str]:
        """Probe -> why it could not be begun now, as a sentence; of the control: why the command would be refused.
        Writes nothing of the run's or its own."""
        found, probes = dict[str, str](), self.probes
        with TemporaryDirectory() as place:
            for name, probe in self.question.probes.items():
                try:
                    probes.job_of(probe, Path(place) / name)
                except (ConfigError, PermanentError) as error:
                    found[name] = str(error)
        if (why := self._refusal()) is not None:
            found[CONTROL] = why
        return found

    def _refusal(self) -> str | None:
        probes, waiting = self.probes, next_probes(self.question, self.probes.results)
        if (holder := self.lock.held_by()) is not None:
            return str(LockHeld(holder, does=f"bisects {self.question.incident}"))
        try:
            check_placeable(probes.run_checkpoints, self.question.probes[CONTROL].tag, self.folder / COPIES)
        except CheckpointError as error:
            return str(error)
        return self._limits.refusal(probes.record.spent, 0) if waiting else None

    def report_only(self) -> dict[str, Any]:
        """What is known by now; writes nothing."""
        return report_of(self.question, self.probes.results, over=False)

    def report(self, *, over: bool, stopped: str | None = None) -> dict[str, Any]:
        report = report_of(self.question, self.probes.results, over=over, stopped=stopped)
        write_atomically(self.folder / REPORT, dump_json(report))
        return report

    def _asked(self, probe: Probe) -> bool:
        own = self.question.probe(probe.name)
        return own is not None and _stretch(own) == _stretch(probe)

    def _next(self, results: Mapping[str, ProbeResult]) -> tuple[Probe, ...]:
        if results:
            self.report(over=False)
        return next_probes(self.question, results, self._limits.parallel, narrow=True)


def _stretch(probe: Probe) -> tuple[str | None, int, int]:
    return probe.tag, probe.global_step, probe.until_step


@dataclass
class Bisecting:
    """The bisect that a rung of the ladder asks for, one step at each of the watch's turns. `make` makes the bisect of
    an incident; ConfigError where none can be run here."""

    make: Callable[[Incident, History, Facts], Bisect]
    _made: dict[str, Bisect] = field(default_factory=dict, init=False)
    _problems: dict[str, str] = field(default_factory=dict, init=False)  # incident -> why it could not go on

    def seen(self, incident: Incident, history: History, facts: Facts) -> BisectSeen:
        """Where the incident's bisect stands; over where it can't be run, or could not go on. FilesystemRefused where
        it can't be read."""
        try:
            if (problem := self._problems.get(incident.id)) is not None:
                return BisectSeen(reason=problem, over=True)
            made = self._of(incident, history, facts)
            made.reread()
            return made.seen
        except FilesystemRefused:  # it may be repaired: what is not read is not over
            raise
        except (ConfigError, PermanentError) as error:
            return BisectSeen(reason=f"the cause can't be looked for: {error}", over=True)

    def follow(self, incident: str) -> None:
        """One step further, unless a person's own command goes on with it."""
        made = self._made[incident]
        make_folders(made.folder)
        try:
            with contextlib.suppress(LockHeld), made.lock:
                made.step()
        except FilesystemRefused:
            raise
        except (ConfigError, PermanentError) as error:
            self._problems[incident] = f"the bisect can't go on: {error}"

    def stop_all(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the bisects that were `seen` to go on: a person has decided otherwise."""
        for incident in incidents:
            if incident.bisecting and incident.id in self._made:
                self._made[incident.id].probes.stop_all()

    def _of(self, incident: Incident, history: History, facts: Facts) -> Bisect:
        if incident.id not in self._made:
            self._made = {incident.id: self.make(incident, history, facts)}
        return self._made[incident.id]


def report_of(question: Question, results: Results, *, over: bool, stopped: str | None = None) -> dict[str, Any]:
    """What `sentinel bisect --json` prints and the pages show."""
    found = answer(question, results)
    window = question.window
    begin = question.probes[CONTROL]
    return {
        "incident": question.incident,
        "over": over,
        "stopped": stopped,
        "from": {"tag": begin.tag, "global_step": begin.global_step},
        "window_steps": begin.until_step - begin.global_step,
        "onset_step": window.onset_step,
        "alarm_step": window.until_step,
        **document(found),
        "probes": [
            {"change": probe.change if (probe := question.probe(name)) is not None else name}
            | {key: value for key, value in document(result).items() if key != "losses"}
            for name, result in results.items()
        ],
    }
