"""What a whole checkpoint consists of (names, sizes, digests): manifests/TAG.json. DeepSpeed loads a checkpoint with a
flipped bit silently; a manifest that was taken when the checkpoint was saved shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import Range, dump_json, load_object

SCHEMA = 1  # Version of a manifest's file
_SHA256 = re.compile("[0-9a-f]{64}")
_FORM = Form(error=LineError, name="it", ignores_unknown=True, whole=Range(least=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    name: str  # Its path below the checkpoint's folder, with slashes
    size_bytes: int
    sha256: str  # 64 digits of lower-case hexadecimal, over the whole file


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    tag: str  # The folder's name, e.g. global_step3000.
    global_step: int
    files: tuple[Digested, ...]  # Ordered by name; every file of the checkpoint


def encode_manifest(manifest: Manifest) -> str:
    """The text of a manifest's file; one line per checkpoint's file, so that two can be compared by eye."""
    files = ",\n  ".join(
        dump_json({"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}) for file in manifest.files
    )
    head = f'{{"schema": {SCHEMA}, "tag": {dump_json(manifest.tag)}, "global_step": {manifest.global_step}, "files": ['
    return f"{head}\n  {files}\n]}}\n"


def decode_manifest(text: str) -> Manifest:
    """The manifest that the text holds. LineError says what is wrong with it."""
    data = load_object(text)
    if data.get("schema") != SCHEMA:
        raise LineError(f"it has schema {data.get('schema')!r}; this version reads {SCHEMA}")
    manifest = read(Manifest, data, form=_FORM)
    if not manifest.files:
        raise LineError("it should have a tag and a list of files")
    for file in manifest.files:
        if not file.name or file.name.startswith("/") or ".." in file.name.split("/"):
            raise LineError(f"a file's name should be a path below the checkpoint, not {file.name!r}")
        if not _SHA256.fullmatch(file.sha256):
            raise LineError(f"the sha256 of {file.name!r} should be 64 hexadecimal digits, not {file.sha256!r}")
    if len({file.name for file in manifest.files}) < len(manifest.files):
        raise LineError("it names a file twice")
    return replace(manifest, files=tuple(sorted(manifest.files, key=lambda file: file.name)))


def first_difference(manifest: Manifest, sizes: Mapping[str, int]) -> str | None:
    """The first file that is missing or of another size than the manifest says, as a sentence; None when none is.
    sizes: name -> bytes, of the files that are there."""
    for file in manifest.files:
        there = sizes.get(file.name)
        if there is None:
            return f"{file.name!a} is missing: its manifest has it"
        if there != file.size_bytes:
            return f"{file.name!a} has {there} bytes, and {file.size_bytes} in its manifest"
    return None
