"""Two labellings from pictures alone: draws curves without a name, and says how far labellers and the index agree.

    python benchmarks/labelling.py draw FOLDER      # FOLDER/png/NNN.png, FOLDER/key.csv, FOLDER/READY
    python benchmarks/labelling.py agree FOLDER     # joins FOLDER/a.csv and b.csv with the names; the table
    python benchmarks/labelling.py agree            # the table of the labellings that are kept in benchmarks/public

All public curves and 16 recorded ones (8 that diverge, 8 that do not), in an order that a seed shuffles. A labeller
sees step and loss: no name, no label, no other signal, no other run.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.curves import DIVERGED, HARMLESS, Curve, read_folder
from backtest.scoring import onset_of, tolerance

HERE = Path(__file__).parent
KEPT = HERE / "public"
RECORDED_OF_EACH = 8  # Recorded curves that diverge, and as many that do not
LOG_SCALE_FROM = 4.0  # Largest over smallest loss of a panel
_WIDTHS = (10, 8, 12, 15, 8, 13)
WHO = ("a", "b")
ANSWERS = ("yes", "no", "unsure")
ASKED = """What to write down for each picture of png/, from it alone, as a line of a CSV file with this header:

id,diverges,onset_step,healed_spikes

id             the number of the picture (001 is 1)
diverges       yes: the loss leaves its course for worse and has not come back where the log ends (a jump, a slow climb,
               a higher level for good, no number any more); no: it does not, however noisy it is and however high it
               spikes on its way; unsure: an honest person could say either
onset_step     where diverges is yes (or unsure): the first step of that, as read from the x axis; else empty
healed_spikes  how many spikes upwards stand out of the noise and come back by themselves; 0 for none

Above: the whole log. Below: its last third, its y axis to its own scale. Purple crosses at the bottom: the loss was not
a number. A dot is a logged step where there are few. The y axis is logarithmic where it says so.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One picture, as one labeller or the index has it."""

    diverges: str
    onset: int | None
    healed: int


def main() -> int:
    """Draws, or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "agree"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=20261122)
    asked = parser.parse_args()
    if asked.what == "draw":
        if asked.folder is None:
            parser.error("draw: FOLDER is missing")
        draw_all(chosen(asked.seed), asked.folder)
        return 0
    if asked.folder is not None:
        join(asked.folder)
    print(table())
    return 0


def chosen(seed: int) -> list[Curve]:
    """The curves to label, shuffled."""
    order = random.Random(seed)  # noqa: S311 an order, not a secret
    recorded = read_folder(HERE / "recorded")
    ill = order.sample([c for c in recorded if c.label in DIVERGED], RECORDED_OF_EACH)
    well = order.sample([c for c in recorded if c.label in HARMLESS], RECORDED_OF_EACH)
    curves = [*read_folder(KEPT), *ill, *well]
    order.shuffle(curves)
    return curves


def draw_all(curves: Sequence[Curve], folder: Path) -> None:
    """The pictures, the key and what is asked; the key is not for the labellers."""
    (folder / "png").mkdir(parents=True, exist_ok=True)
    with (folder / "key.csv").open("w", newline="", encoding="utf-8") as file:
        key = csv.writer(file)
        key.writerow(("id", "folder", "name"))
        for number, curve in enumerate(curves, 1):
            draw(curve, folder / "png" / f"{number:03}.png", number)
            key.writerow((number, curve.folder, curve.name))
    (folder / "READY").write_text(f"{len(curves)} pictures.\n\n{ASKED}", encoding="utf-8")


def draw(curve: Curve, path: Path, number: int) -> None:
    """The whole log, and its last third."""
    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    whole, closer = figure.subplots(2, 1)
    first, last = curve.steps[0], max(curve.steps)
    _panel(whole, curve, first, last)
    _panel(closer, curve, last - (last - first) // 3, last)
    whole.set_title(f"{number:03}")
    figure.savefig(path, dpi=80)


def _panel(axes: Axes, curve: Curve, low: int, high: int) -> None:
    rows = [(s, math.nan if v is None else v) for s, v in zip(curve.steps, curve.losses, strict=True)]
    steps, loss = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    inside = (steps >= low) & (steps <= high)
    shown = loss[inside & np.isfinite(loss)]
    # A line between the last reading that is a number and the next one would hide that there was none between.
    axes.plot(steps, loss, color="#333333", linewidth=0.8, marker="." if inside.sum() < 200 else None)
    if len(shown):
        least, most = float(shown.min()), float(shown.max())
        if least > 0 and most / least > LOG_SCALE_FROM:
            axes.set_yscale("log")
            axes.set_ylim(least / 1.05, most * 1.05)
        else:
            room = 0.05 * (most - least or 1.0)
            axes.set_ylim(least - room, most + room)
    logged = np.array([v is not None for v in curve.losses])
    gone = steps[logged & ~np.isfinite(loss)]
    axes.plot(gone, [0.02] * len(gone), "x", color="#762a83", markersize=5, transform=axes.get_xaxis_transform())
    room = 0.01 * max(high - low, 1)
    axes.set_xlim(low - room, high + room)
    axes.locator_params(axis="x", nbins=20)
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.grid(visible=True, which="both", color="#dddddd", linewidth=0.5)
    axes.set_ylabel(f"loss ({axes.get_yscale()})")
    axes.set_xlabel("step")


def join(folder: Path) -> None:
    """What the labellers wrote, with the names of the curves, into benchmarks/public."""
    with (folder / "key.csv").open(encoding="utf-8") as file:
        names = {int(row["id"]): (row["folder"], row["name"]) for row in csv.DictReader(file)}
    for who in WHO:
        if not (folder / f"{who}.csv").is_file():
            print(f"{folder / f'{who}.csv'} is not there: the labels of {who} stay as they are", file=sys.stderr)
            continue
        with (
            (folder / f"{who}.csv").open(encoding="utf-8") as file,
            (KEPT / f"labels_{who}.csv").open("w", newline="", encoding="utf-8") as out,
        ):
            kept = csv.writer(out, lineterminator="\n")
            kept.writerow(("id", "folder", "name", "diverges", "onset_step", "healed_spikes"))
            for row in csv.DictReader(file, skipinitialspace=True):
                number = int(row["id"])
                words = [_word(row, key) for key in ("diverges", "onset_step", "healed_spikes")]
                kept.writerow((number, *names[number], *words))


def _word(row: Mapping[str, str | None], key: str) -> str:
    return (row.get(key) or "").strip().lower()


def read_labels(path: Path) -> dict[tuple[str, str], Labelled]:
    """(folder, name) of a curve to its label. ValueError names the line."""
    labels = {}
    with path.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            answer, onset, healed = (_word(row, key) for key in ("diverges", "onset_step", "healed_spikes"))
            where = f"{path}, line {reader.line_num}"
            if answer not in ANSWERS:
                raise ValueError(f"{where}: diverges {answer!r} is none of {', '.join(ANSWERS)}")
            try:
                label = Labelled(
                    diverges=answer, onset=int(float(onset)) if onset else None, healed=int(float(healed or 0))
                )
            except ValueError:
                raise ValueError(f"{where}: onset_step {onset!r}, healed_spikes {healed!r}: no numbers") from None
            labels[row["folder"], row["name"]] = label
    return labels


def of_index(curve: Curve) -> Labelled:
    """The curve's label in the index."""
    diverges = "yes" if curve.label in DIVERGED else "no" if curve.label in HARMLESS else "unsure"
    healed = sum(event.kind == "spike" for event in curve.events)
    return Labelled(diverges=diverges, onset=onset_of(curve), healed=healed)


def kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Cohen 1960: (observed - expected agreement) / (1 - expected); nan where both always say the same one word."""
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n if n else math.nan
    ones, others = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(ones[word] * others[word] for word in ANSWERS) / n**2 if n else math.nan
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan


def table() -> str:
    """Who agrees with whom: on all curves, the public and the recorded ones. `apart`: median distance of two onsets, in
    logging intervals; `onsets within`: in the benchmark's tolerance; `some spikes`: both see none, or both some."""
    curves = {(c.folder, c.name): c for folder in ("public", "recorded") for c in read_folder(HERE / folder)}
    said = {who: read_labels(kept) for who in WHO if (kept := KEPT / f"labels_{who}.csv").is_file()}
    said["index"] = {key: of_index(curve) for key, curve in curves.items()}
    heads = zip(("same", "kappa", "sure alone", "onsets within", "apart", "some spikes"), _WIDTHS, strict=True)
    lines = [f"{'who, on what':30}" + "".join(f"{head:>{width}}" for head, width in heads)]
    blocks: list[tuple[str, Callable[[Curve], bool]]] = [
        ("all", lambda _: True),
        ("public", lambda c: c.folder == "public"),
        ("public, not short", lambda c: c.folder == "public" and not c.short),
        ("recorded", lambda c: c.folder == "recorded"),
    ]
    for one, other in combinations(said, 2):
        for block, belongs in blocks:
            both = [k for k in said[one] if k in said[other] and belongs(curves[k])]
            lines.append(
                f"{f'{one}, {other}: {block}':30}" + _row([(curves[k], said[one][k], said[other][k]) for k in both])
            )
    lines += ["", "Curves on which not all three say the same"]
    for key in {key: None for who in WHO for key in said.get(who, {})}:
        words = {who: labels[key] for who, labels in said.items() if key in labels}
        if len({label.diverges for label in words.values()}) > 1:
            told = ", ".join(f"{who} {label.diverges}{f' from {label.onset}' if label.onset is not None else ''}"
                             for who, label in words.items())  # fmt: skip
            lines.append(f"  {'/'.join(key)}: {told}")
    return "\n".join(lines)


def _row(both: Sequence[tuple[Curve, Labelled, Labelled]]) -> str:
    pairs = [(a.diverges, b.diverges) for _, a, b in both]
    sure = [pair for pair in pairs if "unsure" not in pair]
    onsets = [
        (curve, abs(a.onset - b.onset))
        for curve, a, b in both
        if a.diverges == b.diverges == "yes" and a.onset is not None and b.onset is not None
    ]
    within = sum(difference <= tolerance(curve) for curve, difference in onsets)
    apart = f"{median(difference / curve.log_interval for curve, difference in onsets):.1f}" if onsets else "-"
    spikes = sum((a.healed > 0) == (b.healed > 0) for _, a, b in both)
    cells = (
        f"{sum(a == b for a, b in pairs)} of {len(both)}",
        f"{kappa(pairs):.2f}",
        f"{kappa(sure):.2f}",
        f"{within} of {len(onsets)}",
        apart,
        f"{spikes} of {len(both)}",
    )
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


if __name__ == "__main__":
    sys.exit(main())
