"""`python -m trainer_hooks.gpt.texts`: what stood in the samples that an attempt consumed, for the triage page."""
# ruff: noqa: T201 - the texts are what it prints

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sentinel.vocabulary.errors import DataError, LineError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunStarted, decode
from trainer_hooks.gpt.arguments import shape
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.gpt.order import DataOrder, Reseed

_BYTES = 128  # vocabulary of the trainer's own text corpora: a token is an ASCII byte


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 wrong arguments, or an order that the journals do not tell."""
    parser = argparse.ArgumentParser(prog="python -m trainer_hooks.gpt.texts", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="The run's state folder.")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="Position in the data order: consumed_samples before.")
    parser.add_argument("--after-last", type=int, required=True)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="What the trainer had; default: the same.")
    options = parser.parse_args(arguments)
    try:
        starts = _line_of_descent(options.state_dir, options.attempt)
        for position, text in texts(starts, options.data, options.first, options.after_last):
            print(dump_json({"position": position, "text": text}))
    except (DataError, LineError, OSError) as error:
        print(f"texts: {error}", file=sys.stderr)
        return 2
    return 0


def texts(starts: Sequence[RunStarted], data: Sequence[Path], first: int, after_last: int) -> list[tuple[int, str]]:
    """(position, text) of each position, by what the attempts reported at their starts, the first ancestor first.
    DataError where that does not tell the order: a curriculum's, or samples that were left out."""
    newest = starts[-1]
    if newest.skipped_samples or (newest.curriculum_schedule or {}).get("metrics"):
        raise DataError("samples were skipped or a curriculum drew them: the journals do not tell their order")
    settings = argparse.Namespace(**newest.settings)
    corpus = load_corpus(
        data,
        seqlen=shape(settings).seqlen,
        vocabulary=settings.vocabulary,
        validation_share=settings.validation_share,
    )
    order = DataOrder(corpus.training_samples, settings.seed, _reseeds(starts))
    positions = range(first, after_last)
    tokens = corpus.training(order.at(positions))
    # The characters, where tokens are bytes; else the tokens' numbers, as only their tokenizer knows more.
    of_bytes = corpus.vocabulary == _BYTES
    shown = (bytes(row).decode("ascii") if of_bytes else " ".join(map(str, row)) for row in tokens.tolist())
    return list(zip(positions, shown, strict=True))


def _reseeds(starts: Sequence[RunStarted]) -> tuple[Reseed, ...]:
    """Each seed from the position on at which an attempt first had it."""
    found: list[Reseed] = []
    for start in starts:
        if start.seed is None or start.first_sample_index is None:
            raise DataError(f"attempt {start.attempt} did not report its seed and its position")
        if not found or found[-1][1] != start.seed:
            found.append((start.first_sample_index if found else 0, start.seed))
    return tuple(found)


def _line_of_descent(state_dir: Path, attempt: int) -> list[RunStarted]:
    starts: list[RunStarted] = []
    number: int | None = attempt
    while number is not None:
        path = state_dir / "attempts" / f"{number:04d}.jsonl"
        with path.open(encoding="utf-8") as lines:
            started = next((one for one in map(decode, lines) if isinstance(one, RunStarted)), None)
        if started is None:
            raise DataError(f"{path} does not say what the attempt ran with")
        starts.append(started)
        parent = started.parent_attempt
        number = parent if parent is not None and parent < number else None
    return starts[::-1]


if __name__ == "__main__":
    sys.exit(main())
