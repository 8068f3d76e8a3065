"""Which trainer wrote a checkpoint, by its name, which files a whole one has, and how it is resumed from: the table is
`LAYOUTS`. A checkpoint is a folder, or files of one name beside others.

A grid of ranks has no holes: where the shard of rank 3 is, those of 0, 1 and 2 have to be. Names can't tell that the
last ranks' shards are all missing; the siblings can (`completeness`), and what the checkpoint itself declares
(`declared`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from sentinel.vocabulary.names import shown

RELEASE = "release"  # Megatron-LM's name for weights converted from elsewhere: the state before the first update
_OPTIMIZER_SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_optim_states\.pt")
_MODEL_SHARD = re.compile(r"mp_rank_([0-9]{1,6})_model_states\.pt")
_PARTITIONED_MODEL_SHARD = re.compile(r"zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_model_states\.pt")
_LAYER = re.compile(r"layer_([0-9]{1,6})-model_([0-9]{1,6})-model_states\.pt")
_MEGATRON_RANK = re.compile(r"mp_rank_([0-9]{2,6})(?:_([0-9]{3,6}))?(?:_([0-9]{3,6}))?")
_NUMBERED = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.(safetensors|bin)")
_RNG = re.compile(r"rng_state_([0-9]{1,6})\.pth")
_WEIGHTS = re.compile(
    r"(?:model|pytorch_model|adapter_model)(?:-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)"
    r"|pytorch_model_fsdp(?:_[0-9]{1,3}|\.bin)"
)
_TRAIN_RANK = re.compile(r"train/rank([0-9]{1,6})\.pt")
_PIECE = re.compile(r"model_and_optim/__([0-9]{1,6})_[0-9]{1,6}\.distcp")
_COMPOSER_RANK = re.compile(r".*-rank([0-9]{1,6})\.pt")


class Resumes(StrEnum):
    """What a trainer goes by when it resumes."""

    TAG = "latest"  # the file `latest`, which holds the name
    NUMBER = "latest_checkpointed_iteration.txt"
    NEWEST = "the newest"  # what is newer than the target is moved away with it
    LINK = "a link, or a copy, under a name of its own"  # and where there is none, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one kind of trainer names its checkpoints, what it puts into them, and how it finds the one to resume."""

    # Of an entry of the save folder; the first group is the step, none is step 0. Where a checkpoint may be files, the
    # group `tag` is the checkpoint's name without what tells its files apart.
    tag: re.Pattern[str]
    # (paths of files and folders below the checkpoint, whether those below its top are among them) -> what a whole
    # checkpoint would have and this one lacks, as a sentence, or None.
    missing: Callable[[frozenset[str], bool], str | None]
    shard: re.Pattern[str]  # of the files that each save writes, as relative paths: compared with the siblings'
    resumes: Resumes
    below: tuple[str, ...] = ()  # what every whole one has below its top: looked for where only the top is listed
    marker: str = ""  # what the trainer looks for before it takes one for a checkpoint
    links: re.Pattern[str] | None = None  # names of the links; a group is what the linked file's name ends with

    @property
    def in_files(self) -> bool:
        """Whether its checkpoints may be files beside one another instead of a folder."""
        return "tag" in self.tag.groupindex


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A checkpoint, as far as its name tells."""

    tag: str
    global_step: int
    layout: Layout

    @property
    def order(self) -> tuple[int, bool, str]:
        """By step; of one step the plain checkpoint after its universal conversion, which is not what a run saves."""
        return (self.global_step, self.layout is not UNIVERSAL, self.tag)


def recognise(name: str) -> Named | None:
    """The checkpoint that an entry of this name is, or is a file of; None for any other, which is never moved."""
    for layout in LAYOUTS.values():
        if match := layout.tag.fullmatch(name):
            tag = match["tag"] if layout.in_files else name
            return Named(tag=tag, global_step=int(match["step"] or 0), layout=layout)
    return None


def missing_of_deepspeed(names: frozenset[str], deep: bool) -> str | None:  # noqa: ARG001 - it has no folders
    """DeepSpeed's ZeRO stages 0 to 3, and Megatron-DeepSpeed's tensor x pipeline x data shards."""
    if not any(_MODEL_SHARD.fullmatch(name) or _PARTITIONED_MODEL_SHARD.fullmatch(name) for name in names):
        return "it has no *model_states.pt"
    return _first_missing(_deepspeed_grid(names), names)


def _deepspeed_grid(names: frozenset[str]) -> Iterator[str]:
    """What the highest ranks that are there ask for. Lazy: a name with a rank of 999999 must cost nothing."""
    models = {int(m[1]) for m in _matches(_MODEL_SHARD, names)}
    partitioned = {(int(m[1]), int(m[2])) for m in _matches(_PARTITIONED_MODEL_SHARD, names)}
    optimizer = {(int(m[1]), int(m[2])): m[0] for m in optimizer_shards(names)}
    layers = {(int(m[1]), int(m[2])) for m in _matches(_LAYER, names)}
    prefix = "bf16_" if any(name.startswith("bf16_") for name in optimizer.values()) else ""
    model_ranks = range(_end(models | {m for _, m in partitioned} | {m for _, m in optimizer}))
    if models:
        yield from (f"mp_rank_{m:02d}_model_states.pt" for m in model_ranks)
    for data in range(_end({d for d, _ in optimizer} | {d for d, _ in partitioned})):
        for model in model_ranks:
            where = f"zero_pp_rank_{data}_mp_rank_{model:02d}"
            if partitioned:
                yield f"{where}_model_states.pt"
            if optimizer:
                yield f"{prefix}{where}_optim_states.pt"
    for layer in sorted({number for number, _ in layers}):
        yield from (f"layer_{layer:02d}-model_{m:02d}-model_states.pt" for m in range(_end({m for _, m in layers})))


def missing_of_universal(names: frozenset[str], deep: bool) -> str | None:
    """DeepSpeed's conversion for other numbers of ranks: zero/PARAMETER/fp32.pt, exp_avg.pt, …"""
    if "zero" not in names:
        return "the folder zero is missing"
    if not deep:
        return None
    folders: dict[str, set[str]] = {}
    for name in names:
        parts = name.split("/")
        if parts[0] == "zero" and len(parts) == 3:
            folders.setdefault(parts[1], set()).add(parts[2])
    if not folders:
        return "the folder zero holds no parameter"
    often = Counter(kind for kinds in folders.values() for kind in kinds)
    asked = {"fp32.pt"} | {kind for kind, count in often.items() if 2 * count >= len(folders)}
    return _first_missing((f"zero/{folder}/{kind}" for folder in sorted(folders) for kind in sorted(asked)), names)


def missing_of_megatron_lm(names: frozenset[str], deep: bool) -> str | None:
    """Megatron-LM's formats: a folder per model-parallel rank, or torch's distributed checkpoint (torch_dist and
    torch_dcp). Which of the small files beside the pieces belong to it, its .metadata tells."""
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        return missing_of_torch(names, deep)
    ranks = {m[0]: tuple(int(part) for part in m.groups() if part) for m in _matches(_MEGATRON_RANK, names)}
    if not ranks:
        return "it has neither mp_rank_* folders nor a .metadata"
    sizes = [_end(numbers) for numbers in zip(*ranks.values(), strict=False)]
    there, widths = set(ranks.values()), (2, 3, 3)
    for rank in product(*(range(size) for size in sizes)):
        if rank not in there:
            return f"mp_rank_{'_'.join(f'{part:0{w}d}' for part, w in zip(rank, widths, strict=False))} is missing"
    if not deep:
        return None
    kinds = {"model_optim_rng.pt"} | {name.partition("/")[2] for name in names if name.partition("/")[0] in ranks}
    asked_of_each = sorted(kind for kind in kinds if kind.endswith(".pt") and "/" not in kind)
    return _first_missing((f"{rank}/{kind}" for rank in sorted(ranks) for kind in asked_of_each), names)


def missing_of_hugging_face(names: frozenset[str], deep: bool) -> str | None:
    """transformers' Trainer: weights, trainer_state.json, an optimizer, and the generators' states of every rank."""
    inner = sorted(name for name in names if re.fullmatch("global_step[0-9]{1,15}", name))  # saved by DeepSpeed
    if not inner and not any(_WEIGHTS.fullmatch(name) for name in names):
        return "it has no model*.safetensors or pytorch_model*.bin"
    if (lacks := _first_missing(_hugging_face_files(names, bool(inner)), names)) is not None:
        return lacks
    if not deep or not inner:
        return None
    below = frozenset(name.removeprefix(f"{inner[-1]}/") for name in names if name.startswith(f"{inner[-1]}/"))
    lacks = missing_of_deepspeed(below, deep)
    return None if lacks is None else f"in {inner[-1]}: {lacks}"


def _hugging_face_files(names: frozenset[str], optimizer_elsewhere: bool) -> Iterator[str]:
    for stem, count, suffix in sorted({(m[1], m[3], m[4]) for m in _matches(_NUMBERED, names)}):
        yield from (f"{stem}-{number:05d}-of-{count}.{suffix}" for number in range(1, int(count) + 1))
    yield "trainer_state.json"
    if not optimizer_elsewhere and "optimizer.bin" not in names and not any(n.startswith("optimizer_") for n in names):
        yield "optimizer.pt"
    yield from (f"rng_state_{rank}.pth" for rank in range(_end(int(m[1]) for m in _matches(_RNG, names))))


def missing_of_torch(names: frozenset[str], deep: bool) -> str | None:  # noqa: ARG001 - all of it is at the top
    """torch.distributed.checkpoint: .metadata is written last, and names the files that there have to be."""
    if ".metadata" not in names:
        return ".metadata, which a save writes last, is missing"
    return None if any(name.endswith(".distcp") for name in names) else "__0_0.distcp is missing"


def missing_of_olmo_core(names: frozenset[str], deep: bool) -> str | None:
    """OLMo-core: its folder is renamed from stepN-tmp, and .metadata.json is written after that."""
    lacks = _first_missing(("train", "model_and_optim", ".metadata.json"), names)
    if lacks is not None or not deep:
        return lacks
    ranks = _end(int(m[1]) for m in _matches(_TRAIN_RANK, names))
    pieces = _end(int(m[1]) for m in _matches(_PIECE, names))  # a rank that has written pieces has a state, too
    return _first_missing((f"train/rank{rank}.pt" for rank in range(max(1, ranks, pieces))), names)


def missing_of_lightning(names: frozenset[str], deep: bool) -> str | None:
    """Lightning: one file of torch.save, or a folder of torch.distributed.checkpoint with the rest in meta.pt."""
    if any(name.endswith(".ckpt") for name in names):
        return None
    if "checkpoint" in names:  # its DeepSpeed strategy
        below = frozenset(n.removeprefix("checkpoint/") for n in names if n.startswith("checkpoint/"))
        return missing_of_deepspeed(below, deep) if deep else None
    return missing_of_torch(names, deep) or _first_missing(("meta.pt",), names)


def missing_of_composer(names: frozenset[str], deep: bool) -> str | None:
    """Composer: a file for each rank that saves (rank 0 alone, unless sharded), or torch.distributed.checkpoint."""
    ranks = {int(m[1]): m[0] for m in _matches(_COMPOSER_RANK, names)}
    if not ranks:
        return missing_of_torch(names, deep)
    stem = next(iter(ranks.values())).rpartition("-rank")[0]
    return _first_missing((f"{stem}-rank{rank}.pt" for rank in range(_end(ranks))), names)


def optimizer_shards(names: Iterable[str]) -> list[re.Match[str]]:
    """DeepSpeed's optimizer shards among the names; the groups are the data-parallel and the model-parallel rank."""
    return list(_matches(_OPTIMIZER_SHARD, names))


def _matches(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for name in names if (match := pattern.fullmatch(name)))


def _end(numbers: Iterable[int]) -> int:
    return max(numbers, default=-1) + 1


def _first_missing(expected: Iterable[str], names: frozenset[str]) -> str | None:
    return next((f"{shown(name)} is missing" for name in expected if name not in names), None)


_STEP = "(?P<step>[0-9]{1,15})"
_PLAIN = r"[A-Za-z0-9_.=+-]{0,100}?"  # what a person may write into a name, and a shell leaves alone
_PIECES = re.compile(r"(?:[^/]*/){0,2}[^/]*\.distcp|(?:[^/]*/){0,2}\.metadata", re.DOTALL)

UNIVERSAL = Layout(
    tag=re.compile(f"global_step{_STEP}_universal"),
    missing=missing_of_universal,
    shard=re.compile(r".*\.pt", re.DOTALL),
    resumes=Resumes.TAG,
)
DEEPSPEED = Layout(
    tag=re.compile(f"global_step{_STEP}"),
    missing=missing_of_deepspeed,
    shard=re.compile(r"[^/]*(?:model|optim)_states\.pt", re.DOTALL),
    resumes=Resumes.TAG,
)
MEGATRON_LM = Layout(
    tag=re.compile(f"iter_{_STEP}|{RELEASE}"),
    missing=missing_of_megatron_lm,
    shard=re.compile(r"mp_rank_[0-9_]+/[^/]*\.pt|[^/]*\.distcp|common\.pt", re.DOTALL),
    resumes=Resumes.NUMBER,
)
HUGGING_FACE = Layout(
    tag=re.compile(f"checkpoint-{_STEP}"),
    missing=missing_of_hugging_face,
    shard=re.compile(r"(?:model|pytorch_model|optimizer|adapter_model)[^/]*\.(?:safetensors|bin|pt)", re.DOTALL),
    resumes=Resumes.NEWEST,
)
TORCH = Layout(  # TorchTitan, and others who save by torch.distributed.checkpoint
    tag=re.compile(f"step[-_]{_STEP}"),
    missing=missing_of_torch,
    shard=_PIECES,
    resumes=Resumes.NEWEST,
    marker=".metadata",
)
OLMO_CORE = Layout(
    tag=re.compile(f"step{_STEP}"),
    missing=missing_of_olmo_core,
    shard=re.compile(f"train/rank[0-9]+\\.pt|{_PIECES.pattern}", re.DOTALL),
    resumes=Resumes.NEWEST,
    marker=".metadata.json",
    below=("train/rank0.pt", "model_and_optim/.metadata"),
)
LIGHTNING = Layout(
    tag=re.compile(rf"(?P<tag>{_PLAIN}(?<![a-z])step={_STEP}(?:-{_PLAIN})?\.ckpt)"),
    missing=missing_of_lightning,
    shard=re.compile(rf"{_PIECES.pattern}|.*\.ckpt|meta\.pt", re.DOTALL),
    resumes=Resumes.LINK,
    links=re.compile(r"last(?:-v[0-9]{1,3})?\.ckpt"),
)
COMPOSER = Layout(
    tag=re.compile(rf"(?P<tag>ep[0-9]{{1,9}}-ba{_STEP})(?:-rank[0-9]{{1,6}}\.pt)?"),
    missing=missing_of_composer,
    shard=re.compile(rf"{_PIECES.pattern}|.*\.pt", re.DOTALL),
    resumes=Resumes.LINK,
    links=re.compile(r"latest(-rank[0-9]{1,6}\.pt)"),
)
LAYOUTS = {
    "DeepSpeed, universal": UNIVERSAL,
    "DeepSpeed": DEEPSPEED,
    "Megatron-LM": MEGATRON_LM,
    "Hugging Face": HUGGING_FACE,
    "torch DCP": TORCH,
    "OLMo-core": OLMO_CORE,
    "Lightning": LIGHTNING,
    "Composer": COMPOSER,
}
