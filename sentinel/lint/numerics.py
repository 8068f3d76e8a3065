"""Optimizer and precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sentinel.jobscript.facts import ScriptFacts
from sentinel.lint.finding import Remark, big, error, note, warning
from sentinel.vocabulary.pacing import BILLION


def beta2(facts: ScriptFacts, size: float | None = None) -> Iterator[Remark]:
    """Adam's beta2: 0.95 at 10B parameters and more; above 0.98 a warning there. Not below 1 is an error.

    GPT-3, OPT, tr11 and LLaMA have 0.95. tr8 began with 0.999; 0.95 made it learn faster, and did not cure it alone.

    Source: Brown et al. 2020, appendix B; tr8-104B chronicle, experiment 4.
    """
    for name, value in (("beta1", facts.adam_beta1), ("beta2", facts.adam_beta2)):
        if value is not None and value >= 1:
            yield error(f"Adam's {name} is {value:g}: it should be below 1")
    if facts.adam_beta2 is None or size is None or size < 10 * BILLION:
        return
    if 0.98 < facts.adam_beta2 < 1:
        yield warning(
            f"Adam's beta2 is {facts.adam_beta2:g} at {big(size)} parameters: say --adam-beta2 0.95, as GPT-3, "
            "from the first step on"
        )


def gradient_clipping(clip_grad: float) -> Iterator[Remark]:
    """Gradients clipped at a norm of 1.

    Source: Brown et al. 2020, appendix B; Li, Zhang & He 2022, appendix A.3.2, for what less than 1 does not do.
    """
    if clip_grad == 0:
        yield warning("gradients are not clipped: --clip-grad 1.0 is usual")
    elif clip_grad > 1:
        yield note(f"gradients are clipped at {clip_grad:g}: 1.0 is usual")


def half_precision(precision: str, size: float) -> Iterator[Remark]:
    """fp16 at 100B parameters and more: bf16, where the GPUs have it, has no loss scale to lose.

    Source: tr8-104B chronicle, "Megatron-Turing NLG 530B"; tr11-176B (bf16).
    """
    if precision == "fp16" and size >= 100 * BILLION:
        yield note(f"{big(size)} parameters in fp16: say --bf16 where the GPUs have it (A100 and later)")


def loss_scale(facts: ScriptFacts) -> Iterator[Remark]:
    """fp16's loss scale: dynamic, and begun near where it will be.

    A static one can't come down when gradients overflow. From 2^32, Megatron's default, each halving is a skipped
    step; tr8 began at 2^12, and later stood between 2^11 and, in tr8b, 2^19.

    Source: Micikevicius et al. 2017, section 3.2 (arXiv:1710.03740); tr8-104B chronicle, experiment 1.
    """
    if facts.precision != "fp16":
        return
    if facts.static_loss_scale is not None:
        yield warning(
            f"the loss scale is fixed at {facts.static_loss_scale:g}: gradients that overflow it are lost, "
            "step after step; let it be dynamic (loss_scale 0 in the DeepSpeed JSON)"
        )
    elif facts.initial_loss_scale is not None and facts.initial_loss_scale > 2**16:
        power = math.log2(facts.initial_loss_scale)
        yield note(
            f"the loss scale begins at 2^{power:.0f}: about {power - 16:.0f} steps are skipped, at each start that "
            "does not restore it, before it is near 2^16; begin there"
        )
