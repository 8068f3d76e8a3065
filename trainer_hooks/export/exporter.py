"""/metrics of the trainer, on rank 0: address, TLS, password, and the announcement to Prometheus."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_hooks.export.answers import Answers
from trainer_hooks.export.certificate import Certificate
from trainer_hooks.export.metrics_server import MetricsServer, listen
from trainer_hooks.export.step_collector import StepCollector
from trainer_hooks.regular_files import read_regular

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

    most_layers: int = 128
    """Layers that /metrics shows, each with two series. Of a model with more it shows none; the journal has all. 0 for
    fleets of more than a hundred runs in one Prometheus (docs/EXPORTER.md)."""


class Exporter:
    """The server, announced to Prometheus's file_sd as STATE_DIR/scrape.json. Raises what is wrong in the settings."""

    def __init__(
        self,
        collector: StepCollector,
        settings: ExporterSettings,
        *,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        password, tls = _password(settings), _tls(settings)
        self._server = MetricsServer(
            listen(settings.address, settings.port),
            Answers(collector, password=password, failed=failed).to,
            tls=tls,
            failed=failed,
        )
        self.address = self._server.address
        self.port = self._server.port
        self.announced: tuple[Path, list[dict[str, Any]]] | None = None  # The file, and what was written into it
        scheme = "http" if tls is None else "https"
        log.info("sentinel: /metrics is at %s://%s/metrics", scheme, target(self.address, self.port))
        if password is not None and tls is None and not is_loopback(self.address):
            log.warning("sentinel: the password of /metrics travels in the clear: give it a certificate as well")

    def close(self) -> None:
        """Stops serving, frees the port and removes the announcement. Raises OSError."""
        self._server.close()
        with contextlib.suppress(FileNotFoundError):  # the whole folder, it may be: nothing is announced
            if self.announced is not None:
                path, groups = self.announced
                if json.loads(read_regular(path)) == groups:  # else another attempt has since
                    _write(path, [])


def announce(exporter: Exporter | None, path: Path, labels: Mapping[str, str]) -> None:
    """Writes the file_sd file of the run, atomically; with no target where others reach no exporter. OSError."""
    groups: list[dict[str, Any]] = []
    if exporter is not None:
        settings = exporter.settings
        name = settings.announce or reachable_name(settings.address, exporter.address)
        if name is not None:
            scheme = {} if settings.certificate is None else {"__scheme__": "https"}
            groups = [{"targets": [target(name, exporter.port)], "labels": {**labels, **scheme}}]
            exporter.announced = path, groups
    if groups or path.exists():
        _write(path, groups)


def _write(path: Path, groups: list[dict[str, Any]]) -> None:
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    beside.write_text(json.dumps(groups) + "\n", encoding="utf-8")
    beside.replace(path)


def _password(settings: ExporterSettings) -> bytes | None:
    """user:password. The password is the file's text without the newline at its end. OSError, ValueError."""
    if settings.user is None and settings.password_file is None:
        return None
    if settings.user is None or settings.password_file is None:
        raise ValueError("basic authentication needs both a user and a password_file")
    password = read_regular(Path(settings.password_file)).decode().rstrip("\r\n")
    if not settings.user or not password:
        raise ValueError(
            f"basic authentication needs a user and a password; {settings.password_file} holds the password"
        )
    return f"{settings.user}:{password}".encode()


def _tls(settings: ExporterSettings) -> Callable[[], ssl.SSLContext] | None:
    """What gives the context for the next connection; a certificate that was renewed is read again."""
    if settings.certificate is None:
        if settings.key is not None:
            raise ValueError("a key needs its certificate")
        return None
    certificate = Path(settings.certificate)
    return Certificate(certificate, certificate if settings.key is None else Path(settings.key)).current


def target(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it; an address as a bound socket gives it."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def reachable_name(configured: str, bound: str) -> str | None:
    """The name by which other nodes reach an exporter set to `configured` and listening at `bound`; None on loopback.
    Where it listens everywhere it is the node's name: Slurm's, which the cluster's nodes resolve, else the host's
    own."""
    if is_loopback(bound):
        return None
    if ipaddress.ip_address(bound.partition("%")[0]).is_unspecified:
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return configured
