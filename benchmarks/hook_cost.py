"""What it costs to measure Adam's state, beside reading it once, the peer's way, and the training step.

    python benchmarks/hook_cost.py [--quick] [--json] [--params 124M] [--repetitions 9]
    python benchmarks/hook_cost.py --megatron DIR    # the hook and the peer's own option in one training, as JSON

For a GPT of 10M, 124M and 1.3B parameters, whose AdamW has made two steps, in milliseconds:

- `floor`: one read of v, `flat.sum()` of all of it in one tensor.
- `ours`: `one_pass(pieces).variance()` with a piece for each parameter, by the kernel that would be chosen; and by each
  kernel that there is (chunked: torch's operations; native: C, on a CPU; triton: on CUDA).
- `peer`: what Microsoft's Megatron-DeepSpeed does with `--log-optimizer-states-to-tensorboard`, rebuilt from its
  description: twelve scalars, for each parameter fifteen host syncs and three temporaries of the parameter's size.
- `step`: forward, backward and AdamW (fused) of that GPT in plain torch, on one sample of full length (eight, in
  bfloat16, on CUDA). A real step has more of them, so the share of it is smaller.
- `more`: l1 and max together with further norms in the same pass (momentum alone, parameters alone, or both with the
  update's), beside one read of v, m and the parameters. They are for every K steps.
- `logits`: what the reference GPT's `report_logits` costs where it is read: the largest attention logit of each layer
  (the last 32 positions) and the largest output logit (every fourth position) of one micro-batch, every K steps. On a
  CPU these, qk_clip's, and the steps that they are a share of, are times of the processor.
- `forms`, on a CPU: what the hook's calls take of the training thread in a step, attached to a plain loop and to a
  DeepSpeed engine (ZeRO 0, fp32), which train the same GPT by turns; the gradient's norm included.
- `qk_clip`: what the rung of that name costs at each step: the largest logit of each head over all pairs of positions,
  and the scaling of the query and key weights.

On CUDA all of these are times of the device, between two events; `host_ms` is what launching `ours` takes of the host.
Repetitions of all of these are interleaved, and what is told is the median; on a machine with neighbours only ratios of
one run mean anything, and `best_ms` in the JSON has the fastest of each. Where there is not enough memory for a row's
gradients and state, v alone is made and measured: there is no step then, and the peer is given only that part of its
work that concerns v.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from benchmarks.gpu.timing import by_the_clock, launched, on_the_device
from benchmarks.hook_cost_forms import form_costs
from trainer_hooks.gpt.model import GPT, Block, Shape
from trainer_hooks.qk_clip import Attention, AttentionOverride
from trainer_hooks.sample.logits import Logits, largest_magnitude
from trainer_hooks.sample.one_pass import AdamConstants, Piece, native, one_pass
from trainer_hooks.sample.one_pass.chunked import Chunked

VOCABULARY = 50_257
SHAPES = {
    "0.4M": (Shape(layers=2, width=128, heads=4, seqlen=128), 256),
    "10M": (Shape(layers=6, width=384, heads=6, seqlen=256), 256),
    "124M": (Shape(layers=12, width=768, heads=12, seqlen=1024), VOCABULARY),
    "1.3B": (Shape(layers=24, width=2048, heads=16, seqlen=2048), VOCABULARY),
    "7B": (Shape(layers=32, width=4096, heads=32, seqlen=2048), VOCABULARY),
}
WORTH_MEASURING = ("10M", "124M", "1.3B")
"""The smallest only shows that the program runs; the largest is for a GPU of 80 GB."""

CONSTANTS = [AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=2)]

WITH_A_STEP, V_ALONE = 5.0, 2.3
"""Times the parameters' bytes: parameters, gradients, m, v and its flat copy; or v, its flat copy and temporaries."""


WITH_FORMS, FORM_STEPS = 12.0, 8
"""Two trainings beside what is there, and how many steps of each."""

STEPS = 3
"""A step takes hundreds of times as long as what it is compared with, and varies less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is measured: of each parameter v, and where memory allows m, the parameter and a step to make."""

    v: list[Tensor]
    m: list[Tensor] | None = None
    parameters: list[Tensor] | None = None
    step: Callable[[], object] | None = None
    step_tokens: int = 0
    logits: Sequence[Logits] = ()  # what the model has reported in a step
    clip: Callable[[], object] | None = None  # QK-clip's part of a step


def trained(name: str, device: torch.device) -> State:
    """A GPT after two steps."""
    shape, vocabulary = SHAPES[name]
    torch.manual_seed(0)
    model = GPT(shape, vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    samples = 1 if device.type == "cpu" else 8
    tokens = torch.randint(vocabulary, (samples, shape.seqlen + 1), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    reported: list[Logits] = []
    step()
    model.report_logits_to(lambda **given: reported.extend(given.values()))
    step()
    model.report_logits_to(lambda **_: None)
    clip = _clip(model, optimizer, step)
    parameters = [p for p in model.parameters() if p in optimizer.state]
    return State(
        v=[optimizer.state[p]["exp_avg_sq"] for p in parameters],
        m=[optimizer.state[p]["exp_avg"] for p in parameters],
        parameters=[p.detach() for p in parameters],
        step=step,
        step_tokens=samples * shape.seqlen,
        logits=reported,
        clip=clip,
    )


def _clip(model: GPT, optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> Callable[[], None]:
    """What QK-clip does of the queries and keys of one step."""
    heads: dict[int, tuple[Tensor, Tensor, float]] = {}
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for number, block in enumerate(blocks):
        block.heads_seen = lambda q, k, scale, number=number: heads.__setitem__(number, (q.detach(), k.detach(), scale))
    step()
    for block in blocks:
        block.heads_seen = None
    layers = [Attention.fused(block.qkv, block.heads) for block in blocks]
    aside = torch.optim.SGD(model.parameters(), lr=0.0)
    override = AttentionOverride(SimpleNamespace(module=model, optimizer=aside), layers, qk_clip=100.0, lr_factor_of={})

    def clip() -> None:
        for number, (q, k, scale) in heads.items():
            override.seen(number, q, k, scale)
        override.update_coming(optimizer)
        override.update_made(optimizer)

    return clip


def alone(name: str, device: torch.device) -> State:
    """v of the same shapes, and nothing else."""
    with torch.device("meta"):
        shapes = [p.shape for p in GPT(*SHAPES[name]).parameters()]
    numbers = torch.Generator(device).manual_seed(0)
    return State(v=[torch.rand(shape, device=device, generator=numbers).mul_(1e-6) for shape in shapes])


def peer(state: State) -> list[float]:
    """The peer's twelve scalars: by l2 and l1 norm and largest magnitude, of v, sqrt(v), m and the parameters.

    Per parameter, each number fetched by itself; the l2 norms are added as squares.
    """
    squares, sums, largest = [0.0] * 4, [0.0] * 4, [0.0] * 4
    for number, v in enumerate(state.v):
        squares[0] += torch.norm(v).item() ** 2
        squares[1] += torch.norm(v.sqrt()).item() ** 2
        sums[0] += torch.norm(v, p=1).item()
        sums[1] += torch.norm(v.sqrt(), p=1).item()
        largest[0] = max(largest[0], abs(v.max().item()), abs(v.min().item()))
        largest[1] = max(largest[1], v.sqrt().abs_().max().item())
        if state.m is None or state.parameters is None:
            continue
        for place, x in ((2, state.m[number]), (3, state.parameters[number])):
            squares[place] += torch.norm(x).item() ** 2
            sums[place] += torch.norm(x, p=1).item()
            largest[place] = max(largest[place], abs(x.max().item()), abs(x.min().item()))
    return [*squares, *sums, *largest]


def pieces(v: Sequence[Tensor], m: Sequence[Tensor] | None = None, p: Sequence[Tensor] | None = None) -> list[Piece]:
    """One for each parameter."""
    return [
        Piece(
            exp_avg_sq=v[n].reshape(-1),
            exp_avg=None if m is None else m[n].reshape(-1),
            parameter=None if p is None else p[n].reshape(-1),
        )
        for n in range(len(v))
    ]


def subjects(state: State) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    flat = torch.cat([v.reshape(-1) for v in state.v])
    of_v = pieces(state.v)
    chosen = one_pass(of_v)
    timed: dict[str, Callable[[], object]] = {"floor": flat.sum, chosen.name: chosen.variance}
    if chosen.name != "chunked":
        timed["chunked"] = Chunked(of_v).variance
    timed["peer"] = lambda: peer(state)
    if state.step is not None:
        timed["step"] = state.step
    if (m := state.m) is not None and (p := state.parameters) is not None:
        timed["more floor"] = lambda: [x.sum() for of in (state.v, m, p) for x in of]
        for name, with_m, with_p in (("momentum", m, None), ("parameters", None, p), ("all", m, p)):
            more = one_pass(pieces(state.v, with_m, with_p))
            timed[f"more {name}"] = lambda more=more: more.moments(CONSTANTS)  # type: ignore[misc]
    return timed


def interleaved(
    timed: dict[str, Callable[[], object]], repetitions: int, device: torch.device
) -> dict[str, list[float]]:
    """What each took, ms: on a CPU by the clock, on CUDA between two events on the device."""
    once = on_the_device if device.type == "cuda" else by_the_clock
    took: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(repetitions):
        for name, what in timed.items():
            if name == "step" and number >= STEPS:
                continue
            took[name].append(once(what))
    return took


def logits_cost(state: State, repetitions: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of reading the logits, and of a step; empty where no step was made."""
    if state.step is None:
        return {}
    once = on_the_device if device.type == "cuda" else _of_the_processor
    taken = [once(lambda: [largest_magnitude(one) for one in state.logits]) for _ in range(1 + repetitions)]
    steps = [once(state.step) for _ in range(STEPS)]
    clipped = [once(state.clip) for _ in range(1 + repetitions)] if state.clip is not None else [math.nan, math.nan]
    ms = {"logits_ms": taken, "qk_clip_ms": clipped, "step_ms": steps}
    return {what: statistics.median(times[what != "step_ms" :]) for what, times in ms.items()}


def _of_the_processor(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return 1e3 * (time.process_time() - began)


def row(name: str, device: torch.device, repetitions: int) -> dict[str, Any] | None:
    """One size's figures; None where not even v has room."""
    with torch.device("meta"):
        params = sum(p.numel() for p in GPT(*SHAPES[name]).parameters())
    room = _free_bytes(device) / (4 * params)
    if room < V_ALONE:
        return None
    state = trained(name, device) if room > WITH_A_STEP else alone(name, device)
    timed = subjects(state)
    for what, call in timed.items():
        if what != "step":
            call()  # what is done for the first time is not what a step pays
    took = interleaved(timed, repetitions, device)
    ms = {what: statistics.median(times) for what, times in took.items()}
    chosen = next(kernel for kernel in ("native", "triton", "chunked") if kernel in ms)
    return {
        "params": params,
        "name": name,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "pieces": len(state.v),
        "floor_ms": ms["floor"],
        "ours_ms": ms[chosen],
        "peer_ms": ms["peer"],
        "step_ms": ms.get("step"),
        "step_tokens": state.step_tokens,
        "logits": logits_cost(state, repetitions, device),
        "kernel": chosen,
        "kernels_ms": {kernel: ms[kernel] for kernel in ("chunked", "native", "triton") if kernel in ms},
        "host_ms": launched(timed[chosen], repetitions) if device.type == "cuda" else None,
        "best_ms": {what: min(times) for what, times in took.items()},
        "peer_has": "v, m and parameters" if state.m is not None else "v alone",
        "forms": form_costs(*SHAPES[name], FORM_STEPS) if device.type == "cpu" and room > WITH_FORMS else {},
        "more_ms": {what.removeprefix("more "): took for what, took in ms.items() if what.startswith("more ")},
    }


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with open("/proc/meminfo") as lines:  # noqa: PTH123 - one line of a file that is none
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def attach_costs() -> dict[str, float]:
    """Once for each process: seconds to compile and to check the kernel of the CPU; empty where there is none."""
    if native.kernel() is None:
        return {}
    began = time.perf_counter()
    kernel = native.compiled(native.source())
    compiled = time.perf_counter()
    native.checked(kernel)
    return {"compile_s": compiled - began, "check_s": time.perf_counter() - compiled}


def show(answer: dict[str, Any]) -> None:
    """The tables."""
    head = ("params", "what", "ms", "x floor", "peer / it", "% of step")
    print(f"{head[0]:>7} {head[1]:>20} {head[2]:>10} {head[3]:>8} {head[4]:>10} {head[5]:>10}")
    for of in answer["rows"]:
        lines = {"floor": of["floor_ms"]}
        lines |= {f"ours, {kernel}": ms for kernel, ms in of["kernels_ms"].items()}
        lines |= {"peer" if of["step_ms"] else "peer, v alone": of["peer_ms"]}
        lines |= {f"step, {of['step_tokens']} tokens" if of["step_ms"] else "step": of["step_ms"]}
        for what, ms in lines.items():
            if ms is None:
                print(f"{of['name']:>7} {what:>20} {'not run: not enough memory':>10}")
                continue
            share = f"{100 * ms / of['step_ms']:10.2f}" if of["step_ms"] else f"{'':>10}"
            print(
                f"{of['name']:>7} {what:>20} {ms:10.3f} {ms / of['floor_ms']:8.2f} {of['peer_ms'] / ms:10.1f} {share}"
            )
    print("\nmore norms in the same pass, every K steps: ms, times one read of what they read, % of the step")
    for of in answer["rows"]:
        more, step = of["more_ms"], of["step_ms"]
        for what, ms in more.items():
            extra = ms - of["ours_ms"]
            shares = (
                "" if what == "floor" else "".join(f"  K={k}: +{100 * extra / k / step:.3f} %" for k in (1, 10, 100))
            )
            print(f"{of['name']:>7} {what:>20} {ms:10.3f} {ms / more['floor']:8.2f} {shares}")
    print("\nlargest logits, every K steps: ms, % of the step")
    for of in answer["rows"]:
        if logits := of["logits"]:
            share = 100 * logits["logits_ms"] / logits["step_ms"]
            shares = "".join(f"  K={k}: +{share / k:.4f} %" for k in (1, 10, 100))
            print(f"{of['name']:>7} {'logits':>20} {logits['logits_ms']:10.3f} {shares}")
            share = 100 * logits["qk_clip_ms"] / logits["step_ms"]
            print(f"{of['name']:>7} {'qk_clip, every step':>20} {logits['qk_clip_ms']:10.3f}   +{share:.4f} %")
    print("\nthe hook's calls in a step, by what it is attached to: ms, % of the step")
    for of in answer["rows"]:
        for form, took in of["forms"].items():
            print(
                f"{of['name']:>7} {form:>20} {took['hook_ms']:10.3f}   {100 * took['hook_ms'] / took['step_ms']:.3f} %"
            )
    if answer["attach"]:
        print("\nonce, at attach: " + ", ".join(f"{what} {s:.2f}" for what, s in answer["attach"].items()))
    for name in answer["left_out"]:
        print(f"{name}: left out, not enough memory")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10M parameters, few repetitions: ten seconds")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--params", action="append", choices=list(SHAPES), help="only this size; may be repeated")
    parser.add_argument("--repetitions", type=int, help="of each, interleaved")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--megatron", type=Path, metavar="DIR", help="in a training with Megatron-DeepSpeed there")
    asked = parser.parse_args()
    if asked.megatron is not None:
        from benchmarks.hook_cost_megatron import in_megatron

        print(json.dumps(in_megatron(asked.megatron)))
        return
    device = torch.device(asked.device)
    names = asked.params or (["10M"] if asked.quick else list(WORTH_MEASURING))
    repetitions = asked.repetitions or (5 if asked.quick else 9 if device.type == "cpu" else 40)
    rows = {name: row(name, device, repetitions) for name in names}
    answer = {
        "rows": [of for of in rows.values() if of is not None],
        "left_out": [name for name, of in rows.items() if of is None],
        "attach": attach_costs() if device.type == "cpu" else {},
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    if asked.json:
        print(json.dumps(answer))
    else:
        show(answer)


if __name__ == "__main__":
    sys.exit(main())
