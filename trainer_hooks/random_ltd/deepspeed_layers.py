"""DeepSpeed's own layers for random-LTD (`convert_to_random_ltd`), with what they lack.

| DeepSpeed 0.19.8's | here |
|---|---|
| draws by the global generator, all layers' when the first one runs: no exact resume, no recomputation | draw.py's |
| a decoder's mask cut to its first r rows and columns: wrong where samples are padded | gathered, for each layer |
| parameters get `.random_ltd_layer` into their names; it saves without and can't load what it saved | named as before |
| the schedule counts from step 0 and stays at its end | any schedule of ours |

DeepSpeed's limits remain: its op needs CUDA; a layer gets its hidden states first and the rest by keyword, of which one
mask of four axes is gathered, and no rotary positions (RandomLtd gathers those). The engine's configuration needs
`data_efficiency.data_routing.random_ltd`, whose `random_ltd_layer_id` names the layers.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime.data_pipeline.data_routing.basic_layer import RandomLayerTokenDrop
from deepspeed.runtime.data_pipeline.data_routing.helper import convert_to_random_ltd
from deepspeed.utils.module_utils import recursive_setattr
from torch import Tensor, nn

from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.layer import DataRank, Turn
from trainer_hooks.random_ltd.random_ltd import Layers, RandomLtd, Schedule, kept_at

_INSERTED = "random_ltd_layer."


class DeepSpeedLtd(RandomLtd):
    """As RandomLtd, in an engine that has DeepSpeed's random-LTD configured. Call `begin` before each micro-batch."""

    def __init__(
        self,
        engine: Any,
        layer_class: type[nn.Module],
        schedule: Schedule,
        *,
        seed: int,
        data_rank: DataRank | None = None,
    ) -> None:
        convert_to_random_ltd(engine, layer_class)
        self._model: nn.Module = engine.module
        self._kept_at, self._scheduler = kept_at(schedule), engine.random_ltd_scheduler
        self._turn = Turn(seed=seed, data_rank=data_rank or DataRank.of(engine))
        self._wrapped = {name: m for name, m in self._model.named_modules() if isinstance(m, RandomLayerTokenDrop)}
        droppers = [(n, m) for n, m in enumerate(self._wrapped.values()) if m.random_ltd_scheduler is not None]
        self.layers = Layers(count=len(self._wrapped), dropping=tuple(n for n, _ in droppers), here=dict(droppers))
        for _, module in droppers:
            module.index_generator = self._draw
            module.model_type = "encoder"  # one mask for each layer; a decoder's would be one for all
        for module in self._wrapped.values():
            module._register_state_dict_hook(_leave_out)
            module._register_load_state_dict_pre_hook(_insert)
        self._scheduler.get_value = lambda _: (  # what engine.forward asks
            self._turn.kept if self._turn.kept is not None else int(self._scheduler.state["max_value"])
        )

    def begin(self, step: int, micro_batch: int | None = 0) -> None:
        """Micro-batch `micro_batch` (from 0) of the step that makes update number `step` begins."""
        turn = self._turn
        turn.step, turn.kept, turn.micro_batch = step, self._kept_at(step), micro_batch
        self._scheduler.set_current_seq(turn.kept)

    def remove(self) -> None:
        """Takes DeepSpeed's layers out of the model again."""
        for name, module in self._wrapped.items():
            recursive_setattr(self._model, name, module.random_ltd_layer)

    def _draw(
        self, kept: int, seqlen: int, samples: int, layers: int, device: torch.device, mask: Tensor | None
    ) -> tuple[Tensor, list[Tensor] | None]:
        """((layers, samples, kept) int32; of each layer the mask of its kept tokens, (samples, h, kept, kept))."""
        turn = self._turn
        first = turn.data_rank.first_sample(turn.micro_batch or 0, samples)
        keys = [layer_key(turn.seed, turn.step, number) for number in self.layers.dropping[:layers]]
        drawn = [kept_indices(key, first, samples, seqlen, kept, device) for key in keys]
        masks = None if mask is None else [_gathered(mask, indices) for indices in drawn]
        return torch.stack(drawn).int(), masks


def _gathered(mask: Tensor, indices: Tensor) -> Tensor:
    """(b, h, T, T), b is 1 or the samples -> (samples, h, r, r)."""
    mask = mask.expand(len(indices), -1, -1, -1)
    rows = torch.arange(len(indices), device=mask.device)[:, None, None]
    return mask[rows, :, indices[:, :, None], indices[:, None, :]].permute(0, 3, 1, 2)


def _leave_out(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name in [n for n in state if n.startswith(prefix + _INSERTED)]:
        state[prefix + name.removeprefix(prefix + _INSERTED)] = state.pop(name)


def _insert(state: dict[str, Any], prefix: str, *_others: Any) -> None:
    for name in [n for n in state if n.startswith(prefix) and not n.startswith(prefix + _INSERTED)]:
        state[prefix + _INSERTED + name.removeprefix(prefix)] = state.pop(name)
