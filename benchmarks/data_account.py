"""What the account of a run's data names, what it costs, and whether it is silent where nothing is wrong.

Bugs: four that were reported of other frameworks, rebuilt in a small loop of ours; with the libraries' own loaders
where they are installed at the versions with the bug (datasets 5.0.0, torchdata 0.11.0), else with stand-ins.
Drawn: chains of five resumes (epochs, orders, batch ramps, drop_last, decided skips and reseeds, rollbacks to earlier
saves, lost samples, and what a trainer may report), clean or with one of four faults at the second resume. Each start
is looked at after its first 3, 10 and 20 steps, and the whole at the end. `full` are chains whose trainer reports
batches, the place in the order of the data, the count of epochs and the length of one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.data_chains.drawn import FAULTS, Chain, Shape, chain
from benchmarks.data_chains.loop import BUGS
from sentinel.judge.history import History
from sentinel.plan.account.account import Account
from sentinel.plan.account.lineage import account_of
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample, decode, encode
from trainer_hooks.sample.batch_digest import batch_digest

EARLY = (3, 10, 20)  # steps of a start after which it is looked at


def main() -> int:
    """Exit code 0 where all four bugs are named and no clean chain is alarmed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=500, help="clean ones, and a fifth as many of each fault")
    parser.add_argument("--steps", type=int, default=200_000, help="of the run whose account is timed")
    parser.add_argument("--quick", action="store_true", help="100 chains, 50,000 steps")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    asked = parser.parse_args()
    chains, steps = (100, 50_000) if asked.quick else (asked.chains, asked.steps)
    found = {"bugs": bugs(), "clean": clean(chains), "faults": faults(max(20, chains // 5)), **costs(steps)}
    if asked.as_json:
        print(json.dumps(found))
    else:
        _print(found)
    well = all(bug["named"] for bug in found["bugs"]) and not found["clean"]["alarms"]
    return int(not well)


def bugs() -> list[dict[str, Any]]:
    rows = []
    for name, (bug, attempt, said) in BUGS.items():
        with tempfile.TemporaryDirectory() as folder:
            made_with = bug(Path(folder))
            account = account_of_journals(Path(folder))
        named = not account.closes and said in account.why and f"attempt {attempt} " in f"{account.why} attempt 1 "
        rows.append({"bug": name, "with": made_with, "named": named, "why": account.why})
    return rows


def account_of_journals(folder: Path) -> Account:
    paths = sorted((folder / "attempts").iterdir())
    records = [record for path in paths for line in path.read_text().splitlines() if (record := decode(line))]
    return account_of_chain(records)


def account_of_chain(records: list[Record], made: Chain | None = None) -> Account:
    history = History(records)
    latest = history.latest
    return Account(attempts=()) if latest is None else account_of(history, latest, made.rollbacks if made else ())


def clean(count: int) -> dict[str, Any]:
    alarms = [seed for seed in range(count) if any(not account.closes for account in looks(chain(seed)))]
    again = sum(bool(account_of_chain(made.records, made).samples.again) for made in map(chain, range(count)))
    return {"chains": count, "resumes": 5 * count, "alarms": len(alarms), "seeds": alarms[:20], "seen_again": again}


def looks(made: Chain) -> Iterator[Account]:
    """At the first steps of each start, and at the end."""
    samples = 0
    for n, record in enumerate(made.records):
        if isinstance(record, RunStarted):
            samples = 0
        samples += isinstance(record, Sample)
        if isinstance(record, Sample) and samples in EARLY and record.attempt > 1:
            yield account_of_chain(made.records[: n + 1], made)
    yield account_of_chain(made.records, made)


def faults(count: int) -> dict[str, Any]:
    found = {}
    for fault in FAULTS:
        named = {"drawn": 0, "full": 0}
        made_of = dict.fromkeys(named, 0)
        for seed in range(count):
            drawn = Shape.of(np.random.default_rng([seed, 4]), seed)
            full = replace(drawn, reports_batches=True, position="order", epoch="fraction", reports_length=True)
            for kind, shape in (("drawn", drawn), ("full", full)):
                made = chain(seed, fault=fault, shape=shape)
                if made.faulty is not None:
                    made_of[kind] += 1
                    found_in = (one.attempt for account in looks(made) for one in account.faults)
                    named[kind] += made.faulty in found_in
        found[fault] = {kind: {"made": made_of[kind], "named": named[kind]} for kind in named}
    return found


def costs(steps: int) -> dict[str, Any]:
    """In the trainer what a batch costs; in the daemon what a sample does; memory and bytes for a million steps."""
    journal = sum(len(encode(record)) + 1 for record in _long(10_000))
    history = History(_long(steps))
    latest = history.latest
    if latest is None:
        raise RuntimeError("no attempt was made")
    began = time.process_time()
    account = account_of(history, latest)
    taken_s = time.process_time() - began
    few = History(_long(20_000))
    tracemalloc.start()
    if few.latest is not None:
        account_of(few, few.latest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "us_per_batch": _digest_us(),
        "us_per_sample_of_the_daemon": 1e6 * taken_s / steps,
        "memory_bytes_per_step": peak / 20_000,
        "journal_bytes_per_million_steps": 100 * journal,
        "file_bytes_per_million_steps": _added_bytes(),
        "steps": steps,
        "closes": account.closes,
    }


def _digest_us(batches: int = 2_000) -> dict[str, float]:
    """What `hook.batch_seen` computes of a batch, one core: the only work in the trainer that is the account's."""
    found = {}
    for rows, length in ((1, 2048), (4, 2048), (8, 1024)):
        tokens = torch.randint(0, 50_000, (rows, length))
        for _ in range(100):
            batch_digest(tokens)
        took = []
        for _ in range(5):
            began = time.thread_time()
            for _ in range(batches // 5):
                batch_digest(tokens)
            took.append((time.thread_time() - began) / (batches // 5))
        found[f"{rows} x {length}"] = 1e6 * min(took)
    return found


def _added_bytes() -> int:
    """What the account adds to the files of a million steps: a field of 20 starts, and the answer that is kept."""
    started = RunStarted(attempt=1, time_unix_s=0.0, epoch_samples=1_000_000)
    of_start = len(encode(started)) - len(encode(replace(started, epoch_samples=None)))
    return 20 * of_start + 512


def _long(steps: int) -> Iterator[Record]:
    """A run of two epochs, resumed every 50,000 steps."""
    for step in range(1, steps + 1):
        attempt = 1 + (step - 1) // 50_000
        if (step - 1) % 50_000 == 0:
            yield RunStarted(
                attempt=attempt,
                time_unix_s=0.0,
                resumed_from=step - 1 or None,
                parent_attempt=attempt - 1 or None,
                epoch_samples=4 * steps,
            )
        yield Sample(
            attempt=attempt,
            global_step=step,
            time_unix_s=float(step),
            loss=3.0,
            batch_digest=(step % (steps // 2)) * 7919 + 1,
            consumed_samples=8 * step,
            global_batch_samples=8,
        )
        if step % 50_000 == 0:
            facts = {"attempt": attempt, "global_step": step, "time_unix_s": float(step)}
            yield CheckpointSaved(**facts, tag=f"global_step{step}")


def _print(found: dict[str, Any]) -> None:
    for bug in found["bugs"]:
        print(f"{'named' if bug['named'] else 'MISSED'}  {bug['bug']} (with {bug['with']}): {bug['why']}")
    told = found["clean"]
    print(f"clean: {told['alarms']} alarms in {told['chains']} chains of five resumes {told['seeds'] or ''}")
    for fault, row in found["faults"].items():
        shares = {kind: f"{one['named']} of {one['made']}" for kind, one in row.items()}
        print(f"fault {fault}: named {shares['drawn']}, where all is reported {shares['full']}")
    digests = ", ".join(f"{us:.1f} us ({shape})" for shape, us in found["us_per_batch"].items())
    print(f"trainer, a batch: {digests}")
    print(f"daemon, a sample: {found['us_per_sample_of_the_daemon']:.2f} us, {found['steps']:,} steps")
    print(f"memory: {found['memory_bytes_per_step']:.0f} bytes a step")
    print(f"files: {found['file_bytes_per_million_steps']:,} bytes more for a million steps")


if __name__ == "__main__":
    raise SystemExit(main())
