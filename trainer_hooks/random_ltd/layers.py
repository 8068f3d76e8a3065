"""Which layers of a model drop tokens: all of one class but the first and the last, as in the papers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from sentinel.vocabulary.errors import ConfigError

__all__ = ["Layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A model's layers of one class, numbered from 0 in their order."""

    count: int
    """In the whole model, on all stages of a pipeline."""

    dropping: tuple[int, ...]
    """Numbers of those that drop tokens, ascending."""

    here: dict[int, nn.Module]
    """Number -> layer, of those of `dropping` that this process has."""

    @classmethod
    def of(cls, model: nn.Module, layer_class: type[nn.Module], chosen: Iterable[int] | None = None) -> Layers:
        """`chosen` numbers; None is all but the first and the last. ConfigError where there are none such."""
        count, here = _numbered(model, layer_class)
        dropping = tuple(range(1, count - 1)) if chosen is None else tuple(sorted(set(chosen)))
        if not dropping:
            raise ConfigError(
                f"random-LTD has no layer to drop tokens in: the model has {count} of class {layer_class.__name__}, "
                f"and the first and the last see every token"
            )
        if dropping[0] < 0 or dropping[-1] >= count:
            raise ConfigError(f"random-LTD: layers {list(dropping)} should be numbers from 0 to {count - 1}")
        return cls(count=count, dropping=dropping, here={n: here[n] for n in dropping if n in here})


def _numbered(model: nn.Module, layer_class: type[nn.Module]) -> tuple[int, dict[int, nn.Module]]:
    """(how many the whole model has, number -> layer of those that are here)."""
    if hasattr(model, "_layer_specs"):  # DeepSpeed's PipelineModule: a stage builds its own layers only
        return _numbered_in_pipeline(model, layer_class)
    found = [module for module in model.modules() if isinstance(module, layer_class)]
    return len(found), dict(enumerate(found))


def _numbered_in_pipeline(model: Any, layer_class: type[nn.Module]) -> tuple[int, dict[int, nn.Module]]:
    places = [place for place, spec in enumerate(model._layer_specs) if _builds(spec, layer_class)]
    here = dict(model.named_children())  # named by their place in the whole stack
    return len(places), {n: here[str(place)] for n, place in enumerate(places) if str(place) in here}


def _builds(spec: Any, layer_class: type[nn.Module]) -> bool:
    built = getattr(spec, "typename", None)
    return issubclass(built, layer_class) if isinstance(built, type) else isinstance(spec, layer_class)
