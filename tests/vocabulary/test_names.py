"""A name is one component of a path, wherever it comes from; nothing is written outside of the run's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints.quarantine import Quarantine
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.slurm.records import JobRecords
from sentinel.adapters.slurm.submissions import Submissions
from sentinel.adapters.state_files import Approvals, OverridesFile
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.config import load_config
from sentinel.plan.incident.incident import Approval
from sentinel.vocabulary.errors import ConfigError, QuarantineError, SentinelError
from sentinel.vocabulary.names import LONGEST_NAME_BYTES, why_not_a_name
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor
from tests.support.hostile_run import answer, run_folder
from tests.support.log_lines import logged

NO_NAMES = {
    "": "is empty",
    "..": "is a path",
    "../../evil": "is a path",
    "/etc/x": "is a path",
    ".hidden": "dot or a dash",
    "-rf": "dot or a dash",
    "a\0b": "can't be printed",
    "a\nb": "can't be printed",
    "\ud800": "can't be printed",
    "a\u202eb": "can't be printed",
    " a": "with a space",
    "x" * 5000: "5000 bytes",
    "é" * (LONGEST_NAME_BYTES // 2 + 1): "130 bytes",
}
EVIL = [name for name in NO_NAMES if name]


@pytest.mark.parametrize(("text", "why"), NO_NAMES.items(), ids=range(len(NO_NAMES)))
def test_what_is_no_name_is_refused_in_a_sentence(text: str, why: str) -> None:
    assert why in (why_not_a_name(text) or "")


@pytest.mark.parametrize("name", ["tr8-104B", "tr11-176B.ml", "my run", "été_2", "x" * LONGEST_NAME_BYTES])
def test_what_people_call_their_runs_is_a_name(name: str) -> None:
    assert why_not_a_name(name) is None


@pytest.mark.parametrize("name", [name for name in NO_NAMES if "\ud800" not in name], ids=ascii)
@pytest.mark.parametrize("command", ["pause", "status", "doctor"])
def test_a_run_of_such_a_name_writes_nothing_anywhere(name: str, command: str) -> None:
    with run_folder() as root:
        (root / "runs" / "tr8.toml").write_text(f'[run]\nname = {dump_json(name)}\ncheckpoints = "../checkpoints"\n')
        before = sorted(root.parents[1].rglob("*"))
        said = answer(command)
        assert "runs/tr8.toml: " in said.splitlines()[0], said[:300]
        assert "name" in said, said[:300]
        assert len(said) < 400
        assert sorted(root.parents[1].rglob("*")) == before


@pytest.mark.parametrize(
    "run", ["../../evil", "/etc/x", "x" * 5000, "a\nb", "-x", "..", "a/b.toml", "y" * 300 + ".toml"]
)
def test_a_run_that_is_asked_for_by_no_name_is_refused(run: str) -> None:
    with run_folder():
        assert "sentinel: " in answer("status", f"--run={run}")


@pytest.mark.parametrize("path", ["a\\u0000b", "x" * 5000, "y" * 300 + "/a"])
def test_a_path_that_no_filesystem_takes_is_refused_with_its_key(tmp_path: Path, path: str) -> None:
    (tmp_path / "r.toml").write_text(f'[run]\nname = "r"\ncheckpoints = "{path}"\n')
    with pytest.raises(ConfigError, match=r"run\.checkpoints"):
        load_config(tmp_path / "r.toml")


@pytest.mark.parametrize("name", EVIL, ids=ascii)
def test_no_identifier_of_a_file_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "a" / "b" / "checkpoints"
    inside.mkdir(parents=True)
    (inside / "tb").mkdir()
    outside = sorted(tmp_path.rglob("*"))
    approval = Approval(digest="d", by="me", time_unix_s=1.0)
    (inside / "overrides.json").write_text("{}")
    for act in (
        lambda: Quarantine(inside, None).take(["global_step1"], name, "r1"),
        lambda: Quarantine(inside, None).take(["global_step1"], "incident-1", name),
        lambda: TensorBoard(inside / "tb").cut(Anchor(global_step=1), incident=name, rollback="r1"),
        lambda: TensorBoard(inside / "tb").restore("incident-1", name),
        lambda: Approvals(inside).write(name, approval),
        lambda: OverridesFile(inside / "overrides.json").take_away(name),
        lambda: Submissions(inside).room(name),
        lambda: Submissions(inside).note(name, {0: "1"}),
        lambda: JobRecords(inside).script(name),
    ):
        with pytest.raises(SentinelError):
            act()
    (inside / "overrides.json").unlink()
    assert sorted(tmp_path.rglob("*")) == [path for path in outside if path.name != "overrides.json"]


@pytest.mark.parametrize("link", [".sentinel-quarantine", ".sentinel-quarantine/incident-1"])
def test_a_link_in_the_quarantine_is_not_followed(tmp_path: Path, link: str) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "checkpoints"
    for path in (elsewhere, folder / "global_step9", tmp_path / "tb"):
        path.mkdir(parents=True)
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(elsewhere)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(QuarantineError, match="is a link"):
        Quarantine(folder, None).take(["global_step9"], "incident-1", "r1")
    with pytest.raises(QuarantineError, match="is a link"):
        TensorBoard(tmp_path / "tb").cut(Anchor(global_step=1), incident="incident-1", rollback="r1")
    assert not list(elsewhere.iterdir())
    assert (folder / "global_step9").is_dir()


def test_a_listing_that_names_files_outside_brings_none_of_them_back(tmp_path: Path) -> None:
    room = tmp_path / ".sentinel-quarantine" / "incident-1" / "r1" / "tb-originals"
    room.mkdir(parents=True)
    (tmp_path / "tb").mkdir()
    (room / "files.json").write_text(dump_json({"files": ["../../evil"]}))
    with pytest.raises(QuarantineError, match="no file below"):
        TensorBoard(tmp_path / "tb").restore("incident-1", "r1")


def test_an_incident_log_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("somebody's own, without an end")
    (tmp_path / "incidents.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(SentinelError, match=r"incidents\.jsonl"):
        IncidentLog(tmp_path / "incidents.jsonl").append(*logged({"event": "x"}))
    assert (tmp_path / "other").read_text() == "somebody's own, without an end"
    assert os.readlink(tmp_path / "incidents.jsonl")  # noqa: PTH115 - still the link
