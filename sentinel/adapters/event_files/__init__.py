"""TensorBoard's event files, read without TensorBoard.

In: files that any process may have written or torn. Out: events, scalars and byte ranges.
"""

from sentinel.adapters.event_files.events import Axis
from sentinel.adapters.event_files.scalars import ScalarFile, Scalars, is_event_file
from sentinel.adapters.event_files.spans import Index, Side, Spans, part

__all__ = ["Axis", "Index", "ScalarFile", "Scalars", "Side", "Spans", "is_event_file", "part"]
