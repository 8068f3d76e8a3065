"""How fast a checkpoint is verified, against reading it plainly and against zipfile and hashlib one after the other.

Writes a checkpoint of real zip archives into a temporary folder, and reads it from the disk (its pages are dropped from
the cache before each round) and from the cache. `sentinel` is what `verify` does without a manifest (CRC-32, nan) and
with one (SHA-256, nan), and what writing a manifest does (all three). The seconds of CPU per GB, of all threads
together, are what a busy machine does not change: over the number of cores, they are the bound beside the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from sentinel.adapters.checkpoints import Checkpoints, write_manifest

TAG = "global_step10"
CHUNK_BYTES = 4 << 20


def write(folder: Path, ranks: int, shard_bytes: int, member_bytes: int) -> None:
    """A checkpoint as DeepSpeed's ZeRO saves it: a model file, and an optimizer shard per rank, of stored members."""
    _shard(folder / "mp_rank_00_model_states.pt", shard_bytes // 4, member_bytes)
    for rank in range(ranks):
        _shard(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", shard_bytes, member_bytes)


def _shard(path: Path, size: int, member_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = max(1, size // member_bytes)
    # random floats below 2 in size: any exponent but nan's
    block = (int.from_bytes(os.urandom(member_bytes), "little") & int("bf" * member_bytes, 16)).to_bytes(
        member_bytes, "little"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        archive.writestr("archive/data.pkl", _pickle(count, member_bytes // 4))
        for number in range(count):
            archive.writestr(f"archive/data/{number}", block)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _pickle(count: int, elements: int) -> bytes:
    """What torch writes of its storages, as far as it is read: a persistent id for each."""
    ids = b"".join(
        b"("
        + _text("storage")
        + b"ctorch\nFloatStorage\n"
        + _text(str(n))
        + _text("cpu")
        + b"J"
        + struct.pack("<i", elements)
        + b"tQ0"
        for n in range(count)
    )
    return b"\x80\x02" + ids + b"N."


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def plain(folder: Path) -> None:
    """What `cat` does."""
    buffer = bytearray(CHUNK_BYTES)
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def one_after_the_other(folder: Path) -> None:
    """The straightforward way: every member through zipfile, which checks its CRC, then every file through hashlib."""
    for path in sorted(folder.iterdir()):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) as stream:
                    while stream.read(CHUNK_BYTES):
                        pass
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def forget(folder: Path) -> None:
    """Drops the files' pages from the cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(checkpoints: Path, state: Path, rounds: int, total: int) -> list[dict[str, object]]:
    """Median GB/s of each way, cold and warm; the ways take turns, so that a noisy neighbour meets all of them."""
    folder = checkpoints / TAG
    without, with_manifest = Checkpoints(checkpoints), Checkpoints(checkpoints, manifests=state / "manifests")

    def verified(seen: Checkpoints) -> None:
        found = seen.verify(TAG)
        if found.problem is not None:
            raise SystemExit(found.problem)

    ways: dict[str, Callable[[], object]] = {
        "plain read": lambda: plain(folder),
        "sentinel, without a manifest": lambda: verified(without),
        "sentinel, with a manifest": lambda: verified(with_manifest),
        "sentinel, writing a manifest": lambda: write_manifest(checkpoints, TAG, state / "new"),
        "zipfile, then hashlib": lambda: one_after_the_other(folder),
    }
    write_manifest(checkpoints, TAG, state)
    rates: dict[tuple[str, str], list[float]] = {}
    busy: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            for cache in ("cold", "warm"):
                for old in (state / "new").rglob("*.json"):
                    old.unlink()
                if cache == "cold":
                    forget(folder)
                began, worked = time.perf_counter(), time.process_time()
                way()
                busy.setdefault(name, []).append((time.process_time() - worked) / total * 1e9)
                rates.setdefault((name, cache), []).append(total / (time.perf_counter() - began) / 1e9)
    return [
        {
            "way": name,
            "cold_gb_per_s": round(cold := statistics.median(rates[name, "cold"]), 3),
            "warm_gb_per_s": round(statistics.median(rates[name, "warm"]), 3),
            "cpu_s_per_gb": round(statistics.median(busy[name]), 2),
            "cold_share_of_plain_read": round(cold / statistics.median(rates["plain read", "cold"]), 2),
        }
        for name in ways
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 MB and one round")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, the table on stderr")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--member-mb", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default is the system's temporary folder")
    asked = parser.parse_args()
    size, rounds = (0.256e9, 1) if asked.quick else (asked.gb * 1e9, asked.rounds)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        checkpoints = Path(name) / "checkpoints"
        member_bytes = int(asked.member_mb * 2**20) // 64 * 64
        write(checkpoints / TAG, asked.ranks, int(size / (asked.ranks + 0.25)), member_bytes)
        total = sum(path.stat().st_size for path in (checkpoints / TAG).iterdir())
        rows = measure(checkpoints, Path(name) / "state", rounds, total)
    table = sys.stderr if asked.json else sys.stdout
    cores = len(os.sched_getaffinity(0))
    print(f"{total / 1e9:.2f} GB in {asked.ranks + 1} files, {cores} cores, median of {rounds}", file=table)
    print(f"{'':32}{'cold GB/s':>10}{'of plain':>10}{'warm GB/s':>11}{'CPU s/GB':>10}", file=table)
    for row in rows:
        cold, share, warm = row["cold_gb_per_s"], row["cold_share_of_plain_read"], row["warm_gb_per_s"]
        print(f"{row['way']:32}{cold:>10}{share:>10}{warm:>11}{row['cpu_s_per_gb']:>10}", file=table)
    if asked.json:
        print(json.dumps({"bytes": total, "cores": cores, "rounds": rounds, "rows": rows}))


if __name__ == "__main__":
    main()
