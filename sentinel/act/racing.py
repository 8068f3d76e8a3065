"""The probes of a race: each started and stopped in folders of its own, looked at as the run is, and adopted.

A probe's folder holds second names of the run's journals, so its trainer's attempt goes on with the run's line of
descent, and the judge, the proof and the check of the run itself tell how it fares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.past import evidence
from sentinel.act.probes import ProbeJob
from sentinel.adapters.checkpoints import Adoptions, Checkpoints, event_files, journals_of, probe_folder
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.state_files import Approvals, OverridesFile
from sentinel.bounded import read_text
from sentinel.durable import link_or_copy, make_folders, os_errors_named, sync_folder, write_atomically
from sentinel.judge.history import Attempt
from sentinel.judge.recovery_check import WINDOW, comparable
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import AdoptProbe
from sentinel.plan.evidence import FIRST_STEPS
from sentinel.plan.incident import Adoption, Incident, Proof, Race, Rollback
from sentinel.plan.look import Look
from sentinel.plan.observation import Checkpoint, Life, Standing
from sentinel.plan.probe import Probe
from sentinel.plan.proof import outcome, prove
from sentinel.vocabulary.errors import CheckpointError, ConfigError, ScriptRefused, SentinelError, SlurmRefused

_REFUSED = "refused.txt"  # in a probe's folder: why it could not be started
_REFUSALS = (ConfigError, ScriptRefused, SlurmRefused, CheckpointError)
_VALIDATIONS = 2


@dataclass
class _Entry:
    """One probe, as it was seen last."""

    incident: Incident
    race: Race
    entrant: Rollback
    folder: Path
    job: ProbeJob | None = None
    observer: Observer | None = None
    verified: Checkpoint | None = None


@dataclass
class Racing:
    """All probes of the run's races. `jobs` makes what makes a probe's job; ConfigError where none can be started."""

    near: Neighbours
    jobs: Callable[[], Callable[[Probe, Path], ProbeJob]]
    thresholds: Thresholds
    at_once: int = 1
    _entries: dict[str, _Entry] = field(default_factory=dict, init=False)

    def problem(self, incident: Incident | None) -> str | None:
        """Why no rungs of the incident can race, as a sentence; None where they can."""
        if incident is None:
            return "no incident is open"
        try:
            self.jobs()
        except SentinelError as error:
            return str(error)
        return None

    def adoptions(self, incidents: Sequence[Incident]) -> dict[str, bool]:
        """Rollback -> whether the adoption that it has begun is complete."""
        notes = Adoptions(self.near.checkpoints.folder)
        asked = ((i.id, r.id) for i in incidents if i.status != "closed" for r in i.rollbacks if r.adopts is not None)
        return {rollback: done for incident, rollback in asked if (done := notes.done(incident, rollback)) is not None}

    def standings(self, incident: Incident | None, now_unix_s: float) -> tuple[Standing, ...]:
        """Of every probe of the incident's race, in its order; none where no race goes on."""
        race = incident.races[-1] if incident is not None and incident.races else None
        if incident is None or race is None:
            return ()
        entries = [self._entry(incident, race, entrant) for entrant in race.entrants]
        return () if race.over is not None else tuple(self._standing(entry, now_unix_s) for entry in entries)

    def start(self, probe: str) -> None:
        """Places the run's journals, and starts its trainer. What can't be started is on record in the probe's folder:
        another rung may win."""
        entry = self._entries[probe]
        try:
            self._give_journals(entry.folder / "attempts")
            self._job(entry).begin(_probe_of(entry), self.near.checkpoints.folder)
        except _REFUSALS as error:
            make_folders(entry.folder)
            write_atomically(entry.folder / _REFUSED, f"{error}\n")

    def stop(self, probe: str) -> None:
        """Returns when nothing of it runs any more. JobStillAlive, SlurmUnavailable."""
        self._job(self._entries[probe]).stop()

    def stop_all(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the incidents' races: a person has decided otherwise."""
        for incident in incidents:
            for race in incident.races:
                for entrant in race.entrants:
                    entry = self._entry(incident, race, entrant)
                    if race.over is None and entry.folder.is_dir() and not (entry.folder / _REFUSED).exists():
                        self._job(entry).stop()

    def adopt(self, action: AdoptProbe) -> None:
        """Makes the probe's checkpoints, event files and journal the run's, once nothing of it can write any more."""
        near, folder = self.near, self._folder(action.incident, action.probe)
        self._job(self._entries[action.probe]).launcher.fenced([], None)
        files = journals_of(folder / "attempts", near.state_dir / "attempts")
        if near.tensorboard is not None:
            files |= event_files(folder / "tensorboard", near.tensorboard.folder)
        which = {"incident": action.incident, "rollback": action.rollback}
        Adoptions(near.checkpoints.folder).adopt(folder / "checkpoints", action.after_step, action.tag, files, **which)

    def _folder(self, incident: str, probe: str) -> Path:
        return probe_folder(self.near.checkpoints.folder, incident, probe)

    def _entry(self, incident: Incident, race: Race, entrant: Rollback) -> _Entry:
        folder = self._folder(incident.id, entrant.id).resolve()
        entry = self._entries.setdefault(entrant.id, _Entry(incident, race, entrant, folder))
        entry.incident, entry.race = incident, race
        return entry

    def _job(self, entry: _Entry) -> ProbeJob:
        if entry.job is None:
            entry.job = self.jobs()(_probe_of(entry), entry.folder)
        return entry.job

    def _give_journals(self, attempts: Path) -> None:
        with os_errors_named(attempts):
            make_folders(attempts)
            for journal in sorted((self.near.state_dir / "attempts").glob("*.jsonl")):
                if not (own := attempts / journal.name).exists():
                    link_or_copy(journal, own)
            sync_folder(attempts)

    def _observer(self, entry: _Entry, job: ProbeJob) -> Observer:
        if entry.observer is None:
            folder = entry.folder
            own = Neighbours(
                state_dir=folder,
                source=job.source,
                incident_log=IncidentLog(folder / "incidents.jsonl"),
                checkpoints=Checkpoints(folder / "checkpoints"),
                launcher=job.launcher,
                overrides=OverridesFile(folder / "overrides.json"),
                approvals=Approvals(folder / "approvals"),
                tensorboard=None,
                job_log=job.log,
            )
            entry.observer = Observer(own, self.thresholds)
        return entry.observer

    def _standing(self, entry: _Entry, now_unix_s: float) -> Standing:
        name, folder = entry.entrant.id, entry.folder
        if (folder / _REFUSED).exists():
            return Standing(probe=name, life=Life.GONE, refused=read_text(folder / _REFUSED).strip())
        if not folder.is_dir():
            return Standing(probe=name)
        try:
            job = self._job(entry)
            look = self._observer(entry, job).look(now_unix_s)
        except _REFUSALS as error:
            return Standing(probe=name, life=Life.UNKNOWN, refused=str(error))
        attempt = look.history.latest
        own = attempt if attempt and attempt.started and attempt.started.rollback == name else None
        life = _life(look, begun=own is not None or name in entry.race.started)
        if own is None:
            return Standing(probe=name, life=life)
        return self._shown(entry, look, own, Standing(probe=name, life=life))

    def _shown(self, entry: _Entry, look: Look, own: Attempt, standing: Standing) -> Standing:
        """What the probe's own attempt has come to."""
        entrant, incident, over = entry.entrant, entry.incident, standing.over
        late = incident.onset_range[1] if incident.onset_range else entrant.target_step
        full = own.started.full_seqlen if own.started else None
        compared = range(late + 1, entry.race.until_step + 1)  # of one that ends later, as by its tokens, no more
        samples = [s for s in own.samples if s.global_step in compared and comparable(s, full)]
        validated = [v.loss for v in own.validations if v.global_step in compared]
        before = look.history.attempts.get(incident.attempt)
        was = [v.loss for v in (look.history.validations(before) if before else ()) if v.global_step < late]
        found = evidence(look.history, own, before=incident.attempt)
        checks = prove(entrant, found, incident.baseline) if found and len(found.samples) >= FIRST_STEPS else None
        proof = outcome(checks) if checks is not None else None
        wrong = [c.what for c in checks or () if c.answer is proof is not Proof.CONFIRMED]
        last = samples[-2 * WINDOW :] if len(samples) >= 2 * WINDOW else []
        return replace(
            standing,
            last_step=own.samples[-1].global_step if own.samples else None,
            ill=_ill(look, over=over),
            proof=proof,
            doubts=tuple(wrong),
            saved=self._saved(entry) if over else None,
            validation=fmean(validated[-_VALIDATIONS:]) if validated else None,
            loss=fmean(s.loss for s in last) if last else None,
            best_validation_before=min(filter(math.isfinite, was), default=None),
        )

    def _saved(self, entry: _Entry) -> Adoption | None:
        """Its last checkpoint past the target that is whole, read whole once."""
        folder = Checkpoints(entry.folder / "checkpoints")
        found = [c for c in folder.list() if c.complete and c.global_step > entry.entrant.target_step]
        if not found:
            return None
        last = found[-1]
        if entry.verified is None or entry.verified.tag != last.tag:
            entry.verified = folder.verify(last.tag)
        if not entry.verified.verified:
            return None
        return Adoption(probe=entry.entrant.id, tag=last.tag, global_step=last.global_step)


def _probe_of(entry: _Entry) -> Probe:
    made = entry.entrant
    return Probe(
        name=made.id,
        tag=made.target_tag,
        global_step=made.target_step,
        until_step=entry.race.until_step,
        change=made.rung,
        overrides=made.overrides,
        keeps_saves=True,
    )


def _life(look: Look, *, begun: bool) -> Life | None:
    jobs = look.run.jobs
    if not jobs.known:
        return Life.UNKNOWN
    if jobs.writers:
        return Life.ALIVE
    return Life.GONE if begun else None


def _ill(look: Look, *, over: bool) -> str | None:
    if (alarm := look.series.alarm) is not None:
        return f"diverged: {alarm.reason}"
    if look.verdict.kind is VerdictKind.STALLED:
        return f"it hangs: {look.verdict.reason}"
    if over and (episode := look.series.episode) is not None:
        return f"its loss is outside its band since step {episode.onset_range[1]}"
    return None
