"""Why a run diverged: which probe to run next, and what their results say. Pure functions of the results so far.

The control repeats the run from the last healthy checkpoint and changes nothing. If it diverges again, the cause is in
the data, the settings or the checkpoint, and one change at a time tells which. If it does not, the cause was not in
what is saved: chance, or a machine. A trainer whose two controls agree bit for bit leaves no chance.

Order: cheapest first; an LR that rose more than 1.5-fold after its warmup, or a spread over the ranks that grew 5-fold,
is looked at before. What differs first between run and control names the part: loss the weights; grad_norm or its
spread the gradients of a rank; Adam's variance or momentum its state; the batch's digest, LR or length what the trainer
read.

A probe diverged if the judge says so of its readings, or if the median of its last 8 losses is nearer to the run's than
to the healthy ones of the same length (where the run's is 8 % above those; of a run that came back by itself, the
losses from the onset to the alarm are compared); else it is calm; unknown where the run has no healthy step of that
length. The control ends at the alarm, the others half a window later, longer-warmup a window later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sentinel.lab.bisect.bad_start import BadStart
from sentinel.lab.bisect.repeats import first_reading, repeats
from sentinel.lab.probes.probe import Probe, ProbeResult, Window
from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.overrides import Overrides

Results = Mapping[str, ProbeResult]

CONTROL, AGAIN = "control", "control-again"
SKIP, OTHERS, ORDER = "skip-suspects", "skip-others", "other-order"
FP32, LOWER_LR, WARMUP = "fp32", "lower-lr", "longer-warmup"
SLW, MOMENTS, NODE = "slw", "fresh-moments", "other-node"
SUSPECTED_BEFORE = 5  # Steps before the early end of the onset whose samples are suspected too
CHEAPEST_FIRST = (SKIP, OTHERS, ORDER, FP32, LOWER_LR, WARMUP, SLW, MOMENTS, NODE)

# causes, as a person calls them
SAMPLES, DATA_ORDER, PRECISION = "samples of the data", "the order of the data", "precision"
RATE, SHORT_WARMUP, LENGTH = "learning rate", "LR warmup too short", "sequence length"
STALE_MOMENTS, BROKEN_NODE, CHANCE = "Adam's moments", "hardware: a node of the attempt", "chance"
WEIGHTS, ADAM, GRADIENTS = "hardware: the weights", "hardware: Adam's state", "hardware: the gradients of a rank"
OTHER_INPUT = "the trainer read other data or settings"
BAD_START = "a start that did not continue the run"

HEALS = {  # change -> the cause that it speaks for where it heals
    SKIP: SAMPLES,
    ORDER: DATA_ORDER,
    FP32: PRECISION,
    LOWER_LR: RATE,
    WARMUP: SHORT_WARMUP,
    SLW: LENGTH,
    MOMENTS: STALE_MOMENTS,
    NODE: BROKEN_NODE,
}
_LIKELIER_FIRST = (NODE, WARMUP, LOWER_LR, FP32, SLW, MOMENTS, ORDER)
_DIFFERED_FIRST = (  # (what differed first from the control, where the difference began)
    (("batch_digest", "lr", "seqlen"), OTHER_INPUT),
    (("loss", "loss_spread"), WEIGHTS),
    (("grad_norm", "grad_norm_spread"), GRADIENTS),
    (("adam_variance_l1", "adam_variance_max", "momentum_l2"), ADAM),
    (("update_norm", "param_norm"), WEIGHTS),
)

Sure = Literal["sure", "likely", "possible"]
_SURE: tuple[Sure, ...] = ("sure", "likely", "possible")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the run's own record shows beside the probes."""

    lr_jump: float = 1.0  # LR of a step over the one before, the largest near the onset and past the warmup
    lr_jump_at: int | None = None
    in_risky_window: bool = False  # whether the onset lies in the first three LR warmups
    spread_growth: float = 1.0  # largest spread over the ranks near the onset over the usual one
    spread_of: str | None = None  # of which reading
    bad_start: BadStart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One incident's window, and the probes that can be run."""

    incident: str
    window: Window
    probes: Mapping[str, Probe]  # by name: the control, and one for each change that can be made here
    not_possible: Mapping[str, str]  # name -> why no such probe can be run, as a sentence
    rungs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> keys of the rung that follows
    restarts: Mapping[str, Overrides] = field(default_factory=dict)  # name -> the run's own restart with that change
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect(Described):
    """One cause that the results speak for."""

    cause: str
    sure: Sure
    why: str  # As sentences: which probes, and what they showed
    rung: Mapping[str, Any] | None = None  # Keys of the rung that follows from it; None for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Described):
    """What is known so far."""

    ranked: tuple[Suspect, ...]  # The likeliest first; empty where nothing speaks for anything
    reason: str  # As a sentence
    repeats: str  # Whether the trainer repeats itself bit for bit, as a sentence
    not_tried: tuple[tuple[str, str], ...]  # (probe, why)


def next_probes(question: Question, results: Results, room: int = 1) -> tuple[Probe, ...]:
    """The probes to run now, at most `room`; none once the answer stands. A second one is what would come next if the
    first diverges, as most do."""
    supposed, found = dict(results), list[Probe]()
    while len(found) < room and (name := _next(question, supposed)) is not None:
        probe = question.probes[name]
        found.append(probe)
        if name == CONTROL:
            break  # all that follows depends on what they show
        supposed[name] = ProbeResult(name=name, ended="verdict", outcome="diverged", why="supposed")
    return tuple(found)


def _next(question: Question, results: Results) -> str | None:
    control = results.get(CONTROL)
    if control is None:
        return CONTROL
    if control.outcome == "unknown" or (control.outcome == "calm" and control.exact):
        return None
    if control.outcome == "calm":
        return AGAIN if AGAIN not in results else None
    return next((n for n in _order(question) if n not in results and _is_asked(n, question, results)), None)


def _order(question: Question) -> tuple[str, ...]:
    """Cheapest first, but what the run's own record points at before."""
    first = [NODE] if question.evidence.spread_growth > 5 else []
    if question.evidence.lr_jump > 1.5:
        first += [LOWER_LR, SKIP]
    return (*first, *(name for name in CHEAPEST_FIRST if name not in first))


def _is_asked(name: str, question: Question, results: Results) -> bool:
    """Whether the change can be tried here, and would still tell something."""
    if name not in question.probes:
        return False
    calm = {n for n, result in results.items() if result.outcome == "calm"}
    if NODE in calm or (SKIP in calm and OTHERS not in calm and OTHERS in (*results, *question.not_possible)):
        return False
    match name:
        case "skip-others":
            return SKIP in calm
        case "other-order":
            return SKIP not in calm
        case "longer-warmup":
            return LOWER_LR in calm or LOWER_LR not in question.probes
        case "slw" | "fresh-moments" | "other-node" | "fp32":
            return not calm & {LOWER_LR, WARMUP, FP32, SLW, MOMENTS}
    return True


def answer(question: Question, results: Results) -> Answer:
    """The causes that the results speak for, the surest first."""
    control = results.get(CONTROL)
    if control is None or control.outcome == "unknown" or (control.outcome == "calm" and control.exact):
        why = "the control has not run" if control is None else _untold(control, question)
        return _answered(question, results, [], why)
    if control.outcome == "calm":
        return _answered(question, results, list(_not_repeated(results)), "the control did not diverge again")
    found = sorted(_healed(question, results), key=lambda s: _SURE.index(s.sure))
    exactly = "again, bit for bit" if control.exact else "again"
    reason = f"the control diverged {exactly}: the cause is in the data, the settings or the checkpoint"
    if not found:
        reason += "; no change that was tried prevented it"
    return _answered(question, results, found, reason)


def _answered(question: Question, results: Results, ranked: list[Suspect], reason: str) -> Answer:
    control = results.get(CONTROL)
    why = "not needed for the answer"
    if control is None or control.outcome == "unknown":
        why = "it comes after the control"
    elif _next(question, results) is not None:
        why = "the bisect has not come to it"
    left = (name for name in CHEAPEST_FIRST if name not in results)
    not_tried = tuple((name, question.not_possible.get(name, why)) for name in left)
    if (bad := question.evidence.bad_start) is not None:
        sure, said = bad.suspicion(control, question.probes[CONTROL].global_step)
        suspect = Suspect(cause=BAD_START, sure=sure, why=said, rung=bad.rung if sure == "likely" else None)
        ranked = [suspect, *ranked] if sure == "likely" else [*ranked, suspect]
    return Answer(
        ranked=tuple(ranked),
        reason=reason,
        repeats=repeats(control, results.get(AGAIN)),
        not_tried=not_tried,
    )


def _untold(control: ProbeResult, question: Question) -> str:
    if control.outcome == "unknown":
        return f"the control shows nothing: {control.why}"
    return (
        f"the control repeated the run bit for bit up to step {question.probes[CONTROL].until_step}, and that is too "
        f"soon to see the divergence ({control.why}): raise [bisect] window_steps"
    )


def _not_repeated(results: Results) -> Iterator[Suspect]:
    """The run diverged and its repetition does not."""
    control, again = results[CONTROL], results.get(AGAIN)
    rung = {"note": "restart from the checkpoint with nothing changed, without the attempt's nodes"}
    at, what = control.differs_at, first_reading(control)
    part = next((cause for names, cause in _DIFFERED_FIRST if what in names), CHANCE)
    seen = f"the control is the run bit for bit up to step {at}, where {what} differs, and does not diverge"
    began_late = control.compared > 0 and at is not None and at > min((s for s, _ in control.losses), default=0)
    if again is None:
        yield Suspect(cause=part, sure="possible", why=f"{seen}; a second control would tell it from chance", rung=rung)
    elif again.outcome == "diverged":
        yield Suspect(cause=CHANCE, sure="likely", why="one of two controls diverged: it depends on noise", rung=None)
        yield Suspect(cause=part, sure="possible", why=seen, rung=rung)
    elif control.losses == again.losses and began_late:
        yield Suspect(cause=part, sure="sure", why=f"{seen}; a second control agrees with it in every step", rung=rung)
    else:
        why = f"two controls do not diverge; {repeats(control, again)}; more controls would tell how often it diverges"
        yield Suspect(cause=CHANCE, sure="possible", why=why)
        yield Suspect(
            cause=part, sure="possible", why=f"two controls do not diverge, the run did not; {what} differs first"
        )


def _healed(question: Question, results: Results) -> Iterator[Suspect]:
    """The causes that changes which healed speak for; of causes as sure as each other the likelier first."""
    calm = [n for n, result in results.items() if result.outcome == "calm"]
    ill = [n for n, result in results.items() if result.outcome == "diverged" and n != CONTROL]
    if SKIP in calm:
        yield _data(question, calm, ill)
    for name in (name for name in _LIKELIER_FIRST if name in calm):
        rung = question.rungs.get(name)
        yield Suspect(
            cause=HEALS[name], sure=_how_sure(name, question, calm, ill), why=_why(name, question, ill), rung=rung
        )


def _data(question: Question, calm: list[str], ill: list[str]) -> Suspect:
    sure: Sure = "sure" if OTHERS in ill else "possible" if OTHERS in calm else "likely"
    others = {
        "sure": "; skipping others before them does not",
        "possible": ", but so does skipping others before them: any change of the data may",
    }
    why = f"{question.probes[SKIP].change} prevents it{others.get(sure, '')}"
    return Suspect(cause=SAMPLES, sure=sure, why=why, rung=question.rungs.get(SKIP))


def _how_sure(name: str, question: Question, calm: list[str], ill: list[str]) -> Sure:
    """Sure only where nothing else that was tried prevented it, and the data was tried."""
    evidence = question.evidence
    if name == NODE:
        return "sure"
    if name == LOWER_LR and evidence.lr_jump > 1.5:
        return "sure" if SKIP in ill else "likely"
    if name == LOWER_LR and WARMUP in calm:
        return "possible"
    if name == WARMUP and evidence.lr_jump > 1.5:
        return "possible"
    if name == ORDER and set(calm) - {ORDER}:
        return "possible"
    return "likely"


def _why(name: str, question: Question, ill: list[str]) -> str:
    probe, evidence = question.probes[name], question.evidence
    parts = [f"{probe.change} prevents it"]
    if ill:
        parts.append(f"{', '.join(ill)} {'do' if len(ill) > 1 else 'does'} not")
    if name == LOWER_LR and evidence.lr_jump > 1.5:
        parts.append(f"the LR rose {evidence.lr_jump:.3g}-fold at step {evidence.lr_jump_at}")
    if name == WARMUP:
        parts.append("the same peak LR is borne after a longer warmup")
        if evidence.in_risky_window:
            parts.append("the onset lies in the first three LR warmups")
    if name == NODE and evidence.spread_of is not None and evidence.spread_growth > 5:
        parts.append(f"{evidence.spread_of} over the ranks had grown {evidence.spread_growth:.3g}-fold")
    return "; ".join(parts)
