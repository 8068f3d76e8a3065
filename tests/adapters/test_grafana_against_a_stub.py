"""`sentinel dashboards` against a stub of Grafana's API, which says of itself what it is; no Grafana runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.grafana.shipped import differences, fitted, shipped
from sentinel.cli.dashboards import dashboards
from sentinel.plan.alerts.annotations import Annotation
from sentinel.vocabulary.errors import ConfigError, GrafanaUnavailable
from sentinel.vocabulary.sample import Sample, encode
from tests.adapters.grafana_stub import PUBLISHED, TOKEN, Stub, grafana_stub, says, wrong_with
from tests.adapters.pagers import environment, free_port

pytest.importorskip("grafana_client", reason="not installed: pip install grafana-client")
from sentinel.adapters.grafana.api import Grafana
from tests.support.log_lines import ALWAYS

MARK = Annotation(
    run="tr8", incident="incident-1", kind="alarm", key="incident-1/alarm", time_unix_s=5.0, end_unix_s=5.0, text="ill"
)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def stub() -> Iterator[Stub]:
    with grafana_stub() as running:
        yield running
    assert running.not_published == []


@contextmanager
def grafana(stub: Stub, **given: Any) -> Iterator[Grafana]:
    with Grafana(stub.url, TOKEN, **{"timeout_s": 60, "pause": lambda _: None} | given) as there:
        yield there


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    return {line["name"]: line["outcome"] for line in json.loads(capsys.readouterr().out)}


def push(stub: Stub, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, str]:
    """{dashboard or mark: what became of it}"""
    assert dashboards("push", url=stub.url, as_json=True, **more) == 0
    return told(capsys)


def test_a_push_brings_folder_and_dashboards_and_a_second_one_changes_nothing(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    aim = {"datasource": "prom", "pages": "https://sentinel.example.com/"}
    assert set(push(stub, capsys, **aim).values()) == {"created"}
    assert stub.folders == {"sentinel": "Sentinel"}
    assert set(stub.dashboards) == {"sentinel-fleet", "sentinel-itself", "sentinel-spike-triage"}
    for document in stub.dashboards.values():
        variables = {v["name"]: v for v in document["templating"]["list"]}
        assert variables["datasource"]["current"]["value"] == "prom"
        assert variables["incidents"]["query"] == "https://sentinel.example.com"
    written = len(stub.writes())
    assert set(push(stub, capsys, **aim).values()) == {"unchanged"}
    assert len(stub.writes()) == written


def test_a_diff_names_what_a_person_has_changed_and_writes_nothing(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dashboards("diff", url=stub.url, as_json=True) == 1
    assert stub.writes() == []
    capsys.readouterr()
    push(stub, capsys)
    assert dashboards("diff", url=stub.url, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == []
    stub.dashboards["sentinel-fleet"]["panels"][0]["title"] = "Mine"
    assert dashboards("diff", url=stub.url, as_json=True) == 1
    assert told(capsys) == {"fleet.json": "panels[0].title"}
    assert push(stub, capsys)["fleet.json"] == "changed"
    assert stub.dashboards["sentinel-fleet"]["version"] == 2


def test_a_folder_that_a_person_renamed_keeps_its_name(stub: Stub) -> None:
    stub.folders["sentinel"] = "Pre-training"
    with grafana(stub) as there:
        assert there.folder("sentinel", "Sentinel") == "unchanged"
    assert stub.folders == {"sentinel": "Pre-training"}


@pytest.mark.parametrize(("uid", "said"), [("nobody", "no datasource of the uid"), ("logs", "is of type loki")])
def test_a_datasource_that_is_no_prometheus_is_refused_before_anything_is_written(
    stub: Stub, uid: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        dashboards("push", url=stub.url, datasource=uid, as_json=True)
    assert stub.writes() == []


def test_without_sentinels_own_pages_no_link_leads_to_them() -> None:
    for document in shipped().values():
        assert "${incidents}" not in json.dumps(fitted(document, datasource=None, pages=None))
        with_pages = json.dumps(fitted(document, datasource=None, pages="https://s"))
        assert ("${incidents}" in with_pages) == ("${incidents}" in json.dumps(document))


def test_what_grafana_writes_into_a_dashboard_is_no_difference() -> None:
    assert differences({"id": 7, "version": 3, "title": "a"}, {"id": None, "title": "a"}) == []
    assert differences({"panels": [1]}, {"panels": [1, 2]}) == ["panels"]


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run that diverged, was rolled back and recovered, by what it left behind."""
    state = tmp_path / "state"
    (state / "attempts").mkdir(parents=True)
    steps = [Sample(attempt=1, global_step=step, time_unix_s=1000.0 + step, loss=4.0) for step in range(1, 60)]
    (state / "attempts" / "0001.jsonl").write_text("".join(f"{encode(sample)}\n" for sample in steps))
    opened = {"event": "opened", "incident": "incident-1", "attempt": 1, "onset_range": [29, 33], "alarm_step": 50}
    rollback = {"rollback": "incident-1-r1", "incident": "incident-1"}
    target = {"tag": "global_step10", "global_step": 10}
    events = [
        opened | {"time_unix_s": 1050.0, "reason": "a plateau above the old level", "led_by": ["adam_variance_l1"]},
        rollback | {"event": "decided", "time_unix_s": 1060.0, "rung": "reseed", "hypothesis": "h", "target": target},
        rollback | {"event": "applied", "time_unix_s": 1070.0},
    ]
    (state / "incidents.jsonl").write_text(
        "".join(json.dumps({**ALWAYS[event["event"]], **event}) + "\n" for event in events)
    )
    (tmp_path / "tr8.toml").write_text('[run]\nname = "tr8 & co"\ncheckpoints = "saved"\nstate_dir = "state"\n')
    return str(tmp_path / "tr8.toml")


def test_a_push_marks_onset_alarm_rollback_and_later_the_recovery(
    stub: Stub, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for name in push(stub, capsys, run=run) if "/" in name} == {
        "incident-1/onset",
        "incident-1/alarm",
        "incident-1-r1/rollback",
    }
    times = {a["tags"][3]: (a["time"], a["timeEnd"]) for a in stub.annotations.values()}
    assert times == {
        "onset": (1029000, 1033000),
        "alarm": (1050000, 1050000),
        "rollback": (1060000, 1070000),
    }
    assert all(a["tags"][:2] == ["sentinel", "run:tr8 & co"] for a in stub.annotations.values())
    closed = {"event": "closed", "incident": "incident-1", "time_unix_s": 1200.0, "outcome": "recovered", "reason": "r"}
    with (tmp_path / "state" / "incidents.jsonl").open("a") as log:
        log.write(json.dumps(closed) + "\n")
    outcomes = {name: outcome for name, outcome in push(stub, capsys, run=run).items() if "/" in name}
    assert outcomes.pop("incident-1/recovery") == "created"
    assert set(outcomes.values()) == {"unchanged"}
    assert len(stub.annotations) == 4


def test_a_mark_whose_text_has_changed_is_changed_in_its_place(stub: Stub) -> None:
    with grafana(stub) as there:
        assert there.annotate(MARK, there.marks("tr8")) == "created"
        stub.annotations[1]["text"] = "of an earlier version"
        assert there.annotate(MARK, there.marks("tr8")) == "changed"
        assert there.annotate(MARK, there.marks("tr8")) == "unchanged"
    assert len(stub.annotations) == 1


def test_a_server_error_is_tried_again(stub: Stub) -> None:
    pauses: list[float] = []
    stub.troubles = [lambda request: says(request, 502, {"message": "bad gateway"})] * 2
    with grafana(stub, pause=pauses.append) as there:
        assert there.folder("sentinel", "Sentinel") == "created"
    assert pauses == [1.0, 2.0]


def test_a_mark_is_not_sent_twice_when_only_the_answer_was_lost(stub: Stub) -> None:
    stub.troubles = [lambda request: says(request, 500, {"message": "?"})]
    with grafana(stub) as there, pytest.raises(GrafanaUnavailable):
        there.annotate(MARK, {})
    assert stub.asked == ["POST /grafana/api/annotations"]


def _redirects(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "http://127.0.0.1:9/login")
    request.send_header("Content-Length", "0")
    request.end_headers()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (_redirects, "redirects"),
        (lambda request: says(request, 200, "<html>log in</html>", "text/html"), "does not answer as a Grafana"),
        (lambda request: says(request, 200, "not JSON"), "does not answer as a Grafana"),
        (lambda request: says(request, 503, {"message": "starting"}), "503"),
    ],
)
def test_what_is_no_grafana_can_be_tried_again_later(stub: Stub, trouble: Any, said: str) -> None:
    stub.troubles = [trouble] * 3
    with grafana(stub) as there, pytest.raises(GrafanaUnavailable, match=said):
        there.dashboard("sentinel-fleet")
    assert len(stub.asked) == 3


def _hangs(stub: Stub) -> None:
    stub.over.wait(60)


def test_a_grafana_that_hangs_is_given_up(stub: Stub) -> None:
    stub.troubles = [lambda _: _hangs(stub)] * 2
    with grafana(stub, timeout_s=0.2, tries=2) as there, pytest.raises(GrafanaUnavailable):
        there.dashboard("sentinel-fleet")
    assert len(stub.asked) == 2


def test_a_wrong_token_is_a_matter_of_configuration_and_is_not_shown(stub: Stub) -> None:
    another = Grafana(stub.url, "glsa_another_secret")
    with another as there, pytest.raises(ConfigError, match="does not know the token") as refused:
        there.dashboard("sentinel-fleet")
    assert "glsa" not in str(refused.value)
    assert len(stub.asked) == 1


def test_a_provisioned_dashboard_is_refused_in_grafanas_own_words(stub: Stub) -> None:
    stub.provisioned = True
    with pytest.raises(ConfigError, match="Cannot save provisioned dashboard"):
        dashboards("push", url=stub.url, as_json=True)


@pytest.mark.parametrize("url", ["grafana:3000", "https://", "ftp://g", "https://u:p@g", "https://g?orgId=1"])
def test_an_address_that_is_none_or_has_a_password_in_it_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Grafana(url, TOKEN)
    assert "u:p" not in str(refused.value)


def test_the_token_can_be_in_a_file(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    with pytest.raises(ConfigError, match="GRAFANA_TOKEN"):
        dashboards("diff", url=stub.url, as_json=True)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert dashboards("diff", url=stub.url, token_file=tmp_path / "token", as_json=True) == 1


def test_an_export_is_what_a_push_would_bring(stub: Stub, tmp_path: Path) -> None:
    aim: dict[str, Any] = {"url": stub.url, "datasource": "prom", "pages": "https://s"}
    dashboards("push", **aim, as_json=True)
    assert dashboards("export", **aim, output=tmp_path / "out", as_json=True) == 0
    for name in shipped():
        document = json.loads((tmp_path / "out" / name).read_text())
        assert differences(stub.dashboards[document["uid"]], document) == []
    assert (tmp_path / "out" / "provisioning" / "dashboards.yaml").is_file()


def test_a_grafana_that_is_away_is_exit_code_3_without_a_traceback() -> None:
    line = [sys.executable, "-m", "sentinel", "dashboards", "push", "--url", f"http://127.0.0.1:{free_port()}"]
    told_env = environment() | {"GRAFANA_TOKEN": TOKEN}
    ran = subprocess.run(line, env=told_env, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.startswith("sentinel: Grafana at 127.0.0.1 can't be reached")
    assert TOKEN not in ran.stderr + ran.stdout
    assert ran.stdout == ""


def test_the_stub_refuses_what_is_not_published() -> None:
    assert wrong_with({"text": "a", "time": 1.5}, "PostAnnotationsCmd") is not None
    assert wrong_with({"time": 1}, "PostAnnotationsCmd") is not None
    assert wrong_with({"dashboards": {}}, "SaveDashboardCommand") is not None
    assert wrong_with({"text": "a", "tags": ["b"], "time": 1, "panelId": None}, "PostAnnotationsCmd") is None
    assert set(PUBLISHED) >= {"SaveDashboardCommand", "CreateFolderCommand"}
