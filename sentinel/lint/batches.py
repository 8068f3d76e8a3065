"""How the model and the batch are divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.jobscript.derived import batch_schedule
from sentinel.jobscript.facts import BatchRamp, DeepSpeedJson, ScriptFacts
from sentinel.lint.finding import Remark, error, note, warning


def ranks_divide_into_replicas(facts: ScriptFacts, world: int, tensor: int, stages: int) -> Iterator[Remark]:
    """World size % (tensor x pipeline x context parallel size) = 0.

    Source: Megatron-LM, megatron/arguments.py.
    """
    one = tensor * stages * (facts.context_parallel_size or 1)
    if world % one:
        fits = f"{world // one * one} or {-(-world // one) * one}" if world > one else f"at least {one}"
        yield error(
            f"{world} ranks can't be divided into replicas of {one} (tensor {tensor} x pipeline {stages}): "
            f"it takes {fits}"
        )


def tensor_parallel_in_a_node(tensor: int, gpus_per_node: int) -> Iterator[Remark]:
    """Tensor parallel size of at most the GPUs of a node: each layer waits for its all-reduce.

    Source: Narayanan et al. 2021, section 3.2, takeaway 1 (arXiv:2104.04473); tr8-104B chronicle, experiment 6.
    """
    if tensor > gpus_per_node:
        yield warning(
            f"tensor parallel size {tensor} reaches over nodes of {gpus_per_node} GPUs: {gpus_per_node} is the most "
            "that stays within one; use more pipeline stages instead"
        )


def tensor_parallel_divides(facts: ScriptFacts, tensor: int) -> Iterator[Remark]:
    """Heads, hidden and FFN width are multiples of the tensor parallel size.

    Source: Megatron-LM, megatron/model/transformer.py and megatron/core/utils.py (`divide`).
    """
    for name, value in (
        ("attention heads", facts.num_attention_heads),
        ("hidden_size", facts.hidden_size),
        ("ffn_hidden_size", facts.ffn_hidden_size),
    ):
        if value is not None and value % tensor:
            fits = -(-value // tensor) * tensor
            yield error(f"{name} {value} can't be split over {tensor} tensor parallel ranks: {fits} can")


def layers_and_stages(layers: int, stages: int, method: str | None = None) -> Iterator[Remark]:
    """Layers % pipeline stages = 0; with the embeddings counted as layers where DeepSpeed cuts by them, too.

    tr11-176B: 70 layers and two embeddings over 12 stages, `type:transformer|embedding`. Where DeepSpeed cuts, an
    uneven cut runs, and all stages wait for the largest one.

    Source: Megatron-LM, megatron/model/transformer.py; tr11-176B README.
    """
    if stages == 1:
        return
    parts = layers + (2 if method is not None and "embedding" in method else 0)
    counted = f"{layers} layers" if parts == layers else f"{layers} layers and 2 embeddings"
    near = sorted({parts // stages * stages or stages, -(-parts // stages) * stages})
    fits = " or ".join(str(each - parts + layers) for each in near)
    if parts < stages:
        yield error(f"{counted} are fewer than {stages} pipeline stages: it takes at most {parts} stages")
    elif parts % stages and method is None:
        yield error(f"{counted} can't be divided over {stages} pipeline stages: {fits} layers can")
    elif parts % stages:
        largest = -(-parts // stages)
        yield warning(
            f"{counted} over {stages} pipeline stages: all wait for those with {largest}, of "
            f"{parts / stages:.3g} on average; {fits} layers divide evenly"
        )


def batch_divides(batch: int, micro: int, copies: int | None = None) -> Iterator[Remark]:
    """Global batch % (replicas x micro-batch) = 0.

    Source: Megatron-LM, megatron/microbatches.py; tr8-104B chronicle, experiment 6.
    """
    if batch % micro:
        yield error(f"a global batch of {batch} is not a multiple of the micro-batch of {micro}")
    elif copies is not None and batch % (micro * copies):
        yield error(
            f"a global batch of {batch} is not a multiple of {copies} replicas x micro-batch {micro}: "
            f"it should be a multiple of {micro * copies}"
        )


def batch_ramp_divides(facts: ScriptFacts, ramp: BatchRamp, copies: int | None = None) -> Iterator[Remark]:
    """Start and increments of the batch ramp are multiples of replicas x micro-batch, and lead to the full batch.

    (batch - start) % increment = 0, or Megatron refuses it; start and increment % (replicas x micro-batch) = 0, or it
    dies at the stage that does not divide. A run that resumes is asked from its own stage of the ramp on.

    tr1-13B failed so when it went from 32 nodes to 64 before its ramp was over.

    Source: Megatron-LM, megatron/microbatches.py; tr1-13B chronicle, round 3; tr8-104B chronicle, experiments 6 and 7.
    """
    batch, micro = facts.global_batch_size, facts.micro_batch_size
    if batch is not None and ramp.start > batch:
        yield error(f"the batch ramp starts at {ramp.start}, above the global batch of {batch}")
    elif batch is not None and (batch - ramp.start) % ramp.increment:
        yield error(
            f"from {ramp.start} the batch ramp never comes to {batch} by increments of {ramp.increment}: "
            f"{batch - ramp.start} should be a multiple of the increment"
        )
    consumed = facts.consumed_samples or 0
    if micro is None or copies is None or consumed >= ramp.samples:
        return
    one, first = micro * copies, ramp.start
    if consumed and (schedule := batch_schedule(facts)) is not None:
        first = schedule.samples(consumed)
    for name, value in (("start", first), ("increment", ramp.increment)):
        if value % one:
            yield error(
                f"the batch ramp's {name} {value} is not a multiple of {copies} replicas x micro-batch {micro}: "
                f"{-(-value // one) * one} is, or fewer replicas until the batch has grown"
            )


def batch_ramp_ends(facts: ScriptFacts, ramp: BatchRamp) -> Iterator[Remark]:
    """The batch ramp against the run: over before its end, and counted in the same unit.

    Source: Megatron-LM, megatron/arguments.py (no ramp with --train-iters); Brown et al. 2020, appendix B.
    """
    samples = facts.train_samples
    if samples is None and facts.train_iters:
        yield error(
            "a batch ramp is counted in samples, and the run in iterations, which Megatron refuses: "
            "say --train-samples, and the LR's warmup and decay in samples, too"
        )
    elif samples is not None and ramp.samples >= samples:
        yield error(
            f"the batch ramp takes {ramp.samples} samples, and the run ends after {samples}: "
            "the full batch is never reached; GPT-3's ramp took 1.3 to 4 % of its tokens"
        )
    elif samples is not None and ramp.samples > 0.2 * samples:
        yield note(f"the batch ramp takes {ramp.samples / samples:.0%} of the run; GPT-3's took 1.3 to 4 %")


def pipeline_bubble(batch: int, micro: int, copies: int, stages: int) -> Iterator[Remark]:
    """Idle share of a pipeline at full batch: (p - 1) / (m + p - 1), with m micro-batches per replica and p stages.

    Source: Narayanan et al. 2021, section 2.2.1 (arXiv:2104.04473).
    """
    passes, rest = divmod(batch, micro * copies)
    if rest:
        return
    idle = (stages - 1) / (passes + stages - 1)
    if idle > 0.25:
        yield note(
            f"the pipeline is idle {idle:.0%} of the time: {passes} micro-batches for {stages} stages; "
            f"from {3 * (stages - 1)} micro-batches on it is a quarter at most"
        )


def zero_and_pipeline(deepspeed: DeepSpeedJson, stages: int) -> Iterator[Remark]:
    """ZeRO 2 and 3 divide gradients, which pipeline stages need whole.

    Source: DeepSpeed, deepspeed/runtime/pipe/engine.py; DeepSpeed's curriculum tutorial, section 2.
    """
    stage = deepspeed.zero_stage
    if stage is not None and stage >= 2 and stages > 1:
        yield error(f"ZeRO stage {stage} does not run with {stages} pipeline stages: use stage 0 or 1, or no pipeline")


def deepspeed_agrees(facts: ScriptFacts, deepspeed: DeepSpeedJson) -> Iterator[Remark]:
    """The DeepSpeed JSON against the trainer's own options: batch, micro-batch, clipping, precision.

    Source: DeepSpeed configuration JSON, "Batch Size Related Parameters".
    """
    for name, theirs, ours in (
        ("train_batch_size", deepspeed.train_batch_size, facts.global_batch_size),
        ("train_micro_batch_size_per_gpu", deepspeed.micro_batch_size, facts.micro_batch_size),
    ):
        if theirs is not None and ours is not None and theirs != ours:
            yield error(f"the DeepSpeed JSON's {name} is {theirs}, and the trainer is given {ours}: make them one")
    for precision, enabled in (("fp16", deepspeed.fp16), ("bf16", deepspeed.bf16)):
        if enabled is not None and facts.precision is not None and enabled != (facts.precision == precision):
            state = "on" if enabled else "off"
            yield error(f"the DeepSpeed JSON has {precision} {state}, and the trainer is given {facts.precision}")
    clip = deepspeed.gradient_clipping
    if clip is not None and facts.clip_grad is not None and clip != facts.clip_grad:
        yield warning(
            f"the DeepSpeed JSON clips gradients at {clip:g}, and the trainer is given {facts.clip_grad:g}: "
            "DeepSpeed's is the one that counts"
        )
