"""Feeds the readers with whatever a coverage-guided fuzzer (atheris) makes of real lines; ends at the first traceback.

    python tests/sources/fuzz.py FORMAT|all RUNS [SEED]

The first byte of an input chooses the format where it is `all`; the rest is a log, followed in two pieces.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sentinel.sources", "sentinel.jobscript.megatron_log"]):
    from sentinel.sources.file_bytes import LineSplitter
    from sentinel.sources.line_formats import FORMATS, format_named
    from sentinel.sources.log_file import LineReader
from sentinel.vocabulary.sample import decode, encode

DATA = Path(__file__).parents[1] / "data"


def seeds(folder: Path) -> None:
    """Every recorded line, and every recorded log's beginning, under every format."""
    count = 0
    for path in (*(DATA / "log_samples").glob("*.log"), *(DATA / "megatron_logs").glob("*.log")):
        content = path.read_bytes()
        lines = content.splitlines()
        for piece in (content[:4000], *lines[:6], b"\n".join(lines[1:4])):
            for which in range(len(FORMATS)):
                if which == count % len(FORMATS) or len(piece) == 4000:
                    (folder / str(count)).write_bytes(bytes([which]) + piece)
            count += 1


def main(chosen: str, runs: int, seed: int) -> None:
    """Runs the fuzzer; it exits the process."""
    fixed = None if chosen == "all" else format_named(chosen)

    def one_input(data: bytes) -> None:
        line_format = fixed or FORMATS[data[0] % len(FORMATS) if data else 0]
        reader, splitter = LineReader(line_format), LineSplitter()
        half = len(data) // 2
        records = []
        for number, line in [*splitter.feed(data[1:half]), *splitter.feed(data[half:]), *splitter.end()]:
            records += reader.feed(line, number)
        for record in records + reader.end():
            if decode(encode(record)) is None:
                raise AssertionError(record)
        if reader.unreadable + reader.foreign > reader.lines:
            raise AssertionError(reader.lines)

    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        flags = [f"-atheris_runs={runs}", f"-seed={seed}", "-max_len=5000", "-verbosity=0", "-timeout=20"]
        atheris.Setup([sys.argv[0], *flags, corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
