"""Which batches were trained on again, by their digests. 24 bytes a step."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.sample import Sample

_UNKNOWN = -1


class Batches:
    """The batches of a lineage, in the order of the steps."""

    def __init__(self) -> None:
        self._digests, self._ends = array("q"), array("q")
        self._epochs, self._sizes = array("f"), array("i")
        self._in_fractions = False
        self._replays: list[tuple[int, int | None]] = []

    def add(self, sample: Sample) -> None:
        if sample.batch_digest is None or not sample.global_batch_samples:
            return
        epoch = sample.epoch
        self._in_fractions = self._in_fractions or (epoch is not None and epoch != int(epoch))
        self._digests.append(sample.batch_digest)
        self._sizes.append(sample.global_batch_samples)
        self._ends.append(_UNKNOWN if sample.consumed_samples is None else sample.consumed_samples)
        self._epochs.append(_UNKNOWN if epoch is None else epoch)

    def replay(self, *, over: bool) -> None:
        """The batches from here on are known to be of the same epoch as what they repeat, until that is `over`."""
        if not over:
            self._replays.append((len(self), None))
        elif self._replays and self._replays[-1][1] is None:
            self._replays[-1] = self._replays[-1][0], len(self)

    def __len__(self) -> int:
        return len(self._digests)

    def counts(self, epoch_samples: int | None) -> tuple[int, int] | None:
        """Samples in batches that were trained on once, and again in one epoch. None where a batch came again, and
        whether that was in another epoch is not known."""
        digests, sizes = np.frombuffer(self._digests, np.int64), np.frombuffer(self._sizes, np.int32)
        total = int(sizes.sum(dtype=np.int64))
        order = np.argsort(digests, kind="stable")
        same = digests[order[1:]] == digests[order[:-1]]
        before, after = order[:-1][same], order[1:][same]  # of each batch that came again: the step before it did
        if not len(after):
            return total, 0
        meant, known = self._in_other_epochs(before, after, epoch_samples)
        for begin, end in self._replays:
            forced = (before < begin) & (after >= begin) & (after < (len(self) if end is None else end))
            meant, known = meant & ~forced, known | forced
        if not known.all():
            return None
        again = int(sizes[after[~meant]].sum(dtype=np.int64))
        return total - again, again

    def _in_other_epochs(
        self, before: NDArray[np.int64], after: NDArray[np.int64], epoch_samples: int | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(meant, known) of each pair: by the count of epochs, else by where an epoch ends, and by the samples that lie
        between: whole epochs, each of which may be short of a batch, or more than one."""
        count, ends = np.frombuffer(self._epochs, np.float32), np.frombuffer(self._ends, np.int64)
        counted = (count[before] >= 0) & (count[after] >= 0)
        whole = np.ceil(count - 1e-4) if self._in_fractions else count
        meant, known = counted & (whole[before] != whole[after]), counted
        if epoch_samples is not None:
            placed = (ends[before] >= 0) & (ends[after] >= 0) & ~counted
            known = known | placed
            if epoch_samples:
                apart, sizes = ends[after] - ends[before], np.frombuffer(self._sizes, np.int32)[after]
                passes = np.maximum(1, (apart + epoch_samples // 2) // epoch_samples)
                between = np.abs(apart - passes * epoch_samples) < (passes + 1) * sizes
                crossed = (ends[before] - 1) // epoch_samples < (ends[after] - 1) // epoch_samples
                meant = meant | (placed & (between | crossed))
        return meant, known
