"""Which trainer wrote a checkpoint, told by its folder's name; one small recogniser per layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.adapters.checkpoints import shards

__all__ = [
    "DEEPSPEED",
    "HUGGING_FACE",
    "LAYOUTS",
    "MEGATRON_LM",
    "RELEASE",
    "UNIVERSAL",
    "Layout",
    "Named",
    "recognise",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one kind of trainer names its checkpoints, and what it puts into them."""

    name: str
    """As a person calls it."""

    tag: re.Pattern[str]
    """Of the folder's name; its first group is the step, and the step is 0 where there is none."""

    missing: Callable[[frozenset[str], bool], str | None]
    """(names, deep) -> what a whole checkpoint would have and this one lacks, as a sentence.

    names are paths of files and folders below the checkpoint; deep is whether those below its top are among them.
    """

    shard: re.Pattern[str]
    """Of the files that each save writes, as relative paths: these are compared with the siblings'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A checkpoint's folder, as far as its name tells."""

    tag: str
    global_step: int
    layout: Layout

    @property
    def order(self) -> tuple[int, bool, str]:
        """By step; of one step the plain checkpoint after its universal conversion, which is not what a run saves."""
        return (self.global_step, self.layout is not UNIVERSAL, self.tag)


RELEASE = "release"
"""Megatron-LM's name for weights that were converted from elsewhere: the state before the first update."""

_STEP = "([0-9]{1,15})"

UNIVERSAL = Layout(
    name="DeepSpeed universal",
    tag=re.compile(f"global_step{_STEP}_universal"),
    missing=shards.missing_of_universal,
    shard=re.compile(r".*\.pt", re.DOTALL),
)
DEEPSPEED = Layout(
    name="DeepSpeed",
    tag=re.compile(f"global_step{_STEP}"),
    missing=shards.missing_of_deepspeed,
    shard=re.compile(r"[^/]*(?:model|optim)_states\.pt", re.DOTALL),
)
MEGATRON_LM = Layout(
    name="Megatron-LM",
    tag=re.compile(f"iter_{_STEP}|{RELEASE}"),
    missing=shards.missing_of_megatron_lm,
    shard=re.compile(r"mp_rank_[0-9_]+/[^/]*\.pt|[^/]*\.distcp|common\.pt", re.DOTALL),
)
HUGGING_FACE = Layout(
    name="Hugging Face",
    tag=re.compile(f"checkpoint-{_STEP}"),
    missing=shards.missing_of_hugging_face,
    shard=re.compile(r"(?:model|pytorch_model|optimizer|adapter_model)[^/]*\.(?:safetensors|bin|pt)", re.DOTALL),
)
LAYOUTS = (UNIVERSAL, DEEPSPEED, MEGATRON_LM, HUGGING_FACE)


def recognise(tag: str) -> Named | None:
    """The checkpoint that a folder of this name is, or None: then it is none of ours, and nobody moves it."""
    for layout in LAYOUTS:
        if match := layout.tag.fullmatch(tag):
            return Named(tag=tag, global_step=int(match[1] or 0), layout=layout)
    return None
