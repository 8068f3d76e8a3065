"""Which trainer's checkpoints lie in a folder, in which order, whether they are whole, and what is resumed from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.adapters.checkpoints import QUARANTINE, Checkpoints
from sentinel.adapters.checkpoints.layouts import Layout, recognise
from sentinel.adapters.checkpoints.layouts.deepspeed import DeepSpeedLayout, UniversalLayout
from sentinel.adapters.checkpoints.layouts.hugging_face import HuggingFaceLayout
from sentinel.adapters.checkpoints.layouts.lightning import LightningLayout
from sentinel.adapters.checkpoints.layouts.megatron_lm import MegatronLMLayout
from sentinel.adapters.checkpoints.trackers import Trackers
from sentinel.cli import status
from sentinel.vocabulary.errors import CheckpointError, FilesystemRefused, QuarantineError
from tests.adapters.checkpoint_files import (
    MAKERS,
    deepspeed,
    digests,
    hugging_face,
    megatron_lm,
    universal,
)
from tests.support.diverged_runs import diverged_run

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}


GONE = {
    "deepspeed": [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)],
    "zero 3": ["zero_pp_rank_0_mp_rank_00_model_states.pt"],
    "megatron-deepspeed": [
        *("mp_rank_02_model_states.pt", "layer_02-model_00-model_states.pt", "layer_02-model_01-model_states.pt"),
        "bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt",
    ],
    "megatron-lm": ["mp_rank_00_001", "mp_rank_01_001", "mp_rank_01_000/model_optim_rng.pt"],
    "megatron-lm, distributed optimizer": ["mp_rank_01_000/distrib_optim.pt"],
    "megatron-lm, one pipeline stage": ["mp_rank_01"],
    "torch_dist": [".metadata", "common.pt", "metadata.json", "__0_1.distcp"],
    "hugging face": ["model-00001-of-00002.safetensors", "trainer_state.json", "optimizer.pt", "rng_state_0.pth"],
    "torchtitan": [".metadata, which a save writes last,", "__0_1.distcp is missing: .metadata names it"],
    "olmo-core": [".metadata.json", "train/rank0.pt", "model_and_optim/.metadata", "model_and_optim/__0_0.distcp"],
    "lightning, sharded": ["meta.pt"],
    "composer": ["ep0-ba20-rank0.pt", "-rank1.pt is missing: ep0-ba10 has it"],
    "composer, sharded": ["__0_0.distcp"],
    "hugging face, fsdp": ["optimizer_0/.metadata, which a save writes last,"],
    "megatron-lm, torch_dist": ["metadata.json"],
}
"""What is missing of each kind, as it is said; the file comes first."""


@pytest.mark.parametrize(("kind", "says"), [(kind, gone) for kind in GONE for gone in GONE[kind]])
def test_what_is_missing_is_named_and_never_a_target(tmp_path: Path, kind: str, says: str) -> None:
    for step in (10, 20):
        tag = MAKERS[kind](tmp_path, step)
    gone = says.partition(" is missing")[0].partition(",")[0]
    gone = f"{tag.name}{gone}" if gone.startswith("-") else gone
    (tmp_path / gone if kind == "composer" else tag / gone).rename(tmp_path / "aside")
    verified = Checkpoints(tmp_path).verify(tag.name)
    assert (verified.complete, verified.verified) == (False, False)
    assert says in str(verified.problem)
    assert "missing" in str(verified.problem)


def test_all_optimizer_shards_gone_is_not_taken_for_zero_stage_0(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10, data=1)
    (tag / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    assert Checkpoints(tmp_path).verify(tag.name).problem == "its optimizer shards are missing, all of them"


def test_a_run_that_went_on_with_other_numbers_of_ranks_is_whole_on_both_sides(tmp_path: Path) -> None:
    deepspeed(tmp_path, 10, data=4)
    deepspeed(tmp_path, 20, data=2)
    deepspeed(tmp_path, 30, data=3)
    seen = Checkpoints(tmp_path)
    assert all(c.complete for c in seen.list())
    assert all(seen.verify(c.tag).verified for c in seen.list())


def test_a_weight_file_that_only_the_index_names_is_missed(tmp_path: Path) -> None:
    tag = hugging_face(tmp_path, 10, shards=1)
    index = tag / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("00001-of-00001", "of-another-name"))
    problem = Checkpoints(tmp_path).verify(tag.name).problem
    assert problem == "model-of-another-name.safetensors is missing: model.safetensors.index.json names it"


def test_hugging_face_with_deepspeed_inside_is_looked_into(tmp_path: Path) -> None:
    tag = hugging_face(tmp_path, 10)
    (tag / "optimizer.pt").unlink()
    inner = deepspeed(tag, 10)
    assert Checkpoints(tmp_path).verify(tag.name).verified
    (inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    assert "in global_step10: bf16_zero" in str(Checkpoints(tmp_path).verify(tag.name).problem)


FSDP = frozenset({"model.safetensors", "trainer_state.json"})
INNER = frozenset({"checkpoint/mp_rank_00_model_states.pt", "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"})
PARAMETERS = frozenset(f"zero/{p}/{kind}.pt" for p in "abc" for kind in ("fp32", "exp_avg")) | {"zero"}


@pytest.mark.parametrize(
    ("layout", "names", "says"),
    [
        (HuggingFaceLayout(), FSDP, "optimizer.pt is missing"),
        (HuggingFaceLayout(), FSDP | {"optimizer.bin"}, None),
        (HuggingFaceLayout(), frozenset({"global_step10", "trainer_state.json"}), "in global_step10: "),
        (LightningLayout(), INNER | {"checkpoint"}, "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing"),
        (
            LightningLayout(),
            INNER | {"checkpoint", "zero_pp_rank_0_mp_rank_00_optim_states.pt"},
            "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing",
        ),
        (UniversalLayout(), PARAMETERS, None),
        (UniversalLayout(), PARAMETERS - {"zero/b/exp_avg.pt"}, "zero/b/exp_avg.pt is missing"),
        (UniversalLayout(), PARAMETERS | {"zero/a/step.pt"}, None),
    ],
)
def test_files_that_stand_for_one_another_and_files_that_only_look_like_it(
    layout: Layout, names: frozenset[str], says: str | None
) -> None:
    """An optimizer in one file; weights that DeepSpeed alone has; a shard beside Lightning's folder; a kind that few
    of the parameters have."""
    found = layout.missing(names, True)
    assert (found or "").startswith(says or "")
    assert (found is None) == (says is None)


def test_a_universal_checkpoint_is_moved_along_and_resumed_from_only_where_latest_says_so(tmp_path: Path) -> None:
    plain, converted = deepspeed(tmp_path, 10), universal(tmp_path, 10)
    (tmp_path / "latest").write_text(plain.name)
    seen = Checkpoints(tmp_path)
    for said in (plain.name, "", None):
        if said is None:
            (tmp_path / "latest").unlink()
        else:
            (tmp_path / "latest").write_text(said)
        assert [(c.tag, c.complete) for c in seen.list()] == [(converted.name, False), (plain.name, True)]
    assert seen.verify(converted.name).verified
    (tmp_path / "latest").write_text(converted.name)
    assert [c.complete for c in seen.list()] == [True, True]
    (converted / "zero" / "wte.weight" / "exp_avg.pt").unlink()
    assert seen.verify(converted.name).problem == "zero/wte.weight/exp_avg.pt is missing"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("global_step010", 10),
        ("iter_0003000", 3000),
        ("release", 0),
        ("checkpoint-7", 7),
        ("global_step7_universal", 7),
    ],
)
def test_a_name_tells_the_step(name: str, step: int) -> None:
    named = recognise(name)
    assert named is not None
    assert named.global_step == step


@given(
    st.text() | st.sampled_from(["global_step\u0661", "global_step1\n", "../global_step1", "iter_", "tmp-checkpoint-1"])
)
def test_no_other_name_is_a_checkpoint_and_no_such_name_leads_elsewhere(name: str) -> None:
    named = recognise(name)
    assert named is None or (named.tag == name and name.isascii() and not set(name) & set("/\n'\"; \\"))


def test_a_rank_of_a_million_costs_nothing() -> None:
    names = frozenset({"mp_rank_00_model_states.pt", "zero_pp_rank_999999_mp_rank_999999_optim_states.pt"})
    assert DeepSpeedLayout().missing(names, True) == "mp_rank_01_model_states.pt is missing"
    assert MegatronLMLayout().missing(frozenset({"mp_rank_999999_999999"}), True) == "mp_rank_00_000 is missing"


@pytest.mark.parametrize("kind", ["deepspeed", "megatron-lm", "torch_dist", "hugging face"])
def test_a_rollback_and_its_undo_are_the_identity(tmp_path: Path, kind: str) -> None:
    tags = [MAKERS[kind](tmp_path, step).name for step in (10, 20, 30)]
    if kind == "deepspeed":
        (tmp_path / "latest").write_text(tags[2])
    if kind != "hugging face":
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("30")
    seen, before = Checkpoints(tmp_path), digests(tmp_path)
    assert (seen.latest(), seen.disagreement()) == (tags[2], None)
    for _ in range(2):
        seen.quarantine(tags[1:], **WHERE)
        seen.point_latest(tags[0], 10, **WHERE)
    assert (seen.latest(), seen.disagreement()) == (tags[0], None)
    assert seen.quarantined(**WHERE) == tuple(tags[1:])
    seen.restore(**WHERE)
    assert digests(tmp_path) == before
    seen.quarantine(tags, **WHERE)
    seen.point_latest(None, 0, **WHERE)
    assert seen.latest() is None
    seen.restore(**WHERE)
    assert digests(tmp_path) == before


def test_hugging_face_resumes_from_the_newest_so_a_newer_torn_one_is_moved(tmp_path: Path) -> None:
    hugging_face(tmp_path, 10)
    torn = hugging_face(tmp_path, 20)
    (torn / "trainer_state.json").unlink()
    seen = Checkpoints(tmp_path)
    assert seen.latest() == "checkpoint-20"
    seen.point_latest("checkpoint-10", 10, **WHERE)
    assert seen.latest() == "checkpoint-10"
    assert seen.quarantined(**WHERE) == ("checkpoint-20",)


@pytest.mark.parametrize(
    ("make", "number", "latest"),
    [
        (deepspeed, "10", "global_step10"),
        (megatron_lm, "10", "iter_0000010"),
        (deepspeed, "15", "iter_0000015"),
        (deepspeed, "ten", "ten"),
        (deepspeed, "\u00b2", "\u00b2"),  # a digit, and no number
        (deepspeed, "\u0661\u0660", "\u0661\u0660"),  # 10, which no trainer writes like this
        (megatron_lm, "release", "release"),
        (deepspeed, None, None),  # DeepSpeed without `latest` resumes from nothing
        (megatron_lm, None, None),
        (hugging_face, None, "checkpoint-20"),
        (hugging_face, "10", "iter_0000010"),
    ],
)
def test_what_is_resumed_from_where_there_is_no_latest(
    tmp_path: Path, make: Callable[..., Path], number: str | None, latest: str | None
) -> None:
    for step in (10, 20):
        make(tmp_path, step)
    if number is not None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(number)
    assert Checkpoints(tmp_path).latest() == latest


def test_of_a_tracker_no_more_is_read_than_a_name_can_have(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("x" * 5000)
    seen = Checkpoints(tmp_path)
    assert seen.latest() == "x" * 4096
    seen.point_latest(None, 0, **WHERE)
    seen.restore(**WHERE)
    assert (tmp_path / "latest").read_text() == "x" * 4096


@pytest.mark.parametrize(
    ("trackers", "says"),
    [
        ({"latest": "global_step20"}, None),
        ({"latest": "global_step20", "latest_checkpointed_iteration.txt": "20\n"}, None),
        ({"latest": "global_step20", "latest_checkpointed_iteration.txt": "10"}, "the trackers disagree: latest says"),
        ({"latest": ""}, "latest is empty: writing it was cut short"),
        ({"latest": "global_step2"}, "latest says global_step2, and there is no such checkpoint"),
        ({"latest": "../x\n; rm"}, "latest says '../x\\n; rm', and there is no such checkpoint"),
        ({"latest_checkpointed_iteration.txt": "7"}, "latest_checkpointed_iteration.txt says 7, and there is no such"),
        ({"latest": "20"}, "latest says 20, and there is no such checkpoint"),
        ({"latest_checkpointed_iteration.txt": "\u00b2"}, "latest_checkpointed_iteration.txt says "),
        ({"latest_checkpointed_iteration.txt": "\u0661\u0660"}, "latest_checkpointed_iteration.txt says "),
        ({"latest_checkpointed_iteration.txt": "global_step20"}, None),
        ({"latest": "global_step10", "latest_universal": "global_step20"}, "the trackers disagree: latest says"),
    ],
)
def test_trackers_that_contradict_are_told(tmp_path: Path, trackers: dict[str, str], says: str | None) -> None:
    deepspeed(tmp_path, 10)
    deepspeed(tmp_path, 20)
    for name, text in trackers.items():
        (tmp_path / name).write_text(text)
    said = Checkpoints(tmp_path).disagreement()
    assert said is None if says is None else said is not None and said.startswith(says)


LATEST, NUMBER, CONVERTED = "latest", "latest_checkpointed_iteration.txt", "latest_universal"


@pytest.mark.parametrize(
    ("tag", "there", "after"),
    [
        ("global_step10", {}, {LATEST: "global_step10"}),
        ("global_step10", {NUMBER: "30"}, {LATEST: "global_step10", NUMBER: "10"}),
        (
            "global_step10",
            {LATEST: "x", CONVERTED: "x"},
            {LATEST: "global_step10", CONVERTED: "global_step10_universal"},
        ),
        ("global_step20", {LATEST: "x", CONVERTED: "x"}, {LATEST: "global_step20"}),
        ("global_step10_universal", {}, {LATEST: "global_step10_universal"}),
        (
            "global_step10_universal",
            {NUMBER: "30", CONVERTED: "x"},
            {LATEST: "global_step10_universal", NUMBER: "10", CONVERTED: "global_step10_universal"},
        ),
        ("iter_0000010", {}, {NUMBER: "10"}),
        ("iter_0000010", {LATEST: "x", CONVERTED: "x"}, {NUMBER: "10"}),
        ("release", {NUMBER: "30"}, {NUMBER: "release"}),
        ("checkpoint-10", {LATEST: "x", NUMBER: "30", CONVERTED: "x"}, {}),
        (None, {LATEST: "x", NUMBER: "30", CONVERTED: "x"}, {}),
        (None, {}, {}),
    ],
)
def test_each_tracker_names_the_target_in_its_own_words_and_undo_makes_them_what_they_were(
    tmp_path: Path, tag: str | None, there: dict[str, str], after: dict[str, str]
) -> None:
    """A trainer goes by its own: one that is missing is written, one that it has no word for is taken away."""

    def told() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}

    for name in ("global_step10", "global_step10_universal", "global_step20"):
        (tmp_path / name).mkdir()
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    seen = Checkpoints(tmp_path)
    for _ in range(2):
        seen.point_latest(
            tag, 0 if tag in (None, "release") else int(tag.strip("_abcdefghijklmnopqrstuvwxyz-")), **WHERE
        )
        assert told() == after
    room = tmp_path / QUARANTINE / "incident-1" / "incident-1-r1"
    assert {p.name: p.read_text() for p in room.glob("*.taken-away")} == {
        f"{name}.taken-away": text for name, text in there.items() if name not in after
    }
    seen.restore(**WHERE)
    assert told() == there
    assert {p.name: p.read_text() for p in room.glob("*.after")} == {
        f"{name}.after": text for name, text in after.items() if name not in there
    }


def test_of_two_trainers_checkpoints_only_those_of_the_targets_kind_are_newer_than_it(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        hugging_face(tmp_path, step)
    deepspeed(tmp_path, 40)
    seen = Checkpoints(tmp_path)
    seen.point_latest("checkpoint-20", 20, **WHERE)
    assert seen.quarantined(**WHERE) == ("checkpoint-30",)
    assert [c.tag for c in seen.list()] == ["checkpoint-10", "checkpoint-20", "global_step40"]
    assert seen.look().incidents == frozenset({"incident-1"})
    assert seen.quarantined("incident-1", "incident-1-r2") == ()
    assert Checkpoints(tmp_path / "nowhere").look().incidents == frozenset()


def test_the_number_that_megatron_left_means_the_plain_checkpoint_of_that_step(tmp_path: Path) -> None:
    deepspeed(tmp_path, 10)
    deepspeed(tmp_path, 20)
    universal(tmp_path, 20)
    hugging_face(tmp_path, 20)
    (tmp_path / NUMBER).write_text("20")
    assert Checkpoints(tmp_path).latest() == "global_step20"


def test_latest_is_written_after_the_trackers_that_follow_it(tmp_path: Path) -> None:
    """Loading goes by `latest`: a crash before its end leaves the run where it was."""
    for step in (10, 20):
        deepspeed(tmp_path, step)
    (tmp_path / "latest").write_text("global_step20")
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.mkdir()  # it can't be written: any call before it has come through, none after it
    target = recognise("global_step10")
    assert target is not None
    with pytest.raises(FilesystemRefused, match="latest_checkpointed_iteration"):
        Trackers(tmp_path).point(target, tmp_path)
    assert (tmp_path / "latest").read_text() == "global_step20"


def test_status_tells_that_trackers_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = diverged_run(tmp_path)  # latest says global_step20
    (tmp_path / "c" / "latest_checkpointed_iteration.txt").write_text("10")
    says = "the trackers disagree: latest says global_step20, latest_checkpointed_iteration.txt says 10"
    status.show(config, as_json=False)
    assert f"checkpoints: {says}; a rollback or a restart rewrites the trackers" in capsys.readouterr().out
    status.show(config, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["latest"], told["trackers_problem"]) == ("global_step20", says)


def test_a_tag_that_is_no_checkpoints_name_is_refused_everywhere(tmp_path: Path) -> None:
    deepspeed(tmp_path, 10)
    before = digests(tmp_path)
    seen = Checkpoints(tmp_path)
    for tag in ("..", "a'b", "global_step1;x", "global_step1\n", ".sentinel-quarantine", "global_step1/../x", ""):
        with pytest.raises(CheckpointError):
            seen.verify(tag)
        with pytest.raises(CheckpointError):
            seen.point_latest(tag, 1, **WHERE)
        with pytest.raises(QuarantineError):
            seen.quarantine([tag], **WHERE)
        with pytest.raises(QuarantineError):
            seen.pins.pin(tag)
    assert digests(tmp_path) == before


def test_a_folders_name_may_hold_anything(tmp_path: Path) -> None:
    name = "-rf run 'x' quo\"te semi;colon\nnew line $(touch x) umläut a..b"
    folder = tmp_path / name
    deepspeed(folder, 10)
    deepspeed(folder, 20)
    (folder / "latest").write_text("global_step20")
    seen, before = Checkpoints(folder), digests(folder)
    assert seen.verify("global_step10").verified
    seen.quarantine(["global_step20"], **WHERE)
    seen.point_latest("global_step10", 10, **WHERE)
    seen.restore(**WHERE)
    seen.pins.pin("global_step10")
    assert digests(folder) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_a_folder_of_checkpoints_may_be_a_link_itself(tmp_path: Path) -> None:
    deepspeed(tmp_path / "scratch", 10)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "scratch")
    Checkpoints(tmp_path / "checkpoints").quarantine(["global_step10"], **WHERE)
    assert Checkpoints(tmp_path / "scratch").quarantined(**WHERE) == ("global_step10",)


@pytest.mark.parametrize("link", ["", "incident-1", "incident-1/incident-1-r1"])
def test_a_quarantine_that_is_a_link_is_refused(tmp_path: Path, link: str) -> None:
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    deepspeed(folder, 10)
    elsewhere.mkdir()
    (folder / QUARANTINE / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / QUARANTINE / link).symlink_to(elsewhere)
    with pytest.raises(QuarantineError, match="is a link"):
        Checkpoints(folder).quarantine(["global_step10"], **WHERE)
    assert list(elsewhere.iterdir()) == []


def test_old_checkpoints_are_asked_for_a_few_files_and_the_newest_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.adapters.checkpoints.completeness._ENTRIES_PER_SCAN", 5)
    for step in (10, 20, 30, 40):
        deepspeed(tmp_path, step, data=3)
    (tmp_path / "global_step10" / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()  # its end: noticed
    (tmp_path / "global_step20" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()  # in the middle
    seen = Checkpoints(tmp_path)
    assert [c.complete for c in seen.list()] == [False, True, True, True]
    assert seen.verify("global_step20").complete is False
