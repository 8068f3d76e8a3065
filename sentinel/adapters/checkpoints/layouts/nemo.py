"""NVIDIA NeMo 2: a folder with `weights`, Megatron Core's distributed checkpoint, and `context`, the configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.layouts.layout import PLAIN, STEP, Layout, Named, Tracker, inside, missing_of_torch
from sentinel.adapters.checkpoints.layouts.megatron_lm import missing_of_megatron_core
from sentinel.adapters.checkpoints.walk import Contents

_LINK, _LAST, _MARKER = Tracker("sentinel-last", is_link=True), "-last", "-unfinished"


class NeMoLayout(Layout):
    """`NAME--val_loss=2.10-step=9-consumed_samples=5120.0`, or the same with `-last`: of the Megatron strategy.

    - Step: the name holds the step that was logged before the update: step=9 is the state after update 10
      (nemo/lightning/pytorch/strategies/megatron_strategy.py, `training_step`).
    - Unfinished: the file NAME-unfinished beside it, while it is written or removed; at its next start NeMo
      deletes what is marked (nemo/lightning/pytorch/callbacks/model_checkpoint.py, `setup`).
    - Resumed from with `resume_if_exists`: of the folders `*last` without a marker the one with the latest modification
      time, links by their own (nemo/lightning/resume.py, `_find_trainer_ckpt_path`). So a target without `-last` gets a
      link `sentinel-last` to it.

    NeMo 1's files, `….ckpt`, are no targets: it resumes from any `*last.ckpt` below the folder, that of a quarantine
    as well (nemo/utils/exp_manager.py, `check_resume`).

    Source: github.com/NVIDIA/NeMo, 8cfedd72.
    """

    title = "NeMo"
    tag = re.compile(
        rf"(?P<tag>{PLAIN}--{PLAIN}(?<![a-z])step={STEP}(?:-consumed_samples={PLAIN}\.ckpt|(?:-{PLAIN})??(?<!\.ckpt)))"
        rf"(?:{_MARKER})?"
    )
    shard = re.compile(r"weights/(?:[^/]*\.distcp|common\.pt)", re.DOTALL)
    below = ("weights/.metadata", "weights/metadata.json")
    trackers = (_LINK,)

    def step_of(self, number: int) -> int:
        return number + 1

    def refused(self, entries: Sequence[str]) -> str | None:
        if (marker := next((name for name in entries if name.endswith(_MARKER)), None)) is not None:
            return f"{marker} marks it: its save, or its removal, is under way or was cut short"
        if any(name.endswith(".ckpt") for name in entries):
            return (
                "it is a file of NeMo 1, which resumes from any *last.ckpt below this folder, the quarantine's as well"
            )
        return None

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        if "weights" not in names:
            return "the folder weights is missing"
        lacks = missing_of_torch(inside("weights", names)) if deep else None
        return None if lacks is None else f"in weights: {lacks}"

    def beside_pieces(self, folder: Path, contents: Contents, below: str, keys: frozenset[str]) -> str | None:
        return missing_of_megatron_core(folder, contents, below, keys)

    def texts_for(self, folder: Path, tag: str, global_step: int) -> dict[str, str]:
        return {} if tag.endswith(_LAST) else {_LINK.name: tag}

    def newest(self, folder: Path, own: Sequence[Named]) -> Named | None:
        last = [folder / name for name in (*(n.tag for n in own if n.tag.endswith(_LAST)), _LINK.name)]
        there = [path for path in last if path.is_dir() and not path.with_name(f"{path.name}{_MARKER}").exists()]
        if not own or not there:
            return None
        newest = max(there, key=lambda path: path.lstat().st_mtime_ns)
        tag = newest.readlink().name if newest.is_symlink() else newest.name
        return next((named for named in own if named.tag == tag), None)
