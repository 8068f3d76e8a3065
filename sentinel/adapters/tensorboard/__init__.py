"""A run's TensorBoard folder, cut at a rollback's target and brought back.

In: event files, a target on each axis. Out: what was cut, moved or kept whole, and why; no event is lost.
"""

from sentinel.adapters.tensorboard.folder import ORIGINALS, TensorBoard, changed_originals, foreign_entries

__all__ = ["ORIGINALS", "TensorBoard", "changed_originals", "foreign_entries"]
