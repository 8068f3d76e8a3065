"""Reads a Parquet file in a process of its own, under limits: `python parquet_child.py PATH [COLUMN ...]`.

What a page unpacks to is said by the page, and cannot be trusted: a few kilobytes may become gigabytes within one call
of the library. So this process has a limit of memory and of time. It writes the columns as an Arrow stream, flat and
without dictionaries; without a column, the names that there are. It imports nothing of ours, to start quickly.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HELD_BYTES = 256 << 20  # beside the interpreter and its libraries. Pages are of 1 MiB; 65536 rows are a few of them
BATCH_BYTES = 64 << 20  # of the rows that are handed on at a time: 65536 rows with 1 KiB each
_CPU_S, _BYTES_PER_CPU_S = 60, 1 << 20
_UNPACKED_FREELY, _UNPACKED_RATIO = 64 << 20, 200  # as in sentinel.bounded; a row of a number is 8 bytes
_CHUNK_ROWS = 1 << 16
_READ_BYTES = 1 << 20

# Raised for a file that is not whole. A MemoryError is an ArrowException: of a length that is nonsense, too.
DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)


def batches(path: str, columns: Sequence[str]) -> Iterator[Any]:
    """Record batches of the columns; without one, a batch of all names as `name`. ValueError when the file says that it
    unpacks to more than a multiple of its size."""
    with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as table:
        names = [str(table.schema.column(number).path) for number in range(len(table.schema))]
        groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
        wanted = [number for number, name in enumerate(names) if name in columns]
        declared = sum(group.column(number).total_uncompressed_size for group in groups for number in wanted)
        limit = _UNPACKED_FREELY + _UNPACKED_RATIO * Path(path).stat().st_size
        if max(declared, 8 * table.metadata.num_rows) > limit:
            raise ValueError(f"it unpacks to more than {_UNPACKED_RATIO} times its size")
        if not columns:
            yield pa.record_batch({"name": pa.array(names, pa.string())})
            return
        for batch in table.iter_batches(_CHUNK_ROWS, columns=list(columns), use_threads=False):
            flat = pa.record_batch({name: _column(batch, name) for name in columns})
            if flat.nbytes > BATCH_BYTES:
                raise ValueError(f"{len(flat)} of its rows have more than {BATCH_BYTES >> 20} MiB")
            yield flat


def _column(batch: Any, name: str) -> Any:
    if name in batch.schema.names:
        array = batch.column(name)
    else:  # of a column within a structure the names on the way to it, with a dot between
        outer, *inner = name.split(".")
        array = batch.column(outer)
        for part in inner:
            if not pa.types.is_struct(array.type):
                break
            array = pc.struct_field(array, part)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _limit(path: str) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + HELD_BYTES,
        resource.RLIMIT_CPU: _CPU_S + Path(path).stat().st_size // _BYTES_PER_CPU_S,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, hardest = resource.getrlimit(kind)
        lowered = limit if hardest == resource.RLIM_INFINITY else min(limit, hardest)
        resource.setrlimit(kind, (lowered, lowered))


def main(path: str, *columns: str) -> str | None:
    """Writes the stream to stdout; returns why it ends early."""
    pa.set_memory_pool(pa.system_memory_pool())  # the others reserve address space by the gigabyte
    _limit(path)
    writer = None
    try:
        for batch in batches(path, columns):
            writer = writer or pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
    except MemoryError:
        return f"a part of it unpacks to more than {HELD_BYTES >> 20} MiB"
    except DAMAGE as error:
        return str(error)[:300]
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
