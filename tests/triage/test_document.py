"""What the page is told of a run."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentinel.cli.commands import app
from sentinel.judge.verdict import VerdictKind
from sentinel.reports import triage
from sentinel.reports.triage.incidents import differences
from tests.triage import runs
from tests.triage.runs import document_in


def written(folder: Path, *more: str, reason: str = "the loss left its band at step 205") -> str:
    configuration = runs.diverged(folder, reason)
    page = folder / "report.html"
    app(["triage", "--run", str(configuration), "-o", str(page), *more], standalone_mode=False)
    return page.read_text()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return document_in(written(tmp_path_factory.mktemp("document")))


def test_attempts_are_curves_of_their_own_and_nan_is_in_them(document: dict[str, Any]) -> None:
    loss = next(chart for chart in document["charts"] if chart["name"] == "loss")
    assert [curve["attempt"] for curve in loss["curves"]] == [1, 2]
    curve = loss["curves"][0]
    steps, values = (base64.b64decode(curve[key]) for key in ("steps", "values"))
    assert np.frombuffer(steps, "<u4").tolist() == list(range(1, 401))
    assert np.isnan(np.frombuffer(values, "<f4")[-1])


def again(folder: Path) -> dict[str, Any]:
    page = folder / "report.html"
    app(["triage", "--run", str(folder / "tiny.toml"), "-o", str(page)], standalone_mode=False)
    return document_in(page.read_text())


def test_suspect_samples_reach_from_three_steps_before_the_onset_to_one_after_it(document: dict[str, Any]) -> None:
    samples = document["incidents"][0]["suspects"]["samples"]
    assert samples["steps"] == [198, 206]
    assert (samples["first"], samples["after_last"]) == (16 * 197, 16 * 206)


def test_the_layer_that_grew_is_the_first_suspect(document: dict[str, Any]) -> None:
    first = document["incidents"][0]["suspects"]["layers"][0]
    assert first["layer"] == "blocks.0"
    assert first["growth"] == pytest.approx(10.0)


def test_the_signal_that_moved_before_the_onset_is_named(document: dict[str, Any]) -> None:
    moved = document["incidents"][0]["suspects"]["signals"]["departures"]
    assert {d["signal"]: d["first_step"] for d in moved}["adam_variance_max"] == 199


def test_the_plan_says_what_it_changed_and_what_became_of_it(document: dict[str, Any]) -> None:
    plan = document["incidents"][0]["plans"][0]
    assert {"name": "seed", "before": 0, "after": 1} in plan["difference"]
    assert plan["outcome"] == "recovered"
    assert document["attempts"][1]["verdict"] == "recovered"


def test_the_verdict_over_the_run_tells_which_attempt_diverged(document: dict[str, Any]) -> None:
    ill = [f for f in document["findings"] if f["kind"] in ("divergence", "nan", "plateau")]
    assert {f["attempt"] for f in ill} == {1}
    assert document["standing"]["verdict"] == "finished"


def test_the_incident_and_the_page_say_the_same_of_what_led(document: dict[str, Any]) -> None:
    """An old log: the page makes the analysis, once."""
    incident = document["incidents"][0]
    signals = incident["suspects"]["signals"]
    leading = [d["signal"] for d in signals["departures"] if d["signal"] in incident["led_by"]]
    assert incident["led_by"] == leading == ["adam_variance_max"]
    assert not {*signals["stayed"], *signals["unjudged"]} & {*incident["led_by"]}


def test_what_the_incident_has_recorded_is_what_the_page_and_the_chronicle_show(tmp_path: Path) -> None:
    configuration = runs.diverged(tmp_path / "run", "the loss left its band at step 205")
    led = {"signal": "grad_norm", "first_step": 156, "steps_before_onset": 49, "deviations": "inf"}
    moved = {"departures": [led], "stayed": ["lr"], "unjudged": []}
    log = tmp_path / "run" / "state" / "incidents.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    events[0] |= {"moved_first": moved, "led_by": ["grad_norm"]}
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    page, chronicle = tmp_path / "report.html", tmp_path / "chronicle"
    app(["triage", "--run", str(configuration), "-o", str(page)], standalone_mode=False)
    app(["chronicle", "--run", str(configuration), "-o", str(chronicle)], standalone_mode=False)
    incident = document_in(page.read_text())["incidents"][0]
    assert (incident["led_by"], incident["suspects"]["signals"]) == (["grad_norm"], moved)
    sentence = "led by grad_norm 49 steps before (inf deviations of its own noise)"
    assert incident["led"] == sentence
    assert sentence in incident["story"][0]["sentence"]
    assert sentence in (chronicle / "chronicle.md").read_text().replace("\\", "")


def test_a_colour_is_a_verdict(document: dict[str, Any]) -> None:
    """A plateau, or a planned change, is outlined: the attempt that recovered is painted as healthy."""
    verdicts = {f["kind"]: f["verdict"] for f in document["findings"]}
    assert {kind: verdicts.get(kind) for kind in ("regime_change", "plateau")} == dict.fromkeys(
        ("regime_change", "plateau")
    )
    assert {f["verdict"] for f in document["findings"] if f["attempt"] == 1} >= {"diverged"}
    assert {f["verdict"] for f in document["findings"] if f["attempt"] == 2} <= {None, "spike"}
    style = (Path(triage.__file__).parent / "assets" / "page.css").read_text()
    painted = set(re.findall(r"#timeline \.(\w+) \{ fill: (?!none)", style))
    assert painted == {"healthy", "spike", "diverged"} <= {str(kind) for kind in VerdictKind}


def test_a_texts_file_shows_the_suspects_text_and_no_others(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    lines = [{"position": 16 * 197, "text": "a suspect"}, {"position": 0, "text": "innocent"}]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = document_in(written(tmp_path / "run", "--texts", str(texts)))["incidents"][0]["suspects"]["samples"]
    assert shown["texts"] == [{"position": 16 * 197, "text": "a suspect"}]


def test_what_a_log_line_holds_cannot_leave_its_element(tmp_path: Path) -> None:
    html = written(tmp_path, reason=runs.HOSTILE)
    data = html.split('id="document">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert document_in(html)["incidents"][0]["reason"] == runs.HOSTILE
    assert html.count("</script>") == 8  # the data and the seven scripts


def test_the_page_names_no_address_outside_itself(tmp_path: Path) -> None:
    html = written(tmp_path)
    elements = re.sub(r"<script>.*?</script>|<!--.*?-->", "", html, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", elements)
    assert "@import" not in elements
    assert "connect-src &#x27;none&#x27;" in html


def test_only_settings_that_changed_are_in_the_difference() -> None:
    before = {"standing": {"lr": {"peak": 1.0, "warmup": 20}}, "once": {"seed": 0}}
    after = {
        "anchor": {"global_step": 5},
        "standing": {"lr": {"peak": 1.0, "warmup": 160}},
        "once": {"id": "x", "seed": None},
    }
    assert differences(before, after) == [{"name": "lr.warmup", "before": 20, "after": 160}]


DIFF = """\
--- the job script
+++ as incident-1-r1 has it
@@ -3,5 +3,5 @@
 export TOKEN=a-token-that-is-nobodys-affair
-    --seed 43 \\
+    --seed 44 \\
 --- a line of the script's own
"""


def test_of_a_job_scripts_diff_the_changed_lines_are_told_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "state" / "submissions" / "incident-1-r1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    (folder / "0.diff").write_text(DIFF)
    html = written(tmp_path / "run")
    (plan,) = document_in(html)["incidents"][0]["plans"]
    assert plan["script"] == ["@@ -3,5 +3,5 @@", "-    --seed 43 \\", "+    --seed 44 \\"]
    assert "a-token-that-is" not in html


def test_a_moment_of_each_attempt_is_told_by_few_of_its_steps(document: dict[str, Any]) -> None:
    one, two = document["moments"]
    steps = np.frombuffer(base64.b64decode(one["steps"]), "<u4")
    times = np.frombuffer(base64.b64decode(one["times"]), "<f8")
    assert (steps[0], steps[-1], two["attempt"]) == (1, 400, 2)
    assert (times - steps == 1_700_000_000.0).all()
