"""/metrics of the trainer, on rank 0: address, TLS, password, and the announcement to Prometheus."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer_hooks.export.answers import Answers, Credentials
from trainer_hooks.export.file_sd import Announcement, is_loopback, reachable_name, target
from trainer_hooks.export.metrics_server import MetricsServer, listen
from trainer_hooks.export.step_collector import StepCollector

__all__ = ["Exporter", "ExporterSettings", "announce"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """How /metrics is served. A wrong setting costs the exporter, not the training."""

    address: str = "127.0.0.1"
    """Where to listen. Only this machine by default; "0.0.0.0" or "::" (both of IPv6 and IPv4) is every address."""

    port: int = 0
    """0 is any free one; another one that is taken is replaced by a free one."""

    announce: str | None = None
    """The name or address that Prometheus reaches this node by, for scrape.json. By default the node's name (Slurm's,
    else the host's own) where it listens everywhere, the address where it listens at one, and nothing on loopback."""

    certificate: str | os.PathLike[str] | None = None
    """PEM file with the certificate and its chain: with it, HTTPS and nothing else. Renewed ones are taken up."""

    key: str | os.PathLike[str] | None = None
    """PEM file with its key, not encrypted; by default it is in the certificate's file."""

    user: str | None = None
    """Of HTTP's basic authentication."""

    password_file: str | os.PathLike[str] | None = None
    """File that holds the password, and nothing else."""

    window_s: float = 120.0
    """How long a maximum shows, in seconds. Two of Prometheus's default scrape intervals of a minute, so that one
    failed scrape loses nothing; to be raised with the interval."""


class Exporter:
    """The server, announced to Prometheus's file_sd as STATE_DIR/scrape.json. Raises what is wrong in the settings."""

    def __init__(
        self,
        collector: StepCollector,
        settings: ExporterSettings,
        *,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        credentials, tls = _credentials(settings), _tls(settings)
        self._server = MetricsServer(
            listen(settings.address, settings.port),
            Answers(collector, credentials=credentials, failed=failed).to,
            tls=tls,
            failed=failed,
        )
        self.address = self._server.address
        self.port = self._server.port
        self._announcement: Announcement | None = None
        scheme = "http" if tls is None else "https"
        log.info("sentinel: /metrics is at %s://%s/metrics", scheme, target(self.address, self.port))
        if credentials is not None and tls is None and not is_loopback(self.address):
            log.warning("sentinel: the password of /metrics travels in the clear: give it a certificate as well")

    def announce(self, announcement: Announcement, labels: Mapping[str, str]) -> None:
        """Tells Prometheus; not of an exporter that no other node can reach. Raises OSError."""
        name = self._settings.announce or reachable_name(self._settings.address, self.address)
        where = None if name is None else target(name, self.port)
        announcement.announce(where, labels, tls=self._settings.certificate is not None)
        self._announcement = announcement

    def close(self) -> None:
        """Stops serving, frees the port and removes the announcement. Raises OSError."""
        self._server.close()
        if self._announcement is not None:
            with contextlib.suppress(FileNotFoundError):  # the whole folder, it may be: nothing is announced
                self._announcement.withdraw()


def announce(exporter: Exporter | None, path: Path, labels: Mapping[str, str]) -> None:
    """Writes the file_sd file of the run; where there is no exporter, an earlier attempt's target goes. OSError."""
    announcement = Announcement(path)
    if exporter is None:
        announcement.announce(None, labels)
    else:
        exporter.announce(announcement, labels)


def _credentials(settings: ExporterSettings) -> Credentials | None:
    if settings.user is None and settings.password_file is None:
        return None
    if settings.user is None or settings.password_file is None:
        raise ValueError("basic authentication needs both a user and a password_file")
    return Credentials.read(settings.user, Path(settings.password_file))


def _tls(settings: ExporterSettings) -> Callable[[], ssl.SSLContext] | None:
    """What gives the context for the next connection; a certificate that was renewed is read again."""
    if settings.certificate is None:
        if settings.key is not None:
            raise ValueError("a key needs its certificate")
        return None
    certificate, key = Path(settings.certificate), Path(settings.key or settings.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def written() -> tuple[int, int]:
        return certificate.stat().st_mtime_ns, key.stat().st_mtime_ns

    def load() -> tuple[int, int]:
        before = written()
        context.load_cert_chain(certificate, key, password=lambda: b"")  # or OpenSSL would ask at the terminal
        return before

    known = load()

    def current() -> ssl.SSLContext:
        nonlocal known
        with contextlib.suppress(OSError):  # during a renewal the old one serves
            if written() != known:
                known = load()
        return context

    return current
