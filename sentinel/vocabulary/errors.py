"""Errors, named by what the caller should do.

    SentinelError
    ├── ConfigError          the operator edits a file, a command line or a data set; exit code 2
    │   ├── DataError            training data that is missing, too short or not of its format
    │   ├── NoProbeError         a run of which sentinel can't start short trainings beside it
    │   └── OverridesError       an overrides.json that is not what sentinel writes
    ├── TemporaryError       the loop tries again; exit code 3
    │   ├── FilesystemUnavailable  a filesystem that is full, or does not answer now
    │   ├── JobStillAlive        something may still write where we want to move things
    │   ├── JobUnclear           a job that may be this run's or another's
    │   ├── LockHeld             another sentinel works on this run
    │   ├── PagerError           a pager did not take a page, which stays in the outbox
    │   ├── SlurmNotReady        Slurm answers, and has no nodes for the job just now
    │   └── NoAnswer             a server that does not answer
    │       ├── CommandFailed        a command of [commands] failed, was late, or is not understood
    │       ├── GrafanaUnavailable   Grafana does not answer, or not as itself
    │       ├── ScrapeError          Prometheus does not answer: what was scraped is not known for now
    │       ├── SlurmUnavailable     Slurm does not answer: the job state is unknown
    │       └── WandbUnavailable     W&B does not answer, or not as itself
    └── PermanentError       sentinel stops acting and asks for a person; exit code 4
        ├── CheckpointError      a checkpoint that is not whole, or not where it should be
        ├── FilesystemRefused    a filesystem that answers, and says no: permissions, or it is read-only
        ├── NotOurCheckpoints    another state folder acts on these checkpoints
        ├── QuarantineError      a move that could overwrite something, or would cross filesystems
        ├── IncidentLogError     an incident log that can't be read
        ├── ScriptRefused        a job script that can't be changed with certainty
        └── SlurmRefused         Slurm answers, and says no to a submission
            └── NotOurJob            the job is another user's: only they and operators may cancel it

A line of a journal that can't be read is a `LineError`: it is counted and shown, and reading goes on.
"""

from __future__ import annotations

from typing import ClassVar


class SentinelError(Exception):
    """Anything that sentinel itself says no to. Its text is a sentence for the person who reads it."""

    exit_code: ClassVar[int] = 4


class ConfigError(SentinelError):
    """Wrong usage or configuration: names the file and the key, and what would be right."""

    exit_code = 2


class DataError(ConfigError):
    """Training data that is missing, too short or not of its format: names the file."""


class NoProbeError(ConfigError):
    """Sentinel does not know how to start a short training beside the run: names the key."""


class OverridesError(ConfigError):
    """An overrides.json that does not follow its schema: names the key."""


class TemporaryError(SentinelError):
    """Another system (Slurm, a filesystem, a server) can't be reached, or is not ready: try again."""

    exit_code = 3


class NoAnswer(TemporaryError):  # noqa: N818 - reads as what it says
    """A server that does not answer, or something else does in its place. Its text names the host, or the call, and no
    secret."""

    says: ClassVar[str]

    def __init__(self, asked: str, why: str) -> None:
        super().__init__(self.says.format(asked, why))
        self.asked = asked
        self.why = why


class FilesystemUnavailable(TemporaryError):  # noqa: N818 - reads as what it says
    """A file that can't be read or written for now: the disk is full, or its server is away."""


class CommandFailed(NoAnswer):
    """A command of [commands] failed, was late or printed what is not understood: the state of the job is unknown."""

    says = "[commands] {}: {}"


class GrafanaUnavailable(NoAnswer):
    says = "Grafana at {} can't be reached: {}"


class JobStillAlive(TemporaryError):  # noqa: N818 - reads as what it says, as in `raise JobStillAlive(...)`
    """Processes of the run may still write; nothing is moved until they are gone."""

    def __init__(self, who: str) -> None:
        super().__init__(f"the job may still write: {who}")
        self.who = who


class JobUnclear(TemporaryError):  # noqa: N818 - reads as what it says, as JobStillAlive
    """A job that may be the run's or another run's; nothing is stopped, moved or started until that is settled."""


class LockHeld(TemporaryError):  # noqa: N818 - reads as what it says
    """Another sentinel holds this run's lock, or the lock of what it `does`."""

    def __init__(self, holder: str, does: str = "watches this run") -> None:
        super().__init__(f"another sentinel {does}: {holder}")
        self.holder = holder


class PagerError(TemporaryError):
    """A pager that could not be reached, or said no. Its text names a host or a program, and no secret."""

    def __init__(self, said: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(said)
        self.retry_after_s = retry_after_s  # Seconds to wait that the pager asks for; None where it asks for nothing


class ScrapeError(NoAnswer):
    says = "Prometheus at {} can't be asked: {}"


class SlurmNotReady(TemporaryError):  # noqa: N818 - reads as what it says
    """Slurm has no nodes that could ever run the job, as it says; also while they register after its own restart."""


class SlurmUnavailable(NoAnswer):
    """Slurm's controller does not answer in time; what runs is unknown, which counts as alive."""

    says = "Slurm does not answer ({}: {})"


class WandbUnavailable(NoAnswer):
    says = "W&B at {} can't be reached: {}"


class PermanentError(SentinelError):
    """Trying again would not help: a person is needed."""


class CheckpointError(PermanentError):
    """A checkpoint that can't be trusted or can't be found."""


class FilesystemRefused(PermanentError):  # noqa: N818 - reads as what it says
    """A file that may not be read or written. What was decided stands: it is taken up once a person has mended that."""


class NotOurCheckpoints(PermanentError):  # noqa: N818 - reads as what it says
    """The save folder records another state folder as the one that acts on it."""


class QuarantineError(PermanentError):
    """A move that is refused because it could lose something."""


class IncidentLogError(PermanentError):
    """The incident log holds a line, other than a torn last one, that can't be read."""


class ScriptRefused(PermanentError):  # noqa: N818 - reads as what it says
    """A job script that can't be changed with certainty; says which line stands in the way."""

    def __init__(self, line_number: int | None, reason: str) -> None:
        where = "the job script" if line_number is None else f"line {line_number} of the job script"
        super().__init__(f"{where} can't be changed safely: {reason}")
        self.line_number = line_number  # Counted from 1; None where no single line is to blame
        self.reason = reason


class SlurmRefused(PermanentError):  # noqa: N818 - reads as what it says
    """Slurm's controller answers, and refuses what was asked; carries its own words."""


class NotOurJob(SlurmRefused):
    """A job of another user's, which Slurm does not let us cancel."""


class LineError(SentinelError):
    """One line that can't be read; carries what was wrong with it."""


def exit_code_of(error: Exception) -> int:
    return error.exit_code if isinstance(error, SentinelError) else 4
