"""The range of suspected samples, halved by probes while the budget lasts. Pure.

Once skipping the suspected samples prevents the divergence, and skipping others does not: first what the run had read
up to its alarm, then the halves of what is left, the first half before the second, down to one sample. A half that
prevents it takes the range's place; where neither does, samples of both are needed, and it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sentinel.lab.probes.probe import Probe, ProbeResult
from sentinel.vocabulary.training_settings import SkippedRange

_NAME = re.compile(r"skip-(\d+)-(\d+)")


def part_named(suspects: Probe | None, name: str) -> Probe | None:
    """The probe of that name that skips a part of what `suspects` skips; None where the name is of no such probe."""
    found = _NAME.fullmatch(name)
    if found is None or suspects is None or suspects.overrides is None:
        return None
    begin, end = int(found[1]), int(found[2]) + 1
    standing = suspects.overrides.standing
    skipped = (*(standing.skipped or ())[:-1], SkippedRange(begin=begin, end=end))
    overrides = replace(suspects.overrides, rollback=f"probe-{name}", standing=replace(standing, skipped=skipped))
    return replace(suspects, name=name, change=f"skipping samples {begin} to {end - 1} alone", overrides=overrides)


def whole(suspects: Probe) -> tuple[int, int]:
    """[first, after the last) position that the probe skips."""
    skipped = (suspects.overrides.standing.skipped if suspects.overrides else None) or (SkippedRange(begin=0, end=0),)
    return skipped[-1].begin, skipped[-1].end


def narrowed(
    suspects: Probe, at_alarm: int | None, batch: int | None, results: Mapping[str, ProbeResult]
) -> tuple[tuple[int, int], str | None]:
    """(the smallest range that prevents the divergence by the probes so far, the probe that comes next or None)."""
    known = whole(suspects)
    first = (known[0], at_alarm) if at_alarm is not None and known[0] < at_alarm < known[1] else None
    while True:
        begin, end = known
        middle = _middle(begin, end, batch)
        halves = [(begin, middle), (middle, end)] if begin < middle < end else []
        smaller = None
        for part in (first,) if first is not None else halves:
            name = f"skip-{part[0]}-{part[1] - 1}"
            if name not in results:
                return known, name
            if results[name].outcome == "calm":
                smaller = part
                break
            if results[name].outcome != "diverged":
                return known, None  # it shows nothing
        if smaller is None and first is None:
            return known, None
        first, known = None, smaller or known


def _middle(begin: int, end: int, batch: int | None) -> int:
    """Between two batches as long as there are several."""
    if batch and end - begin >= 2 * batch:
        return begin + batch * ((end - begin) // batch // 2)
    return (begin + end) // 2
