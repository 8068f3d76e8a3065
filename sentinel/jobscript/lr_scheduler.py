"""How a fork of Megatron is told to take its LR from the options and not from the checkpoint: the option's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from posixpath import join, normpath
from typing import get_args

from sentinel.jobscript.arguments import Reached, Reading, read
from sentinel.jobscript.facts import LrScheduler
from sentinel.jobscript.given import Unknown, text_of
from sentinel.jobscript.syntax import parse
from sentinel.jobscript.trainer import trainers

SCHEDULERS: tuple[LrScheduler, ...] = get_args(LrScheduler)
ARGUMENT_FILES = ("megatron/arguments.py", "megatron/training/arguments.py", "megatron/training/config/*.py")
"""Where the forks define their options, beside the script that is started."""

_DEFINED = re.compile(rf"""["']--override-({"|".join(SCHEDULERS)})["']""")
# Options that only parsers with one of the names have (read off the forks' arguments.py), in words.
_OLDER = (
    "abort-on-unmet-fused-kernel-constraints embed-layernorm eval-only glu-activation kill-switch-path log-level "
    "log-level-replica pad-vocab-size-to position-embedding-type pp-partition-method skip-train-iteration-range "
    "sync-tp-duplicated-parameters train-weighted-split-paths train-weighted-split-paths-path"
)
_NEWER = (
    "apply-layernorm-1p disable-bias-linear distributed-timeout-minutes ds-sequence-parallel-size end-weight-decay "
    "group-query-attention log-optimizer-states-to-tensorboard no-async-tensor-model-parallel-allreduce "
    "no-gradient-accumulation-fusion no-persist-layer-norm normalization num-key-value-heads num-query-groups "
    "recompute-activations recompute-granularity sequence-parallel start-weight-decay swiglu transformer-impl "
    "untie-embeddings-and-output-weights use-distributed-optimizer use-flash-attn use-flash-attn-v2 use-mcore-models "
    "use-rotary-position-embeddings weight-decay-incr-style"
)


def by_options(flags: Collection[str]) -> LrScheduler | None:
    """The name that the parser of a script with these options has; None where they do not tell."""
    named = {name for name in SCHEDULERS if {f"--override-{name}", f"--use-checkpoint-{name}"} & set(flags)}
    words = {flag.removeprefix("--") for flag in flags}
    if not named:
        named = {name for name, own in zip(SCHEDULERS, (_OLDER, _NEWER), strict=False) if words & set(own.split())}
    return named.pop() if len(named) == 1 else None


def defined_in(sources: Iterable[str]) -> LrScheduler | None:
    """The name that a trainer's own files define; the first of the table where they define several."""
    found = {name for source in sources for name in _DEFINED.findall(source)}
    return next((name for name in SCHEDULERS if name in found), None)


def program_paths(text: str) -> tuple[str, ...]:
    """Where the trainer of a job script may lie, from the folder that the job starts in: there, and in each folder that
    the script changes to. ScriptRefused where it starts no trainer."""
    reading = read(parse(re.sub(r"`pwd`|\$\(pwd\)|\$PWD\b|\$\{PWD\}", ".", text)))
    program = _text(reading, trainers(reading)[0].named)
    return () if program is None else where(reading, program)


def where(reading: Reading, path: str) -> tuple[str, ...]:
    """Where a path of the trainer's may lie, from the folder that the job starts in."""
    changed_to = [c.words[1] for c in reading.commands if c.name == "cd" and len(c.words) == 2]
    folders = [".", *filter(None, (_text(reading, word) for word in changed_to))]
    return tuple(dict.fromkeys(normpath(join(folder, path)) for folder in folders))


def _text(reading: Reading, reached: Reached) -> str | None:
    try:
        return text_of(reading, reached.word.raw, reached.written.moment)
    except Unknown:
        return None
