"""A probe's samples, by its own journal beside the run's. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.lab.bisect.proof.beside_run import BesideRun
from sentinel.lab.probes.probe import Probe
from sentinel.vocabulary.sample import Sample
from sentinel.vocabulary.training_settings import SkippedRange


def skips(probe: Probe) -> SkippedRange | None:
    """The range that this probe leaves out; None for none."""
    if not probe.name.startswith("skip-") or probe.overrides is None:
        return None
    return (probe.overrides.standing.skipped or (None,))[-1]


def read_in_spite(shown: BesideRun, skipped: SkippedRange) -> Iterator[str]:
    """The run's batches with a sample of the range that were trained on, and others than the run's before them, by
    their digests."""
    theirs = _steps_of(shown, skipped)
    first = min(theirs, default=0)
    for sample, run in shown.pairs:
        digests = sample.batch_digest, run.batch_digest
        if sample.global_step < first and None not in digests and digests[0] != digests[1]:
            yield f"its samples at step {sample.global_step} are others than the run's: these were to stay"
    spoilt = {digest: step for step, digest in theirs.items() if digest is not None}
    for sample in shown.samples:
        if sample.global_step >= first and sample.batch_digest in spoilt:
            theirs_at = spoilt[sample.batch_digest]
            yield f"step {sample.global_step} was trained on the samples of the run's step {theirs_at}"


def unknown_whether_read(shown: BesideRun, skipped: SkippedRange) -> Iterator[str]:
    """Where there are no digests, the position in the data confirms it, or the ranges that the trainer reports."""
    theirs, last = _steps_of(shown, skipped), shown.samples[-1].global_step
    if not theirs:
        yield "the run's own position in the data is not known: which steps had these samples"
        return
    if last < min(theirs):
        yield f"it ended at step {last}, before the samples that it was to leave out (step {min(theirs)})"
    own = [s for s in shown.samples if s.global_step >= min(theirs)]
    if None not in theirs.values() and all(sample.batch_digest is not None for sample in own):
        return
    ranges = None if "skipped_ranges" in (shown.started.from_arguments or ()) else shown.started.skipped_ranges
    if ranges is not None and any((r.get("begin"), r.get("end")) == (skipped.begin, skipped.end) for r in ranges):
        return
    if any((s.consumed_samples or 0) <= skipped.end for s in own):
        yield "neither digests of its samples nor its position in the data show that they were left out"


def _steps_of(shown: BesideRun, skipped: SkippedRange) -> dict[int, int | None]:
    """The run's steps with a sample of the range -> the digest of their batch."""
    return {step: run.batch_digest for step, run in shown.window.after.items() if _overlaps(run, skipped)}


def _overlaps(run: Sample, skipped: SkippedRange) -> bool:
    end, batch = run.consumed_samples, run.global_batch_samples
    return end is not None and batch is not None and end > skipped.begin and end - batch < skipped.end


def same_order(shown: BesideRun) -> Iterator[str]:
    for own, run in shown.pairs:
        if own.batch_digest is not None and own.batch_digest == run.batch_digest:
            yield f"step {own.global_step} was trained on the run's own samples: their order is the same"


def unknown_order(shown: BesideRun) -> Iterator[str]:
    """Where there are no digests, the seed confirms it that the trainer reports."""
    once = shown.probe.overrides.once if shown.probe.overrides else None
    known = any(None not in (own.batch_digest, run.batch_digest) for own, run in shown.pairs)
    if not known and (once is None or shown.reported("seed") != once.seed):
        yield "neither digests of its samples nor its seed show that their order was another"
