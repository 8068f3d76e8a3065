"""What an engine's Adam really runs with, read from the optimizer and the engine; and the same, set.

DeepSpeed keeps betas, eps and weight decay in the inner optimizer's groups, gradient clipping in the engine's
configuration (ZeRO 0 in fp32) or in the wrapping optimizer (else), the loss scale in the wrapping optimizer. Loading a
checkpoint restores the groups and the loss scale, and the clipping with ZeRO 1 and 2 and with the fused Adam in half
precision; so the configuration is read before, and set again after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Once, TrainingSettings
from trainer_hooks.control.start import totals
from trainer_hooks.ranks import NotAgreedError
from trainer_hooks.restart import Decisions
from trainer_hooks.sample.hyperparameters import is_decoupled
from trainer_hooks.sample.own import has_own, own
from trainer_hooks.sample.owners import inner_optimizers, local
from trainer_hooks.sample.reading import loss_scale
from trainer_hooks.sample.replicas import is_partitioned

_GROUP_KEYS = ("betas", "eps", "weight_decay")
_MOMENTS = ("exp_avg", "exp_avg_sq")

MOMENTS_S = 600.0
"""Within this time all ranks have set their moments to 0 and read them back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSettings:
    """What was configured."""

    # Of each parameter group: betas, eps, weight_decay, as far as the optimizer has them.
    groups: tuple[dict[str, Any], ...]
    clip_grad: float | None  # Largest global L2 norm of the gradient; 0 does not clip; None where the loop clips

    @classmethod
    def of(cls, engine: Any) -> AdamSettings:
        groups = tuple({k: g[k] for k in _GROUP_KEYS if k in g} for g in engine.optimizer.param_groups)
        return cls(groups=groups, clip_grad=gradient_clipping(engine))

    def impose(self, engine: Any, decided: TrainingSettings) -> None:
        """Sets them on the engine, whatever a checkpoint brought back; what is decided replaces what was configured. A
        group that is not decayed (biases, norms) stays so, and groups that are decayed differently stay different
        where what is decided is no change. OverridesError where a weight decay is decided and none of several groups
        has one."""
        decays = decided.weight_decay not in (None, _largest_weight_decay(self.groups))
        if decays and (why := why_no_weight_decay(self.groups)) is not None:
            raise OverridesError(f"weight_decay can't be applied: {why}")
        betas = (decided.adam_beta1, decided.adam_beta2)
        whole = hasattr(engine.optimizer, "optimizers")  # of several each has its own part of the groups
        for optimizer in [engine.optimizer] if whole else inner_optimizers(engine.optimizer):
            for group, configured in zip(optimizer.param_groups, self.groups, strict=False):
                group.update(configured)
                if "betas" in configured:
                    pairs = zip(configured["betas"], betas, strict=True)
                    group["betas"] = tuple(old if new is None else new for old, new in pairs)
                if decided.adam_eps is not None and "eps" in configured:
                    group["eps"] = decided.adam_eps
                if decays and (configured.get("weight_decay") or len(self.groups) == 1):
                    group["weight_decay"] = decided.weight_decay
        clip_grad = self.clip_grad if decided.clip_grad is None else decided.clip_grad
        if has_own(engine, "clip_by"):  # what stands for an engine
            engine.clip_by(clip_grad)
        else:
            engine._config.gradient_clipping = clip_grad  # there is no other way in
        if hasattr(engine.optimizer, "clip_grad"):
            engine.optimizer.clip_grad = clip_grad


_BY_GROUP = {"betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_eps",), "weight_decay": ("weight_decay",)}


def keys_of_groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of overrides.json that can be set in these parameter groups: in all of them, or not at all."""
    can = [key for name, keys in _BY_GROUP.items() if all(name in group for group in groups) for key in keys]
    return [key for key in can if key != "weight_decay" or why_no_weight_decay(groups) is None]


def why_no_weight_decay(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a weight decay can't be decided, as a clause; None where it can."""
    if len(groups) == 1 or any(group.get("weight_decay") for group in groups):
        return None
    return "no parameter group has a weight decay, so which are to be decayed is not known"


def facts(engine: Any) -> dict[str, Any]:
    """The fields of RunStarted that the engine itself can tell."""
    groups, precision = engine.optimizer.param_groups, _precision(engine)
    betas, inner = groups[0].get("betas") or (None, None), next(inner_optimizers(engine.optimizer))
    return {
        "adam_beta1": betas[0],
        "adam_beta2": betas[1],
        "adam_eps": groups[0].get("eps"),
        "weight_decay": _largest_weight_decay(groups),
        "decoupled_weight_decay": is_decoupled(inner, groups[0]) if "betas" in groups[0] else None,
        "gradient_clipping": gradient_clipping(engine),
        "precision": precision,
        "loss_scale": loss_scale(engine) if precision == "fp16" else None,
        "dropout": _largest_dropout(engine.module),
        "parameters": _parameters(engine),
        "accumulation_steps": engine.gradient_accumulation_steps(),
    }


def _precision(engine: Any) -> str | None:
    if has_own(engine, "precision"):  # what stands for an engine
        return engine.precision()  # type: ignore[no-any-return]
    return "fp16" if engine.fp16_enabled() else "bf16" if engine.bfloat16_enabled() else "fp32"


def _largest_dropout(model: Any) -> float | None:
    """Over torch's modules of dropout, and the numbers of other modules whose names say dropout; None where none does.
    A part of the model that lies on other ranks is not seen."""
    found = []
    for module in model.modules():
        of_torch = "Dropout" in type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, float | int) and 0 <= value < 1 and ("dropout" in name or (of_torch and name == "p")):
                found.append(value)
    return max(found, default=None)


def _parameters(engine: Any) -> int | None:
    """Of the whole model; None where a rank has a part of it alone (tensor, pipeline, expert parallelism, FSDP 1)."""
    parameters = list(engine.module.parameters())
    split = any(own(engine, name) for name in ("mpu", "is_pipe_parallel", "has_moe_layers"))
    cut = not own(engine, "has_whole_gradients", True) and not any(hasattr(p, "device_mesh") for p in parameters)
    return None if split or cut else sum(getattr(p, "ds_numel", p.numel()) for p in parameters)


def _largest_weight_decay(groups: Iterable[Mapping[str, Any]]) -> float | None:
    return max((g["weight_decay"] for g in groups if "weight_decay" in g), default=None)


def gradient_clipping(engine: Any) -> float | None:
    """The largest global norm that the next step lets through; 0 does not clip. None where the loop clips."""
    limit = getattr(engine.optimizer, "clip_grad", engine.gradient_clipping())
    return None if limit is None else float(limit)


def apply_once(once: Once, engine: Any, record: Decisions, step: int) -> None:
    """The one-shot changes of the optimizer at a start from that step, and on the record that the run has had all of
    `once`. OverridesError where the moments could not be reset."""
    if once.reset_moments and step:
        reset_all_moments(engine, record, step)
    if once.loss_scale is not None:
        engine.optimizer.loss_scale = once.loss_scale  # of the next step; a dynamic one goes on from there
    record.applied_once = (*record.applied_once, once.id)


def reset_all_moments(engine: Any, record: Decisions, step: int) -> None:
    """As at a start from that step: on all ranks, and on the record. OverridesError where it is not so on all."""
    reset_moments(engine)
    try:
        zero = moments_are_zero(engine)
    except NotAgreedError as error:
        raise OverridesError(f"overrides.json: reset_moments: not known of all ranks ({error})") from error
    if not zero:
        raise OverridesError("overrides.json: reset_moments: not all of Adam's state could be set to 0")
    record.moments_reset_steps = (*record.moments_reset_steps, step)


def reset_moments(engine: Any) -> None:
    """Sets Adam's moments and its step count to 0, in place, as if the optimizer had never made a step."""
    for optimizer in inner_optimizers(engine.optimizer):
        for state in optimizer.state.values():
            for name in _MOMENTS:
                if name in state:
                    state[name].zero_()
            if "step" in state:
                state["step"] = state["step"] * 0  # a number with some optimizers, a tensor with others
        for group in optimizer.param_groups:
            if "step" in group:  # FusedAdam's count, which the states begin from
                group["step"] = 0


def moments_are_zero(engine: Any) -> bool:
    """Whether Adam's moments and step count are 0 for every parameter, on all ranks; read back from the optimizer. Not
    so when there is less of a state than there are parameters: some of it lies elsewhere (on an NVMe, say)."""
    states = [state for optimizer in inner_optimizers(engine.optimizer) for state in optimizer.state.values()]
    clean = all(
        not float(state.get("step", 0)) and all(not local(state[name]).any() for name in _MOMENTS if name in state)
        for state in states
    )
    elements = sum(local(state["exp_avg_sq"]).numel() for state in states if "exp_avg_sq" in state)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters() if p.requires_grad)
    whole = is_partitioned(engine) or elements >= parameters
    not_clean, in_part, everywhere = totals([int(not clean), int(not whole), elements], MOMENTS_S)
    return not not_clean and not in_part and everywhere >= parameters
