"""PARK, RESUME and RELEASE in the state folder: what sentinel asks of a trainer that can park."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from sentinel import bounded
from sentinel.durable import os_errors_named, sync_folder, write_atomically
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.parking import FILES, ParkRequest, ReleaseRequest, Request, ResumeRequest, decode_request
from sentinel.vocabulary.parking import encode_request as encode

log = logging.getLogger(__name__)

AnyRequest = ParkRequest | ResumeRequest | ReleaseRequest
KINDS: tuple[type[AnyRequest], ...] = (ParkRequest, ResumeRequest, ReleaseRequest)


class RequestFiles:
    """Each holds one request; what can't be read counts as none, and is removed with the others."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir

    def write(self, request: AnyRequest) -> None:
        """Replaces the file of its kind, and returns when it is on the disk."""
        write_atomically(self._folder / FILES[type(request)], encode(request), alone=True)

    def read(self, kind: type[Request]) -> Request | None:
        """None where there is no such file, or it holds no such request."""
        try:
            return decode_request(kind, bounded.read_text(self._folder / FILES[kind], bounded.SECRET_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, LineError) as error:
            log.warning("%s asks for nothing: %s", self._folder / FILES[kind], error)
            return None

    def there(self, kind: type[AnyRequest]) -> bool:
        """Whether the file is there, whatever it holds."""
        return (self._folder / FILES[kind]).is_file()

    def remove(self, kind: type[AnyRequest]) -> None:
        """Returns when that is on the disk; nothing to do where there is none."""
        path = self._folder / FILES[kind]
        with os_errors_named(path), suppress(FileNotFoundError):
            path.unlink()
            sync_folder(self._folder)
