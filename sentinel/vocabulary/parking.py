"""What the daemon asks of a trainer that can park, as the files PARK, RESUME and RELEASE of the state folder hold it.

The daemon writes and removes them; the trainer only reads. One whose attempt or rollback is another is of no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import AT_LEAST_1, COUNT, UnixSeconds, dump_json, load_object

SCHEMA = 1
EXIT_PARKED_TOO_LONG = 75
"""Exit code of a trainer that no one resumed or released before its deadline: EX_TEMPFAIL."""
PARKED_TOO_LONG = "parked too long"
"""Its reason in `run_finished`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    rollback: str
    """Which restart of which incident, as in overrides.json."""
    attempt: Annotated[int, AT_LEAST_1]
    """The attempt that is to park, or is parked."""

    def __post_init__(self) -> None:
        checked_name(self.rollback, "rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkRequest(_Request):
    """Stand at the next step boundary, close what is open, and wait for RESUME or RELEASE."""

    deadline_unix_s: UnixSeconds  # A trainer that is still parked then ends itself; of no effect where it is past


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest(_Request):
    """What a loop's `reload` gets: begin a new attempt in the same process, from `target`, with overrides.json."""

    target: str | None
    """The tag of the checkpoint, which `latest` names as well; None: from scratch. `memory:STEP`: a state in the ranks'
    memory."""
    global_step: Annotated[int, COUNT]
    """The step of the target; 0 from scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest(_Request):
    """Train on as if nothing had been."""


FILES: dict[type[_Request], str] = {ParkRequest: "PARK", ResumeRequest: "RESUME", ReleaseRequest: "RELEASE"}
"""{kind of request: its file in the state folder}."""

Request = TypeVar("Request", bound=_Request)
_FORM = Form(error=LineError, name="the request", ignores_unknown=True)


_IN_MEMORY = "memory:"


def memory_tag(step: int) -> str:
    """What a state of that step in the ranks' memory is called, where a checkpoint would be by its tag."""
    return f"{_IN_MEMORY}{step}"


def step_in_memory(tag: str | None) -> int | None:
    """The step of the state that the tag names, where that is in the ranks' memory; None for a checkpoint's."""
    number = tag.removeprefix(_IN_MEMORY) if tag is not None and tag.startswith(_IN_MEMORY) else ""
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 18 else None


def encode_request(request: ParkRequest | ResumeRequest | ReleaseRequest) -> str:
    """The text of the file."""
    return dump_json({"schema": SCHEMA} | fields_of(request)) + "\n"


def decode_request(cls: type[Request], text: str) -> Request:
    """What the text of such a file asks for. LineError says what is wrong with it."""
    data = load_object(text)
    if (schema := data.pop("schema", None)) != SCHEMA:
        raise LineError(f"{FILES[cls]} has schema {schema!r}; this version reads {SCHEMA}")
    return read(cls, data, form=_FORM)


def ended_by_resume(rollback: str) -> str:
    """The reason in `run_finished` of an attempt whose process goes on with the next one."""
    return f"resumed in place for {rollback}"
