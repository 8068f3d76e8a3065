"""A probe's samples, by its own journal beside the run's. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.lab.bisect.beside_run import BesideRun
from sentinel.lab.probes.probe import Probe
from sentinel.vocabulary.sample import Sample
from sentinel.vocabulary.training_settings import SkippedRange


def skips(probe: Probe) -> SkippedRange | None:
    """The range that this probe leaves out; None for none."""
    if not probe.name.startswith("skip-") or probe.overrides is None:
        return None
    return (probe.overrides.standing.skipped or (None,))[-1]


def left_out(shown: BesideRun, skipped: SkippedRange) -> Iterator[str]:
    """None of the run's batches with a sample of the range was trained on, by their digests; where there are none, by
    the position in the data, or by the ranges that the trainer reports."""
    theirs = [run for run in shown.window.after.values() if _overlaps(run, skipped)]
    first = min((run.global_step for run in theirs), default=None)
    if first is None:
        yield "the run's own position in the data is not known: which steps had these samples"
        return
    last = shown.samples[-1].global_step
    if last < first:
        yield f"it ended at step {last}, before the samples that it was to leave out (step {first})"
    spoilt = {run.batch_digest: run.global_step for run in theirs if run.batch_digest is not None}
    for sample, run in shown.pairs:
        digests = sample.batch_digest, run.batch_digest
        if sample.global_step < first and None not in digests and digests[0] != digests[1]:
            yield f"its samples at step {sample.global_step} are others than the run's: these were to stay"
    own = [s for s in shown.samples if s.global_step >= first]
    for sample in own:
        if sample.batch_digest in spoilt:
            theirs_at = spoilt[sample.batch_digest]
            yield f"step {sample.global_step} was trained on the samples of the run's step {theirs_at}"
    if spoilt and all(sample.batch_digest is not None for sample in own):
        return
    ranges = None if "skipped_ranges" in (shown.started.from_arguments or ()) else shown.started.skipped_ranges
    if ranges is not None and any((r.get("begin"), r.get("end")) == (skipped.begin, skipped.end) for r in ranges):
        return
    if any((s.consumed_samples or 0) <= skipped.end for s in own):
        yield "neither digests of its samples nor its position in the data show that they were left out"


def _overlaps(run: Sample, skipped: SkippedRange) -> bool:
    end, batch = run.consumed_samples, run.global_batch_samples
    return end is not None and batch is not None and end > skipped.begin and end - batch < skipped.end


def other_order(shown: BesideRun) -> Iterator[str]:
    digests = [(o.global_step, o.batch_digest, r.batch_digest) for o, r in shown.pairs if o.batch_digest is not None]
    for step, own, run in digests:
        if own == run:
            yield f"step {step} was trained on the run's own samples: their order is the same"
    once = shown.probe.overrides.once if shown.probe.overrides else None
    if not digests and (once is None or shown.reported("seed") != once.seed):
        yield "neither digests of its samples nor its seed show that their order was another"
