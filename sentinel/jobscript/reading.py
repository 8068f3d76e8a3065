"""From a job script, a command, a log or a DeepSpeed JSON to the facts of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sentinel.jobscript.facts import Curriculum, DeepSpeedJson, Facts, declared_parameters, minutes, whole
from sentinel.jobscript.given import Given, Option, Unread, given, options_of
from sentinel.jobscript.megatron_log import given_by_log, is_megatron_log, measured
from sentinel.jobscript.option_facts import NAMES, Known, gpt_trainer_facts, megatron_facts
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


def deepspeed_of(data: Mapping[str, Any], unread: list[Unread]) -> DeepSpeedJson | None:
    """What it says of batches, precision and ZeRO. Values that are no numbers are left out, and said."""
    fp16 = _table(data, "fp16")
    wanted = {
        "train_batch_size": _number(data, "train_batch_size"),
        "micro_batch_size": _number(data, "train_micro_batch_size_per_gpu"),
        "gradient_clipping": _number(data, "gradient_clipping"),
        "fp16": _switch(fp16, "enabled"),
        "bf16": _switch(_table(data, "bf16") or _table(data, "bfloat16"), "enabled"),
        "loss_scale": _number(fp16, "loss_scale"),
        "initial_scale_power": _number(fp16, "initial_scale_power"),
        "zero_stage": _number(_table(data, "zero_optimization"), "stage"),
    }
    try:
        return DeepSpeedJson(**wanted)
    except ConfigError as error:
        unread.append(Unread(what="the DeepSpeed JSON", why=str(error)))
        return None


def precision_facts(said: DeepSpeedJson) -> dict[str, Any]:
    """Precision and loss scale, which DeepSpeed's engine takes from its JSON alone."""
    if said.bf16:
        return {"precision": "bf16"}
    if not said.fp16:
        return {}
    power = 16 if said.initial_scale_power is None else said.initial_scale_power
    return {
        "precision": "fp16",
        "static_loss_scale": said.loss_scale or None,
        "initial_loss_scale": None if said.loss_scale or power > 1000 else 2.0**power,
    }


def curriculum_of(data: Mapping[str, Any], unread: list[Unread]) -> Curriculum | None:
    """SLW, where the JSON switches it on: the top-level block, or the metric `seqlen` of `data_efficiency`."""
    block = _table(data, "curriculum_learning")
    if block.get("enabled") is True and block.get("curriculum_type", "seqlen") == "seqlen":
        return _curriculum(block, unread, old_block=True)
    efficiency = _table(data, "data_efficiency")
    sampling = _table(_table(efficiency, "data_sampling"), "curriculum_learning")
    if efficiency.get("enabled") is False or sampling.get("enabled") is not True:
        return None
    metrics = _table(sampling, "curriculum_metrics")
    named = [name for name in metrics if name.startswith("seqlen")]
    return _curriculum(_table(metrics, named[0]), unread, old_block=False) if named else None


def _curriculum(block: Mapping[str, Any], unread: list[Unread], *, old_block: bool) -> Curriculum | None:
    config = _table(block, "schedule_config")
    schedule = block.get("schedule_type")
    try:
        return Curriculum(
            min_difficulty=_number(block, "min_difficulty"),
            max_difficulty=_number(block, "max_difficulty"),
            schedule=schedule if isinstance(schedule, str) else None,
            total_steps=_number(config, "total_curriculum_step"),
            difficulty_step=_number(config, "difficulty_step"),
            difficulties=_numbers(config, "difficulty"),
            max_steps=_numbers(config, "max_step"),
            old_block=old_block,
        )
    except ConfigError as error:
        unread.append(Unread(what="the DeepSpeed JSON's curriculum", why=str(error)))
        return None


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _number(data: Mapping[str, Any], key: str) -> Any:
    """A number; None for null, and for "auto" and its like."""
    value = data.get(key)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # DeepSpeed prints 2048 as 2.048000e+03
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = data.get(key)
    return tuple(item for item in value if type(item) is int) if isinstance(value, list) else ()


def _switch(data: Mapping[str, Any], key: str) -> bool | None:
    value = data.get(key)
    return value if isinstance(value, bool) else None
