"""What a counter says of the last thing that it counted: which step, which incident. Only OpenMetrics has a place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# Characters of an exemplar's labels, names and values together; Prometheus takes none that is longer. Source:
# OpenMetrics 1.0, "Exemplars".
LONGEST = 128


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Of one series of a counter. Its value is 1, what the thing has added to the counter, as in other exporters."""

    labels: Mapping[str, str]  # What would be too much for the labels of a series: the step, the incident
    # When it happened; None where that is not known, and whoever scrapes takes the scrape's time.
    time_unix_s: float | None
    value: float = 1.0


def exemplar(labels: Mapping[str, object], time_unix_s: float) -> Exemplar:
    """The labels that are not None, from the first one on, as far as there is room; floats with four digits."""
    fitting: dict[str, str] = {}
    room = LONGEST
    for name, value in labels.items():
        if value is None:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        room -= len(name) + len(text)
        if room < 0:
            break
        fitting[name] = text
    return Exemplar(fitting, time_unix_s if math.isfinite(time_unix_s) else None)
