"""Sequence length warmup (SLW): the five changes that it takes, and its own numbers."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.jobscript.derived import steps_of, track_of
from sentinel.jobscript.facts import Curriculum, ScriptFacts
from sentinel.lint.finding import Remark, error, note, warning
from sentinel.vocabulary.pacing import BILLION, Position

_GPT3_WARMUP_TOKENS = 375e6  # X of the tutorial: GPT-3's LR warmup. Source: Brown et al. 2020, appendix B.


def slw_without_batch_ramp(facts: ScriptFacts) -> Iterator[Remark]:
    """SLW together with a batch ramp: both shrink the tokens of a batch.

    Source: DeepSpeed's curriculum tutorial, section 2.2.
    """
    if facts.curriculum is not None and facts.rampup_batch_size is not None:
        yield error(
            "SLW and --rampup-batch-size both shrink the tokens of a batch: remove --rampup-batch-size, "
            "and raise the micro-batch if memory allows"
        )


def slw_ends_by_tokens(facts: ScriptFacts) -> Iterator[Remark]:
    """With SLW a run ends by tokens, and samples or iterations (about 3 x as many) do not end it before.

    Source: DeepSpeed's curriculum tutorial, section 2.3.
    """
    if facts.curriculum is None or not (facts.train_samples or facts.train_iters or facts.train_tokens):
        return
    samples = facts.train_samples
    if samples is None and facts.train_iters and facts.global_batch_size:
        samples = facts.train_iters * facts.global_batch_size
    if facts.train_tokens is None:
        full = f" {samples * facts.seq_length}" if samples and facts.seq_length else ""
        yield warning(
            f"with SLW samples are short at first, and the run ends before it has seen its tokens: say "
            f"--train-tokens{full}, and three times the --train-samples or --train-iters"
        )
        return
    needed = steps_of(facts, "tokens", facts.train_tokens)
    if samples is None or facts.global_batch_size is None or needed is None:
        return
    there_are = samples / facts.global_batch_size
    if there_are < needed:
        enough = round(needed * facts.global_batch_size * 1.1)
        yield error(
            f"with SLW the run ends after {there_are:.0f} steps by its samples or iterations, and needs {needed:.0f} "
            f"for {facts.train_tokens} tokens: raise them to {enough} samples or more"
        )


def slw_decays_by_tokens(facts: ScriptFacts) -> Iterator[Remark]:
    """With SLW the LR decays by tokens: samples x full length, or iterations x full length x global batch.

    Source: DeepSpeed's curriculum tutorial, section 2.4; Li, Zhang & He 2022, appendix A.2.
    """
    given = facts.lr_decay_samples or facts.lr_decay_iters
    if facts.curriculum is None or facts.lr_decay_tokens is not None or not given:
        return
    batch = 1 if facts.lr_decay_samples else facts.global_batch_size
    tokens = f" {given * facts.seq_length * batch}" if facts.seq_length and batch else ""
    unit = "samples" if facts.lr_decay_samples else "iters"
    yield warning(
        f"with SLW the LR decays too fast by {unit}: replace --lr-decay-{unit} {given} by --lr-decay-tokens{tokens}"
    )


def slw_warms_up_by_samples(
    facts: ScriptFacts, slw: Curriculum, warmup: float | None = None, size: float | None = None
) -> Iterator[Remark]:
    """With SLW the LR warmup is not counted in tokens, which come slowly, and ends where those tokens are consumed.

    X / min_difficulty samples where the length hardly grows meanwhile; counted along the curriculum where that can be
    followed. X is 375M tokens in GPT-3. For 1B parameters and more, a warmup of less than a quarter of that is a
    warning: tr8b's first experiment had kept 216320 samples, its second took 3.75M.

    Source: DeepSpeed's curriculum tutorial, section 2.5; tr8b-104B chronicle, CL experiment 2.
    """
    if facts.lr_warmup_tokens:
        yield warning(
            f"with SLW an LR warmup of {facts.lr_warmup_tokens} tokens is slow: say --lr-warmup-samples "
            f"{_samples(facts, facts.lr_warmup_tokens)}, which see those tokens"
        )
        return
    batch, first = facts.global_batch_size, slw.min_difficulty
    if not warmup or batch is None or first is None or (size or 0) < BILLION:
        return
    track = track_of(facts)
    tokens = warmup * batch * first if track is None else track.reach(Position(), "steps", round(warmup)).tokens
    if tokens < _GPT3_WARMUP_TOKENS / 4:
        yield warning(
            f"with SLW the LR warmup sees {tokens / 1e6:.3g}M tokens, GPT-3's saw 375M: --lr-warmup-samples "
            f"{_samples(facts, _GPT3_WARMUP_TOKENS)} makes up for the short sequences"
        )


def _samples(facts: ScriptFacts, tokens: float) -> str:
    """How many samples see so many tokens."""
    track, first = track_of(facts), facts.curriculum.min_difficulty if facts.curriculum else None
    if track is not None and track.seqlen is not None:
        return str(track.reach(Position(), "tokens", round(tokens)).samples)
    return "tokens / min_difficulty" if not first else str(round(tokens / first))


def first_length(slw: Curriculum, size: float | None = None) -> Iterator[Remark]:
    """min_difficulty: 8 for millions of parameters, 64 for billions; a multiple of 8, and below the full length.

    Source: DeepSpeed's curriculum tutorial, section 1.
    """
    first, last = slw.min_difficulty, slw.max_difficulty
    if first is None:
        return
    if last is not None and first >= last:
        yield error(f"min_difficulty {first} is not below max_difficulty {last}: there is nothing to warm up")
    if first % 8:
        yield warning(
            f"min_difficulty {first} is not a multiple of 8, which tensor cores ask for: {-(-first // 8) * 8} is"
        )
    if first < 64 and (size or 0) >= BILLION:
        yield warning(
            f"min_difficulty {first} is for millions of parameters; a model of billions overfits sequences "
            "that short: start with 64"
        )


def last_length(slw: Curriculum, seq_length: int) -> Iterator[Remark]:
    """max_difficulty = seq_length, the full length.

    Source: DeepSpeed's curriculum tutorial, section 1.
    """
    last, full = slw.max_difficulty, seq_length
    if last is None or last == full:
        return
    if last > full:
        yield error(f"max_difficulty {last} is above the sequence length of {full}: it should be {full}")
    else:
        yield warning(
            f"max_difficulty {last} is below the sequence length of {full}: the model never trains at full "
            f"length; it should be {full}"
        )


def length_step(slw: Curriculum) -> Iterator[Remark]:
    """difficulty_step: a multiple of 8 (16 for int8), and not much more, for the steps are to be small.

    Source: DeepSpeed's curriculum tutorial, section 1.1.
    """
    step = slw.difficulty_step
    if step is not None and step % 8:
        yield warning(f"difficulty_step {step} is not a multiple of 8, which tensor cores ask for: 8 is usual")
    elif step is not None and step > 64:
        yield note(f"difficulty_step {step} makes coarse steps; smaller ones are more stable, 8 is usual")


def slw_duration(slw: Curriculum, total: float | None = None, warmup: float | None = None) -> Iterator[Remark]:
    """T, from the first length to the last: over before the run is, and a few multiples of the LR warmup.

    Less than one LR warmup is a warning: the full length then meets the peak LR. The paper's T were 7 to 90 x.

    Source: Li, Zhang & He 2022, section 4 and Table 1 (arXiv:2108.06084); DeepSpeed's curriculum tutorial, section 1.1.
    """
    steps = slw.total_steps
    if not steps:
        if slw.schedule in ("fixed_linear", "fixed_root"):
            yield error(f"{slw.schedule} needs a total_curriculum_step: a few multiples of the LR warmup's steps")
        return
    if total is not None and steps >= total:
        yield error(f"SLW takes {steps} steps, and the run {total:.0f}: it never trains at full length")
    elif warmup and steps < warmup:
        yield warning(
            f"SLW's {steps} steps are over before the LR warmup's {warmup:.0f}, so the full length meets the "
            f"peak LR: take a few multiples of the warmup, {3 * warmup:.0f} or more"
        )
    elif warmup and steps < 2 * warmup:
        yield note(
            f"SLW's {steps} steps are {steps / warmup:.2g} x the LR warmup's {warmup:.0f}; a few multiples are "
            "where to start, as the first 3 x warmup steps are the risky ones"
        )


def discrete_stages(slw: Curriculum, warmup: float | None = None) -> Iterator[Remark]:
    """fixed_discrete: one length more than switches, both rising; no stage held longer than the LR warmup before a jump
    to twice its length.

    128 tokens for 20K steps and then 1024 diverged at the switch.

    Source: DeepSpeed's curriculum tutorial, section 1.3; Li, Zhang & He 2022, section 5.1.
    """
    if slw.schedule != "fixed_discrete":
        return
    lengths, switches = slw.difficulties, slw.max_steps
    if len(lengths) != len(switches) + 1:
        yield error(
            f"fixed_discrete has {len(lengths)} lengths and {len(switches)} switches: one length more than "
            "switches is right, the last one stays"
        )
        return
    if list(lengths) != sorted(set(lengths)) or list(switches) != sorted(set(switches)):
        yield error("fixed_discrete's lengths and max_steps should rise")
        return
    for length, longer, begin, end in zip(lengths, lengths[1:], (0, *switches), switches, strict=False):
        if warmup and longer >= 2 * length and end - begin > warmup:
            yield warning(
                f"{length} tokens are held for {end - begin} steps, longer than the LR warmup, before they "
                f"jump to {longer}: the model overfits them and may diverge at the switch; go in small steps"
            )


def validation_under_slw(slw: Curriculum, eval_interval: int) -> Iterator[Remark]:
    """Steps between validations against the steps between two lengths, T x step / (max - min).

    The training loss is measured at the current length, so only the validation tells. Rarer than every fourth
    length is a note; tr8b went from 1000 to 150, once per length.

    Source: tr8b-104B chronicle, CL experiment 2.
    """
    if eval_interval == 0:
        yield warning("with SLW only the validation loss, at full length, tells how the run is: validate")
    if not (slw.total_steps and slw.min_difficulty and slw.max_difficulty) or slw.max_difficulty <= slw.min_difficulty:
        return
    each = slw.total_steps * (slw.difficulty_step or 8) / (slw.max_difficulty - slw.min_difficulty)
    if eval_interval > 4 * max(each, 1):
        yield note(
            f"with SLW only the validation loss tells, and it is taken every {eval_interval} steps while "
            f"the length changes every {each:.0f}: let --eval-interval be near {max(1, round(each))}"
        )


def old_curriculum_block(slw: Curriculum) -> Iterator[Remark]:
    """The JSON's top-level `curriculum_learning`, which DeepSpeed took away in 0.19.8.

    Source: DeepSpeed 0.19.8, runtime/config.py.
    """
    if slw.old_block:
        yield note(
            "the JSON's curriculum_learning block is taken by DeepSpeed up to 0.19.7, and refused from 0.19.8 on"
        )


def slw_still_to_come(before: ScriptFacts, slw: Curriculum, resume_step: int) -> Iterator[Remark]:
    """SLW switched on at a restart: `fixed_linear` and `fixed_root` count from step 0, not from the restart.

    Source: DeepSpeed, deepspeed/runtime/data_pipeline/curriculum_scheduler.py.
    """
    if before.curriculum == slw or resume_step == 0:
        return
    if slw.schedule not in ("fixed_linear", "fixed_root") or slw.total_steps is None:
        return
    if slw.total_steps <= resume_step:
        yield error(
            f"{slw.schedule} counts from step 0: after {resume_step} steps its {slw.total_steps} are over, and the "
            "length is full at once; write fixed_discrete with absolute steps"
        )
    else:
        yield warning(
            f"{slw.schedule} counts from step 0: at step {resume_step} {resume_step / slw.total_steps:.0%} are over; "
            "to begin with short sequences, write fixed_discrete with absolute steps"
        )
