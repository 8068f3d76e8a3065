"""Checkpoints of TorchTitan, OLMo-core, Lightning, Composer, Megatron-LM, FSDP: whole or not, moved, brought back.

What torch writes is written by torch here, by two ranks where ranks count. Lightning and Composer are not installed:
their folders have the shape that their sources give them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints import PINNED, Checkpoints, write_manifest
from sentinel.adapters.checkpoints.layouts import LAYOUTS
from sentinel.adapters.checkpoints.probes import place_checkpoint
from sentinel.vocabulary.errors import QuarantineError
from tests.adapters.checkpoint_files import (
    MAKERS,
    composer,
    composer_sharded,
    digests,
    flip,
    lightning,
    lightning_sharded,
    nemo,
    olmo_core,
    save,
    tensors,
    torch_dist,
    torchtitan,
)
from tests.support.diverged_runs import diverged_run

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}
SAVING = Path(__file__).with_name("dcp_saves.py")


@pytest.mark.parametrize("kind", MAKERS)
def test_each_is_listed_by_step_verified_pinned_moved_and_brought_back(tmp_path: Path, kind: str) -> None:
    """Of the trainers whose checkpoints have a file of tests of their own, too."""
    tags = [MAKERS[kind](tmp_path, step).name for step in (1000, 9, 200)]
    ordered = [tags[1], tags[2], tags[0]]
    seen, before = Checkpoints(tmp_path, manifests=tmp_path / "state" / "manifests"), digests(tmp_path)
    assert [(c.tag, c.global_step, c.complete, c.problem) for c in seen.list()] == [
        (tag, step, True, None) for tag, step in zip(ordered, (9, 200, 1000), strict=True)
    ]
    for tag in tags:
        verified = seen.verify(tag)
        assert (verified.complete, verified.verified, verified.problem) == (True, True, None)
    needs_tracker = kind.startswith(("megatron", "deepspeed", "zero", "torch_dist"))
    assert seen.latest() == (None if needs_tracker else ordered[-1])
    for _ in range(2):
        seen.pins.pin(ordered[0])
        seen.quarantine(ordered[2:], **WHERE)
        seen.point_latest(ordered[0], 9, **WHERE)
    assert seen.latest() == ordered[0]
    assert seen.quarantined(**WHERE) == tuple(ordered[2:] if needs_tracker else ordered[1:])
    seen.restore(**WHERE)
    assert digests(tmp_path) == before

    for path in [tmp_path / ordered[0], *tmp_path.glob(f"{ordered[0]}-rank*")]:
        if path.exists():
            path.rename(tmp_path / f"lost{path.name[-6:]}")
    for _ in range(2):
        seen.pins.restore(ordered[0])
    assert seen.verify(ordered[0]).verified
    assert seen.pins.tags() == (ordered[0],)


def test_a_state_of_a_rank_that_has_written_pieces_is_missed(tmp_path: Path) -> None:
    tag = olmo_core(tmp_path, 10, ranks=1)
    pieces = tag / "model_and_optim"
    (pieces / "__1_0.distcp").write_bytes((pieces / "__0_0.distcp").read_bytes())
    assert Checkpoints(tmp_path).verify(tag.name).problem == "train/rank1.pt is missing"


@pytest.mark.parametrize("kind", ["torchtitan", "lightning"])
def test_nan_in_the_weights_and_a_flipped_bit_are_found_and_a_manifest_is_kept(tmp_path: Path, kind: str) -> None:
    whole, ill = MAKERS[kind](tmp_path, 10), MAKERS[kind](tmp_path, 20, nan=True)
    seen = Checkpoints(tmp_path, manifests=tmp_path / "state" / "manifests")
    assert str(seen.verify(ill.name).problem).endswith("(float32) holds nan")
    told = json.loads(write_manifest(tmp_path, whole.name, tmp_path / "state").read_text())
    assert told["tag"] == whole.name
    largest = max([whole, *whole.rglob("*.distcp")], key=lambda p: p.stat().st_size if p.is_file() else 0)
    flip(largest, 8 * (largest.stat().st_size // 2))
    assert "is not what was saved" in str(seen.verify(whole.name).problem)


def test_a_save_over_an_older_one_is_unknown_until_its_metadata_is_written(tmp_path: Path) -> None:
    tag = torchtitan(tmp_path, 10)
    piece, metadata = tag / "__0_0.distcp", tag / ".metadata"
    later = metadata.stat().st_mtime + 300
    os.utime(piece, (later, later))
    seen = Checkpoints(tmp_path)
    (listed,) = seen.list()
    assert (listed.complete, str(listed.problem)[:33]) == (None, ".metadata is 300 s older than a p")
    assert (seen.verify(tag.name).complete, seen.verify(tag.name).verified) == (None, False)
    os.utime(metadata, (later, later))
    assert (seen.list()[0].complete, seen.verify(tag.name).verified) == (True, True)


def test_a_file_that_still_grows_is_unknown(tmp_path: Path) -> None:
    path = lightning(tmp_path, 10)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    seen = Checkpoints(tmp_path)
    assert seen.list()[0].complete is None
    assert "has no end" in str(seen.list()[0].problem)
    assert not seen.verify(path.name).verified
    path.write_bytes(content)
    assert seen.list()[0].complete is True


def test_folders_and_files_that_are_being_written_under_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    olmo_core(tmp_path, 10).rename(tmp_path / "step10-tmp")
    torchtitan(tmp_path, 10).rename(tmp_path / "step-10.tmp")
    save(tmp_path / "1000.orbax-checkpoint-tmp-17", tensors(1))
    (tmp_path / "1000").mkdir()
    assert Checkpoints(tmp_path).list() == ()


@pytest.mark.parametrize("copied", [False, True], ids=["link", "copy"])
@pytest.mark.parametrize("make", [lightning, lightning_sharded])
def test_last_ckpt_of_lightning_stands_for_the_target_as_a_link_or_as_a_copy(
    tmp_path: Path, make: Callable[..., Path], copied: bool
) -> None:
    paths = [make(tmp_path, step) for step in (10, 20, 30)]
    last = tmp_path / "last.ckpt"
    if not copied:
        last.symlink_to(paths[2].name)
    elif paths[2].is_dir():
        shutil.copytree(paths[2], last)
    else:
        shutil.copy2(paths[2], last)
    seen, before, was = Checkpoints(tmp_path), digests(tmp_path), os.path.realpath(last)
    assert seen.latest() == paths[2].name
    for _ in range(2):
        seen.quarantine([p.name for p in paths[1:]], **WHERE)
        seen.point_latest(paths[0].name, 10, **WHERE)
        assert seen.latest() == paths[0].name
    assert last.is_symlink() is not copied
    (meta,) = [p for p in (last, last / "meta.pt") if p.is_file()]
    original = paths[0] if paths[0].is_file() else paths[0] / "meta.pt"
    assert meta.read_bytes() == original.read_bytes()
    if copied:  # what the trainer writes to last.ckpt next must not reach the target
        assert meta.stat().st_ino != original.stat().st_ino
    seen.restore(**WHERE)
    assert (digests(tmp_path), os.path.realpath(last)) == (before, was)
    seen.point_latest(None, 0, **WHERE)
    assert not os.path.lexists(last)
    seen.restore(**WHERE)
    assert digests(tmp_path) == before


def test_a_target_leaves_the_names_of_another_trainers_checkpoints_alone(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").symlink_to(lightning(tmp_path, 10).name)
    tag = composer(tmp_path, 20).name
    (tmp_path / "latest-rank0.pt").symlink_to("elsewhere")
    Checkpoints(tmp_path).point_latest(tag, 20, **WHERE)
    assert str((tmp_path / "last.ckpt").readlink()) == "epoch=0-step=10.ckpt"
    assert str((tmp_path / "latest-rank0.pt").readlink()) == f"{tag}-rank0.pt"


def test_a_change_of_last_ckpt_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """Killed between taking the old name away and giving it to the copy: nothing is resumed from, and it is not said
    that the newest is."""
    for step in (10, 20):
        lightning(tmp_path, step)
    shutil.copy2(tmp_path / "epoch=0-step=20.ckpt", tmp_path / "last.ckpt")
    seen, before = Checkpoints(tmp_path), digests(tmp_path)
    room = tmp_path / ".sentinel-quarantine" / "incident-1" / "incident-1-r1"
    room.mkdir(parents=True)
    (tmp_path / "last.ckpt").rename(room / "last.ckpt.taken-away")
    (tmp_path / ".last.ckpt.sentinel-new").write_bytes(b"half")
    assert seen.latest() == ""
    seen.point_latest("epoch=0-step=10.ckpt", 10, **WHERE)
    assert seen.latest() == "epoch=0-step=10.ckpt"
    seen.restore(**WHERE)
    assert digests(tmp_path) == before


@pytest.mark.parametrize("make", [composer, composer_sharded])
def test_composers_links_of_every_rank_are_made_anew(tmp_path: Path, make: Callable[..., Path]) -> None:
    tags = [make(tmp_path, step).name for step in (10, 20)]
    for rank in range(2 if make is composer else 1):
        of_rank = f"{tags[1]}-rank{rank}.pt" if make is composer else tags[1]
        (tmp_path / f"latest-rank{rank}.pt").symlink_to(of_rank)
    seen = Checkpoints(tmp_path)
    assert (seen.latest(), seen.disagreement()) == (tags[1], None)
    seen.quarantine(tags[1:], **WHERE)
    assert "which is not there" in str(seen.disagreement())
    seen.point_latest(tags[0], 10, **WHERE)
    assert (seen.latest(), seen.disagreement()) == (tags[0], None)
    links = {p.name: str(p.readlink()) for p in tmp_path.glob("latest-rank*")}
    if make is composer:
        assert links == {f"latest-rank{r}.pt": f"ep0-ba10-rank{r}.pt" for r in range(2)}
    else:
        assert links == {"latest-rank0.pt": "ep0-ba10"}
    seen.restore(**WHERE)
    assert seen.latest() == tags[1]


def test_a_newer_torn_one_is_passed_over_where_the_trainer_passes_over_it(tmp_path: Path) -> None:
    torchtitan(tmp_path, 10)
    (torchtitan(tmp_path, 20) / ".metadata").unlink()
    assert Checkpoints(tmp_path).latest() == "step-10"


def test_a_file_of_a_checkpoint_is_no_tag_and_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    composer(tmp_path, 10)
    with pytest.raises(QuarantineError):
        Checkpoints(tmp_path).quarantine(["ep0-ba10-rank0.pt"], **WHERE)
    (tmp_path / "epoch=0-step=5.ckpt").symlink_to("ep0-ba10-rank0.pt")
    listed = {c.tag: c.complete for c in Checkpoints(tmp_path).list()}
    assert not listed["epoch=0-step=5.ckpt"]
    assert not Checkpoints(tmp_path).verify("epoch=0-step=5.ckpt").verified
    assert not (tmp_path / PINNED).exists()


@pytest.mark.parametrize("make", [lightning, lightning_sharded, composer_sharded])
def test_a_probe_begins_from_a_checkpoint_in_its_place_be_it_a_folder_or_a_file(
    tmp_path: Path, make: Callable[..., Path]
) -> None:
    tag = make(tmp_path / "run", 10).name
    place_checkpoint(tmp_path / "run", tag, tmp_path / "copies", tmp_path / "own")
    own = Checkpoints(tmp_path / "own")
    assert (own.latest(), own.verify(tag).verified) == (tag, True)


@pytest.mark.full
def test_what_two_ranks_saved_is_whole_and_what_they_were_killed_in_is_not(tmp_path: Path) -> None:
    """torch's own dcp.save and dcp.async_save. Two saves were killed before .metadata was written: one to a
    new folder, one over a whole checkpoint."""
    for words in ([str(tmp_path)], [str(tmp_path), "over"]):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(SAVING), *words], env=env, capture_output=True, timeout=200, check=False
        )
        assert done.returncode != 0
    seen = Checkpoints(tmp_path)
    listed = {c.tag: (c.complete, c.problem) for c in seen.list()}
    assert listed["step-10"] == listed["step-20"] == (True, None)
    assert all(seen.verify(tag).verified for tag in ("step-10", "step-20"))
    assert {p.name[:4] for p in (tmp_path / "step-10").glob("*.distcp")} == {"__0_", "__1_"}
    assert listed["step-30"][0] is False
    assert "which a save writes last" in str(listed["step-30"][1])
    assert (listed["step-40"][0], seen.verify("step-40").verified) == (None, False)
    assert seen.latest() == "step-40"  # as TorchTitan would have it


@pytest.mark.parametrize(("make", "by_newest"), [(torchtitan, True), (torch_dist, False), (composer_sharded, True)])
def test_a_folder_of_saves_says_whether_anything_names_the_one_to_resume(
    tmp_path: Path, make: Callable[..., Path], by_newest: bool
) -> None:
    """Megatron's get their tracker where there is none, so a rollback names one."""
    make(tmp_path, 10)
    for tracker in (*tmp_path.glob("latest*"), *tmp_path.glob("*.txt")):
        tracker.unlink()
    assert Checkpoints(tmp_path).look().by_newest is by_newest
    (tmp_path / "latest").write_text("step-10")
    assert Checkpoints(tmp_path).look().by_newest is False


def test_the_page_has_a_row_for_each_layout() -> None:
    page = (Path(__file__).parents[2] / "docs" / "CHECKPOINTS.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert {layout.title for layout in LAYOUTS} <= set(rows)


@pytest.mark.full
@pytest.mark.parametrize("make", [torchtitan, olmo_core, lightning, composer, nemo])
def test_the_commands_roll_back_and_undo(tmp_path: Path, make: Callable[..., Path]) -> None:
    diverged_run(tmp_path, '[wandb]\nafter_rollback = "copy"\nfolder = "wandb"\nrun_id = "abc"')
    saves = tmp_path / "c"
    shutil.rmtree(saves)
    tags = [make(saves, step).name for step in (100, 200, 400)]
    if make is lightning:
        shutil.copy2(saves / tags[2], saves / "last.ckpt")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1.6e9, 1.6e9))  # long ago: nothing writes there any more
    before = digests(saves)

    def sentinel(*words: str) -> None:
        command = [sys.executable, "-m", "sentinel", *words, "--run", "a.toml", "--yes"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    sentinel("rollback", "--to", tags[1], "--no-start")
    assert Checkpoints(saves).latest() == tags[1]
    assert [c.tag for c in Checkpoints(saves).list()] == tags[:2]
    (branch,) = json.loads((tmp_path / "s" / "wandb-branches.json").read_text())["branches"]
    assert (branch["run_id"], branch["undone"]) == ("abc-incident-1-r1", False)
    sentinel("undo")
    assert digests(saves) == before
    (branch,) = json.loads((tmp_path / "s" / "wandb-branches.json").read_text())["branches"]
    assert branch["undone"]
