"""why_not_parked(evidence, rollback) -> str | None: whether the newest attempt is proven not to write, by every
witness."""

from __future__ import annotations

from sentinel.plan.observation import FileSeen, Life, LivenessEvidence, ParkedSeen, WriterSeen

_CLOCKS_DIFFER_S = 2.0  # files of two filesystems, or two readings of one: a difference that says nothing


def why_not_parked(evidence: LivenessEvidence, rollback: str) -> str | None:
    """The first witness that contradicts, as a sentence; None where all agree that the newest attempt is parked for
    just this rollback: its journal's newest record, its process on its host, the launcher, the heartbeats, the files.
    What waits in a queue writes nothing yet."""
    parked = evidence.parked
    if parked is None:
        return "the newest record of the newest attempt is not `parked`"
    if parked.rollback != rollback:
        return f"attempt {parked.attempt} is parked for {parked.rollback}, not for {rollback}"
    newest = max((attempt.number for attempt in evidence.attempts), default=parked.attempt)
    if newest != parked.attempt:
        return f"attempt {newest} has begun since attempt {parked.attempt} parked"
    if not evidence.jobs.known:
        return f"job state unknown: {evidence.jobs.why_unknown}"
    return _other_writer(evidence, parked) or _not_its_process(evidence, parked) or _younger_file(evidence, parked)


def _other_writer(evidence: LivenessEvidence, parked: ParkedSeen) -> str | None:
    running = [writer for writer in evidence.jobs.writers if not writer.pending]
    own = [writer for writer in running if {writer.id, writer.group} & {*parked.writers}]
    if not own:
        return f"the launcher does not see the process or the job that attempt {parked.attempt} named at its start"
    other = next((writer for writer in running if not _belongs(writer, own)), None)
    return f"{other.id} is not of attempt {parked.attempt}, and may write" if other is not None else None


def _belongs(writer: WriterSeen, own: list[WriterSeen]) -> bool:
    return any(writer.id == one.id or (writer.group is not None and writer.group == one.group) for one in own)


def _not_its_process(evidence: LivenessEvidence, parked: ParkedSeen) -> str | None:
    """That a process lives which is not known to be the attempt's own, or that its own is not known to live."""
    process = parked.process
    if process is None or parked.identity is None:
        return f"attempt {parked.attempt} did not name its process, its host and its start: it may be another one"
    if process.life is Life.GONE:
        return process.sentence
    beats = evidence.heartbeats
    own = [beat for beat in beats if beat.process == parked.identity]
    of_job = [b for b in beats if b.rank and b.job_id is not None and b.job_id == parked.job_id]  # other nodes' ranks
    other = next((beat for beat in beats if beat not in own and beat not in of_job), None)
    if other is not None:
        return f"{other.sentence}, and it is no process of attempt {parked.attempt}"
    if process.life is not Life.ALIVE and not own:
        return f"{process.sentence}, and no heartbeat of it is renewed"
    return None


def _younger_file(evidence: LivenessEvidence, parked: ParkedSeen) -> str | None:
    own = next((file_seen for file_seen in evidence.files_seen if file_seen.attempt == parked.attempt), None)
    if own is None:
        return f"the journal of attempt {parked.attempt} can't be seen"
    newest: FileSeen = min(evidence.files_seen, key=lambda file: file.age_s)
    if newest.age_s < own.age_s - _CLOCKS_DIFFER_S:
        later_s = own.age_s - newest.age_s
        return f"{newest.what} was written {later_s:.0f} s after attempt {parked.attempt} reported to be parked"
    return None
