"""From a job script, a command, a log or a DeepSpeed JSON to the facts of the run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sentinel.jobscript.facts import Curriculum, DeepSpeedJson, ScriptFacts, declared_parameters, minutes, whole
from sentinel.jobscript.given import Given, Option, Unread, given, options_of
from sentinel.jobscript.huggingface_options import NAMES as HUGGINGFACE_NAMES
from sentinel.jobscript.huggingface_options import huggingface_facts, is_huggingface
from sentinel.jobscript.megatron_log import given_by_log, is_megatron_log, measured
from sentinel.jobscript.option_facts import NAMES, Known, gpt_trainer_facts, made, megatron_facts
from sentinel.vocabulary.errors import ConfigError, LineError, ScriptRefused
from sentinel.vocabulary.numbers import load_object

Format = Literal["job script", "command", "megatron log", "deepspeed json", "not understood"]
Family = Literal["megatron", "huggingface", "gpt"]
_OWN_TRAINER = "trainer_hooks.gpt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What could be read of a run, and what could not."""

    format: Format
    facts: ScriptFacts
    unread: tuple[Unread, ...]
    program: str = ""  # The trainer's file or module; "" where none is named
    family: Family | None = None  # Whose options they are; None where that is not known
    names: Mapping[str, str] = field(default_factory=dict)  # The trainer's own options, by the rules' names for them


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
        raise ConfigError(
            f"as a job script (no arguments that Megatron printed are in it): {where}{refused.reason}"
        ) from refused
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
    family = _family_of(given) if format_ != "megatron log" else "megatron"
    if family is None:
        trainers = f"Megatron's, Hugging Face's nor {_OWN_TRAINER}"
        why = f"the options of {given.program} are neither {trainers}: what they mean is not known"
        unknown = (Unread(what="its options", why=why),)
        return Read(format="not understood", facts=ScriptFacts(), unread=unknown, program=given.program)
    unread = list(given.unread)
    facts_of, names = _FAMILIES[family]
    known = facts_of(given, unread)
    known |= more
    _from_deepspeed(given.deepspeed, known, unread)
    _from_slurm(given, known, unread)
    _declared(given, known, name)
    return Read(
        format=format_,
        facts=_facts(known, unread),
        unread=tuple(unread),
        program=given.program,
        family=family,
        names=names,
    )


_FAMILIES: Mapping[Family, tuple[Callable[[Given, list[Unread]], Known], Mapping[str, str]]] = {
    "megatron": (megatron_facts, {}),
    "huggingface": (huggingface_facts, HUGGINGFACE_NAMES),
    "gpt": (gpt_trainer_facts, NAMES),
}


def _family_of(given: Given) -> Family | None:
    """Whose options the program takes: by its name, or by options that no other trainer has together."""
    if given.program == _OWN_TRAINER:
        return "gpt"
    flags = {option.flag for option in given.options}
    alone = given.program.startswith("pretrain_") or any(map(_MEGATRONS_ALONE.fullmatch, flags))
    if alone or len(flags & _MEGATRONS) >= 2:
        return "megatron"
    return "huggingface" if is_huggingface(given) else None


_MEGATRONS_ALONE = re.compile(
    "--(rampup-batch-size|(tensor|pipeline)-model-parallel-size|(train|lr-warmup|lr-decay)-samples)"
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


def _from_deepspeed(data: Mapping[str, Any] | None, known: Known, unread: list[Unread]) -> None:
    if data is None:
        return
    if (slw := _curriculum_of(data, unread)) is not None:
        known["curriculum"] = slw
    if (said := _deepspeed_of(data, unread)) is not None:
        known["deepspeed"] = said
        known |= {k: v for k, v in _precision_facts(said).items() if k != "precision" or k not in known}


def _from_slurm(given: Given, known: Known, unread: list[Unread]) -> None:
    """World size and time limit, from what starts the trainer and from sbatch's directives."""
    said = given.directives
    if limit := minutes(said.get("--time", "")):
        known["time_limit_min"] = limit
    per_node = _number_of(given.launcher, "--nproc_per_node", "--nproc-per-node", "--num_gpus")
    nodes = _number_of(given.launcher, "--nnodes", "--num_nodes")
    if per_node is not None:
        known.setdefault("gpus_per_node", per_node)
    if nodes is None and any(option.flag in ("--nnodes", "--num_nodes") for option in given.launcher):
        unread.append(Unread(what="--nnodes", why="the number of nodes is not written out: say --gpus"))
        return
    gpus = re.search(r"(?:^|:)(\d{1,9})$", said.get("--gpus-per-node") or said.get("--gres", ""))
    if per_node is None and gpus is not None and int(gpus[1]):
        known.setdefault("gpus_per_node", int(gpus[1]))
    if per_node is not None and (nodes is not None or "--nodes" not in said):
        known.setdefault("world_size", per_node * (nodes or 1))


def _number_of(options: Sequence[Option], *flags: str) -> int | None:
    texts = [option.values[0] for option in options if option.flag in flags and not option.unread and option.values]
    with contextlib.suppress(ValueError):
        return whole(texts[0]) if texts else None
    return None


def _declared(given: Given, known: Known, name: str) -> None:
    """The size that the first of these names has: the job's, the experiment's, the run's or the file's."""
    if known.get("declared_parameters") is not None:
        return
    names = [given.directives.get("--job-name", "")]
    names += [o.values[0] for o in given.options if o.flag in ("--wandb-exp-name", "--run") and o.values]
    sizes = (declared_parameters(each) for each in (*names, name))
    known["declared_parameters"] = next((size for size in sizes if size is not None), None)


def _facts(known: Known, unread: list[Unread]) -> ScriptFacts:
    """The facts; a value that no run can have is said, and left out."""
    good: Known = {}
    names = {f.name for f in fields(ScriptFacts)}
    for name, value in known.items():
        if name in names and value is not None and made(ScriptFacts, {name: value}, name, unread) is not None:
            good[name] = value
    return ScriptFacts(**good)


def _deepspeed_of(data: Mapping[str, Any], unread: list[Unread]) -> DeepSpeedJson | None:
    """What it says of batches, precision and ZeRO. Values that are no numbers are left out, and said."""
    fp16, bf16, zero = (_typed(data, key, dict) or {} for key in ("fp16", "bf16", "zero_optimization"))
    wanted = {
        "train_batch_size": _number(data, "train_batch_size"),
        "micro_batch_size": _number(data, "train_micro_batch_size_per_gpu"),
        "gradient_clipping": _number(data, "gradient_clipping"),
        "fp16": _typed(fp16, "enabled", bool),
        "bf16": _typed(bf16 or _typed(data, "bfloat16", dict) or {}, "enabled", bool),
        "loss_scale": _number(fp16, "loss_scale"),
        "initial_scale_power": _number(fp16, "initial_scale_power"),
        "zero_stage": _number(zero, "stage"),
    }
    return made(DeepSpeedJson, wanted, "the DeepSpeed JSON", unread)


def _precision_facts(said: DeepSpeedJson) -> Known:
    """Precision and loss scale, which DeepSpeed's engine takes from its JSON alone."""
    if said.bf16 or not said.fp16:
        return {"precision": "bf16"} if said.bf16 else {}
    power = 16 if said.initial_scale_power is None else said.initial_scale_power
    initial = None if said.loss_scale or power > 1000 else 2.0**power
    return {"precision": "fp16", "static_loss_scale": said.loss_scale or None, "initial_loss_scale": initial}


def _curriculum_of(data: Mapping[str, Any], unread: list[Unread]) -> Curriculum | None:
    """SLW, where the JSON switches it on: the top-level block, or the metric `seqlen` of `data_efficiency`."""
    block = _typed(data, "curriculum_learning", dict) or {}
    old_block = block.get("enabled") is True and block.get("curriculum_type", "seqlen") == "seqlen"
    if not old_block:
        efficiency = _typed(data, "data_efficiency", dict) or {}
        sampling = _typed(_typed(efficiency, "data_sampling", dict) or {}, "curriculum_learning", dict) or {}
        metrics = _typed(sampling, "curriculum_metrics", dict) or {}
        named = [name for name in metrics if name.startswith("seqlen")]
        if efficiency.get("enabled") is False or sampling.get("enabled") is not True or not named:
            return None
        block = _typed(metrics, named[0], dict) or {}
    config = _typed(block, "schedule_config", dict) or {}
    wanted = {
        "min_difficulty": _number(block, "min_difficulty"),
        "max_difficulty": _number(block, "max_difficulty"),
        "schedule": _typed(block, "schedule_type", str),
        "total_steps": _number(config, "total_curriculum_step"),
        "difficulty_step": _number(config, "difficulty_step"),
        "difficulties": tuple(each for each in _typed(config, "difficulty", list) or () if type(each) is int),
        "max_steps": tuple(each for each in _typed(config, "max_step", list) or () if type(each) is int),
        "old_block": old_block,
    }
    return made(Curriculum, wanted, "the DeepSpeed JSON's curriculum", unread)


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value under the key where it is of this kind, else None."""
    value = data.get(key)
    return value if type(value) is kind else None


def _number(data: Mapping[str, Any], key: str) -> Any:
    """A number; None for null, and for "auto" and its like."""
    value = data.get(key)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # DeepSpeed prints 2048 as 2.048000e+03
    return value if type(value) in (int, float) else None
