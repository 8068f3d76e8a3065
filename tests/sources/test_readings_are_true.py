"""Recorded logs against an independent parse: a regular expression for each file, and no code of the readers."""

from __future__ import annotations

import math
import re

import pytest

from tests.sources.reading import SAMPLES, recorded, samples

_STEP, _LOSS = r"(?P<step>\d+)", r"(?P<loss>[\d.][\d.eE+-]*)"
_MEGATRON = rf"iteration[: ]\s*{_STEP}\s*/[^\n]*?lm loss: {_LOSS}"
_FAIRSEQ = rf'train_inner \| \{{[^\n]*?"loss": "{_LOSS}"[^\n]*?"num_updates": "{_STEP}"'
_BLOCK = rf"(?s)(?:step|batch)={_STEP}[/,].*?(?:Train \S*LanguageCrossEntropy|train/CrossEntropyLoss)\s*[:=]\s*{_LOSS}"

TRUTH: dict[str, str] = {
    **dict.fromkeys(
        (
            *(f"bigscience_{name}" for name in ("exp_meg-ds-3d_ds-off", "exp_meg_gpt2_base_n8", "tr1-13B_README")),
            *(f"bigscience_{name}_chronicles" for name in ("tr1-13B", "tr11-176B", "tr8-104B-wide", "tr8b-104B")),
            *(f"bigscience_tr11-176B_{name}" for name in ("README", "prequel", "reshaping-log")),
            *("megatron_lm_new", "megatron_deepspeed_alcf", "megatron_nan_lmloss_missing"),
        ),
        _MEGATRON,
    ),
    "megatron_2019_nocolon": rf"iteration\s+{_STEP}/[^\n]*?lm loss {_LOSS}",
    "megatron_alcf_keyvalue": rf"iteration=\s*{_STEP}/[^\n]*?lm loss=\s*{_LOSS}",
    "gpt_neox": rf"iteration\s+{_STEP}/[^\n]*?lm_loss: {_LOSS}",
    "nanotron": rf"iteration: {_STEP} / [^\n]*?lm_loss: {_LOSS}",
    "nemo2": rf"global_step: {_STEP} [^\n]*?reduced_train_loss: {_LOSS}",
    "fairseq_train_inner": _FAIRSEQ,
    "metaseq_train_inner": _FAIRSEQ,
    "torchtitan": rf"step:\s+{_STEP}\s+[^\n]*?loss:\s+{_LOSS}",
    "composer": _BLOCK,
    "olmo": _BLOCK,
    "litgpt": rf"step {_STEP}\D[^\n]*?(?:loss train|train loss|loss):? {_LOSS}[^\n]*\(step\)",
    "dllogger_bert": rf"Iteration: {_STEP} [^\n]*step_loss : {_LOSS}",
    "mlx_lora": rf"Iter {_STEP}: Train loss {_LOSS}",
    "nanogpt_generic": rf"iter {_STEP}: loss {_LOSS}",
    "minimind": rf"\({_STEP}/\d+\)[^\n]*?logits_loss: {_LOSS}",
    "dion_jsonl": rf'"train/loss": {_LOSS},[^\n]*"step": {_STEP}',
    "gnmt": rf"TRAIN \[\d+\]\[{_STEP}/[^\n]*?Loss/tok {_LOSS}",
    "mlperf": rf'"train_loss", "value": {_LOSS}[^\n]*?"samples_count": {_STEP}',
    "tinygrad": rf"^ +{_STEP} [\d.]+ s run, {_LOSS} loss",
    "modded-nanogpt": rf"^{_STEP}/20000 train_loss: {_LOSS}",
}
FROM_ZERO = ("nemo2", "nanogpt_generic", "gnmt", "mlperf")
IN_BITS = ("fairseq_train_inner", "metaseq_train_inner")
PER_EPOCH = {"gnmt": 60, "minimind": 20}
SAMPLES_A_STEP = {"mlperf": 32}


def parsed(name: str) -> list[tuple[int, float]]:
    """Step and loss in the order of the file; of neighbouring lines of one step (ranks, copies) the first."""
    text = (SAMPLES / f"{name}.log").read_text(errors="replace")
    pairs: list[tuple[int, float]] = []
    passed = last = 0
    for one in re.finditer(TRUTH[name], text, re.MULTILINE):
        step = int(one["step"]) // SAMPLES_A_STEP.get(name, 1)
        if step < last:
            passed += PER_EPOCH.get(name, 0)
        last = step
        pair = (step + passed + (name in FROM_ZERO), float(one["loss"]) * (math.log(2) if name in IN_BITS else 1))
        if not pairs or pairs[-1] != pair:
            pairs.append(pair)
    return pairs


@pytest.mark.parametrize("name", TRUTH)
def test_steps_and_losses_are_those_of_an_independent_parse(name: str) -> None:
    read = [(one.global_step, one.loss) for one in samples(recorded(name)) if not math.isnan(one.loss)]
    true = parsed(name)
    assert len(true) > 0
    assert [step for step, _ in read] == [step for step, _ in true]
    assert sum(loss for _, loss in read) == pytest.approx(sum(loss for _, loss in true))
