"""Numbers in JSON, where nan and infinity have no spelling of their own.

In every JSON file of ours nan and the infinities are the strings "nan", "inf" and "-inf"; null means not measured.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sentinel.vocabulary.errors import LineError

__all__ = ["dump_json", "load_object", "to_json", "to_number"]

_NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: Any) -> Any:
    """The value with every non-finite float spelled as a string, in dicts, lists and tuples too."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """One JSON document (one line, unless an indent is given) that any JSON reader takes."""
    return json.dumps(to_json(value), allow_nan=False, indent=indent)


def to_number(value: Any, key: str) -> float | None:
    """A float from what JSON held: a number, "nan", "inf", "-inf", or None for null. LineError names the key."""
    if value is None:
        return None
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise LineError(f"{key} is too large for a float") from None
    raise LineError(f'{key} should be a number, "nan", "inf", "-inf" or null, not {value!r}')


def load_object(line: str) -> dict[str, Any]:
    """The JSON object that the text holds. LineError when it holds anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise LineError(f"a JSON object was expected, not {type(data).__name__}")
    return data
