"""`sentinel-data analyze`: builds the indexes that a curriculum draws by.

Over nodes, start it with torchrun (or with RANK and WORLD_SIZE set), with an --output that all nodes see.
"""
# ruff: noqa: T201 - a command answers by what it prints

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sentinel.vocabulary.errors import ConfigError, TemporaryError
from trainer_hooks.data.metrics import METRICS


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 the indexes are there, 2 wrong arguments or data, 3 try again."""
    settings = _parser().parse_args(argv)
    try:
        from trainer_hooks.data.analyze import Ranks, analyze
        from trainer_hooks.data.shards import Job
    except ModuleNotFoundError as error:
        print(
            f"sentinel-data: {error.name} is not installed; pip install 'training-sentinel[trainer]'", file=sys.stderr
        )
        return 2
    ranks = Ranks(rank=settings.rank, world=settings.world_size, patience_s=settings.patience_s)
    sys.path.insert(0, str(Path.cwd()))  # where a metric of the user's is looked for, as with `python -m`
    try:
        for metric in dict.fromkeys(METRICS.get(name, name) for name in settings.metric):
            job = Job(
                data=tuple(settings.data),
                seqlen=settings.seqlen,
                validation_share=settings.validation_share,
                pad=settings.pad,
                metric=metric,
                output=settings.output,
                shard_samples=settings.shard_samples,
            )
            folder = analyze(job, workers=settings.workers, ranks=ranks, out=None if settings.quiet else sys.stderr)
            if settings.deepspeed_format and ranks.rank == 0:
                from trainer_hooks.data.deepspeed_format import write_deepspeed
                from trainer_hooks.data.index import Index

                write_deepspeed(Index.load(folder), folder / "deepspeed", scale=settings.deepspeed_scale)
            if ranks.rank == 0:
                print(folder)
    except ConfigError as error:
        print(f"sentinel-data: {error}", file=sys.stderr)
        return 2
    except (TemporaryError, OSError) as error:
        print(f"sentinel-data: {error}", file=sys.stderr)
        return 3
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sentinel-data", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    analyze = commands.add_parser("analyze", help="build indexes", allow_abbrev=False)
    metrics = f"{', '.join(METRICS)}, or module:function of (batch, width) tokens; may be given several times"
    analyze.add_argument("--data", type=Path, nargs="*", default=[], help="what the trainer's --data is, or one .npy")
    analyze.add_argument("--metric", action="append", required=True, help=metrics)
    analyze.add_argument("--output", type=Path, required=True, help="folder of the indexes")
    analyze.add_argument("--seqlen", type=int, help="the trainer's full length, tokens; of packed data")
    analyze.add_argument("--validation-share", type=float, default=0.02, help="as the trainer has it")
    analyze.add_argument("--pad", type=int, help="the token that fills the rows of a .npy up")
    analyze.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    analyze.add_argument("--shard-samples", type=int, help="what is done, and kept, at once; default: about a second")
    analyze.add_argument("--deepspeed-format", action="store_true", help="also as DeepSpeed's own index files")
    analyze.add_argument("--deepspeed-scale", type=float, default=1.0, help="of the values there: whole numbers")
    analyze.add_argument("--rank", type=int, default=int(os.environ.get("RANK") or 0), help="default $RANK")
    analyze.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE") or 1))
    analyze.add_argument("--patience-s", type=float, default=1800.0, help="for other ranks that finish nothing")
    analyze.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
