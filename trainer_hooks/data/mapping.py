"""The map: shards over worker processes, each given the next one when it is done with its last.

A worker talks to its parent by a pipe, which closes when either of them dies: a worker whose parent was killed ends
after its shard, and a parent whose worker was killed says so.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from sentinel.vocabulary.errors import DataError, SentinelError
from trainer_hooks.data.rows import Rows
from trainer_hooks.data.shards import Job, Stage, do_shards

__all__ = ["map_shards"]


def map_shards(job: Job, rows: Rows, work: Path, stage: Stage, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """Does these shards, in this process (one worker) or in several; gives the number of each as it is done."""
    workers = min(workers, len(numbers))
    if workers > 1:
        yield from _over_processes(job, work, stage, numbers, workers)
    else:
        yield from do_shards(job, rows, work, stage, numbers)


def _over_processes(job: Job, work: Path, stage: Stage, numbers: Sequence[int], workers: int) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    left = iter(numbers)
    at_work: dict[Connection, int] = {}
    processes = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job, work, stage), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            at_work[ours] = next(left)
            ours.send(at_work[ours])
        while at_work:
            for connection in wait(list(at_work)):
                if not isinstance(connection, Connection):
                    continue
                yield _answered(connection, at_work)
                if (number := next(left, None)) is not None:
                    at_work[connection] = number
                    connection.send(number)
                else:
                    del at_work[connection]
                    connection.send(None)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _answered(connection: Connection, at_work: dict[Connection, int]) -> int:
    try:
        answer: int | str = connection.recv()
    except EOFError:
        raise DataError(
            f"the worker at shard {at_work[connection]} has died; start again, the others are kept"
        ) from None
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


def _work(connection: Connection, job: Job, work: Path, stage: Stage) -> None:
    """A worker's life."""
    try:
        for number in do_shards(job, job.rows(), work, stage, iter(connection.recv, None)):
            connection.send(number)
    except SentinelError as error:
        connection.send(str(error))
    except (EOFError, BrokenPipeError):  # nobody is waiting for more
        return
