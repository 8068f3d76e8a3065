"""`hook_cost.py --megatron DIR`: the hook and the peer's own option in one training of Megatron-DeepSpeed."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.megatron.fork import Fork

_STEPS, _LEFT_OUT = 30, 5  # the first steps compile and allocate
_MODEL = "--num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256"
_OPTIONS = (
    f"{_MODEL} --lr 1e-4 --lr-decay-style constant --train-iters {_STEPS} --seed 7 --tensorboard-dir tb "
    "--log-optimizer-states-to-tensorboard"
)
_OPTION = re.compile(r"( +)if args\.log_optimizer_states_to_tensorboard and optimizer is not None:\n(?:\1 .*\n|\s*\n)+")
_ATTACHED = re.compile(r"( +)_SENTINEL = attach_to_megatron\(.*\)\n")
_CLOCK = """
import atexit as _atexit, json as _json, time as _time
_COST = {"ours": [], "peer": []}
def _timed(call):
    def wrapped():
        begun = _time.perf_counter()
        call()
        _COST["ours"].append(_time.perf_counter() - begun)
    return wrapped
_atexit.register(lambda: print("SENTINEL COST", _json.dumps(_COST), flush=True))
"""


def in_megatron(source: Path) -> dict[str, Any]:
    """Medians over the steps, ms: of a step, of the hook in it, and of `--log-optimizer-states-to-tensorboard`."""
    with tempfile.TemporaryDirectory() as folder:
        fork = Fork(source, Path(folder))
        training = fork.root / "megatron" / "training.py"
        text = training.read_text()
        after = "_COST['peer'].append(_time.perf_counter() - _begun)"
        text, once = _OPTION.subn(lambda m: f"{m[1]}_begun = _time.perf_counter()\n{m[0]}{m[1]}{after}\n", text)
        text, attached = _ATTACHED.subn(
            lambda m: f"{m[0]}{m[1]}_SENTINEL.hook.step_made = _timed(_SENTINEL.hook.step_made)\n", text
        )
        if (once, attached) != (1, 1):
            raise SystemExit(f"{training}: found the option's block {once} times and the hook's line {attached} times")
        training.write_text(text.replace("\n_SENTINEL = None\n", f"\n_SENTINEL = None\n{_CLOCK}", 1))
        printed = fork.train(fork.script(_OPTIONS), SENTINEL_STATE_DIR=str(Path(folder) / "state"))
    found = re.search(r"SENTINEL COST (\{.*\})", printed)
    if found is None:
        raise SystemExit("the training did not print its costs")
    costs = {name: [1e3 * s for s in seconds[_LEFT_OUT:]] for name, seconds in json.loads(found[1]).items()}
    steps = [float(ms) for ms in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", printed)][_LEFT_OUT:]
    parameters = re.search(r"number of parameters on .*?: (\d+)", printed)
    return {
        "params": int(parameters[1]) if parameters else None,
        "steps": len(steps),
        "step_ms": statistics.median(steps),
        "ours_ms": statistics.median(costs["ours"]),
        "peer_ms": statistics.median(costs["peer"]),
    }
