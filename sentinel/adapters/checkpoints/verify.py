"""Whether a checkpoint can be trusted: walked, compared with its manifest and its sibling, and read whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sentinel import bounded
from sentinel.adapters.checkpoints.archive import UnsoundError
from sentinel.adapters.checkpoints.declared import Declared
from sentinel.adapters.checkpoints.entries import checkpoints_in, walk_checkpoint
from sentinel.adapters.checkpoints.layouts import Layout, Named
from sentinel.adapters.checkpoints.pace import Pace
from sentinel.adapters.checkpoints.pickled import PickleError
from sentinel.adapters.checkpoints.reading import TORCH_FILE, Progress, read_files
from sentinel.adapters.checkpoints.remembered import Files, Needed, Remembered
from sentinel.adapters.checkpoints.walk import Contents, Item
from sentinel.plan.verification import Verification
from sentinel.vocabulary.errors import CheckpointError, LineError
from sentinel.vocabulary.manifest import Digested, Manifest, decode_manifest, first_difference
from sentinel.vocabulary.names import shown

Shards = dict[str, Item]  # as of `_shards`
MANIFESTS = "manifests"  # below the run's state folder
_MUCH_SMALLER = 0.5  # less than this share of the sibling's shard is suspicious: shards of one run keep their size
_TOO_SMALL_TO_TELL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was found out about one checkpoint."""

    # Whether everything is there that should be, by name and by not being empty. None is not known, as of a checkpoint
    # that changed while it was looked at.
    complete: bool | None
    problem: str | None  # the first fault found, as a sentence
    files: tuple[Digested, ...] = ()  # every file, digested; empty unless requested and no fault was found
    verification: Verification | None = None  # None where it was not read
    changed: bool = False  # while it was looked at: what was found is of neither state


def examine(
    folder: Path,
    named: Named,
    manifests: Path | None,
    *,
    digests: bool = False,
    progress: Progress | None = None,
    remembered: Remembered | None = None,
    pace: Pace | None = None,
) -> Examined:
    """Looks at everything in a checkpoint's folder and reads all of it; never unpickles. CheckpointError for a manifest
    that can't be read.

    manifests: the folder of what the run's checkpoints were when they were saved; digests: also without a manifest;
    remembered: what need not be read again as long as it is the same file; pace: in the background, at that speed, and
    ReadingStoppedError where it was told to stop.
    """
    contents = walk_checkpoint(folder, named)
    found = _examined(
        folder, named, contents, manifests, digests=digests, progress=progress, remembered=remembered, pace=pace
    )
    if found.problem is None or _state(contents) == _state(walk_checkpoint(folder, named)):
        return found
    return Examined(complete=None, problem=f"it changed while it was read ({found.problem})", changed=True)


def _state(contents: Contents) -> object:
    """Equal for the same files with the same content. Another name for a file, as a pin makes it, changes neither."""
    return contents.refusal, [(item.name, item.identity, item.size_bytes, item.mtime_ns) for item in contents.files]


def _examined(
    folder: Path,
    named: Named,
    contents: Contents,
    manifests: Path | None,
    *,
    digests: bool,
    progress: Progress | None,
    remembered: Remembered | None,
    pace: Pace | None,
) -> Examined:
    known, written_ns = (_manifest(manifests, named.tag) if manifests else None) or (None, 0)
    sibling = _sibling(folder, named)
    if contents.refusal is not None:
        return Examined(complete=False, problem=contents.refusal)
    ours, theirs = _shards(named, contents), _shards(named, sibling) if sibling else {}
    beside = sibling.tag if sibling else ""
    lacks = next((f"{shown(shard.name)} is empty" for shard in ours.values() if not shard.size_bytes), None)
    lacks = lacks or named.layout.missing(contents.names, True)
    itself = _declared(contents, named.layout) if lacks is None else Declared()
    lacks = lacks or itself.problem or _absent(named, ours, theirs, itself, beside)
    if lacks is not None:
        return Examined(complete=False, problem=lacks)
    doubtful = known is not None and _younger_than(written_ns, known, contents)
    odd = _unlike_manifest(None if doubtful else known, contents) or _much_smaller(ours, theirs, beside)
    if odd is not None:
        return Examined(complete=True, problem=odd)
    if itself.doubt is not None and (known is None or doubtful):
        return Examined(complete=None, problem=itself.doubt)
    needed = Needed(
        crcs=known is None or doubtful,  # a digest of the whole file says more than the CRCs in it
        digests=digests or known is not None,
        pieces=itself.pieces,
    )
    found = _read(contents, needed, remembered, progress=progress, pace=pace)
    if found.unsound is not None:
        return Examined(complete=True, problem=found.unsound)
    files = found.files
    if known is not None and doubtful and not _mostly_as_in(known, files, named):
        known = None
    problem = _other_digest(known, files)
    if remembered is not None and problem is None:
        remembered.keep(named.tag, found.known, found.read)
    elif remembered is not None:
        remembered.forget(named.tag)
    return Examined(complete=True, problem=problem, files=files, verification=found.verification)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What reading a checkpoint has shown, with what was known of it."""

    unsound: str | None
    files: tuple[Digested, ...]  # ordered by name; empty unless digests were needed
    known: Files  # what was remembered of the files that were not read
    read: Files
    verification: Verification


def _read(
    contents: Contents,
    needed: Needed,
    remembered: Remembered | None,
    *,
    progress: Progress | None,
    pace: Pace | None,
) -> _Found:
    """Reads the files that are not remembered as the same ones."""
    began_unix_s = time.time()
    known = remembered.known(contents.tag, contents.files, needed) if remembered else {}
    items = [item for item in contents.files if item.name not in known]
    digested, unsound = read_files(
        contents.root,
        items,
        crcs=needed.crcs,
        digests=needed.digests,
        pieces=needed.pieces,
        progress=progress,
        pace=pace,
    )
    if unsound is not None and remembered is not None:
        remembered.forget(contents.tag)
    sha256 = {file.name: file.sha256 for file in digested}
    sha256 |= {name: file.sha256 for name, file in known.items() if file.sha256 is not None}
    read = {item.name: needed.read(item, sha256.get(item.name), began_unix_s) for item in items}
    return _Found(
        unsound=unsound,
        files=tuple(
            Digested(name=item.name, size_bytes=item.size_bytes, sha256=sha256[item.name])
            for item in contents.files
            if item.name in sha256
        ),
        known=known,
        read=read,
        verification=Verification(
            files=len(contents.files),
            size_bytes=contents.size_bytes,
            files_read=len(items),
            bytes_read=sum(item.size_bytes for item in items),
            oldest_unix_s=min([began_unix_s, *(file.read_unix_s for file in known.values())]),
        ),
    )


def _manifest(manifests: Path, tag: str) -> tuple[Manifest, int] | None:
    """A checkpoint's manifest, and when it was written (mtime, ns); None where there is none. CheckpointError."""
    path = manifests / f"{tag}.json"
    try:
        status = path.stat()
        manifest = decode_manifest(bounded.read_text(path))
    except FileNotFoundError:
        return None
    except (LineError, OSError) as error:
        raise CheckpointError(f"the manifest {path} can't be read: {error}") from error
    if manifest.tag != tag:
        raise CheckpointError(f"the manifest {path} is of another checkpoint, {manifest.tag!r}")
    return manifest, status.st_mtime_ns


def _sibling(folder: Path, named: Named) -> Contents | None:
    """The nearest earlier checkpoint of the same layout that can be walked, else the nearest later one."""
    alike = [n for n in checkpoints_in(folder) if n.layout is named.layout]
    earlier, later = ([n for n in alike if n.order < named.order], [n for n in alike if n.order > named.order])
    walked = (walk_checkpoint(folder, n) for n in (*earlier[-1:], *later[:1]))
    return next((sibling for sibling in walked if sibling.refusal is None), None)


def _declared(contents: Contents, layout: Layout) -> Declared:
    try:
        return layout.declared(contents.root, contents)
    except (UnsoundError, PickleError) as error:
        return Declared(problem=str(error))
    except OSError as error:
        return Declared(problem=f"{shown(Path(error.filename or 'it').name)} can't be read: {error.strerror}")


def _absent(named: Named, ours: Shards, theirs: Shards, itself: Declared, sibling: str) -> str | None:
    """The first shard that the sibling has and this one lacks; none where it is known to be of other ranks."""
    few, many = named.layout.shards_of_ranks(ours), named.layout.shards_of_ranks(theirs)
    if itself.parts_known or (itself.ranks_known and few != many):
        return None
    if few < many:
        return f"it has {few} optimizer shards, and its siblings have {many}"
    if len(ours) >= len(theirs) or not (absent := theirs.keys() - ours.keys()):
        return None
    return f"{shown(min(absent) or named.tag)} is missing: {sibling} has it"


def _younger_than(manifest_mtime_ns: int, manifest: Manifest, contents: Contents) -> bool:
    """Whether every shard is younger than the manifest: saved again under the same name since, or copied.

    Reading distinguishes the two (`_mostly_as_in`). One younger shard among older ones was changed.
    """
    named = {file.name for file in manifest.files}
    times = [item.mtime_ns for item in contents.files if item.name in named]
    return bool(times) and min(times) > manifest_mtime_ns


def _mostly_as_in(manifest: Manifest, files: tuple[Digested, ...], named: Named) -> bool:
    """Whether half of the shards or more are the manifest's: then it is a copy of the same checkpoint.

    A checkpoint that was saved again keeps hardly any shard, and the old manifest says nothing about it.
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
    loaded = (name for name in extra if TORCH_FILE.fullmatch(name) or name.endswith((".safetensors", ".distcp")))
    return next((f"{shown(name)} is not in its manifest" for name in loaded), None)


def _other_digest(manifest: Manifest | None, files: tuple[Digested, ...]) -> str | None:
    saved = {file.name: file.sha256 for file in manifest.files} if manifest else {}
    for file in files:
        if (before := saved.get(file.name, file.sha256)) != file.sha256:
            digests = f"its SHA-256 is {file.sha256[:12]}…, and {before[:12]}… in its manifest"
            return f"{shown(file.name)} is not what was saved: {digests}"
    return None


def _much_smaller(ours: Shards, theirs: Shards, sibling: str) -> str | None:
    """The first shard that is far smaller than its sibling's, where both are of as many ranks."""
    if ours.keys() != theirs.keys():
        return None
    for name, item in sorted(ours.items()):
        other = theirs[name].size_bytes
        if other > _TOO_SMALL_TO_TELL_BYTES and item.size_bytes < _MUCH_SMALLER * other:
            return f"{shown(item.name)} has {item.size_bytes} bytes, and {other} in {sibling}"
    return None


def _shards(named: Named, contents: Contents) -> Shards:
    """By their names; of files that have the checkpoint's name, by what comes after it: siblings' are alike then."""
    matching = (item for item in contents.files if named.layout.shard.fullmatch(item.name))
    return {item.name.removeprefix(contents.tag): item for item in matching}
