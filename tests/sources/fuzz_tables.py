"""Feeds the readers of columns whatever a coverage-guided fuzzer comes up with.

    python tests/sources/fuzz_tables.py -runs=5000 [-seed=1] [CORPUS]

A run ends with status 0 when no reader raised anything but an error of ours. The first byte of an input says what the
file is called; each of libFuzzer's options may be given. It works in the folder that it is started in.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import struct
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sentinel"]):
    from sentinel.sources import arrow_tables
    from sentinel.sources.opening import open_columns
    from sentinel.vocabulary.errors import SentinelError
    from sentinel.vocabulary.sample import Sample, encode
    from tests.sources.readings import unpacked_here

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("a", "a.csv", "a.jsonl", "0001.jsonl", "trainer_state.json", "events.out.tfevents.1.a", "a.parquet")
FOLDER = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix="read-"))


def read(data: bytes) -> None:
    """Reads the input to its end, as a file, and its folder."""
    path = FOLDER / NAMES[data[0] % len(NAMES) if data else 0]
    path.write_bytes(data[1:])
    try:
        for where in (path, FOLDER):
            with contextlib.suppress(SentinelError):
                for source in open_columns(where, {}):
                    samples = sum(len(chunk) for chunk in source)
                    if (samples, bool(source.unreadable)) != (source.samples, bool(source.first_unreadable)):
                        raise AssertionError("what was counted is not what was given")
    finally:
        path.unlink()


def _record(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        value = google_crc32c.value(part)
        return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    header = struct.pack("<Q", len(data))
    return header + masked(header) + data + masked(data)


def seeds() -> list[bytes]:
    """One input of each format."""
    sample = encode(Sample(attempt=1, global_step=1, time_unix_s=1.0, loss=2.5, grad_norm=float("inf"))).encode()
    table = b"step,rank,loss,extra\n1,0,2.5,gbs=5;skipped=1\n1,1,nan,\n\n# a\n2,0,x,\n1,0,1,\n"
    rows = b'{"step": 1, "train": {"loss": 2.5, "lr": [1]}}\n{"step": 0, "train": {"loss": NaN}, "val/loss": "inf"}\n'
    state = json.dumps({"log_history": [{"step": 1, "loss": 0.0, "grad_norm": float("nan")}, {"train_runtime": 1}]})
    scalar = b"\x09" + bytes(8) + b"\x10\x05\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40"
    tensor = b"\x09" + bytes(8) + b"\x10\x05\x2a\x12\x0a\x10\x0a\x04loss\x42\x08\x08\x01\x2a\x04\x00\x00\x20\x40"
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"step": [1, 2], "loss": [2.5, None]}), Path(folder, "a"))
        parquet = Path(folder, "a").read_bytes()
    events = _record(scalar) + _record(tensor) + _record(b"\x09")
    contents = (b"\x00" + gzip.compress(table), b"\x01" + table, b"\x02" + rows, b"\x03" + sample + b"\n" + sample)
    return [*contents, b"\x04" + state.encode(), b"\x05" + events, b"\x06" + parquet]


def main() -> None:
    corpus = FOLDER.with_name(f"{FOLDER.name}-corpus")
    corpus.mkdir()
    for number, content in enumerate(seeds()):
        (corpus / str(number)).write_bytes(content)
        read(content)
    atheris.Setup([*sys.argv, "-rss_limit_mb=4096", "-timeout=60", str(corpus)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("ARROW_NUM_THREADS", "1")
    arrow_tables._unpacked = unpacked_here
    main()
