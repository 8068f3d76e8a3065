"""sentinel and eleven peers on labelled loss curves: what each misses, what each would roll back for nothing.

No detector is told where a log ends: each is read at every step, as of a run that goes on. A row beside has the judge
with the end told, as `sentinel replay` has it.

Without --curves: `benchmarks/public` (44 curves of public runs) and `benchmarks/recorded` (small GPTs that were
made to diverge), where they are there. Rules, and how each peer is read: docs/BACKTEST.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest import tables
from backtest.curves import DIVERGED, Curve, CurveError, read_folder
from backtest.ideal import Harmless, knowable_step
from backtest.ours import AT_END, NAME, UNTOLD, Judged, judged, warm_up
from backtest.peers import PEERS
from backtest.regret import format_regret, key, regret_json
from backtest.replay import PATIENCE, said_by, tuned_by
from backtest.scoring import Outcome, Said, score, timed
from backtest.sensitivity import format_rows, sensitivity
from backtest.summing import summary
from backtest.tuned import TUNED
from backtest.tuning import tuned_peers

from sentinel.judge.thresholds import Thresholds

HERE = Path(__file__).parent
DEFAULT = (HERE / "public", HERE / "recorded")
QUICK = 4
"""--quick takes one curve in so many."""


def main() -> int:
    """Replays, scores, prints."""
    asked = _arguments()
    folders = asked.curves or [f for f in DEFAULT if (f / "INDEX.csv").is_file()]
    try:
        curves = [c for folder in folders for c in read_folder(folder, QUICK if asked.quick else 1)]
    except CurveError as error:
        print(error, file=sys.stderr)
        return 2
    thresholds = Thresholds()
    warm_up(thresholds)
    if asked.sensitivity is not None:
        print(format_rows(sensitivity(curves, thresholds, asked.sensitivity)))
        return 0
    if asked.tune_peers:
        print(json.dumps(tuned_peers(curves), indent=4))
        return 0
    replays = [replay(curve, thresholds, peers=not asked.ours) for curve in curves]
    harmless = Harmless(curves)
    ideal = {
        id(c): tuple(knowable_step(c, harmless, together=together) for together in (False, True))
        for c in curves
        if c.label in DIVERGED
    }
    outcomes = [timed(o, *ideal.get(id(o.curve), ())) for r in replays for o in r.outcomes]
    patient = [timed(o, *ideal.get(id(o.curve), ())) for r in replays for o in r.patient]
    tuned = [timed(o, *ideal.get(id(o.curve), ())) for r in replays for o in r.tuned]
    names = replays[0].said if replays else ()
    verdicts = {name: {key(r.curve): r.said[name].verdicts for r in replays} for name in names}
    regrets = format_regret(curves, verdicts)
    text = regrets if asked.regret else f"{report(outcomes, patient, tuned, peers=not asked.ours)}\n\n{regrets}"
    if asked.plot:
        plot(replays, asked.plot)
    if asked.results:
        asked.results.write_text(header(folders, len(curves)) + text + "\n", encoding="utf-8")
    measured = document(outcomes, patient, tuned) | {"regret": regret_json(curves, verdicts)}
    print(json.dumps(measured) if asked.json else text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"one curve in {QUICK}")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--curves", type=Path, action="append", help="a folder with an INDEX.csv; may be repeated")
    parser.add_argument("--plot", type=Path, help="a folder for one picture per curve")
    about = "the judge with each threshold, or each of these, x 0.5 and x 2, only"
    parser.add_argument("--sensitivity", nargs="*", metavar="NAME", help=about)
    parser.add_argument("--tune-peers", action="store_true", help="the peers' best thresholds on the tuning part, only")
    parser.add_argument("--ours", action="store_true", help="the judge without the peers: a quarter of the time")
    parser.add_argument("--regret", action="store_true", help="what the verdicts cost beside an oracle, only")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """All detectors on one curve."""

    curve: Curve
    ours: Judged
    peers: tuple[Said, ...]
    outcomes: tuple[Outcome, ...]
    patient: tuple[Outcome, ...]
    """The peers once more, with a patience that they do not have."""
    tuned: tuple[Outcome, ...]
    """The peers once more, with threshold and patience tuned on the tuning part."""
    said: dict[str, Said]
    """Of the judge, and of each peer, as it is and tuned."""


def replay(curve: Curve, thresholds: Thresholds, *, peers: bool = True) -> Replay:
    """Every detector on the curve."""
    ours = judged(curve, thresholds)
    pairs = [said_by(name, curve) for name in PEERS] if peers else []
    tuned = [tuned_by(name, curve) for name in TUNED] if peers else []
    return Replay(
        curve=curve,
        ours=ours,
        peers=tuple(at_once for at_once, _ in pairs),
        outcomes=tuple(
            score(curve, said) for said in (ours.said, ours.at_end, ours.untold, *(at_once for at_once, _ in pairs))
        ),
        patient=tuple(score(curve, lasting) for _, lasting in pairs),
        tuned=tuple(score(curve, said) for said in tuned),
        said={s.detector: s for s in (ours.said, *(at_once for at_once, _ in pairs))}
        | {f"{s.detector}, tuned": s for s in tuned},
    )


def plot(replays: list[Replay], folder: Path) -> None:
    """A picture of each."""
    from backtest.drawing import draw

    folder.mkdir(parents=True, exist_ok=True)
    for each in replays:
        draw(each.curve, each.ours, each.peers, folder / f"{each.curve.folder}-{each.curve.name}.png")


def report(outcomes: list[Outcome], patient: list[Outcome], tuned: list[Outcome], *, peers: bool = True) -> str:
    """All tables."""
    names = [NAME, AT_END, UNTOLD, *(PEERS if peers else ())]
    of_peers = (
        f"The peers once more, all curves: a verdict only after {PATIENCE} firings in a row\n"
        + tables.table([summary(n, patient) for n in PEERS]),
        "The peers with threshold and patience tuned on the tuning part, all curves\n"
        + tables.table([summary(n, tuned) for n in TUNED]),
        "The same, held out alone\n"
        + tables.table([summary(n, [o for o in tuned if o.curve.held_out]) for n in TUNED]),
    )
    return "\n\n".join(
        (
            tables.format_blocks(outcomes, names),
            "Confusion matrix, all curves\n" + tables.confusion([summary(n, outcomes) for n in names]),
            *(of_peers if peers else ()),
            "Against the ideal judge, all curves\n" + tables.against_ideal(outcomes, names),
            "The same, held out\n" + tables.against_ideal([o for o in outcomes if o.curve.held_out], names),
            f"What {NAME} got wrong\n" + tables.wrongs(outcomes, NAME),
            f"Not scored, and what {NAME} said\n" + tables.unscored(outcomes, NAME),
        )
    )


def document(outcomes: list[Outcome], patient: list[Outcome], tuned: list[Outcome]) -> dict[str, object]:
    """What --json prints."""
    peers = tuple(PEERS) if patient else ()
    return {
        "detectors": {name: tables.as_json(summary(name, outcomes)) for name in (NAME, *peers)},
        "end_told": tables.as_json(summary(AT_END, outcomes)),
        "planned_changes_untold": tables.as_json(summary(UNTOLD, outcomes)),
        f"after_{PATIENCE}_firings_in_a_row": {name: tables.as_json(summary(name, patient)) for name in peers},
        "tuned_peers": {name: tables.as_json(summary(name, tuned)) for name in TUNED if tuned},
        "blocks": {
            block: {name: tables.as_json(summary(name, some)) for name in (NAME, *peers)}
            for block, some in tables.blocks(outcomes).items()
        },
        "curves": tables.in_words(outcomes, NAME),
    }


def header(folders: list[Path], curves: int) -> str:
    """What a results file begins with: when, with what, on how much; no names of machines."""
    return (
        f"{date.today().isoformat()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, "
        f"{curves} curves of {', '.join(f.name for f in folders)}\n"
        f"python benchmarks/detectors.py {' '.join(a for a in sys.argv[1:] if not a.startswith('/'))}\n\n"
    )


if __name__ == "__main__":
    sys.exit(main())
