"""Reading a checkpoint whole, without unpickling: damage is found wherever it is, and hostile input does no harm."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.checkpoints import Checkpoints, write_manifest
from sentinel.adapters.checkpoints.archive import holds_nan
from sentinel.adapters.checkpoints.pace import Pace
from sentinel.adapters.checkpoints.pickled import Entry, Persistent, PickleError, read_pickle
from sentinel.adapters.checkpoints.reading import read_files
from sentinel.adapters.checkpoints.walk import walk
from sentinel.vocabulary.errors import CheckpointError
from tests.adapters.checkpoint_files import deepspeed, flip, hugging_face, megatron_lm, save, tensors, torch_dist
from tests.hooks.trainer import train
from tests.tiers import full

MAKERS: dict[str, Callable[[Path, int], Path]] = {
    "deepspeed": lambda f, s: deepspeed(f, s, data=1),
    "megatron-lm": lambda f, s: megatron_lm(f, s, tensor=1, pipeline=1),
    "torch_dist": torch_dist,
    "hugging face": hugging_face,
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint of each kind; never written to, tests copy it."""
    root = tmp_path_factory.mktemp("originals")
    return {kind: make(root / kind, 10) for kind, make in MAKERS.items()}


class Copy:
    """A copy of a checkpoint that a test may damage, with its manifest if it wants one."""

    def __init__(self, folder: Path, original: Path) -> None:
        self.tag = original.name
        self.path = folder / "checkpoints" / original.name
        self.state = folder / "state"
        shutil.copytree(original, self.path)
        self.files = sorted(p for p in self.path.rglob("*") if p.is_file())
        self.without = Checkpoints(self.path.parent)
        self.with_manifest = Checkpoints(self.path.parent, manifests=self.state / "manifests")

    def problem(self) -> str | None:
        return self.without.verify(self.tag).problem


@pytest.fixture
def copy(tmp_path: Path, originals: dict[str, Path]) -> Callable[[str], Copy]:
    return lambda kind: Copy(tmp_path, originals[kind])


def crc_covered(path: Path) -> Iterator[tuple[int, int]]:
    """(first byte, end) of the bytes of each member of a file that torch.save wrote."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            at = info.header_offset
            start = at + 30 + int.from_bytes(content[at + 26 : at + 28], "little")
            start += int.from_bytes(content[at + 28 : at + 30], "little")
            yield start, start + info.file_size


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(MAKERS)), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_found_with_the_manifest(
    originals: dict[str, Path], kind: str, where: float, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name), originals[kind])
        write_manifest(copy.path.parent, copy.tag, copy.state)
        assert copy.with_manifest.verify(copy.tag).verified
        at = int(where * sum(p.stat().st_size for p in copy.files))
        for path in copy.files:
            if at < (size := path.stat().st_size):
                break
            at -= size
        flip(path, 8 * at + bit)
        assert copy.with_manifest.verify(copy.tag).verified is False


@settings(max_examples=60, deadline=None)
@given(rank=st.integers(0, 1), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_in_a_member_is_found_without_a_manifest(
    originals: dict[str, Path], rank: int, where: float, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name), originals["deepspeed"])
        path = copy.files[rank]
        spans = list(crc_covered(path))
        at = int(where * sum(end - start for start, end in spans))
        for start, end in spans:
            if at < end - start:
                break
            at -= end - start
        flip(path, 8 * (start + at) + bit)
        problem = copy.problem()
        assert problem is not None
        assert path.name in problem


def test_a_flipped_bit_in_every_piece_of_torch_dist_is_found(copy: Callable[[str], Copy]) -> None:
    damaged = copy("torch_dist")
    for path in (p for p in damaged.files if p.suffix == ".distcp"):
        content = path.read_bytes()
        storages = [i for i in range(len(content)) if content.startswith(b"archive/data/0", i)]
        flip(path, 8 * (storages[0] + 200))
        assert path.name in str(damaged.problem())
        path.write_bytes(content)
    assert damaged.problem() is None


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_truncated_file_is_found(copy: Callable[[str], Copy], kind: str, share: float) -> None:
    damaged = copy(kind)
    for path in (p for p in damaged.files if p.suffix in (".pt", ".safetensors", ".distcp")):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert damaged.problem() is not None, path.name
        path.write_bytes(content)
    assert damaged.problem() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("at", [0, 700_001, -1])
def test_a_nan_is_found_and_an_infinity_is_none(tmp_path: Path, dtype: torch.dtype, negative: bool, at: int) -> None:
    weights = torch.zeros(1_000_003, dtype=dtype)
    weights[::7] = float("inf")
    weights[3] = -float("inf")
    shard = deepspeed(tmp_path, 10, data=1) / "mp_rank_00_model_states.pt"
    save(shard, {"weights": weights})
    seen = Checkpoints(tmp_path)
    assert seen.verify("global_step10").problem is None
    weights[at] = -float("nan") if negative else float("nan")
    save(shard, {"before": torch.ones(5), "weights": weights})
    kind = {torch.complex64: "float32"}.get(dtype, str(dtype).removeprefix("torch."))
    assert f"({kind}) holds nan" in str(seen.verify("global_step10").problem)


def test_integers_and_bytes_that_look_like_nan_are_not(tmp_path: Path) -> None:
    shard = deepspeed(tmp_path, 10, data=1) / "mp_rank_00_model_states.pt"
    save(shard, {"ids": torch.full((99,), -1), "rng": torch.full((99,), 255, dtype=torch.uint8)})
    assert Checkpoints(tmp_path).verify("global_step10").verified


@pytest.mark.parametrize(("kind", "name"), [("torch_dist", "metadata.json"), ("hugging face", "trainer_state.json")])
def test_a_torn_json_file_is_found(copy: Callable[[str], Copy], kind: str, name: str) -> None:
    torn = copy(kind)
    (torn.path / name).write_text("{")
    assert torn.problem() == f"{name} is not a JSON object: writing it was cut short"


def test_a_nan_in_torch_dist_and_safetensors_is_found(tmp_path: Path) -> None:
    for make in (torch_dist, hugging_face):
        tag = make(tmp_path, 10, nan=True)  # type: ignore[operator]
        assert "holds nan" in str(Checkpoints(tmp_path).verify(tag.name).problem)


@given(st.binary(max_size=64), st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_bit_patterns_of_nan_are_told_as_torch_tells_them(data: bytes, floats: str) -> None:
    kind = getattr(torch, floats)
    whole = data[: len(data) // kind.itemsize * kind.itemsize]
    expected = bool(whole) and bool(torch.frombuffer(bytearray(whole), dtype=kind).isnan().any())
    assert holds_nan(memoryview(whole), floats) is expected


def test_a_member_that_begins_anywhere_is_scanned_whole(tmp_path: Path) -> None:
    """Chunks break it at any byte: the number that is broken off in one is put together with the next."""
    weights = torch.zeros(1_200_000)
    weights[262_144 - 17] = float("nan")
    for padding in range(4):
        path = tmp_path / f"padded{padding}.pt"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("a/data.pkl", pickled_storages({"0": "FloatStorage"}))
            archive.writestr("a" * (60 + padding), b"")
            archive.writestr("a/data/0", weights.numpy().tobytes())
        item = next(i for i in walk(tmp_path).files if i.name == path.name)
        _, problem = read_files(tmp_path, [item], crcs=True, digests=True, pieces={})
        assert "holds nan" in str(problem)


def pickled_storages(storages: dict[str, str]) -> bytes:
    """A pickle with torch's persistent ids, and nothing else."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    ids = b"".join(
        b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + b"K\x01tQ0"
        for key, kind in storages.items()
    )
    return b"\x80\x02" + ids + b"N."


def test_a_pickle_that_would_run_a_program_is_read_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, int]]:
            return os.mkdir, (str(tmp_path / "sprung"), 0o700)

    tag = deepspeed(tmp_path, 10, data=1)
    torch.save({"dp_world_size": 1, "trap": Trap(), "weights": torch.ones(3)}, tag / "mp_rank_00_model_states.pt")
    (torch_dist(tmp_path, 10) / ".metadata").write_bytes(pickle.dumps(Trap()))
    seen = Checkpoints(tmp_path)
    seen.list()
    assert seen.verify("global_step10").verified
    assert seen.verify("iter_0000010").problem == ".metadata names no file"
    with pytest.raises(CheckpointError):
        write_manifest(tmp_path, "iter_0000010", tmp_path / "state")
    assert not (tmp_path / "sprung").exists()


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.floats(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c) | st.tuples(c, c),
    ),
    st.integers(0, 5),
)
def test_plain_entries_of_any_pickle_are_read(value: object, protocol: int) -> None:
    whole = {"dp_world_size": 8, "inner": value, "name": "x", "nothing": None}
    found = [e for e in read_pickle(pickle.dumps(whole, protocol)) if isinstance(e, Entry) and e.top]
    said = {e.key: e.value for e in found}
    assert (said["dp_world_size"], said["name"], said["nothing"]) == (8, "x", None)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_pickle_are_an_error_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        assert all(isinstance(found, Entry | Persistent) for found in read_pickle(data))


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(MAKERS)), seed=st.integers(0, 1 << 30))
def test_any_damage_is_answered_by_a_sentence_in_one_line(originals: dict[str, Path], kind: str, seed: int) -> None:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name), originals[kind])
        path = dice.choice(copy.files)
        content = bytearray(path.read_bytes())
        for _ in range(dice.randint(1, 20)):
            at = dice.choice([dice.randrange(len(content)), len(content) - 1 - dice.randrange(min(400, len(content)))])
            content[at : at + dice.randint(0, 8)] = dice.randbytes(dice.randint(0, 8))
        path.write_bytes(content)
        copy.without.list()
        problem = copy.problem()
        assert problem is None or ("\n" not in problem and problem.isprintable())


def test_the_format_of_before_torch_1_6_can_be_verified_by_a_manifest_alone(copy: Callable[[str], Copy]) -> None:
    old = copy("deepspeed")
    shard = old.path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save(tensors(1), shard, _use_new_zipfile_serialization=False)
    assert "can't be verified" in str(old.problem())
    with pytest.raises(CheckpointError, match="can't be verified"):
        write_manifest(old.path.parent, old.tag, old.state)


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (lambda tag: (tag / "extra").symlink_to("/etc/passwd"), "extra is neither a file nor a folder: it is a link"),
        (lambda tag: os.mkfifo(tag / "pipe"), "pipe is neither a file nor a folder"),
        (lambda tag: (tag / "below").symlink_to(tag.parent, target_is_directory=True), "it is a link"),
        (lambda tag: (tag / "a\nb").symlink_to("/"), "'a\\nb' is neither a file nor a folder: it is a link"),
    ],
)
def test_what_no_trainer_writes_is_refused_before_anything_is_opened(
    copy: Callable[[str], Copy], plant: Callable[[Path], None], says: str
) -> None:
    planted = copy("deepspeed")
    plant(planted.path)
    assert says in str(planted.problem())
    assert not planted.without.list()[0].complete


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_somebody_elses_file_and_a_device_are_refused(copy: Callable[[str], Copy]) -> None:
    planted = copy("deepspeed")
    os.chown(planted.files[0], 4711, 4711)
    assert "belongs to user 4711" in str(planted.problem())
    os.chown(planted.path.parent, 4711, 4711)  # the run's user owns the folder: then it is theirs
    assert planted.problem() is None
    try:
        os.mknod(planted.path / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device can be made here")
    assert "null is neither a file nor a folder" in str(planted.problem())


def test_a_folder_that_is_a_link_is_no_checkpoint(copy: Callable[[str], Copy]) -> None:
    original = copy("deepspeed")
    (original.path.parent / "global_step20").symlink_to(original.path)
    assert [c.complete for c in original.without.list()] == [True, False]
    assert original.without.verify("global_step20").problem == "global_step20 is not a folder of its own"


def test_a_manifest_follows_its_checkpoint_into_the_quarantine_and_back(copy: Callable[[str], Copy]) -> None:
    moved = copy("deepspeed")
    where = {"incident": "incident-1", "rollback": "incident-1-r1"}
    manifest = write_manifest(moved.path.parent, moved.tag, moved.state)
    before = manifest.read_text()
    moved.with_manifest.quarantine([moved.tag], **where)
    assert not manifest.exists()
    deepspeed(moved.path.parent, 10, data=1)  # the same name, saved again
    write_manifest(moved.path.parent, moved.tag, moved.state)
    moved.with_manifest.quarantine([moved.tag], incident="incident-1", rollback="incident-1-r1-undone")
    moved.with_manifest.restore(**where)
    assert manifest.read_text() == before
    assert moved.with_manifest.verify(moved.tag).verified
    flip(moved.files[0], 8 * 5000)
    assert "is not what was saved" in str(moved.with_manifest.verify(moved.tag).problem)


def younger(copy: Copy, manifest: Path) -> None:
    for path in copy.files:
        os.utime(path, ns=(0, manifest.stat().st_mtime_ns + 10**9))


def test_a_manifest_of_an_earlier_save_under_the_same_name_does_not_count(copy: Callable[[str], Copy]) -> None:
    saved = copy("deepspeed")
    manifest = write_manifest(saved.path.parent, saved.tag, saved.state)
    save(saved.files[0], tensors(11))
    save(saved.files[1], {"dp_world_size": 1, "optimizer": None, **tensors(11)})
    younger(saved, manifest)
    assert saved.with_manifest.verify(saved.tag).verified
    flip(saved.files[0], 8 * 5000)  # its own CRCs still count
    assert "CRC" in str(saved.with_manifest.verify(saved.tag).problem)
    os.utime(saved.files[1], ns=(0, manifest.stat().st_mtime_ns - 10**9))  # one is older: the other was changed
    assert saved.with_manifest.verify(saved.tag).verified is False


def test_a_copy_that_was_damaged_on_the_way_is_found(copy: Callable[[str], Copy]) -> None:
    copied = copy("hugging face")
    manifest = write_manifest(copied.path.parent, copied.tag, copied.state)
    younger(copied, manifest)
    assert copied.with_manifest.verify(copied.tag).verified
    flip(copied.path / "model-00001-of-00002.safetensors", 8 * 2000)
    assert "is not what was saved" in str(copied.with_manifest.verify(copied.tag).problem)


def test_a_manifest_is_never_written_over_damage(copy: Callable[[str], Copy]) -> None:
    damaged = copy("hugging face")
    manifest = write_manifest(damaged.path.parent, damaged.tag, damaged.state)
    before = manifest.read_text()
    flip(damaged.path / "model-00001-of-00002.safetensors", 8 * 2000)
    assert damaged.problem() is None  # safetensors has no checksum: the manifest alone can tell
    with pytest.raises(CheckpointError, match="is not what was saved"):
        write_manifest(damaged.path.parent, damaged.tag, damaged.state)
    assert manifest.read_text() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "tag": "global_step11", "files": []}'])
def test_a_torn_manifest_makes_its_checkpoint_untrusted_and_is_named(copy: Callable[[str], Copy], text: str) -> None:
    torn = copy("deepspeed")
    write_manifest(torn.path.parent, torn.tag, torn.state).write_text(text)
    verified = torn.with_manifest.verify(torn.tag)
    assert (verified.complete, verified.verified) == (True, False)
    assert "global_step10.json can't be read" in str(verified.problem)


def test_progress_is_told_up_to_the_last_byte(copy: Callable[[str], Copy]) -> None:
    told: list[tuple[int, int]] = []
    read = copy("deepspeed")
    read.without.verify(read.tag, progress=lambda done, total: told.append((done, total)))
    size = walk(read.without.folder / read.tag).size_bytes
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_what_a_retention_deletes_while_it_is_read_is_not_verified_and_its_pin_is_whole(
    copy: Callable[[str], Copy],
) -> None:
    one = copy("deepspeed")
    one.without.pins.pin(one.tag)
    in_order = Pace(bytes_per_s=1e12, stop=Event())
    deleted = one.without.verify(one.tag, progress=lambda *_: shutil.rmtree(one.path, True), pace=in_order)
    assert (deleted.complete, deleted.verified) == (None, None)
    assert deleted.problem is not None
    assert deleted.problem.startswith("it changed while it was read (")
    one.without.pins.restore(one.tag)
    assert one.without.verify(one.tag).verified is True


def test_a_file_that_is_still_being_written_is_told(copy: Callable[[str], Copy]) -> None:
    written = copy("deepspeed")

    def append(done: int, total: int) -> None:
        with written.files[-1].open("ab") as file:
            file.write(b"more")

    assert "something still writes to it" in str(written.without.verify(written.tag, progress=append).problem)


@pytest.mark.parametrize(("zero", "ranks"), [*full([("0", 1)]), ("1", 2), *full([("3", 2)])])
def test_what_deepspeed_itself_saves_is_whole_and_a_shard_less_is_not(tmp_path: Path, zero: str, ranks: int) -> None:
    train(tmp_path / "run", "--steps", "4", "--save-interval", "2", "--zero", zero, ranks=ranks)
    folder = tmp_path / "run" / "checkpoints"
    seen = Checkpoints(folder, manifests=tmp_path / "state" / "manifests")
    assert [(c.tag, c.complete) for c in seen.list()] == [("global_step2", True), ("global_step4", True)]
    assert (seen.latest(), seen.disagreement()) == ("global_step4", None)
    assert seen.verify("global_step4").verified
    shards = sorted((folder / "global_step4").iterdir())
    written = json.loads(write_manifest(folder, "global_step4", tmp_path / "state").read_text())
    assert [file["name"] for file in written["files"]] == [shard.name for shard in shards]
    for shard in shards:
        shard.rename(tmp_path / "aside")
        assert seen.verify("global_step4").complete is False, shard.name
        assert Checkpoints(folder).verify("global_step4").complete is False, shard.name
        (tmp_path / "aside").rename(shard)
    flip(shards[0], 8 * (shards[0].stat().st_size // 2))
    assert seen.verify("global_step4").verified is False


@pytest.mark.full
def test_what_deepspeed_converts_to_universal_is_whole_and_a_moment_less_is_not(tmp_path: Path) -> None:
    train(tmp_path / "run", "--steps", "2", "--save-interval", "2", "--zero", "1")
    folder = tmp_path / "run" / "checkpoints"
    plain, converted = folder / "global_step2", folder / "global_step2_universal"
    convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    subprocess.run(
        [*convert, "--input_folder", str(plain), "--output_folder", str(converted)],
        check=True,
        capture_output=True,
        timeout=200,
    )
    seen = Checkpoints(folder)
    assert [c.tag for c in seen.list()] == [converted.name, plain.name]
    assert (seen.verify(converted.name).verified, seen.disagreement()) == (True, None)
    moment = next((converted / "zero").glob("*/exp_avg.pt"))
    moment.rename(tmp_path / "aside")
    assert seen.verify(converted.name).problem == f"{moment.relative_to(converted)} is missing"
