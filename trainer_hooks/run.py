"""Runs a training command with the hook attached to each Trainer of Hugging Face or Lightning that trains.

    python -m trainer_hooks.run --run tr8 -- llamafactory-cli train x.yaml
    python -m trainer_hooks.run --run tr8 -- torchrun --nproc_per_node 8 train.py
    python -m trainer_hooks.run --run tr8 -- -m my_package.train

This process becomes the command: its exit code, signals, input and output are the command's own. Two environment
variables go with it, to all processes that it starts: SENTINEL_ATTACH, and PYTHONPATH with a folder whose
`sitecustomize.py` looks for the Trainers. A Python without these variables, or started with -I, -E or -S, is not
watched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer_hooks.integrations.on_import import VARIABLE

STARTUP = Path(__file__).parent / "startup"


def main(arguments: Sequence[str]) -> int:
    """The exit code where the command can't be started: 127 not found, 126 not executable. Else it does not return."""
    parser = _parser()
    before, after = _at_dashes(arguments)
    options = parser.parse_args(before)
    if not after:
        parser.error("no command after --")
    sys.stdout.flush()
    program, *rest = _program(after)
    try:
        os.execvpe(program, [program, *rest], os.environ | _variables(options))  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"trainer_hooks.run: {after[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127 if isinstance(error, FileNotFoundError) else 126


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_hooks.run",
        usage="python -m trainer_hooks.run --run NAME [options] -- COMMAND ...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", required=True, metavar="NAME")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="else SENTINEL_STATE_DIR, else ./.sentinel/NAME")
    parser.add_argument("--full-seqlen", type=int, metavar="TOKENS", help="length of the samples; SLW needs it")
    parser.add_argument("--validation-metric", metavar="NAME", help="of evaluate(); else eval_loss")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint-N at each start")
    parser.add_argument("--address", help="where /metrics listens; else 127.0.0.1")
    parser.add_argument("--port", type=int, help="of /metrics; else a free one")
    parser.add_argument("--announce", metavar="FILE", help="file that announces /metrics to Prometheus")
    return parser


def _at_dashes(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _program(command: Sequence[str]) -> list[str]:
    """The command as it is started: by this Python a script or Python's own options; a program first from beside this
    Python, where the console scripts of its packages are."""
    first, *rest = command
    if first.startswith("-") or first.endswith(".py"):
        return [sys.executable, *command]
    beside = None if os.sep in first else shutil.which(first, path=str(Path(sys.executable).parent))
    return [beside or first, *rest]


def _variables(options: argparse.Namespace) -> Mapping[str, str]:
    given = {name: value for name, value in vars(options).items() if value not in (None, False)}
    if options.state_dir is not None:
        given["state_dir"] = str(options.state_dir.absolute())  # the program may change its folder
    path = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: json.dumps(given), "PYTHONPATH": os.pathsep.join(path)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
