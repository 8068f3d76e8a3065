"""How the daemon's own metrics are shown: the `[metrics]` table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The `[metrics]` table: /metrics of `sentinel watch` itself."""

    serve: bool = True
    """Whether watch serves /metrics at all; not under --once."""

    address: str = "127.0.0.1"
    """Where to listen. Only this machine by default; "0.0.0.0" or "::" is every address."""

    port: Annotated[int, Range(least=0, most=65535)] = 0
    """0 is any free one, as the trainer's; another one that is taken is replaced by a free one. The log says which."""

    announce: str | None = None
    """The name or address that Prometheus reaches this node by, for STATE_DIR/scrape-watch.json (file_sd). By default
    the node's name where it listens everywhere, the address where it listens at one, and nothing on loopback."""

    certificate: Path | None = None
    """PEM file with the certificate and its chain: with it, HTTPS (TLS 1.2 and up) and nothing else. A renewed one is
    taken up by the next scrape, once certificate and key fit."""

    key: Path | None = None
    """PEM file with its key, not encrypted; by default it is in the certificate's file."""

    token_file: Path | None = None
    """File that holds a bearer token of 16 characters or more, any that can be seen: who does not bring it is told
    nothing. Read for each scrape. Without a certificate it travels in the clear, which is warned of beyond this
    machine."""

    textfile: Path | None = None
    """A file to write the same to after each turn, for node_exporter's textfile collector, where no client reaches a
    listener (a Slurm job): it should end in .prom, and be another one for each run."""

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise ConfigError("key: a key is of no use without its certificate")
        if self.textfile is not None and self.textfile.suffix != ".prom":
            raise ConfigError(f"textfile should end in .prom, or node_exporter passes over it: {self.textfile.name!r}")
