"""The way out of the trainer: the journal's attempts and lines, and what a scrape sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import Sample, encode
from trainer_hooks.exporter import Exporter, StepCollector
from trainer_hooks.journal_writer import JournalWriter, create_attempt

EXPOSED = """\
# HELP sentinel_hook_errors_total Errors inside the hook that were kept from the training loop.
# TYPE sentinel_hook_errors_total counter
sentinel_hook_errors_total{run="tr8"} 2.0
# HELP sentinel_global_step Completed optimizer updates.
# TYPE sentinel_global_step gauge
sentinel_global_step{attempt="3",run="tr8"} 7.0
"""


def sample(step: int) -> Sample:
    return Sample(attempt=3, global_step=step, time_unix_s=1.0, loss=float(step), grad_norm=float("nan"), lr=step / 8)


def test_a_scrape_reads_as_prometheus_wants_it() -> None:
    registry = CollectorRegistry()
    registry.register(StepCollector("tr8", lambda: sample(7), lambda: 2))
    text = generate_latest(registry).decode()
    assert text.startswith(EXPOSED)
    assert 'sentinel_loss{attempt="3",run="tr8"} 7.0\n' in text
    assert 'sentinel_grad_norm{attempt="3",run="tr8"} NaN\n' in text
    assert "adam_variance_l1{" not in text  # not measured is absent, not zero
    assert "global_step=" not in text


def test_a_scrape_never_mixes_two_steps(tmp_path: Path) -> None:
    steps = iter(range(1, 10**9))
    collector = StepCollector("tr8", lambda: sample(next(steps)), lambda: 0)
    exporter = Exporter(collector, address="127.0.0.1", port=0)
    exporter.announce(tmp_path / "scrape.json", {"run": "tr8"})
    ((target,),) = [entry["targets"] for entry in json.loads((tmp_path / "scrape.json").read_text())]
    for _ in range(20):
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        values = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if "attempt=" in line}
        step = values["sentinel_global_step"]
        assert values["sentinel_loss"] == step
        assert values["sentinel_lr"] == step / 8
    exporter.close()


def test_nothing_listens_beyond_this_machine_unless_asked_to() -> None:
    exporter = Exporter(StepCollector("tr8", lambda: None, lambda: 0), address="127.0.0.1", port=0)
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert f"0100007F:{exporter.port:04X}" in listening
    assert f"00000000:{exporter.port:04X}" not in listening
    exporter.close()


def test_attempts_that_race_get_numbers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: create_attempt(tmp_path), range(64)))
    assert sorted(number for number, _ in made) == list(range(1, 65))
    for _, descriptor in made:
        os.close(descriptor)


def test_a_number_is_never_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "attempts"
    folder.mkdir()
    (folder / "0007.jsonl").touch()
    (folder / "notes.txt").touch()
    number, descriptor = create_attempt(tmp_path)
    os.close(descriptor)
    assert number == 8


def test_a_line_that_the_disk_cut_short_spoils_no_other(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: the write stops inside a line, and later there is room."""
    program = """
import resource, signal, sys, time
from pathlib import Path
from sentinel.vocabulary.sample import Sample, encode
from trainer_hooks.journal_writer import JournalWriter, create_attempt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, descriptor = create_attempt(Path(sys.argv[1]))
writer = JournalWriter(descriptor)
def put(step):
    writer.put(encode(Sample(attempt=1, global_step=step, time_unix_s=1.0, loss=1.0)))
    time.sleep(0.1)
put(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
put(2)
put(3)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(4)
writer.close()
print(writer.lost)
"""
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    journals = Journals(tmp_path)
    steps = [record.global_step for record in journals.poll() if isinstance(record, Sample)]
    assert (steps, int(ran.stdout), journals.unreadable) == ([1, 4], 2, 1)


def test_a_disk_that_hangs_fills_the_queue_and_no_more() -> None:
    reader, writer_end = os.pipe()
    writer = JournalWriter(writer_end)
    line = encode(sample(1))
    started = time.monotonic()
    for _ in range(12_000):
        writer.put(line)
    assert time.monotonic() - started < 2
    assert 1_000 < writer.lost < 2_100
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 1 << 16), b"")], daemon=True)
    drain.start()
    writer.close()
    drain.join(5)
    os.close(reader)
