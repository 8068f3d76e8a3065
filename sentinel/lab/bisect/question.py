"""question_of(…) -> Question: the window of an incident, and the one change of each probe. Pure.

The probes, what each changes, and the cause that is named where the run then does not diverge:

- control: nothing. it does not diverge again: chance or a machine; no further change is tried.
- control-again: nothing; where the first was calm. the two agree bit for bit: a machine, by the reading that differs
  first.
- skip-suspects: the suspected samples skipped. samples of the data.
- skip-others: samples before them skipped, the suspected ones not; where the first one helped. then any change of the
  data helps: no proof.
- other-order: another seed for the data to come. the order of the data.
- fp32: [bisect] fp32_options. precision.
- lower-lr: LR x 1/8, or down to where it was before it rose. learning rate.
- longer-warmup: a warmup over the window, then a window at the full LR; where lower-lr helped. LR warmup too short.
  Refused where it would end below the peak.
- skip-FIRST-LAST: a part of the suspected samples; where skipping all of them helped, and skipping others did not.
- undo-SETTING: one setting that a start of the lineage changed before the onset, set back; before all others. that
  setting.
- slw: sequence length warmup from the checkpoint on. sequence length.
- fresh-moments: Adam's moments set to 0. Adam's moments.
- other-node: --exclude of the attempt's nodes; local: [bisect] other_node_environment. hardware: a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.causes import CONTROL, SUSPECTED_BEFORE, Question
from sentinel.lab.bisect.proof.lr import refuse_below_peak
from sentinel.lab.bisect.record.changes import Changed
from sentinel.lab.bisect.record.evidence import evidence_of
from sentinel.lab.probes.probe import Probe, Window
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import not_applied, overrides_for, plain_overrides
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Overrides
from sentinel.vocabulary.training_settings import SkippedRange

_LOWER = 0.125  # Of the LR, where the record shows no jump of it
_FAR = 4  # Windows past the alarm whose samples are skipped too: a spoilt shard is longer than the patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What `[bisect]` and the attempt's nodes allow."""

    window_steps: int | None = None
    fp32_options: tuple[str, ...] = ()
    other_node_environment: Mapping[str, str] | None = None  # None: a probe can't be put on other hardware by it
    nodes: tuple[str, ...] = ()  # of the attempt, to be excluded; () is not known, or no scheduler


_Made = tuple[Probe, Mapping[str, Any]]  # a probe, and the keys of the rung that follows from it


@dataclass(frozen=True, slots=True)
class _Case:
    """What all probes of one incident have in common."""

    incident: Incident
    facts: Facts
    window: Window
    anchor: Anchor
    tag: str | None
    means: Means

    @property
    def step(self) -> int:
        return self.anchor.global_step

    @property
    def baseline(self) -> Baseline:
        return self.incident.baseline

    @property
    def batch(self) -> int | None:
        return self.incident.batch_samples or next((s.global_batch_samples for s in self.window.after.values()), None)

    def position_at(self, step: int) -> int | None:
        """consumed_samples before that step."""
        if step <= self.step + 1:
            return self.anchor.consumed_samples
        known = self.window.after.get(step - 1)
        return None if known is None else known.consumed_samples


def question_of(
    incident: Incident,
    facts: Facts,
    window: Window,
    *,
    tag: str | None,
    anchor: Anchor,
    means: Means,
    changes: tuple[Changed, ...] = (),
) -> Question:
    """What can be asked about the incident, from the checkpoint `tag` on. `changes`: what the record shows of settings
    that changed before the onset. ConfigError where its window is empty."""
    case = _Case(incident, facts, window, anchor, tag, means)
    length = means.window_steps or window.until_step - case.step
    if length < 1 or not window.after:
        raise ConfigError(
            f"{incident.id}: no step of the run is known after {tag or 'its beginning'}: nothing to repeat"
        )
    control = Probe(
        name=CONTROL,
        tag=tag,
        global_step=case.step,
        until_step=case.step + length,
        change="nothing changed",
        overrides=incident.overrides_before,
    )
    again = replace(control, name=bisect.AGAIN, change="nothing changed, once more")
    found: dict[str, Probe] = {CONTROL: control, bisect.AGAIN: again}
    refused, rungs = dict[str, str](), dict[str, Mapping[str, Any]]()
    restarts = {CONTROL: _restart(case, replace(control, overrides=_plain(case, CONTROL)), {})}
    undoing: dict[str, _Make] = {c.probe: partial(_set_back, change=c) for c in reversed(changes) if c.probe}
    for name, make in {**_CHANGES, **undoing}.items():
        try:
            probe, rungs[name] = make(case, replace(control, name=name, until_step=case.step + 3 * length // 2))
            probe = _with_once(probe, incident.overrides_before)
            changed = probe.overrides if probe.overrides != incident.overrides_before else None
            if (
                changed is not None
                and (unapplied := not_applied(changed, case.baseline, facts.settings, facts.jobs.start)) is not None
            ):
                raise ConfigError(unapplied)
            found[name], restarts[name] = probe, _restart(case, probe, rungs[name])
        except ConfigError as error:
            refused[name] = str(error)
    return Question(
        incident=incident.id,
        window=window,
        probes=found,
        not_possible=refused,
        rungs=rungs,
        restarts={name: made for name, made in restarts.items() if made is not None},
        evidence=replace(evidence_of(case.baseline, window), changes=changes),
        baseline=case.baseline,
        read_until=_read_until(case),
        batch_samples=case.batch,
    )


def _restart(case: _Case, probe: Probe, keys: Mapping[str, Any]) -> Overrides | None:
    """What the run's own restart with the probe's change is made with. It skips samples from the checkpoint on, as any
    rung does: a trainer reports that, and a job script can say it."""
    if probe.name == bisect.SKIP or probe.options:
        probe, _ = _by_rung(case, probe, probe.change, **keys)
    return _with_once(probe, case.incident.overrides_before).overrides


def _with_once(probe: Probe, before: Overrides | None) -> Probe:
    """A window that begins where the attempt's own one-shot changes were made repeats them, beside its one change."""
    made = probe.overrides
    if made is None or before is None or before.once is None or made == before or made.anchor != before.anchor:
        return probe
    asked = {} if made.once is None else {f.name: getattr(made.once, f.name) for f in fields(made.once)}
    once = replace(before.once, id=made.rollback, **{k: v for k, v in asked.items() if v and k != "id"})
    return replace(probe, overrides=replace(made, once=once))


def _plain(case: _Case, name: str) -> Overrides:
    return plain_overrides(case.baseline, incident=case.incident.id, rollback=f"probe-{name}", anchor=case.anchor)


def _by_rung(case: _Case, probe: Probe, change: str, **keys: Any) -> _Made:
    rung = Rung(name=f"bisect: {probe.name}", hypothesis="the bisect's", **keys)
    named: dict[str, Any] = {"incident": case.incident.id, "rollback": f"probe-{probe.name}", "anchor": case.anchor}
    overrides = overrides_for(rung, case.baseline, **named, new_seed=case.facts.settings.new_seed(case.baseline))
    return replace(probe, overrides=overrides, change=change), keys


def _skip(case: _Case, probe: Probe) -> _Made:
    """From a few steps before the onset to far past the alarm, since what is left out costs nothing."""
    first, last = _suspects(case)
    made = _without(case, probe, first, last)
    begin = case.anchor.consumed_samples or 0
    change = f"skipping samples {first} to {last - 1} of the data order"
    return replace(made, change=change), {"skip_samples": last - begin}


def _skip_others(case: _Case, probe: Probe) -> _Made:
    """Half of the batches between the checkpoint and the suspected samples, which stay."""
    first, _ = _suspects(case)
    begin, batch = case.anchor.consumed_samples, case.batch
    if begin is None or batch is None:
        raise ConfigError("the trainer does not report its consumed_samples")
    batches = (first - begin) // batch
    if batches < 1:
        raise ConfigError("the suspected samples begin at the checkpoint: there are no others to skip before them")
    last = begin + batch * math.ceil(batches / 2)
    return replace(_without(case, probe, begin, last), change=f"skipping samples {begin} to {last - 1} instead"), {}


def _suspects(case: _Case) -> tuple[int, int]:
    """[first, after the last) position in the data order."""
    early = case.window.onset_step - SUSPECTED_BEFORE
    first, at_alarm = case.position_at(early), _read_until(case)
    if first is None or at_alarm is None or at_alarm <= first:
        raise ConfigError("the trainer does not report its consumed_samples: what it had read is not known")
    return first, at_alarm + _FAR * (at_alarm - (case.anchor.consumed_samples or 0))


def _read_until(case: _Case) -> int | None:
    """The position in the data order that the run had read up to at its alarm."""
    return case.position_at(min(case.window.until_step, max(case.window.after)) + 1)


def _without(case: _Case, probe: Probe, first: int, last: int) -> Probe:
    applies = case.facts.settings.applies
    if applies is not None and "skip_samples" not in applies:
        raise ConfigError(f"{case.facts.settings.trainer or 'the trainer'} skips no samples")
    plain = _plain(case, probe.name)
    skipped = (*(plain.standing.skipped or ()), SkippedRange(begin=first, end=last))
    return replace(probe, overrides=replace(plain, standing=replace(plain.standing, skipped=skipped)))


def _in_fp32(case: _Case, probe: Probe) -> _Made:
    if case.baseline.precision == "fp32":
        raise ConfigError("the run computes in fp32 already")
    if not (options := case.means.fp32_options):
        raise ConfigError("[bisect] fp32_options does not say how the trainer computes in fp32")
    return replace(probe, options=options, change="computing in fp32"), {"options": list(options)}


def _lower_lr(case: _Case, probe: Probe) -> _Made:
    evidence = evidence_of(case.baseline, case.window)
    factor = 1 / evidence.lr_jump if evidence.lr_rose else _LOWER
    return _by_rung(case, probe, f"the LR times {factor:.3g}", lr_factor=factor)


def _longer_warmup(case: _Case, probe: Probe) -> _Made:
    """A warmup from the checkpoint on over as many steps as the run took to the alarm, then as many at the full LR: a
    low LR alone heals nearly everything."""
    lr, length = case.baseline.lr, case.window.until_step - case.step
    probe = replace(probe, until_step=case.step + 2 * length, change=f"an LR warmup of {length} steps from there on")
    if lr is None:
        raise ConfigError("the trainer has not reported its LR schedule")
    if lr.unit != "steps" or case.baseline.lr_from_start:
        if not lr.warmup:
            raise ConfigError("the run has no LR warmup that could be made longer")
        made, keys = _by_rung(case, probe, "an LR warmup 8 times as long", lr_warmup_factor=8)
        longer = made.overrides.standing.lr if made.overrides is not None else None
        refuse_below_peak(longer or lr, case.baseline, probe, case.anchor, case.batch)
        return made, keys
    plain = _plain(case, probe.name)
    longer = replace(lr, warmup=length, anchor=case.step)
    refuse_below_peak(longer, case.baseline, probe, case.anchor, case.batch)
    overrides = replace(plain, standing=replace(plain.standing, lr=longer))
    factor = max(2.0, length / lr.warmup) if lr.warmup else None
    return replace(probe, overrides=overrides), {} if factor is None else {"lr_warmup_factor": factor}


def _set_back(case: _Case, probe: Probe, change: Changed) -> _Made:
    plain = _plain(case, probe.name)
    standing = replace(plain.standing, **{change.key: change.before})
    keys = {change.key: change.before} if isinstance(change.before, float) else {}
    return replace(probe, overrides=replace(plain, standing=standing), change=f"{change.words} set back"), keys


def _fresh_moments(case: _Case, probe: Probe) -> _Made:
    if not case.step:
        raise ConfigError("the window begins from scratch: there are no moments to reset")
    return _by_rung(case, probe, "Adam's moments set to 0", reset_moments=True)


def _elsewhere(case: _Case, probe: Probe) -> _Made:
    means = case.means
    if means.nodes:
        where = f"without the attempt's nodes ({', '.join(means.nodes)})"
        return replace(probe, exclude_nodes=means.nodes, change=f"running {where}"), {"note": where}
    if means.other_node_environment is None:
        raise ConfigError("the attempt's nodes are not known, and [bisect] other_node_environment is not set")
    said = " ".join(f"{name}={value}" for name, value in means.other_node_environment.items())
    where = f"on other hardware ({said})"
    return replace(probe, environment=means.other_node_environment, change=f"running {where}"), {"note": where}


_ORDER, _SLW = "the data not yet consumed in another order", "a sequence length warmup from there on"
_Make = Callable[[_Case, Probe], _Made]
_CHANGES: Mapping[str, _Make] = {
    bisect.SKIP: _skip,
    bisect.OTHERS: _skip_others,
    bisect.ORDER: lambda case, probe: _by_rung(case, probe, _ORDER, reseed=True),
    bisect.FP32: _in_fp32,
    bisect.LOWER_LR: _lower_lr,
    bisect.WARMUP: _longer_warmup,
    bisect.SLW: lambda case, probe: _by_rung(case, probe, _SLW, seqlen_start="by_size", seqlen_by_tokens=False),
    bisect.MOMENTS: _fresh_moments,
    bisect.NODE: _elsewhere,
}
