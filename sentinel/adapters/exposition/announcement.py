"""scrape-watch.json: where Prometheus's file_sd finds the watch; one run's is beside the trainer's scrape.json."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from sentinel.durable import write_atomically

__all__ = ["NAME", "is_loopback", "reachable_name", "withdraw", "write_target"]

NAME = "scrape-watch.json"


def is_loopback(bound: str) -> bool:
    """Whether only this machine can reach the address, as a bound socket gives it."""
    return ipaddress.ip_address(bound.partition("%")[0]).is_loopback


def reachable_name(asked: str, bound: str) -> str | None:
    """What another node calls what was asked to listen at `asked` and listens at `bound`; None where none can reach it.

    The node's name where it listens everywhere: Slurm's, which the cluster's nodes resolve, else the host's own.
    """
    if is_loopback(bound):
        return None
    if ipaddress.ip_address(bound.partition("%")[0]).is_unspecified:
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return asked


def write_target(path: Path, host: str, port: int, labels: Mapping[str, str], *, tls: bool = False) -> None:
    """Announces the watch, with the label component = "watch" that tells its target from the trainer's, and with the
    scheme that Prometheus is to ask by where it is not http.

    FilesystemRefused or FilesystemUnavailable where it can't be written.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    named = {**labels, "component": "watch"} | ({"__scheme__": "https"} if tls else {})
    write_atomically(path, json.dumps([{"targets": [where], "labels": named}]) + "\n")


def withdraw(path: Path) -> None:
    """Nothing is announced any more: the watch has ended as it should. Errors as of `write_target`."""
    if path.exists():
        write_atomically(path, "[]\n")
