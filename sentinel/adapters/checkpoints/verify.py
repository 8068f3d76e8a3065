"""Whether a checkpoint can be trusted: walked, counted, held against its manifest and its sibling, and read whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.declared import Declared, declared
from sentinel.adapters.checkpoints.layouts import DEEPSPEED, UNIVERSAL, Named
from sentinel.adapters.checkpoints.reading import TORCH_FILE, Progress, read_files
from sentinel.adapters.checkpoints.shards import OPTIMIZER_SHARD
from sentinel.adapters.checkpoints.shown import shown
from sentinel.adapters.checkpoints.walk import Contents, Item, walk
from sentinel.vocabulary.manifest import Digested, Manifest, first_difference

__all__ = ["Examined", "Sibling", "examine"]

_MUCH_SMALLER = 0.5
"""Less than this share of the sibling's shard is suspicious: shards of one run keep their size."""

_TOO_SMALL_TO_TELL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """Another checkpoint of the same run and layout, walked."""

    tag: str
    contents: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was found out about one checkpoint."""

    complete: bool
    """Whether everything is there that should be, by name and by not being empty."""

    problem: str | None
    """The first thing that speaks against it, as a sentence; None when nothing does."""

    files: tuple[Digested, ...] = ()
    """Every file, digested; empty unless digests were asked for and nothing speaks against it."""


def examine(
    folder: Path,
    named: Named,
    *,
    sibling: Sibling | None,
    manifest: Manifest | None,
    manifest_mtime_ns: int = 0,
    digests: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Examined:
    """Looks at everything in a checkpoint's folder and reads all of it; never unpickles.

    manifest: what its files were when it was saved, and when that was written; digests: whether to digest even without.
    """
    path = folder / named.tag
    contents = walk(path)
    if contents.refusal is not None:
        return Examined(complete=False, problem=contents.refusal)
    lacks = _empty(contents, named) or named.layout.missing(contents.names, True)
    said = declared(path, contents, named.layout) if lacks is None else Declared()
    lacks = lacks or said.problem or _absent(named, contents, said, sibling)
    if lacks is not None:
        return Examined(complete=False, problem=lacks)
    doubtful = manifest is not None and _younger_than(manifest_mtime_ns, manifest, contents)
    if (
        odd := _unlike_manifest(None if doubtful else manifest, contents) or _much_smaller(named, contents, sibling)
    ) is not None:
        return Examined(complete=True, problem=odd)
    read = read_files(
        path,
        contents.files,
        crcs=manifest is None or doubtful,  # a digest of the whole file says more than the CRCs in it
        digests=digests or manifest is not None,
        pieces=said.pieces,
        progress=progress,
        threads=threads,
    )
    if (unsound := next((file.problem for file in read if file.problem), None)) is not None:
        return Examined(complete=True, problem=unsound)
    sizes = {item.name: item.size_bytes for item in contents.files}
    files = tuple(Digested(name=f.name, size_bytes=sizes[f.name], sha256=f.sha256) for f in read if f.sha256)
    if manifest is not None and doubtful and not _mostly_as_in(manifest, files, named):
        manifest = None
    return Examined(complete=True, problem=_other_digest(manifest, files), files=files)


def _empty(contents: Contents, named: Named) -> str | None:
    return next(
        (
            f"{shown(i.name)} is empty"
            for i in contents.files
            if not i.size_bytes and named.layout.shard.fullmatch(i.name)
        ),
        None,
    )


def _absent(named: Named, contents: Contents, said: Declared, sibling: Sibling | None) -> str | None:
    """The first shard that the sibling has and this one lacks; not where it is known to be of other ranks."""
    if sibling is None or named.layout is UNIVERSAL:
        return None
    ours, theirs = _shards(named, contents), _shards(named, sibling.contents)
    few, many = _optimizer_shards(ours), _optimizer_shards(theirs)
    if said.ranks_known and (named.layout is not DEEPSPEED or few != many):
        return None
    if few < many:
        return f"it has {few} optimizer shards, and its siblings have {many}"
    absent = sorted(theirs.keys() - ours.keys())
    return f"{shown(absent[0])} is missing: {sibling.tag} has it" if absent and len(ours) < len(theirs) else None


def _younger_than(manifest_mtime_ns: int, manifest: Manifest, contents: Contents) -> bool:
    """Whether every shard is younger than the manifest: saved again under the same name since, or copied.

    Reading tells the two apart (`_mostly_as_in`). One shard that is younger, among older ones, was changed.
    """
    named = {file.name for file in manifest.files}
    times = [item.mtime_ns for item in contents.files if item.name in named]
    return bool(times) and min(times) > manifest_mtime_ns


def _mostly_as_in(manifest: Manifest, files: tuple[Digested, ...], named: Named) -> bool:
    """Whether half of the shards or more are the manifest's: then it is a copy of what it was taken of.

    Of a checkpoint that was saved again hardly any shard is what it was, and the old manifest says nothing about it.
    """
    shards = [file for file in files if named.layout.shard.fullmatch(file.name)]
    return 2 * len(set(shards) & set(manifest.files)) >= len(shards)


def _unlike_manifest(manifest: Manifest | None, contents: Contents) -> str | None:
    if manifest is None:
        return None
    sizes = {item.name: item.size_bytes for item in contents.files}
    if (different := first_difference(manifest, sizes)) is not None:
        return different
    extra = sorted(sizes.keys() - {file.name for file in manifest.files})
    loaded = next(
        (name for name in extra if TORCH_FILE.fullmatch(name) or name.endswith((".safetensors", ".distcp"))), None
    )
    return None if loaded is None else f"{shown(loaded)} is not in its manifest"


def _other_digest(manifest: Manifest | None, files: tuple[Digested, ...]) -> str | None:
    said = {file.name: file.sha256 for file in manifest.files} if manifest else {}
    return next(
        (
            f"{shown(file.name)} is not what was saved: its SHA-256 is {file.sha256[:12]}…, and "
            f"{said[file.name][:12]}… in its manifest"
            for file in files
            if said.get(file.name, file.sha256) != file.sha256
        ),
        None,
    )


def _much_smaller(named: Named, contents: Contents, sibling: Sibling | None) -> str | None:
    """The first shard that is far smaller than its sibling's, where both are of as many ranks."""
    if sibling is None:
        return None
    ours, theirs = _shards(named, contents), _shards(named, sibling.contents)
    if ours.keys() != theirs.keys():
        return None
    for name, item in sorted(ours.items()):
        other = theirs[name].size_bytes
        if other > _TOO_SMALL_TO_TELL_BYTES and item.size_bytes < _MUCH_SMALLER * other:
            return f"{shown(name)} has {item.size_bytes} bytes, and {other} in {sibling.tag}"
    return None


def _shards(named: Named, contents: Contents) -> dict[str, Item]:
    return {item.name: item for item in contents.files if named.layout.shard.fullmatch(item.name)}


def _optimizer_shards(names: dict[str, Item]) -> int:
    return sum(1 for name in names if OPTIMIZER_SHARD.fullmatch(name))
