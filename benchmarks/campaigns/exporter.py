"""Nine attacks on a hook's /metrics while it trains: the weights and each step's loss are those of a training in peace.

examples/deepspeed_three_lines.py, each time in a process of its own: once without an attack, then under each of them.
A scrape between the attacker's connections has to be answered; the training has to end by itself, without an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.campaigns.table import Row, campaign

STEPS, SHORT_STEPS, SHORT_ATTACKS = 6000, 1500, 2
_HEAD = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"


def opened(port: int) -> socket.socket:
    """A connection to the exporter."""
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def holding(port: int, first: bytes, then: bytes, over: threading.Event) -> None:
    """32 connections that send `first`, then `then` again and again, and read nothing."""
    while not over.is_set():
        open_ones: list[socket.socket] = []
        with suppress(OSError):
            for _ in range(32):
                open_ones.append(opened(port))
                open_ones[-1].sendall(first)
        until = time.monotonic() + 3
        while time.monotonic() < until and not over.is_set():
            for one in open_ones:
                with suppress(OSError):
                    one.send(then)
            over.wait(0.05)
        for one in open_ones:
            one.close()


def rushing(port: int, sent: bytes, reads: bool, over: threading.Event) -> None:
    """Connection after connection that sends this and goes, with a reset where it does not read."""
    while not over.is_set():
        with suppress(OSError), opened(port) as one:
            one.sendall(sent)
            while reads and one.recv(1 << 16):
                pass
            if not reads:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


Attack = Callable[[int, threading.Event], None]
ATTACKS: dict[str, Attack] = {
    "heads that never end": lambda port, over: holding(port, _HEAD + b"X: ", b"", over),
    "a byte each 50 ms": lambda port, over: holding(port, b"G", b"E", over),
    "a head without end": lambda port, over: holding(port, _HEAD + b"X: ", b"a" * 65536, over),
    "bodies without end": lambda port, over: holding(
        port, _HEAD + b"Content-Length: 999999999\r\n\r\n", b"a" * 65536, over
    ),
    "requests that are none": lambda port, over: rushing(port, os.urandom(2048) + b"\r\n\r\n", True, over),
    "a handshake of TLS": lambda port, over: holding(port, b"\x16\x03\x01\x40\x00", b"\x02", over),
    "scrapes in a storm": lambda port, over: rushing(port, _HEAD + b"\r\n", True, over),
    "answers that nobody reads": lambda port, over: holding(port, (_HEAD + b"\r\n") * 50, b"", over),
    "connections that are reset": lambda port, over: rushing(port, _HEAD, False, over),
}


def exporter_of(pid: int) -> int:
    """The port at which the process answers as an exporter; 0 for none. Its collectives listen as well."""
    with suppress(psutil.Error):
        for each in psutil.Process(pid).net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN:
                with suppress(OSError), socket.create_connection(each.laddr, 1) as one:
                    one.settimeout(1)
                    one.sendall(_HEAD + b"\r\n")
                    if one.recv(64).startswith(b"HTTP/1.1 200"):
                        return int(each.laddr.port)
    return 0


def digest_of(folder: Path) -> str:
    """Of each step's loss and Adam's variance, as the journal has them, and of the weights that were saved last."""
    import torch  # here, since only the comparison needs it

    made = hashlib.sha256()
    for journal in sorted(folder.rglob("0*.jsonl")):
        for line in map(json.loads, journal.read_text().splitlines()):
            if line["kind"] == "sample":
                made.update(repr((line["global_step"], line["loss"], line["adam_variance_l1"])).encode())
    saved = max(folder.rglob("mp_rank_00_model_states.pt"), key=lambda path: path.stat().st_mtime_ns)
    for name, weights in sorted(torch.load(saved, weights_only=False)["module"].items()):
        made.update(name.encode() + weights.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]


def trained(folder: Path, steps: int, attack: Attack | None) -> tuple[str, int, int, float]:
    """Digest of the weights and of each step's loss, scrapes that were answered, scrapes that were asked, seconds."""
    example = Path(__file__).parents[2] / "examples" / "deepspeed_three_lines.py"
    command = [sys.executable, str(example), "--output", str(folder), "--steps", str(steps)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", no_proxy="127.0.0.1")
    began_s, over, answered, asked = time.monotonic(), threading.Event(), 0, 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        port = 0
        while not port and process.poll() is None:
            time.sleep(0.05)
            port = exporter_of(process.pid)
        attacker = threading.Thread(target=attack, args=(port, over), daemon=True) if attack is not None else None
        if attacker is not None:
            attacker.start()
        while process.poll() is None:
            asked += 1
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0)) as one:
                one.sendall(_HEAD + b"Connection: close\r\n\r\n")
                answered += one.recv(64).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)
    finally:
        over.set()
        process.wait(600)
    if process.returncode != 0:
        return f"exit {process.returncode}: {(folder / 'log').read_text()[-200:]}", answered, asked, 0.0
    return digest_of(folder), answered, asked, time.monotonic() - began_s


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """One for each attack."""
    steps, table, wrong = SHORT_STEPS if short else STEPS, list[Row](), list[str]()
    with tempfile.TemporaryDirectory(prefix="attacked-") as name:
        peace, attacks = "", [("none", None), *ATTACKS.items()]
        for number, (what, attack) in enumerate(attacks[: 1 + SHORT_ATTACKS] if short else attacks):
            folder = Path(name) / str(number)
            folder.mkdir()
            digest, answered, asked, took_s = trained(folder, steps, attack)
            peace = peace or digest
            table.append((what, digest, digest == peace, f"{answered} of {asked}", f"{took_s:.1f}"))
            if digest != peace:
                wrong.append(f"{what}: {digest} and not {peace}")
            if not answered:
                wrong.append(f"{what}: no scrape was answered of {asked}")
    return table, wrong


if __name__ == "__main__":
    campaign(__doc__, ("attack", "weights and losses", "equal", "scrapes answered", "s"), rows)
