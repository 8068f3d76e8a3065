"""TensorBoard's event files, read without TensorBoard."""

from sentinel.adapters.event_files.events import Axis
from sentinel.adapters.event_files.parting import part
from sentinel.adapters.event_files.spans import Index, Side, Spans

__all__ = ["Axis", "Index", "Side", "Spans", "part"]
