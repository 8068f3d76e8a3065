"""How difficult a sample is, by the metrics of the Data Efficiency library or by one of the user's.

Source: Li et al. 2022, "DeepSpeed Data Efficiency" (arXiv:2212.03597), section 4.1.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import ConfigError, DataError

Values = Callable[[NDArray[Any]], NDArray[Any]]  # (batch, width) tokens → (batch,) values


# The paper's name -> the metric that is indexed. The sequence length schedule does the rest (truncate, reshape).
METRICS: Mapping[str, str] = {
    **{name: name for name in ("seqtru", "seqres", "seqreo", "voc", "seqreo_voc")},
    **dict.fromkeys(("seqtru_voc", "seqres_voc"), "voc"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric, ready to be measured."""

    name: str
    values: Values
    parameters: Mapping[str, Any] = field(default_factory=dict)  # What its values depend on beside the tokens


def needs_counts(name: str) -> bool:
    """Whether the metric is made from how often each token occurs: a pass over the data before its own."""
    return name in ("voc", "seqreo_voc")


def named(name: str, *, width: int, pad: int | None, counts: NDArray[np.int64] | None = None) -> Metric:
    """The metric of that name: seqtru, seqres, seqreo, voc, seqreo_voc, or a `module:function` of the user's. `counts`
    (vocabulary,) is how often each token occurs in the whole data, where the metric is made from it."""
    if name in ("seqreo", "seqreo_voc") and pad is None:
        raise ConfigError(f"{name} orders by the tokens that are not padding: say which token is, with --pad")
    if name in ("seqtru", "seqres", "seqreo"):
        return Metric(name=name, values=lambda rows: effective_length(rows, pad), parameters={"pad": pad})
    if needs_counts(name):
        if counts is None:
            raise ConfigError(f"{name} needs the counts of the tokens")
        # -log p(w) of each token, nats, p its share of the whole data; 0 of what does not occur: padding
        share = counts / max(int(counts.sum()), 1)
        bits = -np.log(share, out=np.zeros(len(counts)), where=counts > 0)
        facts = {"pad": pad, "tokens": int(counts.sum()), "vocabulary": len(counts)}
        if name == "voc":
            return Metric(name=name, values=lambda rows: rarity(rows, bits).astype(np.float32), parameters=facts)
        coefficient = 10.0 ** (1 + math.ceil(math.log10(max(width * float(bits.max()), 1.0))))

        def both(rows: NDArray[Any]) -> NDArray[np.float64]:
            return effective_length(rows, pad) * coefficient + rarity(rows, bits)

        return Metric(name=name, values=both, parameters={**facts, "length_coefficient": coefficient})
    if ":" in name:
        return Metric(name=name, values=_of_the_user(name))
    known = ", ".join((*METRICS, "module:function"))
    raise ConfigError(f"there is no metric {name!r}; there are {known}")


def effective_length(rows: NDArray[Any], pad: int | None) -> NDArray[np.int32]:
    """(batch,) tokens of each row that are not padding."""
    if pad is None:
        return np.full(len(rows), rows.shape[1], dtype=np.int32)
    length: NDArray[np.int32] = np.count_nonzero(rows != pad, axis=1).astype(np.int32)
    return length


def count_tokens(rows: NDArray[Any], pad: int | None) -> NDArray[np.int64]:
    """(largest token + 1,) how often each token occurs in the rows; padding does not."""
    if rows.size and np.issubdtype(rows.dtype, np.signedinteger) and int(rows.min()) < 0:
        raise DataError(f"the data holds token {rows.min()}, and tokens count from 0")
    counts: NDArray[np.int64] = np.bincount(rows.reshape(-1))
    if pad is not None and pad < len(counts):
        counts[pad] = 0
    return counts


def rarity(rows: NDArray[Any], bits: NDArray[np.float64]) -> NDArray[np.float64]:
    """(batch,) vocabulary rarity of each row, -sum of log p(w) over its tokens, nats; padding adds nothing."""
    summed: NDArray[np.float64] = bits.take(rows).sum(axis=1)
    return summed


def _of_the_user(name: str) -> Values:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--metric {name}: {error}") from error
    if not callable(function):
        raise ConfigError(f"--metric {name}: {attribute} is no function")

    def values(rows: NDArray[Any]) -> NDArray[Any]:
        found = np.asarray(function(rows))
        if found.shape != (len(rows),) or found.dtype.kind not in "iuf":
            raise DataError(f"{name} gave {found.dtype} {found.shape} for {len(rows)} rows, not one number for each")
        return found

    return values
