"""Signals beside the loss that can agree with it: which have left their bands, and since when. No findings of its own.

One agrees with a rise of the loss that is above its band from 50 steps before the onset on: grad norm, Adam's variance,
update norm, rank spread (tr11-176B); the loss scale where it is halved three times without doubling (tr8-104B). What
moved first is asked afterwards, of all readings (docs/CORRELATION.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known
from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.readings import BANDED, OfEight, Samples
from sentinel.judge.thresholds import Thresholds

# Halvings of the loss scale without a doubling between: one is how dynamic scaling probes, three are a collapse.
# tr8-104B's was falling for 2,300 steps before its loss blew up.
_COLLAPSE_HALVINGS = 3
# Signals that say, far below their usual level, that a model whose loss stands high has stopped to learn: the gradients
# of bad data are small too, but not for so long that Adam's moments follow them.
_FADING = ("update_norm", "adam_variance_l1")
_FADED = 0.4  # Share of the usual level. Of labelled spikes that healed after the patience none was below 0.45 in it
_STANDS_SAMPLES, _NEARLY_ALL = 16, 0.8  # Of so many samples at least, the share outside its band in which one stands
_MANY = 8  # Samples outside its band that make a signal's departure no outlier, however long ago the onset is


class LeadingSignals(Detector):
    """Keeps a noise band for each signal; remembers what left its band within the last `agree_within_steps`."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._forget_steps = thresholds.agree_within_steps
        self.bands: Mapping[str, NoiseBand] = {
            name: NoiseBand(sigmas=thresholds.band_sigmas, floor=thresholds.band_floor) for name in BANDED
        }
        self._inside: dict[str, list[float]] = {}  # Of the block under way
        self._of_eight: Sequence[OfEight] = ()  # What is known of them where they came together
        self._departed: dict[str, tuple[int, int, int, float]] = {}
        self._scale: float | None = None
        self._fall: tuple[int, float] | None = None  # Since which step the loss scale falls, and by how many halvings

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        if self._inside:
            return False
        for name, _, largest in samples.of_eight:
            band = self.bands[name]
            if not band.ready or largest > band.upper:
                return False
        return True

    def push(self, samples: Samples, known: Known) -> Finding | None:
        if samples.plain:
            self._inside.update(samples.signals)
            self._of_eight = samples.of_eight
            return None
        self._of_eight = ()
        step = samples.steps[-1]
        for name, (value,) in samples.signals.items():
            band = self.bands[name]
            if math.isfinite(value) and value <= band.upper:
                inside = self._inside.setdefault(name, [])
                inside.append(value)
                band.glimpse(inside)
            else:
                first, _, count, peak = self._departed.get(name, (step, step, 0, -math.inf))
                self._departed[name] = (first, step, count + 1, max(peak, value))
        scale = samples.readings.get("loss_scale")
        if scale is not None and scale > 0 and scale != self._scale:
            self._note_scale(step, scale)
        return None

    def learn(self, block: Block, known: Known) -> None:
        inside, self._inside = self._inside, {}
        of_eight, self._of_eight = self._of_eight, ()
        if of_eight:
            for name, middle, _ in of_eight:
                self.bands[name].learn(inside[name], middle)
        else:
            for name, values in inside.items():
                self.bands[name].learn(values)
        for name, (_, last, count, peak) in list(self._departed.items()) if self._departed else ():
            if last < block.last_step - self._forget_steps:
                del self._departed[name]
                if count == 1 and math.isfinite(peak):
                    self.bands[name].outlier(peak)

    def departed_before(self, onset_range: tuple[int, int]) -> bool:
        """Whether one has left its band shortly before the onset's late end, or the loss scale was collapsing there."""
        early, late = onset_range
        collapses = self._fall is not None and self.scale_collapsed and self._fall[0] < late
        return collapses or any(early - self._forget_steps <= first < late for first, *_ in self._departed.values())

    @property
    def moved(self) -> bool:
        """Whether any can agree: one has left its band lately, or the loss scale has collapsed."""
        return bool(self._departed) or self.scale_collapsed

    def agree(self, onset_range: tuple[int, int], step: int, samples: int) -> bool:
        """Whether another signal has left its band too, in half of these samples since the onset or in eight, and in
        the later half of them; or the loss scale has collapsed."""
        early, late = onset_range
        return self.scale_collapsed or any(
            first >= early - self._forget_steps and 2 * last >= late + step and count >= min(samples / 2, _MANY)
            for first, last, count, _ in self._departed.values()
        )

    def stand(self, onset_range: tuple[int, int], step: int, samples: int) -> bool:
        """Whether one that agrees has been outside its band in nearly all of these samples, and still is."""
        early, late = onset_range
        return samples >= _STANDS_SAMPLES and any(
            first >= early - self._forget_steps and 8 * (step - last) <= step - late and count >= _NEARLY_ALL * samples
            for first, last, count, _ in self._departed.values()
        )

    def usual(self) -> dict[str, float]:
        """The levels of the signals that may fade, where they are known."""
        return {name: self.bands[name].level for name in _FADING if self.bands[name].ready}

    def fades(self, usual: Mapping[str, float]) -> bool:
        """Whether one of them is now far below what was usual."""
        return any(self.bands[name].level < _FADED * level for name, level in usual.items())

    @property
    def scale_collapsed(self) -> bool:
        return self._fall is not None and self._fall[1] >= _COLLAPSE_HALVINGS

    def _note_scale(self, step: int, scale: float) -> None:
        before, self._scale = self._scale, scale
        if before is None or scale > before:
            self._fall = None
            return
        since, halvings = self._fall or (step, 0.0)
        self._fall = since, halvings + math.log2(before / scale)
