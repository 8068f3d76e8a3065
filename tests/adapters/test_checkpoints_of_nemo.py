"""NVIDIA NeMo's checkpoints: which are whole, which one a restart takes, and a rollback with its undo.

NeMo is not installed: `resumed_by_nemo` is its rule, written from nemo/lightning/resume.py (`_find_trainer_ckpt_path`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints import PINNED, Checkpoints
from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.adapters.checkpoints.probes import place_checkpoint
from sentinel.vocabulary.errors import QuarantineError
from tests.adapters.checkpoint_files import digests, nemo, save, tensors

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}


def resumed_by_nemo(folder: Path) -> str | None:
    """The folder that a restart of NeMo 2 loads, links resolved."""
    last = [path for path in folder.glob("*") if path.is_dir() and path.match("*last")]
    finished = [path for path in last if not Path(f"{path}-unfinished").exists()]
    newest = sorted(finished, key=lambda path: path.lstat().st_mtime, reverse=True)
    return newest[0].resolve().name if newest else None


def at(path: Path, time_s: float) -> Path:
    os.utime(path, (time_s, time_s), follow_symlinks=False)
    return path


@pytest.mark.parametrize(
    ("name", "step"),
    [  # the first three: a log that NeMo publishes says "Async checkpoint save for step 10 (…step=9-…)", 20 and 17
        ("model_name=0--val_loss=0.00-step=9-consumed_samples=5120.0-last", 10),
        ("model_name=0--val_loss=0.00-step=19-consumed_samples=10240.0-last", 20),
        ("model_name=0--val_loss=0.00-step=16-consumed_samples=8704.0-last", 17),
        ("gpt--reduced_train_loss=2.3456-epoch=0-step=99", 100),
        ("gpt--reduced_train_loss=2.3456-epoch=0-step=99-last-v1", 100),
    ],
)
def test_the_name_holds_the_step_before_the_last_update(name: str, step: int) -> None:
    for entry in (name, f"{name}-unfinished"):
        named = recognise(entry)
        assert named is not None
        assert (named.tag, named.global_step, named.layout.title) == (name, step, "NeMo")


@pytest.mark.parametrize(
    "name", ["gpt-step=9", "gpt--val_loss=0.1-epoch=3-last", "default--None=0.0-step=x", "a--b.nemo"]
)
def test_a_name_without_a_step_or_the_double_hyphen_is_no_checkpoint_of_nemo(name: str) -> None:
    assert recognise(name) is None


def test_a_rollback_gives_nemo_the_target_and_undo_what_it_had(tmp_path: Path) -> None:
    """The target is one of the best: only a link that ends with `last` makes NeMo load it, before the older `-last`."""
    older = at(nemo(tmp_path, 4, last=True), 1e9 + 25).name  # by its time newer than the target
    tags = [at(nemo(tmp_path, number), 1e9 + number).name for number in (9, 19, 29)]
    last = at(nemo(tmp_path, 29, last=True), 1e9 + 30).name
    seen, before = Checkpoints(tmp_path, manifests=tmp_path / "state"), digests(tmp_path)
    assert [(c.tag, c.global_step, c.complete, c.problem) for c in seen.list()] == [
        (tag, step, True, None) for tag, step in zip((older, *tags, last), (5, 10, 20, 30, 30), strict=True)
    ]
    assert all(seen.verify(tag).verified for tag in (*tags, last))
    assert seen.latest() == resumed_by_nemo(tmp_path) == last
    seen.pins.pin(tags[0])
    for _ in range(2):
        seen.quarantine([tags[2], last], **WHERE)
        seen.point_latest(tags[1], 20, **WHERE)
        assert seen.latest() == resumed_by_nemo(tmp_path) == tags[1]
        assert seen.disagreement() is None
    saved_next = nemo(tmp_path, 39, last=True)
    at(saved_next, saved_next.stat().st_mtime + 10)
    assert seen.latest() == resumed_by_nemo(tmp_path) == saved_next.name
    seen.quarantine([saved_next.name], incident="incident-2", rollback="incident-2-r1")
    seen.restore(**WHERE)
    assert digests(tmp_path) == before
    assert seen.latest() == resumed_by_nemo(tmp_path) == last


def test_a_target_that_is_a_last_needs_no_link(tmp_path: Path) -> None:
    for number in (9, 19):
        tag = at(nemo(tmp_path, number, last=True), 1e9 + number)
    seen = Checkpoints(tmp_path)
    first = seen.list()[0].tag
    seen.point_latest(first, 10, **WHERE)
    assert seen.quarantined(**WHERE) == (tag.name,)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == [first]
    assert seen.latest() == resumed_by_nemo(tmp_path) == first


def test_the_latest_modification_counts_not_the_step(tmp_path: Path) -> None:
    nemo(tmp_path, 9)
    for number, time_s in ((19, 2e9), (29, 1e9)):
        at(nemo(tmp_path, number, last=True), time_s)
    assert Checkpoints(tmp_path).latest() == resumed_by_nemo(tmp_path)
    assert "step=19" in str(resumed_by_nemo(tmp_path))


def test_a_last_that_is_a_link_stands_for_the_checkpoint_it_leads_to(tmp_path: Path) -> None:
    """`save_last="link"`: the link is no checkpoint of its own."""
    nemo(tmp_path, 9)
    tag = nemo(tmp_path, 19).name
    (tmp_path / f"{tag}-last").symlink_to(tag)
    seen = Checkpoints(tmp_path)
    assert seen.latest() == resumed_by_nemo(tmp_path) == tag
    assert {c.tag: c.complete for c in seen.list()}[f"{tag}-last"] is False
    seen.point_latest(tag, 20, **WHERE)
    assert seen.quarantined(**WHERE) == (f"{tag}-last",)
    assert seen.latest() == resumed_by_nemo(tmp_path) == tag
    seen.restore(**WHERE)
    assert (tmp_path / f"{tag}-last").readlink() == Path(tag)
    assert not (tmp_path / "sentinel-last").is_symlink()


def test_without_a_last_nothing_is_resumed_from(tmp_path: Path) -> None:
    nemo(tmp_path, 9)
    assert Checkpoints(tmp_path).latest() is None
    assert resumed_by_nemo(tmp_path) is None


def test_what_has_a_marker_is_incomplete_and_not_resumed_from_and_keeps_it_when_it_is_moved(tmp_path: Path) -> None:
    whole = at(nemo(tmp_path, 9, last=True), 1e9).name
    torn = nemo(tmp_path, 19, last=True).name
    seen = Checkpoints(tmp_path)
    assert [c.complete for c in seen.look().checkpoints] == [True, True]
    marker = tmp_path / f"{torn}-unfinished"
    marker.touch()
    assert [(c.tag, c.complete) for c in seen.look().checkpoints] == [(whole, True), (torn, False)]
    assert f"{marker.name} marks it" in str(seen.verify(torn).problem)
    room = seen.room_for_saves(1)
    assert room is not None
    assert room.needed_bytes == sum(p.stat().st_size for p in (tmp_path / whole).rglob("*") if p.is_file())
    assert seen.latest() == resumed_by_nemo(tmp_path) == whole
    with pytest.raises(QuarantineError, match="marks it"):
        seen.pins.pin(torn)
    before = digests(tmp_path)
    seen.quarantine([torn], **WHERE)
    assert not marker.exists()
    seen.restore(**WHERE)
    assert digests(tmp_path) == before
    marker.unlink()
    assert [c.complete for c in seen.look().checkpoints] == [True, True]
    (tmp_path / f"{whole.replace('step=9', 'step=49')}-unfinished").touch()  # a save that has only begun
    assert seen.list()[-1].complete is False


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("weights", "the folder weights is missing"),
        ("weights/.metadata", ".metadata, which a save writes last, is missing"),
        ("weights/common.pt", "weights/common.pt is missing"),
        ("weights/metadata.json", "weights/metadata.json is missing"),
        ("weights/__0_0.distcp", "weights/__0_0.distcp is missing: .metadata names it"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, gone: str, says: str) -> None:
    for number in (9, 19):
        tag = nemo(tmp_path, number, last=True)
    (tag / gone).rename(tmp_path / "aside")
    verified = Checkpoints(tmp_path).verify(tag.name)
    assert (verified.complete, verified.verified) == (False, False)
    assert says in str(verified.problem)


def test_a_file_of_nemo_1_is_no_target_and_is_not_pinned(tmp_path: Path) -> None:
    """NeMo 1 looks for `*last.ckpt` in every folder below: a pin, or a quarantine, would be resumed from."""
    path = tmp_path / "megatron_gpt--val_loss=5.01-step=900-consumed_samples=57600.0-last.ckpt"
    save(path, {"global_step": 900, "state_dict": tensors(900)})
    seen = Checkpoints(tmp_path)
    (listed,) = seen.list()
    assert (listed.tag, listed.complete) == (path.name, False)
    assert "it is a file of NeMo 1" in str(listed.problem)
    assert "it is a file of NeMo 1" in str(seen.verify(path.name).problem)
    with pytest.raises(QuarantineError):
        seen.pins.pin(path.name)
    assert not (tmp_path / PINNED).exists()


def test_a_probe_begins_from_its_copy(tmp_path: Path) -> None:
    tag = nemo(tmp_path / "run", 9).name
    place_checkpoint(tmp_path / "run", tag, tmp_path / "copies", tmp_path / "own")
    assert resumed_by_nemo(tmp_path / "own") == Checkpoints(tmp_path / "own").latest() == tag
    assert Checkpoints(tmp_path / "own").verify(tag).verified
