"""The save folder: what is whole, what is moved, and the way back."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints import QUARANTINE, Checkpoints, write_manifest
from sentinel.durable import sync_folder
from sentinel.vocabulary.errors import CheckpointError, QuarantineError
from tests.adapters.synced import synced

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}
ANOTHER = {"incident": "incident-2", "rollback": "incident-2-r1"}


def shard(path: Path, content: bytes = b"weights" * 1000) -> None:
    """A file as torch.save writes it: a zip of stored members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", content)


def checkpoint(folder: Path, step: int, ranks: int = 2) -> None:
    shard(folder / f"global_step{step}" / "mp_rank_00_model_states.pt", f"model {step}".encode() * 100)
    for rank in range(ranks):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        shard(folder / f"global_step{step}" / name, f"optimizer {step} {rank}".encode() * 100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (10, 20, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "latest").write_text("global_step100")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    return tmp_path


def inventory(folder: Path) -> dict[str, str]:
    """Names and digests of everything outside the quarantine."""
    files = [p for p in folder.rglob("*") if p.is_file() and QUARANTINE not in p.parts]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def everything(folder: Path) -> list[str]:
    """Digests of all files, wherever they lie."""
    return sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*.pt"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda tag: (tag / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink(), "1 optimizer shards"),
        (lambda tag: (tag / "mp_rank_00_model_states.pt").unlink(), "no *model_states.pt"),
        (lambda tag: (tag / "mp_rank_00_model_states.pt").write_bytes(b""), "is empty"),
        (lambda tag: (tag / "extra.pt").symlink_to("/etc/passwd"), "neither a file nor a folder"),
    ],
)
def test_a_checkpoint_that_lacks_something_is_not_complete(folder: Path, damage: object, says: str) -> None:
    damage(folder / "global_step20")  # type: ignore[operator]
    listed = Checkpoints(folder).list()[1]
    assert not listed.complete
    assert listed.problem is not None
    assert says in listed.problem


def test_what_was_moved_is_on_the_disk_when_the_call_returns(folder: Path) -> None:
    """A crash of the machine takes nothing back."""
    seen = Checkpoints(folder, manifests=folder / "manifests")
    write_manifest(folder, "global_step100", folder)
    for call in (
        lambda: seen.quarantine(["global_step100"], **WHERE),
        lambda: seen.point_latest("global_step20", 20, **WHERE),
        lambda: seen.restore(**WHERE),
        lambda: seen.point_latest(None, 0, **WHERE),
        lambda: seen.restore(**WHERE),
        lambda: seen.quarantine(["global_step20"], **ANOTHER),  # the trackers stay as they are
        lambda: seen.restore(**ANOTHER),
        lambda: seen.pins.pin("global_step10"),
        lambda: (folder / "global_step10").rename(folder / "gone") and sync_folder(folder),
        lambda: seen.pins.restore("global_step10"),
        lambda: seen.pins.let_go("global_step10"),
        lambda: seen.pins.pin("global_step10"),
        lambda: seen.pins.unpin("global_step10"),
    ):
        with synced(folder):
            call()


def test_nothing_is_overwritten_on_the_way_there_or_back(folder: Path) -> None:
    seen = Checkpoints(folder)
    seen.quarantine(["global_step100"], **WHERE)
    checkpoint(folder, 100)
    content = everything(folder)
    with pytest.raises(QuarantineError, match="would overwrite"):
        seen.quarantine(["global_step100"], **WHERE)
    with pytest.raises(QuarantineError, match="would overwrite"):
        seen.restore(**WHERE)
    assert everything(folder) == content


def test_a_manifest_is_never_written_over_another_one(folder: Path) -> None:
    seen = Checkpoints(folder, manifests=folder / "manifests")
    live = write_manifest(folder, "global_step100", folder)
    kept = folder / QUARANTINE / "incident-1" / "incident-1-r1" / "manifests" / live.name
    kept.parent.mkdir(parents=True)
    content = live.read_text()
    kept.write_text("another")
    with pytest.raises(QuarantineError, match="another manifest would overwrite it"):
        seen.quarantine(["global_step100"], **WHERE)
    assert (live.read_text(), kept.read_text()) == (content, "another")
    kept.write_text(content)  # as a move that was killed leaves it
    seen.quarantine(["global_step100"], **WHERE)
    assert (live.exists(), kept.read_text()) == (False, content)


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "a\nb"])
def test_names_that_could_lead_elsewhere_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(QuarantineError):
        Checkpoints(folder).quarantine(["global_step100"], incident=name, rollback="r1")
    with pytest.raises(QuarantineError):
        Checkpoints(folder).quarantine([name], **WHERE)
    assert len(Checkpoints(folder).list()) == 3


def test_a_torn_latest_reads_as_empty_and_is_kept_for_undo(folder: Path) -> None:
    (folder / "latest").write_text("")
    seen = Checkpoints(folder)
    assert seen.latest() == ""
    seen.point_latest("global_step20", 20, **WHERE)
    seen.restore(**WHERE)
    assert (folder / "latest").read_text() == ""


def test_a_manifest_that_goes_and_comes_back_is_as_old_as_it_was(folder: Path) -> None:
    """By its age a verification tells what was saved again under its name."""
    seen = Checkpoints(folder, manifests=folder / "manifests")
    live = write_manifest(folder, "global_step100", folder)
    kept = folder / QUARANTINE / "incident-1" / "incident-1-r1" / "manifests" / live.name
    before = live.read_bytes(), 10**18 + 7
    os.utime(live, ns=(0, before[1]))
    seen.quarantine(["global_step100", "global_step20"], **WHERE)
    assert ((kept.read_bytes(), kept.stat().st_mtime_ns), live.exists()) == (before, False)
    seen.restore(**WHERE)
    assert ((live.read_bytes(), live.stat().st_mtime_ns), kept.exists()) == (before, False)


def test_the_manifest_of_a_checkpoint_that_was_saved_since_is_kept_beside_the_one_that_comes_back(folder: Path) -> None:
    seen = Checkpoints(folder, manifests=folder / "manifests")
    live = write_manifest(folder, "global_step100", folder)
    before = live.read_text()
    seen.quarantine(["global_step100"], **WHERE)
    checkpoint(folder, 100, ranks=3)
    since = write_manifest(folder, "global_step100", folder).read_text()
    (folder / "global_step100").rename(folder / "by-hand")
    seen.restore(**WHERE)
    assert live.read_text() == before != since
    kept = folder / QUARANTINE / "incident-1" / "incident-1-r1" / "manifests"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"global_step100.after.json": since}


def test_what_trackers_said_is_kept_of_before_the_first_change_of_a_rollback(folder: Path) -> None:
    """Also where keeping it was cut short."""
    kept = folder / QUARANTINE / "incident-1" / "incident-1-r1" / "latest-before"
    torn = kept.with_name("latest-before.unfinished")
    torn.mkdir(parents=True)
    (torn / "latest_universal").write_text("torn")
    seen = Checkpoints(folder)
    for tag, step in (("global_step20", 20), ("global_step10", 10)):
        seen.point_latest(tag, step, **WHERE)
        assert {path.name: path.read_text() for path in kept.iterdir()} == {
            "latest": "global_step100",
            "latest_checkpointed_iteration.txt": "100",
        }
        assert not torn.exists()


@pytest.mark.parametrize("text", ["global_step100", "./elsewhere/latest"])
def test_latest_as_a_link_is_replaced_and_comes_back_as_the_same_link(folder: Path, text: str) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "latest").rename(folder / "elsewhere" / "latest")
    (folder / "latest").symlink_to(text)
    before = inventory(folder)
    seen = Checkpoints(folder)
    seen.quarantine(["global_step100"], **WHERE)  # a link to its folder leads nowhere now
    seen.point_latest("global_step20", 20, **WHERE)
    assert not (folder / "latest").is_symlink()
    assert (folder / "latest").read_text() == "global_step20"
    assert (folder / "elsewhere" / "latest").read_text() == "global_step100"
    seen.restore(**WHERE)
    assert os.readlink(folder / "latest") == text  # noqa: PTH115 - the text as it is
    assert inventory(folder) == before


@pytest.mark.parametrize(
    ("gone", "untrusted", "sibling"),
    [
        ((), (), 20),
        ((20,), (), 10),
        ((10, 20), (), 100),  # none earlier
        ((), (20,), 100),  # not the one before that: the run has changed since
        ((10, 20, 100), (), 200),
        ((), (20, 100), None),
    ],
)
def test_a_checkpoint_is_compared_with_the_nearest_earlier_one_that_can_be_trusted_else_the_nearest_later_one(
    folder: Path, gone: tuple[int, ...], untrusted: tuple[int, ...], sibling: int | None
) -> None:
    for step in (10, 20, 50, 100, 200):
        shard(folder / f"global_step{step}" / "mp_rank_00_model_states.pt", b"w" * (10 if step == 50 else 9000 + step))
        for rank in (0, 1):
            shard(folder / f"global_step{step}" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (folder / "checkpoint-40").mkdir()  # another trainer's
    for step in gone:
        (folder / f"global_step{step}").rename(folder / f"gone{step}")
    for step in untrusted:
        (folder / f"global_step{step}" / "extra.pt").symlink_to("/etc/passwd")
    problem = Checkpoints(folder).verify("global_step50").problem
    if sibling is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem.endswith(f" in global_step{sibling}")


def test_a_checkpoint_that_is_not_there_is_refused_and_the_last_five_are_named(folder: Path) -> None:
    for step in (200, 300, 400):
        checkpoint(folder, step)
    near = ", ".join(f"global_step{step}" for step in (20, 100, 200, 300, 400))
    with pytest.raises(CheckpointError, match=f"has no checkpoint 'global_step30'; the last ones are {near}$"):
        Checkpoints(folder).verify("global_step30")
    with pytest.raises(CheckpointError, match=r"the last ones are none$"):
        Checkpoints(folder / "nowhere").verify("global_step30")


def test_a_manifest_is_of_every_file_and_only_of_a_whole_checkpoint(folder: Path) -> None:
    manifest = Checkpoints(folder).digest("global_step20")
    files = sorted((folder / "global_step20").iterdir())
    assert (manifest.tag, manifest.global_step) == ("global_step20", 20)
    assert [(f.name, f.size_bytes, f.sha256) for f in manifest.files] == [
        (p.name, p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files
    ]
    files[0].unlink()
    with pytest.raises(CheckpointError, match="global_step20 gets no manifest, because it is not whole"):
        Checkpoints(folder).digest("global_step20")
