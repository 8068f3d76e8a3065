"""From what a person has (a job script, a command, a log, a DeepSpeed JSON) to the facts of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from sentinel.jobscript.deepspeed_facts import curriculum_of, deepspeed_of, precision_facts
from sentinel.jobscript.facts import Facts
from sentinel.jobscript.given import Given, Option, Unread, given, options_of
from sentinel.jobscript.gpt_trainer_facts import NAMES, gpt_trainer_facts
from sentinel.jobscript.megatron_facts import Known, megatron_facts
from sentinel.jobscript.megatron_log import given_by_log, is_megatron_log, measured
from sentinel.jobscript.numbers_in_words import declared_parameters, minutes, whole
from sentinel.vocabulary.errors import ConfigError, LineError, ScriptRefused
from sentinel.vocabulary.numbers import load_object

Format = Literal["job script", "command", "megatron log", "deepspeed json", "not understood"]
_OWN_TRAINER = "trainer_hooks.gpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What could be read of a run, and what could not."""

    format: Format
    facts: Facts
    unread: tuple[Unread, ...]
    program: str = ""  # The trainer's file or module; "" where none is named
    names: Mapping[str, str] = field(default_factory=dict)
    """The trainer's own options, by the names that the rules know them under."""


def read_text(text: str, name: str = "") -> Read:
    """The facts in a file. ConfigError where it is none of what can be read, or starts no trainer.

    `name` is the run's, or the file's: it may declare a size, where nothing in the text does.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, name)
    if is_megatron_log(text):
        return _read(given_by_log(text), "megatron log", name, measured(text))
    try:
        found = given(text)
    except ScriptRefused as refused:
        where = "" if refused.line_number is None else f"line {refused.line_number}: "
        raise ConfigError(f"{where}{refused.reason}") from refused
    return _read(found, "job script", name, {})


def read_command(words: Sequence[str], name: str = "") -> Read:
    """The facts in a command line, as a list of words. ConfigError where it starts no Python program."""
    for place, word in enumerate(words):
        module = place > 0 and words[place - 1] in ("-m", "--module")
        if word.endswith(".py") or (module and not word.startswith("torch.distributed")):
            program = word.rpartition("/")[2]
            found = Given(program=program, options=options_of(words[place + 1 :]), launcher=options_of(words[:place]))
            return _read(found, "command", name, {})
    raise ConfigError("the command has no word that ends in .py and no module after -m: which program is the trainer?")


def _read(given: Given, format_: Format, name: str, more: Known) -> Read:
    own = given.program == _OWN_TRAINER
    if not own and format_ != "megatron log" and not _is_megatron(given):
        why = f"{given.program} is neither Megatron's nor {_OWN_TRAINER}: what its options mean is not known"
        unknown = (Unread(what="its options", why=why),)
        return Read(format="not understood", facts=Facts(), unread=unknown, program=given.program)
    unread = list(given.unread)
    known = gpt_trainer_facts(given, unread) if own else megatron_facts(given, unread)
    known |= more
    _from_deepspeed(given.deepspeed, known, unread)
    _from_slurm(given, known, unread)
    _declared(given, known, name)
    return Read(
        format=format_,
        facts=_facts(known, unread),
        unread=tuple(unread),
        program=given.program,
        names=NAMES if own else {},
    )


def _is_megatron(given: Given) -> bool:
    """Whether the program takes Megatron's options: by its name, or by those that no other trainer has together."""
    flags = {option.flag for option in given.options}
    return given.program.startswith("pretrain_") or bool(flags & _MEGATRONS_ALONE) or len(flags & _MEGATRONS) >= 2


_MEGATRONS_ALONE = frozenset(
    (
        "--rampup-batch-size",
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--train-samples",
        "--lr-warmup-samples",
        "--lr-decay-samples",
    )
)
_MEGATRONS = frozenset(
    ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size", "--train-iters")
)


def _read_json(text: str, name: str) -> Read:
    try:
        data = load_object(text)
    except LineError as error:
        raise ConfigError(str(error)) from error
    known: Known = {}
    unread: list[Unread] = []
    _from_deepspeed(data, known, unread)
    known["declared_parameters"] = declared_parameters(name)
    return Read(format="deepspeed json", facts=_facts(known, unread), unread=tuple(unread))


def _from_deepspeed(data: Mapping[str, object] | None, known: Known, unread: list[Unread]) -> None:
    if data is None:
        return
    if (slw := curriculum_of(data, unread)) is not None:
        known["curriculum"] = slw
    if (said := deepspeed_of(data, unread)) is not None:
        known["deepspeed"] = said
        for key, value in precision_facts(said).items():
            if key != "precision" or "precision" not in known:
                known[key] = value


def _from_slurm(given: Given, known: Known, unread: list[Unread]) -> None:
    """World size and time limit, from what starts the trainer and from sbatch's directives."""
    said = given.directives
    if limit := minutes(said.get("--time", "")):
        known["time_limit_min"] = limit
    per_node = _number_of(given.launcher, "--nproc_per_node", "--nproc-per-node", "--num_gpus")
    nodes = _number_of(given.launcher, "--nnodes", "--num_nodes")
    if nodes is None and any(option.flag in ("--nnodes", "--num_nodes") for option in given.launcher):
        unread.append(Unread(what="--nnodes", why="the number of nodes is not written out: say --gpus"))
        per_node_only = per_node
        if per_node_only is not None:
            known.setdefault("gpus_per_node", per_node_only)
        return
    gpus = re.search(r"(?:^|:)(\d{1,9})$", said.get("--gpus-per-node") or said.get("--gres", ""))
    if per_node is not None:
        known.setdefault("gpus_per_node", per_node)
    elif gpus is not None and int(gpus[1]):
        known.setdefault("gpus_per_node", int(gpus[1]))
    if per_node is not None and (nodes is not None or "--nodes" not in said):
        known.setdefault("world_size", per_node * (nodes or 1))


def _number_of(options: Sequence[Option], *flags: str) -> int | None:
    for option in options:
        if option.flag in flags and option.unread is None and option.values:
            try:
                return whole(option.values[0])
            except ValueError:
                return None
    return None


def _declared(given: Given, known: Known, name: str) -> None:
    """The size that the first of these names has: the job's, the experiment's, the run's or the file's."""
    if known.get("declared_parameters") is not None:
        return
    names = [given.directives.get("--job-name", "")]
    names += [o.values[0] for o in given.options if o.flag in ("--wandb-exp-name", "--run") and o.values]
    sizes = (declared_parameters(each) for each in (*names, name))
    known["declared_parameters"] = next((size for size in sizes if size is not None), None)


def _facts(known: Known, unread: list[Unread]) -> Facts:
    """The facts; a value that no run can have is said, and left out."""
    good: Known = {}
    names = {f.name for f in fields(Facts)}
    for name, value in known.items():
        if name not in names or value is None:
            continue
        try:
            Facts(**{name: value})
            good[name] = value
        except ConfigError as error:
            unread.append(Unread(what=name, why=str(error)))
    return Facts(**good)
