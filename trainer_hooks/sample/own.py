"""own(engine, name): an attribute of the engine itself, not of its model."""

from __future__ import annotations

from typing import Any


def own(engine: Any, name: str, default: Any = None) -> Any:
    """The engine's attribute of that name, or `default`. DeepSpeed's engine answers for its model's attributes too,
    and how these are named is the user's business: a model may have a `precision`, or a `train_batch`."""
    return getattr(engine, name) if has_own(engine, name) else default


def has_own(engine: Any, name: str) -> bool:
    """Whether it has one, `_modules` of a torch module included."""
    inside = getattr(engine, "__dict__", {})
    return name in inside or name in inside.get("_modules", ()) or hasattr(type(engine), name)
