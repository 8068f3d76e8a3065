"""Measures the cases of one part: `python -m benchmarks.gpu.worker PART SETTING`. Started by running.py.

Prints {"begin": case} before each case, then {"case", "row"} or {"case", "failed"}. What else is printed is a log.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from pathlib import Path

from sentinel.vocabulary.numbers import dump_json, load_object

from .parts import PARTS
from .setting import Row, Setting

__all__ = ["main"]


def main() -> int:
    """Exit code 0 when every case was tried; 1 when the device can't be used any more: a new process goes on."""
    name, given = sys.argv[1], load_object(sys.argv[2])
    setting = Setting(
        device=given["device"],
        quick=given["quick"],
        folder=Path(given["folder"]),
        until=time.monotonic() + given["seconds"],
    )
    for case, measure in PARTS[name].cases(setting).items():
        if case in given["leave_out"]:
            continue
        _tell({"begin": case})
        try:
            _tell({"case": case, "row": measure()})
        except Exception as error:  # noqa: BLE001 - a case that fails is a row that says so
            traceback.print_exc()
            _tell({"case": case, "failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
            if "CUDA error" in str(error):  # nothing that follows in this process would work
                return 1
        _free()
    return 0


def _free() -> None:
    """What a case leaves behind: engines and models hold themselves in cycles."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _tell(row: Row) -> None:
    print("\n" + dump_json(row), flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # see trainer_hooks.gpt.__main__.leave
