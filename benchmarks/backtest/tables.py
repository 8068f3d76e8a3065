"""Summaries as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from .scoring import Outcome, deadline, onset_of, tolerance
from .summing import Summary, summary, wilson

__all__ = [
    "against_ideal",
    "as_json",
    "blocks",
    "confusion",
    "format_blocks",
    "in_words",
    "table",
    "unscored",
    "wrongs",
]

HEADINGS = (
    *(
        "missed",
        "unneeded",
        "not applic.",
        "early",
        "overdue",
        "late",
        "of ideal",
        "delay",
        "past ideal",
        "slowest",
        "onset err",
        "(intervals)",
    ),
    *("spikes seen", "false/10k", "called out", "us/sample"),
)


def blocks(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes by folder, by whether they were kept from tuning, by length, and all of them."""
    found: dict[str, list[Outcome]] = {}
    for folder in dict.fromkeys(o.curve.folder for o in outcomes):
        for held, words in ((False, "for tuning"), (True, "held out")):
            found[f"{folder}, {words}"] = [o for o in outcomes if o.curve.folder == folder and o.curve.held_out == held]
    found["short ones alone"] = [o for o in outcomes if o.curve.short]
    found["all held out"] = [o for o in outcomes if o.curve.held_out]
    found["all"] = list(outcomes)
    return {name: some for name, some in found.items() if some}


def format_blocks(outcomes: Sequence[Outcome], detectors: Sequence[str]) -> str:
    """A table per block."""
    parts = []
    for name, some in blocks(outcomes).items():
        n = len({(o.curve.folder, o.curve.name) for o in some})
        parts.append(f"{name}: {n} curves\n{table([summary(d, some) for d in detectors])}")
    return "\n\n".join(parts)


def table(summaries: Iterable[Summary]) -> str:
    """One row per detector."""
    lines = [f"{'':20}" + "".join(f"{h:>12}" for h in HEADINGS)]
    for s in summaries:
        cells = (
            f"{s.missed} of {s.divergences}",
            f"{s.unneeded_harmless} of {s.harmless}",
            f"{s.missed_not_applicable}, {s.harmless_not_applicable}",
            f"{s.unneeded_early}",
            f"{s.overdue}",
            f"{s.late}",
            f"{s.late_of_ideal}",
            _number(s.delay_median_steps),
            _number(s.past_ideal_median_steps),
            _number(s.delay_max_steps),
            _number(s.onset_error_median_steps),
            _number(s.onset_error_median_intervals),
            f"{s.spikes_seen} of {s.spikes}",
            _number(s.false_spikes_per_10k_steps),
            "-" if s.called_out_share is None else f"{s.called_out_share:.2%}",
            _number(s.us_per_sample),
        )
        lines.append(f"{s.detector:20}" + "".join(f"{c:>12}" for c in cells))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def confusion(summaries: Iterable[Summary]) -> str:
    """Counts with Wilson's 95 % intervals: how many divergences were acted on, how many harmless curves."""
    lines = [f"{'':20}{'diverged: acted':>18}{'95 %':>18}{'harmless: acted':>18}{'95 %':>18}"]
    for s in summaries:
        hits, low, high = s.divergences - s.missed, *wilson(s.divergences - s.missed, s.divergences)
        false, least, most = s.unneeded_harmless, *wilson(s.unneeded_harmless, s.harmless)
        lines.append(
            f"{s.detector:20}{f'{hits} of {s.divergences}':>18}{f'{low:.1%} to {high:.1%}':>18}"
            f"{f'{false} of {s.harmless}':>18}{f'{least:.1%} to {most:.1%}':>18}"
        )
    return "\n".join(lines)


def wrongs(outcomes: Sequence[Outcome], detector: str) -> str:
    """The curves that the detector got wrong, one line each."""
    lines = []
    for o in outcomes:
        if o.detector != detector:
            continue
        where = f"  {o.curve.folder}/{o.curve.name} ({o.curve.label})"
        if o.missed:
            cut = " and the log ends before the deadline" if o.curve.steps[-1] < deadline(o.curve) else ""
            lines.append(f"{where}: missed{cut}")
        elif o.in_time is False:
            lines.append(f"{where}: {_late(o)}")
        if o.unneeded:
            lines.append(f"{where}: unneeded at step {o.verdict_step if o.early_step is None else o.early_step}")
        elif o.overdue_step is not None:
            lines.append(
                f"{where}: at step {o.overdue_step}, when the spike had outlasted the deadline; it healed later"
            )
    return "\n".join(lines) or "  none"


def _late(o: Outcome) -> str:
    ideal = "unknown by the end of the log"
    if o.delay_steps is not None and o.past_ideal_steps is not None:
        ideal = f"{o.delay_steps - o.past_ideal_steps} steps"
    due = deadline(o.curve) - (onset_of(o.curve) or 0)
    return f"late, {o.delay_steps} steps after the onset; deadline {due}, ideal {ideal}{'; past both' * o.late}"


def against_ideal(outcomes: Sequence[Outcome], detectors: Sequence[str]) -> str:
    """Of the divergences that the ideal judge knows of by the log's end: how many verdicts are no later than its own,
    and no later than that by the tolerance; with each of its two readings of what looks like a divergence."""
    heads = ("knowable", "by its step", "and tolerance", "by deadline too", "median past")
    lines = [f"{'':40}" + "".join(f"{head:>18}" for head in heads)]
    for name in detectors:
        ill = [o for o in outcomes if o.detector == name and o.is_divergence]
        for words, steps in (
            ("signals alone", [o.alone_step for o in ill]),
            ("signals together", [o.together_step for o in ill]),
        ):
            known = [(o, step) for o, step in zip(ill, steps, strict=True) if step is not None]
            said = [(o, step, o.verdict_step) for o, step in known if o.verdict_step is not None]
            cells = (
                f"{len(known)} of {len(ill)}",
                str(sum(verdict <= step for _, step, verdict in said)),
                str(sum(verdict <= step + tolerance(o.curve) for o, step, verdict in said)),
                str(sum(verdict <= max(step, deadline(o.curve)) for o, step, verdict in said)),
                _number(median(verdict - step for _, step, verdict in said) if said else None),
            )
            lines.append(f"{name + ', ' + words:40}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def unscored(outcomes: Sequence[Outcome], detector: str) -> str:
    """What counts for nothing, and why; with what the detector said of it nevertheless."""
    lines = [
        f"  {o.curve.folder}/{o.curve.name} ({o.curve.label}): {o.unscored}; "
        + ("no verdict" if o.verdict_step is None else f"diverged, at step {o.verdict_step}")
        for o in outcomes
        if o.detector == detector and o.unscored
    ]
    return "\n".join(lines) or "  none"


def as_json(s: Summary) -> dict[str, object]:
    """One detector's entry of the JSON document."""
    return {
        "missed": s.missed,
        "divergences": s.divergences,
        "unneeded": s.unneeded,
        "harmless": s.harmless,
        "onset_error_median_steps": s.onset_error_median_steps,
        "us_per_sample": s.us_per_sample,
        "onset_error_median_intervals": s.onset_error_median_intervals,
        "unneeded_on_harmless": s.unneeded_harmless,
        "unneeded_before_onset": s.unneeded_early,
        "missed_nan": s.missed_nan,
        "missed_cut_short": s.missed_cut_short,
        "missed_not_applicable": s.missed_not_applicable,
        "harmless_not_applicable": s.harmless_not_applicable,
        "overdue": s.overdue,
        "late": s.late,
        "late_of_ideal": s.late_of_ideal,
        "unknowable": s.unknowable,
        "past_ideal_median_steps": s.past_ideal_median_steps,
        "delay_median_steps": s.delay_median_steps,
        "delay_max_steps": s.delay_max_steps,
        "spikes": s.spikes,
        "spikes_seen": s.spikes_seen,
        "false_spikes_per_10k_steps": s.false_spikes_per_10k_steps,
        "called_out_share": s.called_out_share,
        "missed_rate_95": wilson(s.missed, s.divergences),
        "unneeded_on_harmless_rate_95": wilson(s.unneeded_harmless, s.harmless),
    }


def in_words(outcomes: Sequence[Outcome], detector: str) -> list[dict[str, object]]:
    """What the detector made of each curve, for the JSON document."""
    return [
        {
            "folder": o.curve.folder,
            "name": o.curve.name,
            "label": o.curve.label,
            "held_out": o.curve.held_out,
            "short": o.curve.short,
            "unscored": o.unscored or None,
            "verdict_step": o.verdict_step,
            "early_step": o.early_step,
            "overdue_step": o.overdue_step,
            "delay_steps": o.delay_steps,
            "in_time": o.in_time,
            "past_ideal_steps": o.past_ideal_steps,
            "onset_error_steps": o.onset_error_steps,
            "missed": o.missed,
            "unneeded": o.unneeded,
        }
        for o in outcomes
        if o.detector == detector
    ]
