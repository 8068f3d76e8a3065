"""What the attempts of one process share: one that is resumed in place begins with the engine of the one before it."""

from __future__ import annotations

import argparse
import gc
import json
import signal
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch

from sentinel.vocabulary.parking import ResumeRequest
from trainer_hooks.gpt.arguments import shape
from trainer_hooks.gpt.data import Corpus, load_corpus
from trainer_hooks.gpt.model import GPT
from trainer_hooks.in_memory.targets import MemoryTargets
from trainer_hooks.sample.adam_settings import AdamSettings


def leave_out_unused_ops() -> None:
    """Keeps DeepSpeed from compiling the op that inference on a CPU reduces with; call it before initialize. It takes a
    minute on first use, and a trainer that is killed while it loads leaves a lock that every later start would wait for
    without end (pytorch/pytorch#189245). Training does not use it."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeEngine:
    engine: Any
    model: GPT
    adam: AdamSettings  # What the engine was made with: later attempts' overrides do not count
    made_of: tuple[Any, ...]  # All that its making depends on, but for the weights


class Process:
    """Of the reference trainer; the corpus and the engine stay, whatever attempts come."""

    def __init__(self) -> None:
        self.stop_asked = False  # By SIGTERM, whichever attempt was under way
        self.resume: ResumeRequest | None = None  # What the attempt under way, or the next one, begins from in place
        self.ended_parked = False  # Whether the training has ended while it was parked: no rank counts on the others
        self._memory: MemoryTargets | None = None
        self._corpus: Corpus | None = None
        self._made: MadeEngine | None = None

    def obey_sigterm(self) -> None:
        """From now on SIGTERM is a request, obeyed at a step's end."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)

    def corpus(self, settings: argparse.Namespace) -> Corpus:
        """The run's data; no override changes it."""
        if self._corpus is None:
            self._corpus = load_corpus(
                settings.data,
                seqlen=shape(settings).seqlen,
                vocabulary=settings.vocabulary,
                validation_share=settings.validation_share,
            )
        return self._corpus

    def memory(self, settings: argparse.Namespace, engine: Any) -> MemoryTargets | None:
        """The states in memory, which stay from attempt to attempt; None where none are asked for."""
        if self._memory is None and settings.memory_targets:
            self._memory = MemoryTargets(engine, most=settings.memory_targets, every=settings.memory_every)
        return self._memory

    def engine(self, settings: argparse.Namespace, config: dict[str, Any], *, from_scratch: bool) -> MadeEngine:
        """The engine that is there, where it would be made just so and a checkpoint is about to be loaded into it; else
        a new one, in its place."""
        vocabulary = self.corpus(settings).vocabulary
        made_of = (shape(settings), vocabulary, json.dumps(config, sort_keys=True))
        if self._made is not None and (from_scratch or self._made.made_of != made_of):
            self._made.engine.destroy()
            self._made = None
            gc.collect()  # before the new one takes its memory: engine, optimizer and model refer to one another
        if self._made is None:
            leave_out_unused_ops()
            torch.manual_seed(settings.seed)
            model = GPT(shape(settings), vocabulary)
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
            self._made = MadeEngine(engine=engine, model=model, adam=AdamSettings.of(engine), made_of=made_of)
        return self._made

    def _ask_to_stop(self, *_: object) -> None:
        self.stop_asked = True
