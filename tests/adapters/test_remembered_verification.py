"""What was read of a checkpoint is not read again while each file is the very same; anything else is."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.adapters.checkpoints import Checkpoints, Pace, ReadingStoppedError, pace, remembered, write_manifest
from sentinel.adapters.mounts import filesystem_type, is_local
from sentinel.plan.observation import Checkpoint
from tests.adapters.checkpoint_files import deepspeed, flip

TAG = "global_step10"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(remembered, "_SETTLED_S", 0.0)


class Folder:
    def __init__(self, path: Path) -> None:
        self.checkpoints, self.state = path / "checkpoints", path / "state"
        self.path = deepspeed(self.checkpoints, 10)
        self.state.mkdir()
        self.files = sorted(self.path.iterdir())
        self.size = sum(file.stat().st_size for file in self.files)

    def opened(self) -> Checkpoints:
        """As another process opens it."""
        manifests = self.state / "manifests"
        return Checkpoints(self.checkpoints, manifests=manifests, verified=self.state / remembered.VERIFIED)

    def verify(self) -> tuple[Checkpoint, int]:
        """What is found, and how many bytes were read for it."""
        read = [0]

        def progress(done: int, _: int) -> None:
            read[0] = done

        return self.opened().verify(TAG, progress=progress), read[0]


@pytest.fixture
def folder(tmp_path: Path, settled: None) -> Folder:
    return Folder(tmp_path)


def test_an_unchanged_checkpoint_is_not_read_again_and_says_when_it_was(folder: Folder) -> None:
    first, read = folder.verify()
    assert (first.verified, read) == (True, folder.size)
    assert first.verification is not None
    assert first.verification.sentence.endswith(" UTC")
    again, read = folder.verify()
    assert (again.verified, again.problem, read) == (True, None, 0)
    assert again.verification is not None
    assert again.verification.files_read == again.verification.bytes_read == 0
    assert again.verification.oldest_unix_s == first.verification.oldest_unix_s
    assert again.verification.sentence.endswith("unchanged since")


def _in_place(path: Path) -> None:
    """Another content of the same size, with the old mtime."""
    status = path.stat()
    flip(path, 8 * (path.stat().st_size // 2))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copied(path: Path) -> None:
    """The same content and times under another inode."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    other.replace(path)


def _touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def _mode(path: Path) -> None:
    path.chmod(0o640)


@pytest.mark.parametrize("change", [_in_place, _copied, _touched, _mode], ids=lambda f: f.__name__.strip("_"))
def test_a_file_that_is_not_the_very_same_is_read_again_and_no_other(
    folder: Folder, change: Callable[[Path], None]
) -> None:
    folder.verify()
    time.sleep(0.02)  # a tick of the filesystem's clock
    change(folder.files[1])
    again, read = folder.verify()
    assert again.verified is (change is not _in_place)
    if again.verified:
        assert read == folder.files[1].stat().st_size
        assert again.verification is not None
        assert again.verification.files_read == 1
        assert "1 file of" in again.verification.sentence
    assert folder.verify()[0].verified is again.verified  # a fault is not forgotten by asking twice


def test_a_file_that_may_still_change_within_the_clocks_tick_is_not_remembered(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.verify()[1] == folder.verify()[1] == folder.size


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text("{"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text('{"folder": 1, "checkpoints": []}'),
        lambda path: path.write_text(path.read_text().replace("checkpoints/", "x").replace('/checkpoints"', '/other"')),
        lambda path: path.write_text(path.read_text().replace("true", '"yes"')),
    ],
    ids=["deleted", "torn", "no text", "another form", "another folder's", "another type"],
)
def test_the_memory_may_be_lost_or_spoilt_at_any_time(folder: Folder, spoil: Callable[[Path], None]) -> None:
    folder.verify()
    spoil(folder.state / remembered.VERIFIED)
    found, read = folder.verify()
    assert (found.verified, read) == (True, folder.size)
    assert folder.verify()[1] == 0


def test_what_is_a_week_old_or_lies_in_the_future_is_read_again(folder: Folder) -> None:
    path = folder.state / remembered.VERIFIED
    for moved_s, read in ((-6 * 86_400.0, 0), (-8 * 86_400.0, folder.size), (86_400.0, folder.size)):
        path.unlink(missing_ok=True)
        folder.verify()
        data = json.loads(path.read_text())
        for file in data["checkpoints"][TAG].values():
            file[4] += moved_s
        path.write_text(json.dumps(data))
        assert folder.verify()[1] == read


def test_a_manifest_that_comes_later_asks_for_the_digests_and_is_compared_each_time(folder: Folder) -> None:
    folder.verify()
    manifest = write_manifest(folder.checkpoints, TAG, folder.state)
    assert folder.verify()[1] == folder.size  # CRCs were compared until now
    assert folder.verify()[1] == 0
    text = manifest.read_text()
    digest = json.loads(text)["files"][0]["sha256"]
    manifest.write_text(text.replace(digest, "0" * 64))
    os.utime(manifest, ns=(time.time_ns() + 10**9, time.time_ns() + 10**9))
    found, read = folder.verify()
    assert (found.verified, read) == (False, 0)
    assert "in its manifest" in str(found.problem)


def test_a_pin_and_its_end_leave_known_what_was_read(folder: Folder) -> None:
    folder.verify()
    seen = folder.opened()
    time.sleep(0.02)
    before = folder.files[0].stat().st_ctime_ns
    with seen.linking(TAG):
        seen.pins.pin(TAG)
    assert folder.files[0].stat().st_ctime_ns != before
    assert folder.verify()[1] == 0
    with seen.linking(TAG):
        assert seen.pins.let_go(TAG)
    assert folder.verify()[1] == 0
    with seen.linking(TAG):
        flip(folder.files[0], 8 * (folder.files[0].stat().st_size // 2))
        folder.files[0].touch()  # as a write does
    assert folder.verify()[0].verified is False


def test_the_memory_is_bounded_and_keeps_what_was_read_last(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (20, 30, 40):
        deepspeed(folder.checkpoints, step)
    monkeypatch.setattr(remembered, "_MOST_FILES", 2 * len(folder.files))
    for step in (10, 20, 30, 40):
        folder.opened().verify(f"global_step{step}")
    kept = json.loads((folder.state / remembered.VERIFIED).read_text())["checkpoints"]
    assert list(kept) == ["global_step30", "global_step40"]


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50), st.floats(1e3, 1e9))
def test_no_more_is_read_than_the_limit_allows(pieces: list[int], limit: float) -> None:
    now_s = [0.0]

    class Clocked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now_s[0] += timeout or 0.0
            return False

    pacing = Pace(limit, Clocked(), lambda: now_s[0])
    for read, piece in enumerate(pieces):
        pacing.wait(piece)
        assert now_s[0] >= sum(pieces[: read + 1]) / limit * (1 - 1e-9)
    now_s[0] += 100.0  # a hung filesystem
    pacing.wait(pieces[0])
    assert now_s[0] >= sum(pieces) / limit * (1 - 1e-9) + 100.0 + pieces[0] / limit * (1 - 1e-6)


def test_a_reading_that_is_told_to_stop_ends_in_the_middle_of_a_pause_and_leaves_nothing_known(folder: Folder) -> None:
    stop, ended = threading.Event(), list[str]()

    def read() -> None:
        try:
            folder.opened().verify(TAG, pace=Pace(1.0, stop))  # the first piece alone would take hours
        except ReadingStoppedError:
            ended.append("stopped")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    stop.set()
    thread.join(10)
    assert ended == ["stopped"]
    assert folder.verify()[1] == folder.size


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /lustre rw shared:5 - lustre 10.0.0.1@tcp:/fs rw
31 30 0:41 / /lustre/local\\040disk rw shared:6 - xfs /dev/nvme0n1 rw
32 22 0:42 / /home rw - nfs4 server:/home rw
33 22 8:2 / /home rw - ext4 /dev/sdb1 rw
34 22 0:43 / /gpfs rw - gpfs fs1 rw
35 22 0:44 / /beegfs rw - beegfs beegfs_nodev rw
36 22 0:45 / /fuse rw - fuse.sshfs host: rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "kind", "local"),
    [
        ("/data/run", "ext4", True),
        ("/lustre/run", "lustre", False),
        ("/lustre/local disk/run", "xfs", True),
        ("/lustrelike", "ext4", True),
        ("/home/ana", "ext4", True),  # mounted over the NFS
        ("/gpfs", "gpfs", False),
        ("/beegfs/a", "beegfs", False),
        ("/fuse/a", "fuse.sshfs", False),
    ],
)
def test_the_filesystem_is_that_of_the_nearest_mount_above(folder: str, kind: str, local: bool, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert filesystem_type(Path(folder), mounts) == kind
    assert is_local(Path(folder), mounts) is local


def test_a_filesystem_that_is_not_known_is_not_local(tmp_path: Path) -> None:
    assert filesystem_type(tmp_path) is not None
    assert filesystem_type(tmp_path, tmp_path / "none") is None
    assert not is_local(tmp_path, tmp_path / "none")


@pytest.mark.parametrize(
    ("slurm", "quota", "cores"),
    [
        ("", None, 64),
        ("12", None, 12),
        ("400", None, 64),
        ("x", None, 64),
        ("", "250000 100000", 3),
        ("", "max 100000", 64),
    ],
)
def test_the_cores_are_those_that_the_process_may_use(
    slurm: str, quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert pace.allowed_cores(slurm, tmp_path / "cpu.max") == cores
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    assert pace.allowed_cores(quota=tmp_path / "cpu.max") == cores
