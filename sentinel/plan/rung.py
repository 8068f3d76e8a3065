"""One rung of the ladder, as it is configured, and the ladder that is taken where nobody has configured one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from sentinel.vocabulary.errors import ConfigError

__all__ = ["DEFAULT_LADDER", "Rung", "TargetRule"]

TargetRule = Literal["near", "earlier", "before_risky_window", "scratch"]
"""How far back a rung rolls: see `choose_target`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One mitigation, or a few together, and where it starts from. A `[[policy.ladder]]` table.

    Every key is off unless it is set; docs/LADDER.md says when each is right, and when it is wrong.
    """

    name: str
    hypothesis: str
    """What is true if this rung helps."""

    target: TargetRule = "near"
    """near: the last checkpoint before the onset, less the margin; earlier: further back with each rung that failed;
    before_risky_window: before the upper half of the LR ramp; scratch: no checkpoint at all."""

    reseed: bool = False
    """Permute the data that is not yet consumed with a new seed; once."""

    skip_samples: int | Literal["past_onset"] | None = None
    """Leave this many samples out after the target, once. "past_onset": all from the target up to the late end of the
    onset plus [policy] margin_steps, so that what was there when it broke is never seen again in that order."""

    seqlen_start: int | None = None
    """Start SLW at this many tokens per sample; None leaves the sequence length alone."""

    seqlen_total_steps: int | None = None
    """T of the SLW in steps; None is three times the LR warmup (Li, Zhang & He: "a few multiples" of it)."""

    lr_warmup_factor: float | None = None
    """Length of the LR warmup, as a multiple of the run's own, counted from the target; None leaves it alone."""

    lr_factor: float | None = None
    """Peak LR, as a multiple of the run's own; None leaves it alone."""

    adam_beta1: float | None = None
    """Decay of Adam's first moment, at least 0 and below 1; None leaves it alone."""

    adam_beta2: float | None = None
    """Decay of Adam's second moment, at least 0 and below 1, e.g. 0.95 for 0.999; None leaves it alone."""

    weight_decay: float | None = None
    """Weight decay of the parameters that are decayed at all; None leaves it alone."""

    clip_grad: float | None = None
    """Largest global L2 norm of the gradient, above 0; None leaves it alone."""

    clip_grad_factor: float | None = None
    """The same as a multiple of the run's own; one of the two at most."""

    reset_moments: bool = False
    """Set Adam's exp_avg, exp_avg_sq and step count to 0, once; the weights stay. From scratch there are none."""

    loss_scale: float | None = None
    """fp16: the loss scale to start from, once; None leaves the checkpoint's."""

    environment: tuple[str, ...] = ()
    """Free-form, for trainers other than the reference one: variables as "NAME=value", which it has to echo."""

    options: tuple[str, ...] = ()
    """Free-form: options of the trainer as "--flag=value", which it has to echo."""

    wait_steps: int | None = None
    """Change nothing and watch for so many more steps whether the run heals; a rung of its own. None does not wait."""

    page: bool = False
    """Stop here and ask for a person, with the hypothesis; a rung of its own, and as a rule the last."""

    def __post_init__(self) -> None:
        set_keys = [f.name for f in fields(self) if getattr(self, f.name) != f.default and f.name not in _NAMING]
        if not set_keys:
            raise ConfigError(f"rung {self.name!r} changes nothing: the same run would diverge the same way again")
        for alone in ("wait_steps", "page"):
            if alone in set_keys and len(set_keys) > 1:
                other = next(key for key in set_keys if key != alone)
                raise ConfigError(f"rung {self.name!r}: {alone} starts nothing, so {other} would not be applied")
        if self.seqlen_total_steps is not None and self.seqlen_start is None:
            raise ConfigError(f"rung {self.name!r}: seqlen_total_steps needs seqlen_start")
        if self.clip_grad is not None and self.clip_grad_factor is not None:
            raise ConfigError(f"rung {self.name!r}: clip_grad and clip_grad_factor say the same thing; leave one out")
        self._check_numbers()
        for key, wanted in (("environment", "NAME=value"), ("options", "--flag=value")):
            for text in getattr(self, key):
                name, equals, _ = text.partition("=")
                if not equals or not name.strip("-") or name.startswith("--") != (key == "options"):
                    raise ConfigError(f"rung {self.name!r}: {key} should be like {wanted!r}, not {text!r}")

    def _check_numbers(self) -> None:
        for key, (least, below, exclusive) in _LIMITS.items():
            value = getattr(self, key)
            if value is None or isinstance(value, str):
                continue
            if not (least < value if exclusive else least <= value) or not value < below:
                wanted = f"above {least:g}" if exclusive else f"at least {least:g}"
                up_to = "" if below == _INFINITY else f" and below {below:g}"
                raise ConfigError(f"rung {self.name!r}: {key} should be {wanted}{up_to}, not {value}")


_NAMING = ("name", "hypothesis")
_INFINITY = float("inf")
_LIMITS = {
    "skip_samples": (0, _INFINITY, True),
    "seqlen_start": (0, _INFINITY, True),
    "seqlen_total_steps": (0, _INFINITY, True),
    "lr_warmup_factor": (0, _INFINITY, True),
    "lr_factor": (0, _INFINITY, True),
    "adam_beta1": (0, 1, False),
    "adam_beta2": (0, 1, False),
    "weight_decay": (0, _INFINITY, False),
    "clip_grad": (0, _INFINITY, True),
    "clip_grad_factor": (0, _INFINITY, True),
    "loss_scale": (0, _INFINITY, True),
    "wait_steps": (0, _INFINITY, True),
}
"""Key -> least, below, and whether the least itself is too little."""


DEFAULT_LADDER: tuple[Rung, ...] = (
    Rung(name="reseed", hypothesis="the order of the data did it", reseed=True),
    Rung(
        name="reseed + SLW",
        hypothesis="long sequences are too much for weights this young",
        reseed=True,
        seqlen_start=8,
    ),
    Rung(
        name="earlier + reseed + LR warmup x8",
        hypothesis="the learning rate rose faster than Adam's variance could settle",
        target="earlier",
        reseed=True,
        lr_warmup_factor=8,
    ),
)
