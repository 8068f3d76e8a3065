"""answer(question, results) -> BisectAnswer: the causes that the results of a bisect speak for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.causes import (
    AGAIN,
    BAD_START,
    CHANCE,
    CHEAPEST_FIRST,
    CONTROL,
    HEALS,
    LOWER_LR,
    MACHINE,
    NODE,
    ORDER,
    OTHER_INPUT,
    OTHERS,
    RATE,
    SAMPLES,
    SKIP,
    WARMUP,
    BisectAnswer,
    Question,
    Results,
    Sure,
    Suspect,
    next_probes,
    smallest_range,
    undo_of,
)
from sentinel.lab.bisect.hardware import part_of
from sentinel.lab.bisect.repeats import first_reading, repeats
from sentinel.lab.probes.probe import ProbeResult

_LIKELIER_FIRST = (NODE, WARMUP, LOWER_LR, bisect.FP32, bisect.SLW, bisect.MOMENTS, ORDER)
_SURE: tuple[Sure, ...] = ("sure", "likely", "possible")
_OF_LR = frozenset({LOWER_LR, WARMUP, undo_of("lr")})


def answer(question: Question, results: Results) -> BisectAnswer:
    """The causes that the results speak for, the surest first."""
    control = results.get(CONTROL)
    recorded = list(_recorded(question, results))
    if control is None or control.outcome not in ("calm", "diverged"):
        why = "the control has not run" if control is None else f"the control shows nothing: {control.why}"
        return _answered(question, results, recorded, why)
    if control.outcome == "calm" and control.exact:
        return _answered(question, results, recorded, _too_soon(control, question))
    if control.outcome == "calm":
        return _answered(question, results, list(_not_repeated(question, results)), "the control did not diverge again")
    found = sorted(_healed(question, results), key=lambda s: _SURE.index(s.sure))
    exactly = "again, bit for bit" if control.exact else "again"
    reason = f"the control diverged {exactly}: the cause is in the data, the settings or the checkpoint"
    if not found:
        reason += "; no change that was tried prevented it"
    return _answered(question, results, [*found, *recorded], reason)


def _answered(question: Question, results: Results, ranked: list[Suspect], reason: str) -> BisectAnswer:
    control = results.get(CONTROL)
    if (bad := question.evidence.bad_start) is not None:
        sure, said = bad.suspicion(control, question.probes[CONTROL].global_step)
        suspect = Suspect(cause=BAD_START, sure=sure, why=said, rung=bad.rung if sure == "likely" else None)
        ranked = [suspect, *ranked] if sure == "likely" else [*ranked, suspect]
    return BisectAnswer(
        ranked=tuple(ranked),
        reason=reason,
        repeats=repeats(control, results.get(AGAIN)),
        not_tried=tuple(_not_tried(question, results)),
    )


def _not_tried(question: Question, results: Results) -> Iterator[tuple[str, str]]:
    """(probe, why it is no evidence): those that did not run, and those that ran and show nothing."""
    control = results.get(CONTROL)
    why = "not needed for the answer"
    if control is None or control.outcome not in ("calm", "diverged"):
        why = "it comes after the control"
    elif next_probes(question, results):
        why = "the bisect has not come to it"
    undoing = (change.probe for change in question.evidence.changes if change.probe is not None)
    for name in dict.fromkeys((*undoing, *CHEAPEST_FIRST)):
        if name not in results:
            yield name, question.not_possible.get(name, why)
    for name, result in results.items():
        if result.outcome == "not tried" or (result.outcome == "unknown" and name != CONTROL):
            yield name, result.why


def _too_soon(control: ProbeResult, question: Question) -> str:
    return (
        f"the control repeated the run bit for bit up to step {question.probes[CONTROL].until_step}, and that is too "
        f"soon to see the divergence ({control.why}): raise [bisect] window_steps"
    )


def _recorded(question: Question, results: Results) -> Iterator[Suspect]:
    """What the record shows and no probe has confirmed or ruled out."""
    evidence = question.evidence
    told = {name for name, result in results.items() if result.outcome in ("calm", "diverged")}
    for change in evidence.changes:
        probe = bisect.FP32 if change.key == "precision" else change.probe
        if probe not in told:
            cause = RATE if change.key == "lr" else change.words
            yield Suspect(cause=cause, sure="possible", why=f"{change.said}; {_untold(probe, question, results)}")
    if evidence.lr_rose and not told & _OF_LR:
        yield Suspect(cause=RATE, sure="possible", why=f"{_rise(question)}; {_untold(LOWER_LR, question, results)}")


def _untold(probe: str | None, question: Question, results: Results) -> str:
    if probe is None:
        return "no probe can undo it"
    if probe in results:
        return f"{probe} shows nothing: {results[probe].why}"
    return (
        f"{probe} is not possible: {question.not_possible[probe]}" if probe in question.not_possible else "not undone"
    )


def _rise(question: Question) -> str:
    evidence = question.evidence
    if evidence.lr_above_peak:
        return f"the LR is {evidence.lr_jump:.3g} times the peak of its schedule, from step {evidence.lr_jump_at} on"
    return f"the LR rose {evidence.lr_jump:.3g}-fold at step {evidence.lr_jump_at}"


def _not_repeated(question: Question, results: Results) -> Iterator[Suspect]:
    """The run diverged and its repetition does not."""
    control, again = results[CONTROL], results.get(AGAIN)
    rung = {"note": "restart from the checkpoint with nothing changed, without the attempt's nodes"}
    at, what = control.differs_at, first_reading(control)
    part, untold = part_of(control, question.window)
    seen = f"the control is the run bit for bit up to step {at}, where {what} differs, and does not diverge"
    seen += f" ({untold})" if untold else ""
    began_late = control.compared > 0 and at is not None and at > min((s for s, _ in control.losses), default=0)
    probe = None if part == OTHER_INPUT else CONTROL

    def suspect(sure: Sure, why: str) -> Suspect:
        return Suspect(cause=part, sure=sure, why=why, rung=rung, probe=probe)

    if again is None or again.outcome not in ("calm", "diverged"):
        yield suspect("possible", f"{seen}; a second control would tell it from chance")
    elif again.outcome == "diverged":
        yield Suspect(
            cause=CHANCE, sure="likely", why="one of two controls diverged: it depends on noise", probe=CONTROL
        )
        yield Suspect(cause=MACHINE, sure="possible", why=seen, rung=rung, probe=CONTROL)
    elif control.losses == again.losses and began_late:
        sure, agrees = _measured_input(question, at), f"{seen}; a second control agrees with it in every step"
        yield suspect("sure", agrees) if sure else suspect("likely", f"{agrees}; digests of samples are not measured")
    else:
        why = f"two controls do not diverge; {repeats(control, again)}; more controls would tell how often it diverges"
        yield Suspect(cause=CHANCE, sure="possible", why=why, probe=CONTROL)
        yield Suspect(
            cause=MACHINE, sure="possible", why=f"two controls do not diverge, the run did; {what} differs first"
        )


def _measured_input(question: Question, step: int | None) -> bool:
    """Whether the run's own samples are known there: other ones would explain what differs as well as a machine."""
    run = question.window.after.get(step or 0)
    return run is not None and run.batch_digest is not None


def _healed(question: Question, results: Results) -> Iterator[Suspect]:
    """The causes that changes which healed speak for; of causes as sure as each other the likelier first."""
    calm = [n for n, result in results.items() if result.outcome == "calm"]
    ill = [n for n, result in results.items() if result.outcome == "diverged" and n != CONTROL]
    exact = results[CONTROL].exact is True
    if SKIP in calm:
        yield _data(question, results, calm, ill)
    first = [NODE, WARMUP, *question.undoing]
    causes = {c.probe: c.words for c in question.evidence.changes} | {undo_of("lr"): RATE} | HEALS
    for name in (n for n in dict.fromkeys((*first, *_LIKELIER_FIRST)) if n in calm):
        sure = _how_sure(name, question, calm, ill)
        yield Suspect(
            cause=causes[name],
            sure="likely" if sure == "sure" and not exact else sure,
            why=_why(name, question, ill),
            rung=question.rungs.get(name),
            probe=None if name == NODE else name,
        )


def _data(question: Question, results: Results, calm: list[str], ill: list[str]) -> Suspect:
    alone = not [name for name in calm if not name.startswith("skip-")]
    sure: Sure = "possible" if OTHERS in calm else "likely"
    if OTHERS in ill and alone and results[CONTROL].exact:
        sure = "sure"
    why = f"{question.probes[SKIP].change} prevents it"
    if OTHERS in calm:
        why += ", but so does skipping others before them: any change of the data may"
    elif OTHERS in ill:
        why += "; skipping others before them does not"
    known, _ = smallest_range(question, results)
    if known is not None and f"skip-{known[0]}-{known[1] - 1}" in calm:
        why += f"; skipping samples {known[0]} to {known[1] - 1} alone does, too"
    return Suspect(cause=SAMPLES, sure=sure, why=why, rung=question.rungs.get(SKIP), probe=SKIP)


def _how_sure(name: str, question: Question, calm: list[str], ill: list[str]) -> Sure:
    """Sure only where nothing else that was tried prevented it, and the data was tried."""
    rose, others = question.evidence.lr_rose, set(calm) - {name}
    if name == NODE:  # another environment is other hardware by the configuration's word alone
        return "sure" if question.probes[NODE].exclude_nodes else "likely"
    if name in (LOWER_LR, undo_of("lr")) and WARMUP in calm and not rose:
        return "possible"
    if name == WARMUP and rose:
        return "possible"
    if name == undo_of("lr"):  # a longer warmup that was not tried might have prevented it as well
        return "sure" if {SKIP, WARMUP} <= set(ill) and not others else "likely"
    if name in question.undoing:
        return "sure" if SKIP in ill and not others else "likely"
    if name == LOWER_LR and rose:
        return "sure" if SKIP in ill and not others - {WARMUP} else "likely"
    if OTHERS in calm or (name == ORDER and others):  # a change that has nothing to do with it prevents it, too
        return "possible"
    return "likely"


def _why(name: str, question: Question, ill: list[str]) -> str:
    probe, evidence = question.probes[name], question.evidence
    parts = [f"{probe.change} prevents it"]
    if ill:
        parts.append(f"{', '.join(ill)} {'do' if len(ill) > 1 else 'does'} not")
    parts += [change.said for change in evidence.changes if name in (change.probe, _PROBES_OF.get(change.key))]
    if name == LOWER_LR and evidence.lr_rose:
        parts.append(_rise(question))
    if name == WARMUP:
        parts.append("the same peak LR is borne after a longer warmup")
        if evidence.in_risky_window:
            parts.append("the onset lies in the first three LR warmups")
    if name == NODE and evidence.spread_of is not None and evidence.spread_growth > 5:
        parts.append(f"{evidence.spread_of} over the ranks had grown {evidence.spread_growth:.3g}-fold")
    if name == NODE and not probe.exclude_nodes:
        parts.append("that it is other hardware is known by [bisect] other_node_environment alone")
    return "; ".join(parts)


_PROBES_OF = {"precision": bisect.FP32, "lr": WARMUP}  # Beside the one that undoes the change
