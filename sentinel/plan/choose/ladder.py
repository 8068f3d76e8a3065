"""One rung of the ladder, as it is configured, and the ladder that is taken where nobody has configured one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from sentinel.judge.analysis.instability import Instability
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import POSITIVE, out_of_range, outside
from sentinel.vocabulary.pacing import SLW_AND_BATCH, Shortening
from sentinel.vocabulary.training_settings import LR_ROLES, LrFactors, OptimizerSettings

# how far back a rung rolls: see `choose_target`
TargetRule = Literal["near", "earlier", "before_risky_window", "scratch"]

# the pacings of a SeqlenSchedule, by their names
SeqlenPacing = Literal["fixed_linear", "fixed_root", "fixed_discrete", "mixed", "adaptive", "custom"]
DifficultyKind = Literal["percentile", "value"]  # the kinds of a DifficultySchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung(OptimizerSettings):
    """One mitigation, or a few together, and where it starts from. A `[[policy.ladder]]` table.

    A change of what the run trains with: settings of the optimizer by their names, all else as factors or as schedules
    that begin at the target. Every key is off unless it is set; docs/LADDER.md says when each is right, and when wrong.
    """

    name: str
    """What plans, logs and the record call the rung."""

    hypothesis: str
    """What is true if this rung helps."""

    instability: Instability | None = None
    """Only for an incident whose onset shows it. attention_logits: the largest has passed 100 and grows;
    lagging_variance: the gradients have grown at once, and Adam's variance has not followed. None: for any incident."""

    target: TargetRule = "near"
    """near: the last checkpoint before the onset, less the margin; earlier: the margin doubled by each rung that
    failed (another checkpoint only where saves are closer than that), and during the first 3 LR warmups before the
    upper half of the LR ramp; before_risky_window: that at any time; scratch: no checkpoint at all."""

    restart: Literal["job"] | None = None
    """"job": this rung is restarted by a new job, never in place, as where it suspects the machine or the state of the
    process. None: as [policy] restart says."""

    reseed: bool = False
    """Permute the data that is not yet consumed with a new seed; once."""

    skip_samples: Annotated[int | Literal["past_onset"] | None, POSITIVE] = None
    """Leave this many samples out after the target, once. "past_onset": all from the target up to the late end of the
    onset plus [policy] margin_steps, so that what was there when it broke is never seen again in that order."""

    seqlen_start: Annotated[int | Literal["by_size"] | None, POSITIVE] = None
    """Start SLW at this many tokens per sample; "by_size": 8, or 64 where the model is known to have 1e9 parameters or
    more. None leaves the sequence length alone."""

    seqlen_total_steps: Annotated[int | None, POSITIVE] = None
    """T of the SLW in steps; None is three times the LR warmup (Li, Zhang & He: "a few multiples" of it), and for ever
    where the pacing is mixed."""

    seqlen_pacing: SeqlenPacing | None = None
    """How the length grows: fixed_linear (None is that), fixed_root, fixed_discrete (seqlen_start for all the steps,
    then the full length), mixed (900 steps short, 100 full, repeated), adaptive (as the validations allow), custom."""

    seqlen_root_degree: Annotated[float | None, POSITIVE] = None
    """Degree of the root of fixed_root; None is 2, the square root."""

    seqlen_function: str | None = None
    """The function of the custom pacing, "module:function", which the trainer imports."""

    seqlen_multiple: Annotated[int | None, POSITIVE] = None
    """Lengths are rounded down to a multiple of this; None is 8, and 16 suits int8."""

    seqlen_shorten: Shortening | None = None
    """How a batch gets shorter: truncate, reshape (more, shorter samples), or truncate_keep and reshape_keep (what is
    left over is used later); None leaves it to the trainer."""

    seqlen_by_tokens: bool | None = None
    """Whether SLW also ends the run and decays its LR by as many tokens as its steps were to see, and re-sizes the LR
    warmup (DeepSpeed's tutorial, 2.3 to 2.5). None: yes, as far as the trainer has reported them; true: yes, and refuse
    the rung where something is not reported; false: no. With a reshape a step keeps its tokens, and nothing changes."""

    batch_size_start: Annotated[int | None, POSITIVE] = None
    """Start a batch-size warmup at this many samples per step, over all ranks; None leaves the batch alone."""

    batch_size_increment: Annotated[int | None, POSITIVE] = None
    """Samples per step that are added at a time; None is batch_size_start."""

    batch_size_samples: Annotated[int | None, POSITIVE] = None
    """Samples from the start to the full batch."""

    random_ltd_start: Annotated[int | None, POSITIVE] = None
    """Start random-LTD with this many tokens of each sample kept in the middle layers; None leaves it alone."""

    random_ltd_total_steps: Annotated[int | None, POSITIVE] = None
    """T of random-LTD in steps: how long until no token is dropped any more."""

    curriculum_metric: str | None = None
    """Draw samples by this metric, the easy ones first: voc, or any that has been indexed; None leaves it alone."""

    curriculum_index: str | None = None
    """The folder of the metric's index, as the trainer sees it."""

    curriculum_kind: DifficultyKind | None = None
    """What the start is: a percentile (None is that; from 1 to 100) or a value of the metric."""

    curriculum_start: Annotated[int | None, POSITIVE] = None
    """Difficulty at the target; None is 1 %. Where the tail of the values is heavy, a value: 600 for BERT's voc."""

    curriculum_full: Annotated[int | None, POSITIVE] = None
    """The largest difficulty that there is; None is 100 %."""

    curriculum_total_steps: Annotated[int | None, POSITIVE] = None
    """Steps from the start to the full difficulty."""

    curriculum_root_degree: Annotated[float | None, POSITIVE] = None
    """1 is linear; None is 2, the square root, which suits all metrics that draw from a part of the data."""

    lr_warmup_factor: Annotated[float | None, POSITIVE] = None
    """Length of the LR warmup, as a multiple of what the run had at its own start (see compound), counted from the
    target; None leaves it alone."""

    lr_factor: Annotated[float | None, POSITIVE] = None
    """Peak LR, as a multiple of what the run had at its own start (see compound); None leaves it alone. The whole curve
    is multiplied: the minimum of a decay keeps its share of the peak."""

    lr_factor_of: LrFactors | None = None
    """Role or pattern -> LR of these parameters as a multiple of that of the rest, e.g. {"attention.qk" = 0.25}. Roles:
    attention.qk, attention.qkv; any other name is a pattern of parameters' names, "*.q_proj.*". Factors multiply."""

    qk_clip: Annotated[float | None, POSITIVE] = None
    """Limit of the attention logits, e.g. 100: after each step the query and key weights of a head whose largest logit
    passed it are scaled down (QK-clip); None leaves it alone."""

    clip_grad: Annotated[float | None, POSITIVE] = None
    """Largest global L2 norm of the gradient, above 0; None leaves it alone."""

    clip_grad_factor: Annotated[float | None, POSITIVE] = None
    """The same as a multiple of what the run had at its own start (see compound); one of the two at most."""

    compound: bool = False
    """false: a factor is of what the run's first attempt reported, whatever earlier incidents have changed. true: of
    what the run trained with when this incident began, so that factors of several incidents multiply."""

    reset_moments: bool = False
    """Set Adam's exp_avg, exp_avg_sq and step count to 0, once; the weights stay. From scratch there are none."""

    loss_scale: Annotated[float | None, POSITIVE] = None
    """fp16: the loss scale to start from, once; None leaves the checkpoint's."""

    environment: tuple[str, ...] = ()
    """Free-form, for trainers other than the reference one: variables as "NAME=value". The trainer has to echo them."""

    options: tuple[str, ...] = ()
    """Free-form: options of the trainer as "--flag=value", a switch as "--flag". One that names a known setting
    (--learning_rate, …) is proved by what the trainer reports of that setting; any other the trainer has to echo."""

    remove_options: tuple[str, ...] = ()
    """Free-form: options that the trainer no longer gets, as "--fp16": the option goes with all of its values."""

    wait_steps: Annotated[int | None, POSITIVE] = None
    """Change nothing and wait so many more steps for the run to recover; a rung of its own. None does not wait."""

    bisect: bool = False
    """Ask for the cause first: once the job is stopped, `sentinel bisect` of the incident is run, and the restart makes
    the change that healed in it, from the checkpoint that it began from; a rung of its own, one in a ladder. Where no
    cause is likely, the next rung is tried."""

    page: bool = False
    """Stop here and ask for a person, with the hypothesis; a rung of its own, and as a rule the last."""

    @property
    def restarts(self) -> bool:
        """Whether its keys say what a restart changes: one that waits, bisects or asks for a person says nothing."""
        return not self.page and self.wait_steps is None and not self.bisect

    @property
    def changes_settings(self) -> bool:
        """Whether it sets anything but where the restart begins, and how."""
        return bool({*self._set_keys()} - {"target", "restart"})

    def _set_keys(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, {}) and f.name not in _NAMING]

    def __post_init__(self) -> None:
        set_keys = self._set_keys()
        if self.compound and not any(key.endswith("_factor") for key in set_keys):
            raise ConfigError(f"rung {self.name!r}: compound says how factors count, and the rung has none")
        if not {*set_keys} - {"restart"}:
            raise ConfigError(f"rung {self.name!r} changes nothing: the same run would diverge the same way again")
        for alone, does in (
            ("wait_steps", "starts nothing"),
            ("bisect", "finds what is to be changed"),
            ("page", "starts nothing"),
        ):
            if alone in set_keys and len(set_keys) > 1:
                other = next(key for key in set_keys if key != alone)
                raise ConfigError(f"rung {self.name!r}: {alone} {does}, so {other} would not be applied")
        self._check_pacing()
        if self.clip_grad is not None and self.clip_grad_factor is not None:
            raise ConfigError(f"rung {self.name!r}: clip_grad and clip_grad_factor say the same thing; leave one out")
        if (problem := outside(self)) is not None:
            raise ConfigError(f"rung {self.name!r}: {problem}")
        self._check_lr_factors()
        self._check_free()

    def _check_lr_factors(self) -> None:
        for name, factor in (self.lr_factor_of or {}).items():
            if re.fullmatch(r"attention\.\w+", name) and name not in LR_ROLES:
                roles = ", ".join(sorted(LR_ROLES))
                raise ConfigError(f"rung {self.name!r}: lr_factor_of has no role {name!r}; the roles are {roles}")
            if factor == 1 or not name.strip():
                raise ConfigError(f"rung {self.name!r}: lr_factor_of.{name or '(empty)'} = {factor:g} changes nothing")
            if (problem := out_of_range(POSITIVE, factor, f"lr_factor_of.{name}")) is not None:
                raise ConfigError(f"rung {self.name!r}: {problem}")

    def _check_free(self) -> None:
        for key, (wanted, pattern) in _FREE_FORM.items():
            for text in getattr(self, key):
                if not re.fullmatch(pattern, text, re.DOTALL):
                    raise ConfigError(f"rung {self.name!r}: {key} should be like {wanted}, not {text!r}")
        set_here = {option.partition("=")[0] for option in self.options}
        if both := sorted(set_here & set(self.remove_options)):
            raise ConfigError(f"rung {self.name!r}: {both[0]} is both in options and in remove_options: leave one out")

    def _check_pacing(self) -> None:
        for prefix, needed in _TOGETHER.items():
            keys = [f.name for f in fields(self) if f.name.startswith(prefix) and getattr(self, f.name) is not None]
            if keys and (missing := next((key for key in needed if getattr(self, key) is None), None)):
                raise ConfigError(f"rung {self.name!r}: {keys[0]} needs {missing}")
        for key, pacings in _OF_PACINGS.items():
            pacing = self.seqlen_pacing or "fixed_linear"
            if getattr(self, key) is not None and pacing not in pacings:
                raise ConfigError(f"rung {self.name!r}: {key} says nothing where seqlen_pacing is {pacing}")
        if self.seqlen_pacing == "custom" and self.seqlen_function is None:
            raise ConfigError(f"rung {self.name!r}: seqlen_pacing custom needs seqlen_function")
        if self.curriculum_kind == "value" and (self.curriculum_start is None or self.curriculum_full is None):
            raise ConfigError(f"rung {self.name!r}: curriculum_kind value needs curriculum_start and curriculum_full")
        if self.seqlen_start is not None and self.batch_size_start is not None:
            raise ConfigError(f"rung {self.name!r}: {SLW_AND_BATCH}")


_FLAG = r"--[A-Za-z][A-Za-z0-9_-]*"
# key -> how its entries look, in words and as a pattern
_FREE_FORM = {
    "environment": ("'NAME=value'", r"[^=-][^=]*=.*"),
    "options": ("'--flag=value', or '--flag' for a switch", rf"{_FLAG}(=.*)?"),
    "remove_options": ("'--flag', without a value", _FLAG),
}

_NAMING = ("name", "hypothesis", "instability")
# beginning of keys -> those of them that have to be there where any is
_TOGETHER = {
    "seqlen_": ("seqlen_start",),
    "batch_size_": ("batch_size_start", "batch_size_samples"),
    "random_ltd_": ("random_ltd_start", "random_ltd_total_steps"),
    "curriculum_": ("curriculum_metric", "curriculum_index", "curriculum_total_steps"),
}

# key -> the pacings that have it
_OF_PACINGS = {
    "seqlen_total_steps": ("fixed_linear", "fixed_root", "fixed_discrete", "mixed"),
    "seqlen_root_degree": ("fixed_root",),
    "seqlen_function": ("custom",),
}


DEFAULT_LADDER: tuple[Rung, ...] = (
    Rung(
        name="QK-clip",
        hypothesis="attention logits grow without bound",
        instability="attention_logits",
        target="earlier",
        qk_clip=100,
    ),
    Rung(
        name="LR warmup again",
        hypothesis="Adam's variance settles while the learning rate is low",
        instability="lagging_variance",
        lr_warmup_factor=1,
    ),
    Rung(name="reseed", hypothesis="the order of the data did it", reseed=True),
    Rung(
        name="reseed + LR warmup x8",
        hypothesis="the learning rate rose faster than Adam's variance could settle",
        reseed=True,
        lr_warmup_factor=8,
    ),
    Rung(
        name="earlier + reseed + SLW",
        hypothesis="long sequences are too much for weights this young",
        target="earlier",
        reseed=True,
        seqlen_start="by_size",
    ),
    Rung(
        name="earlier + LR / 4",
        hypothesis="the learning rate is higher than this model bears",
        target="earlier",
        lr_factor=0.25,
    ),
)
