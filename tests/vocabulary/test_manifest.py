"""A manifest says what a whole checkpoint consists of, and survives being written and read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.manifest import Digested, Manifest, decode_manifest, encode_manifest, first_difference

DIGEST = "0123456789abcdef" * 4
NAMES = st.text(min_size=1).filter(lambda name: not name.startswith("/") and ".." not in name.split("/"))
FILES = st.builds(
    Digested,
    name=NAMES,
    size_bytes=st.integers(0, 1 << 60),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
)


@given(st.text(), st.integers(0, 1 << 50), st.lists(FILES, min_size=1, unique_by=lambda file: file.name))
def test_a_manifest_reads_back_as_it_was_written(tag: str, step: int, files: list[Digested]) -> None:
    manifest = Manifest(tag=tag, global_step=step, files=tuple(sorted(files, key=lambda file: file.name)))
    text = encode_manifest(manifest)
    assert text.isascii()
    assert len(text.splitlines()) == len(files) + 2
    assert decode_manifest(text) == manifest


def document(**changes: object) -> str:
    good = {"schema": 1, "tag": "global_step1", "global_step": 1, "files": [entry()]}
    return json.dumps(good | changes)


def entry(**changes: object) -> dict[str, object]:
    return {"name": "a.pt", "size_bytes": 3, "sha256": DIGEST, **changes}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        (document(schema=2), "has schema 2; this version reads 1"),
        (document(files=[]), "a tag and a list of files"),
        (document(files=[entry(), entry()]), "names a file twice"),
        (document(files=[entry(name="../x")]), "a path below the checkpoint"),
        (document(files=[entry(name="/etc/passwd")]), "a path below the checkpoint"),
        (document(files=[entry(sha256="abc")]), "64 hexadecimal digits"),
        (document(files=[entry(size_bytes=-1)]), r"files\[0\].size_bytes"),
        (document(files=[entry(size_bytes=True)]), r"files\[0\].size_bytes should be a whole number"),
        (document(files=["a.pt"]), r"files\[0\] should be an object"),
        (document(global_step=None), "global_step should be a whole number"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(text: str, says: str) -> None:
    with pytest.raises(LineError, match=says):
        decode_manifest(text)


def test_the_first_difference_is_named() -> None:
    files = tuple(Digested(name=name, size_bytes=3, sha256=DIGEST) for name in ("a", "b"))
    manifest = Manifest(tag="global_step1", global_step=1, files=files)
    assert first_difference(manifest, {"a": 3, "b": 3, "c": 9}) is None
    assert first_difference(manifest, {"b": 3}) == "'a' is missing: its manifest has it"
    assert first_difference(manifest, {"a": 3, "b": 4}) == "'b' has 4 bytes, and 3 in its manifest"
