"""The one mapper from other programs' names (columns, JSON keys, TensorBoard tags, names in log lines) to our fields.

Names are compared in small letters, with `_` for blanks and hyphens and `/` for dots. Of several names of one field
that a source has, the one that stands first here is taken. A name that is not here is not guessed at: `lm loss vs
samples` has consumed samples for its step, `optimizer/variance_l1` is the sum of v and not of sqrt(v), and Hugging
Face's `train/train_loss` is the mean over the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.judge.readings import CARRIED, COLUMNS
from sentinel.vocabulary.errors import ConfigError

# Fields that a column may be; the left side of `--column loss=train/loss`.
FIELDS = ("step", *COLUMNS, *CARRIED, "skipped", "validation_loss", "rank", "attempt")
SPLITS = ("split", "mode", "phase", "stage", "subset")  # columns that name the split of a row: `train`, `val`

_VALIDATES = frozenset({"val", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "dev"})
_ELSEWHERE = frozenset({"test", "testing", "predict", "inference"})
# Field to its names, the preferred one first. Of the steps wandb's `_step` is the last: it counts wandb's calls.
_KNOWN = {
    "step": "global_step train/global_step trainer/global_step step iteration iter train/step train/iteration "
    "train/iter steps iterations num_updates train_inner/num_updates current_steps global_step/max_steps "
    "optimizer_step _step",
    "loss": "loss train/loss lm_loss lm_loss_training/lm_loss train/lm_loss reduced_train_loss train_loss "
    "train_loss_step training_loss training/loss loss/train loss/train/total loss/out train/ce_loss "
    "train/crossentropyloss loss_metrics/global_avg_loss train_inner/loss train/loss_step train/batch_loss batch_loss "
    "loss_step train/total_loss total_loss",
    "grad_norm": "grad_norm train/grad_norm grad_norm/grad_norm gradient_norm train/gradient_norm gnorm "
    "train_inner/gnorm global_grad_norm train/global_grad_norm l2_norm/grad/global optim/total_grad_norm "
    "optim/grad_norm grad/norm/total total_grad_norm grad_norm_step train/gnorm",
    "lr": "lr learning_rate train/lr train/learning_rate learning_rate/learning_rate lr_adamw lr_adam lr_adamw/pg1 "
    "lr_adam/pg1 lr_adamw/group0 lr_decoupledadamw/group0 optim/lr optim/learning_rate_group0 optim/lr_(group_0) "
    "optim/learning_rate train_inner/lr lr/group0 lrate",
    "loss_scale": "loss_scale loss_scale/loss_scale train/loss_scale train_inner/loss_scale",
    "seqlen": "seqlen seqlen/curriculum_seqlen curriculum_seqlen seqlen/actual_seq_length seq_len train/seqlen "
    "train/seq_len seq_length sequence_length",
    "global_batch_samples": "global_batch_samples global_batch_size train/global_batch_size batch_size/batch_size "
    "batch_size gbs",
    "epoch": "epoch train/epoch trainer/epoch",
    "skipped": "skipped skipped_iterations number_of_skipped_iterations skipped_iters",
    "adam_variance_l1": "adam_variance_l1 optimizer/variance_sqrt_l1",  # Megatron-DeepSpeed's
    "adam_variance_max": "adam_variance_max optimizer/variance_sqrt_abs_max",
    "update_norm": "update_norm train/update_norm",
    "loss_spread": "loss_spread",
    "grad_norm_spread": "grad_norm_spread",
    "attention_logit_max": "attention_logit_max max_attention_logit train/max_attention_logit",
    "output_logit_max": "output_logit_max max_logit train/max_logit",
    "momentum_l2": "momentum_l2",
    "param_norm": "param_norm params_norm train/param_norm optim/param_norm",
    "tokens_per_s": "tokens_per_s tokens_per_second train/tokens_per_second",
    "loss_ratio": "loss_ratio train/loss_ratio",
    "loss_ratio_all_lengths": "loss_ratio_all_lengths",
    "lr_warmup_steps": "lr_warmup_steps",
    "step_time_s": "step_time_s",
    "consumed_samples": "consumed_samples train/consumed_samples consumed_train_samples",
    "consumed_tokens": "consumed_tokens train/consumed_tokens tokens_seen train/tokens_seen total_tokens "
    "train/total_tokens num_input_tokens_seen throughput/total_tokens optim/total_tokens",
    "time_unix_s": "time_unix_s _timestamp",  # wandb's
    "validation_loss": "validation_loss val_loss val/loss valid/loss valid_loss eval_loss eval/loss validation/loss "
    "lm_loss_validation lm_loss_validation/lm_loss_validation loss/val validation/lm_loss "
    "validation/lm_loss_validation",
    "rank": "rank global_rank process_index",
    "attempt": "attempt",
}
_FIRST_IN_LINES = {"loss": "lm_loss lm_loss_training reduced_train_loss"}  # before a sum with auxiliary losses
# The same for what only lines of logs are known to mean by these names.
_LAST_IN_LINES = {
    "step": "update batch",
    "loss": "global_avg_loss step_loss train_lm_loss average_loss language_model_loss loss/train/ce_loss crossentropy "
    "languagecrossentropy metrics/train/languagecrossentropy metrics/train/crossentropy",
    "grad_norm": "grad",
    "lr": "lr_decoupledlionw/group0",
    "seqlen": "actual_seqlen",
    "global_batch_samples": "bsz trainer/batch_size trainer/global_batch_size",
    "skipped": "optim/step_skipped",
    "step_time_s": "current_step_time train_step_timing_in_s elapsed_time_per_iteration elapsed_time_per_iteration_s "
    "elapsed_time_per_iteration_(s) elapsed_time_per_iteration_ms elapsed_time_per_iteration_(ms)",
    "consumed_samples": "samples time/sample",
    "consumed_tokens": "tokens train/tokens num_tokens time/token",
    "nan_iterations": "number_of_nan_iterations",
}
_MEANINGS = {
    name: (ours, rank)
    for ours in [*_KNOWN, "nan_iterations"]
    for rank, name in enumerate(
        dict.fromkeys(f"{_FIRST_IN_LINES.get(ours, '')} {_KNOWN.get(ours, '')} {_LAST_IN_LINES.get(ours, '')}".split())
    )
}
_MOST_NAMES = 200_000  # each is searched for a loss; trainers log about ten thousand, one for each layer and head
AS_FAIRSEQ = "fairseq writes losses in bits (base 2), and they are given as written"
_RUN = " - "  # wandb's chart exports name their columns `RUN - train/loss`,
_BOUNDS = ("__MIN", "__MAX")  # with the bounds of what was averaged beside it


@dataclass(slots=True)
class Naming:
    columns: dict[str, str] = field(default_factory=dict)  # field to name
    notes: list[str] = field(default_factory=list)


def resolve(names: Iterable[str], asked: Mapping[str, str], where: str, without_values: Collection[str] = ()) -> Naming:
    """Finds the fields among a source's names; `asked` (field to name) has precedence; `without_values`: names that
    are null wherever they were seen. ConfigError when a field of `asked` does not exist, or its name is not among the
    source's."""
    there = list(dict.fromkeys(names))
    naming = Naming()
    normal: dict[str, str] = {}
    runs: dict[str, list[str]] = {}  # the end of a name in a wandb export -> the names that have it, one for each run
    for name in there:
        normal.setdefault(_normal(name), name)
        if _RUN in name and not name.endswith(_BOUNDS):
            runs.setdefault(_normal(name.rsplit(_RUN, 1)[1]), []).append(name)
    for ours, theirs in asked.items():
        if ours not in FIELDS:
            raise ConfigError(f"{ours} is nothing that is read from a column; there are: {', '.join(FIELDS)}")
        found = theirs if theirs in there else normal.get(_normal(theirs))
        if found is None:
            raise ConfigError(f"{where} has no {theirs!r} to take as {ours}; it has: {_listed(there)}")
        naming.columns[ours] = found
    for ours, known in _KNOWN.items():
        if ours in naming.columns:
            continue
        one = next((normal[name] for name in known.split() if name in normal), None)
        if one is None and (several := next((runs[name] for name in known.split() if name in runs), None)):
            one = several[0]
            if len(several) > 1:
                others = _listed(several[1:])
                naming.notes.append(f"{one!r} was taken as {ours}; not read, since they are other runs: {others}")
        if one is not None:
            naming.columns[ours] = one
    naming.notes += [AS_FAIRSEQ] if {"num_updates", "wpb"} <= normal.keys() else []
    if where and "loss" in naming.columns and "loss" not in asked:
        _check_no_rl([name for name in there if name not in without_values], where)
    return naming


def resolve_until_loss(batches: Iterable[Iterable[str]], asked: Mapping[str, str], where: str) -> Naming:
    """The same for names that come in batches, up to a loss and all of `asked`. ConfigError also where none is a loss,
    or there are more than 200,000."""
    names: dict[str, None] = {}
    for batch in batches:
        before = len(names)
        names |= dict.fromkeys(batch)
        if len(names) > _MOST_NAMES:
            raise ConfigError(f"{where} can't be read: its objects have more than {_MOST_NAMES:,} different keys")
        there = len(names) > before and set(asked.values()) <= names.keys()
        if there and "loss" in asked.keys() | resolve(names, {}, "").columns.keys():
            break
    naming = resolve(names, asked, where)
    if "loss" not in naming.columns:
        raise no_loss(where, names)
    return naming


def _check_no_rl(names: Iterable[str], where: str) -> None:
    """ConfigError where the names are of reinforcement learning."""
    signs = signs_of_rl("\n".join(f"{name}: 0" for name in names))
    if signs:
        raise ConfigError(f"{where}: {of_rl(signs)}")


_VALUED = r"['\"]?\s*[:=| ]\s*['\"\[(]{0,2}[-+]?(?:\.?\d|nan|inf)"
_NAME = r"(?:[\w/.-]{0,40}[_/ ])?"
_PAIRS = r"(?:chosen|reject|margin|accurac|acc\b|bench)"  # rewards of DPO's pairs, of a reward model, and a benchmark
# What logs of reinforcement learning have beside a loss. One of the first kind tells it; of the second, two do. Before
# each pattern, in small letters, words of which one stands where it matches: they are found several times as fast.
_BEFORE_LOSS = ("_loss", " loss")
_Signs = dict[str, tuple[tuple[str, ...], re.Pattern[str]]]
_OF_RL: _Signs = {
    "a policy loss": (
        _BEFORE_LOSS,
        re.compile(rf"(?<![a-z])(?:policy|pg|act(?:or)?|surrogate)[\w/]{{0,40}}?[_ ]loss{_VALUED}", re.IGNORECASE),
    ),
    "a reward": (
        ("reward", "mean_r", "avg_r", "average_r", "r_mean", "r_avg"),
        re.compile(
            rf"(?<![\w/.-])(?!{_NAME}{_PAIRS})(?:{_NAME}rewards?(?![\w/]{{0,40}}{_PAIRS})[\w/]{{0,40}}"
            rf"|(?:mean|avg|average)_r|r_(?:mean|avg)){_VALUED}",
            re.IGNORECASE,
        ),
    ),
    "a return": (
        ("_ret", "return"),
        re.compile(
            rf"(?<![a-z])(?:(?:mean|avg|average|ep(?:isode)?|episodic)_(?:returns?|ret)|returns?[_/](?:mean|avg|max)){_VALUED}",
            re.IGNORECASE,
        ),
    ),
    "an advantage": (("adv",), re.compile(rf"(?<![a-z])adv(?:antages?)?(?:[_/]\w{{1,40}})?{_VALUED}", re.IGNORECASE)),
    "a share of clipped ratios": (
        ("clip",),
        re.compile(
            rf"(?<![a-z])(?:pg_|ppo_|ratio_)?clip[_ ]?(?:frac(?:tion)?|ratio/\w{{1,30}}){_VALUED}", re.IGNORECASE
        ),
    ),
    "a length of responses": (
        ("resp", "completion", "rollout"),
        re.compile(
            rf"(?<![a-z])(?:(?:mean|avg)_)?(?:resp(?:onses?)?|completions?|rollouts?)[_/](?:mean_)?(?:tokens|len(?:gths?)?)"
            rf"(?:[_/]\w{{1,40}})?{_VALUED}",
            re.IGNORECASE,
        ),
    ),
}
_OF_RL_OR_OTHERS: _Signs = {
    "a value loss": (
        _BEFORE_LOSS,
        re.compile(rf"(?:value|vf|cri(?:tic)?)[\w/]{{0,40}}?[_ ]loss{_VALUED}", re.IGNORECASE),
    ),
    "a KL": (
        ("kl",),
        re.compile(rf"(?<![a-z])(?:approx_|mean_|rev_)?kl(?:[_/ ][\w/]{{0,40}})?{_VALUED}", re.IGNORECASE),
    ),
    "an entropy": (
        ("entropy",),
        re.compile(rf"(?<![a-z-])(?<!cross_)(?<!cross )entropy(?:[_/]\w{{1,40}})?{_VALUED}", re.IGNORECASE),
    ),
}
_QUICK = tuple({word for words, _ in [*_OF_RL.values(), *_OF_RL_OR_OTHERS.values()] for word in words})
# One of these is in each line with a sign, too.
_WORDS_OF_RL = re.compile(
    r"reward|policy|pg_|act(?:or)?_loss|act loss|surrogate|mean_r|avg_r|average_r|r_mean|r_avg|return|_ret|adv|clip"
    r"|resp|completion|rollout|\bkl|_kl|entropy|value|critic|vf_",
    re.IGNORECASE,
)


def signs_of_rl(text: str) -> frozenset[str]:
    """Which numbers of reinforcement learning the text names: none, or so many that it is of nothing else."""
    small = text.casefold()
    if not any(word in small for word in _QUICK) or _WORDS_OF_RL.search(text) is None:
        return frozenset()
    told, beside = _found(_OF_RL, text, small), _found(_OF_RL_OR_OTHERS, text, small)
    return frozenset(told | beside if told or len(beside) > 1 else ())


def _found(signs: _Signs, text: str, small: str) -> set[str]:
    return {
        sign
        for sign, (words, pattern) in signs.items()
        if any(word in small for word in words) and pattern.search(text)
    }


def of_rl(signs: frozenset[str]) -> str:
    return (
        f"this is a log of reinforcement learning (it has {' and '.join(sorted(signs))}), whose loss does not show a "
        "divergence; to judge one of its numbers nevertheless, name it with --loss NAME"
    )


def meaning(name: str) -> tuple[str, int] | None:
    """The field of a name in a line, and the place of the name among those of the field: the smallest is preferred."""
    return _MEANINGS.get(_normal(name))


def is_of_validation(split: object) -> bool:
    """Whether the loss of a row of this split is a validation's."""
    return isinstance(split, str) and split.strip().lower() in _VALIDATES


def is_of_training(split: object) -> bool:
    """Whether it is a training loss; also where the word is not known, or there is none."""
    return not (isinstance(split, str) and split.strip().lower() in _VALIDATES | _ELSEWHERE)


def no_loss(where: str, names: Iterable[str]) -> ConfigError:
    has = _listed(list(dict.fromkeys(names)))
    return ConfigError(
        f"{where} has nothing that is known to be a loss: say which with --column loss=NAME; it has: {has}"
    )


def _normal(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_").replace(".", "/").removeprefix("sentinel_")


def _listed(names: list[str], most: int = 40) -> str:
    shown = ", ".join(name[:80] for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
