"""What a file may make a reader hold, and how long it may take: bombs, endless files, pipes, absurd numbers."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sentinel.act.source import read_all
from sentinel.adapters.journal import Journals
from sentinel.bounded import LINE_BYTES, UnfitFileError, read_document, read_text, unpacked
from sentinel.sources.followed_log import FollowedLog
from sentinel.vocabulary.sample import Sample, encode
from tests.tiers import full

MIB = 1 << 20


def gz(path: Path, blocks: Iterator[bytes]) -> None:
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.writelines(blocks)


def a_log_that_unpacks_to_a_gigabyte(folder: Path) -> Path:
    gz(folder / "log.gz", repeat(b"nothing that is a step\n" * 45_000, 400))
    return folder / "log.gz"


def a_log_of_steps_that_unpacks_to_a_gigabyte(folder: Path) -> Path:
    few = b"".join(b"step %d loss 3.2\n" % n for n in range(1, 100))
    gz(folder / "steps.gz", iter([few, *repeat(b"x" * MIB, 1000)]))
    return folder / "steps.gz"


def an_array_that_unpacks_to_a_gigabyte(folder: Path) -> Path:
    gz(folder / "a.json.gz", iter([b"[{}", *repeat(b",{}" * 350_000, 400)]))
    return folder / "a.json.gz"


def an_array_of_thirty_million_objects(folder: Path) -> Path:
    (folder / "a.json").write_bytes(b"[{}" + b",{}" * 30_000_000 + b"]")
    return folder / "a.json"


def a_wandb_record_without_an_end(folder: Path) -> Path:
    with (folder / "run-1.wandb").open("wb") as file:
        file.write(b":W&B\xe1\xbe\x00")
        at, kind = 7, 2
        for _ in range(6_000):
            body = bytes([kind]) + bytes((1 << 15) - at - 7)
            file.write(struct.pack("<IH", zlib.crc32(body), len(body) - 1) + body)
            at, kind = 0, 3
    return folder / "run-1.wandb"


def masked(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def a_record_that_claims_a_gigabyte(folder: Path) -> Path:
    value = b"\x0a\x07lm loss\x15" + struct.pack("<f", 2.5)
    event = (
        struct.pack("<Bd", 9, 1.7e9) + b"\x10\x01\x2a" + bytes([len(value) + 2]) + b"\x0a" + bytes([len(value)]) + value
    )
    size, claimed = struct.pack("<Q", len(event)), struct.pack("<Q", 1 << 30)
    with (folder / "events.out.tfevents.1.host").open("wb") as file:
        file.write(size + masked(size) + event + masked(event) + claimed + masked(claimed))
        file.truncate((1 << 30) + 1000)
    return folder / "events.out.tfevents.1.host"


def lines_of_a_hundred_megabytes(folder: Path) -> Path:
    with (folder / "t.jsonl").open("wb") as file:
        for step in range(1, 4):
            file.write(b'{"step": %d, "loss": 2.5}\n' % step)
            file.write(b'{"step": 9, "loss": 1, "a": [' + b"[]," * (33 * MIB) + b"1]}\n")
    return folder / "t.jsonl"


def a_log_with_a_line_of_a_hundred_megabytes(folder: Path) -> Path:
    with (folder / "a.log").open("wb") as file:
        file.write(b"step 1 loss 2.5\n" + b"step 9 loss 1 " * (8 * MIB) + b"\nstep 2 loss 2.5\nstep 3 loss 2.5\n")
    return folder / "a.log"


def a_table_whose_one_text_stands_in_every_row(folder: Path) -> Path:
    text = pa.DictionaryArray.from_arrays(np.zeros(200_000, np.int32), pa.array(["7" * 20_000_000]))
    pq.write_table(pa.table({"loss": text}), folder / "a.parquet", compression="zstd")
    return folder / "a.parquet"


def a_table_of_a_hundred_million_rows(folder: Path) -> Path:
    with pq.ParquetWriter(folder / "a.parquet", pa.schema({"loss": pa.float64()}), compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(pa.table({"loss": np.ones(1_000_000)}))
    return folder / "a.parquet"


def a_table_whose_footer_lies(folder: Path) -> Path:
    """One page that unpacks to 320 MB; the footer says that it is ten bytes."""
    path = folder / "a.parquet"
    write_one_page = f"""
import pyarrow, pyarrow.parquet
table = pyarrow.table({{"loss": [b"0" * 320_000_000]}})
pyarrow.parquet.write_table(table, {str(path)!r}, compression="zstd", use_dictionary=False, write_statistics=False)
"""
    subprocess.run([sys.executable, "-c", write_one_page], check=True, timeout=120)
    with pq.ParquetFile(path) as table:
        group = table.metadata.row_group(0)
        said = {group.total_byte_size, group.column(0).total_uncompressed_size}
        assert min(said) >= 320_000_000
    data = path.read_bytes()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[at:]
    for number in said:
        true = varint(2 * number)
        footer = footer.replace(true, varint(2 * 10, len(true)))
    path.write_bytes(data[:at] + footer)
    assert pq.read_metadata(path).row_group(0).total_byte_size == 10
    return path


def varint(number: int, size: int = 1) -> bytes:
    """As Thrift's compact protocol has it, with so many bytes at least."""
    low = number & 127
    return bytes([low]) if number < 128 and size <= 1 else bytes([low | 128]) + varint(number >> 7, size - 1)


HOSTILE = {
    a_log_that_unpacks_to_a_gigabyte: "the first 200,000 lines (64 MiB of them) are looked at",
    a_log_of_steps_that_unpacks_to_a_gigabyte: "it unpacks to more than 200 times its size",
    an_array_that_unpacks_to_a_gigabyte: "can't be read: the JSON document",
    an_array_of_thirty_million_objects: "holds more than 12,000,000 values",
    a_wandb_record_without_an_end: "nothing that is known to be a loss",
    a_record_that_claims_a_gigabyte: "limit is 64 MiB",
    a_table_whose_one_text_stands_in_every_row: "a part of it unpacks to more than 256 MiB",
    a_table_of_a_hundred_million_rows: "it unpacks to more than 200 times its size",
    a_table_whose_footer_lies: "a part of it unpacks to more than 256 MiB",
    a_log_with_a_line_of_a_hundred_megabytes: "3 samples",
    lines_of_a_hundred_megabytes: "line 2 can't be read: the line is too long",
}
SLOW = (*[*HOSTILE][:3], *[*HOSTILE][6:9])  # gigabytes are unpacked, and rows counted
CPU_S, BYTES, TABLE_BYTES = 40, 1200 * MIB, 600 * MIB


@pytest.mark.full
@pytest.mark.parametrize(
    "make",
    [*full(SLOW), *(make for make in HOSTILE if make not in SLOW)],
    ids=lambda make: make.__name__,
)
def test_a_hostile_file_is_read_or_refused_within_bounds(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    watched = f"""
import resource, sys
from pathlib import Path
from sentinel.cli import main
sys.argv = ["sentinel", "replay", {str(path)!r}]
try:
    main()
finally:
    # not ru_maxrss of its own, which begins with what the process that started it held
    own = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print((own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024)
"""
    ran = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, text=True, timeout=600, preexec_fn=limited, check=False
    )
    assert HOSTILE[make] in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr
    assert ran.returncode in (0, 2)
    assert int(ran.stdout.split()[-1]) < (TABLE_BYTES if make.__name__.startswith("a_table") else BYTES)


def test_a_log_with_an_endless_line_is_followed_in_bounded_memory(tmp_path: Path) -> None:
    path = a_log_with_a_line_of_a_hundred_megabytes(tmp_path)
    tracemalloc.start()
    try:
        read = [one.global_step for one in read_all(FollowedLog(path)) if isinstance(one, Sample)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == [1, 2, 3]
    assert most < 40 * MIB


@pytest.mark.full
def test_an_honest_log_of_a_hundred_megabytes_is_read_whole_from_its_gzip_file(tmp_path: Path) -> None:
    line = " iteration %8d/ 9999999 | consumed samples: %12d | lm loss: %.6E | grad norm: %.3f |\n"
    lines = [line % (n, 8 * n, 3 + n % 977 / 1000, 1 + n % 331 / 100) for n in range(1, 1_200_000)]
    gz(tmp_path / "log.gz", iter(["".join(lines).encode()]))
    size = 0
    with unpacked(tmp_path / "log.gz") as file:
        while block := file.read(MIB):
            size += len(block)
    assert size == sum(map(len, lines)) > 100_000_000


@pytest.mark.parametrize("read", [read_document, read_text])
def test_a_pipe_is_not_waited_for_and_a_device_without_an_end_is_not_read(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UnfitFileError, match="no regular file"):
            read(path)


def test_a_document_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    assert len(read_document(tmp_path / "a", 1000)) == 1000
    with pytest.raises(UnfitFileError, match="more than 999 bytes"):
        read_document(tmp_path / "a", 999)
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(UnfitFileError, match="byte 2 is not UTF-8"):
        read_text(tmp_path / "a")


@pytest.mark.parametrize("piece", [MIB, 3 * LINE_BYTES])
def test_a_journal_is_read_past_a_line_that_is_too_long_however_it_comes(tmp_path: Path, piece: int) -> None:
    (tmp_path / "attempts").mkdir()
    one, two = (encode(Sample(attempt=1, global_step=n, time_unix_s=1.0, loss=2.0)).encode() for n in (1, 2))
    text = one + b"\n" + b"[" * (2 * LINE_BYTES + 5) + b"\n" + two + b"\n"
    journals, found = Journals(tmp_path), []
    for start in range(0, len(text), piece):
        with (tmp_path / "attempts" / "0001.jsonl").open("ab") as file:
            file.write(text[start : start + piece])
        found += journals.poll()
    assert [record.global_step for record in found if isinstance(record, Sample)] == [1, 2]
    assert journals.unreadable == 1
    assert [sample.global_step for sample in journals.again(1)] == [1, 2]


def test_a_journal_line_without_an_end_is_not_read_again_at_each_poll(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    journals = Journals(tmp_path)
    with (tmp_path / "attempts" / "0001.jsonl").open("wb") as file:
        file.truncate(200 * MIB)
    journals.poll()
    began = time.process_time()
    for _ in range(20):
        journals.poll()
    assert time.process_time() - began < 0.5
    assert journals.unreadable == 1


def test_the_limits_are_the_ones_that_the_documentation_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "SOURCES.md").read_text()
    for said in ("200 times", "4 MiB", "64 MiB", "12,000,000 values", "200,000 lines", "2^53"):
        assert said in page, said
    assert json.loads("9007199254740992") == 2**53
