"""STATE_DIR/scrape.json: where Prometheus's file_sd finds the trainer, on whichever node it runs."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Announcement", "is_loopback", "reachable_name", "target"]


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


class Announcement:
    """The one target of an attempt, in a file that other attempts write as well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._groups: list[dict[str, Any]] = []

    def announce(self, where: str | None, labels: Mapping[str, str], *, tls: bool = False) -> None:
        """Writes the target, atomically; without one, an earlier attempt's is removed. Raises OSError."""
        if where is not None:
            scheme = {"__scheme__": "https"} if tls else {}
            self._groups = [{"targets": [where], "labels": {**labels, **scheme}}]
        if where is not None or self._path.exists():
            self._write(self._groups)

    def withdraw(self) -> None:
        """Empties the file, unless another attempt has announced itself since. Raises OSError."""
        if self._groups and json.loads(self._path.read_text(encoding="utf-8")) == self._groups:
            self._write([])

    def _write(self, groups: list[dict[str, Any]]) -> None:
        beside = self._path.with_name(f".{self._path.name}.{socket.gethostname()}.{os.getpid()}")
        beside.write_text(json.dumps(groups) + "\n", encoding="utf-8")
        beside.replace(self._path)
