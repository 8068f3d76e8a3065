"""One divergence, all the way through, on what is real: the trainer on two ranks, a Prometheus with our rules (worked
out twice a second), an Alertmanager, `sentinel watch` in mode act, its own pager, and the triage page in a Chromium
that looks on.

The night is lived through once, and each test claims one thing of it.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.demo.configuration import STEPS, write_configuration
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_lines import event_of
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.adapters.pagers import NO_PROXY, Receiver, receiver
from tests.adapters.servers import RULES, Prometheus, alertmanager, prometheus, quicker_rules, running
from tests.dashboards.boards import Asked, queries
from tests.e2e.chromium import CHROMIUM, opened, served, until
from tests.support.log_lines import lines_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="not installed: apt-get install chromium"),
    pytest.mark.timeout(600),
]

NIGHT_S = 500.0
"""A night that has not ended by then never will. 75 seconds on two idle cores, three minutes on very busy ones."""

TWO_RANKS = '"-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"'
MORE = """
[metrics]
announce = "127.0.0.1"

[[paging.webhook]]
url = "{pager}"
"""
ROUTING = """\
route: {{receiver: phone, group_by: [alertname, run], group_wait: 10ms, group_interval: 200ms, repeat_interval: 1h}}
receivers:
  - name: phone
    webhook_configs: [{{url: "{phone}", send_resolved: true}}]
"""
CHOSEN = {"$__rate_interval": "4s", "$__range": "10m", "$__interval": "1s", "$attempt": ".*", "$run": "demo"}

NOT_OF_THIS_RUN = {
    "sentinel_loss_scale{": "it trains in fp32",
    "sentinel_loss_ratio_all_lengths{": "its samples have one length",
    "sentinel_nonfinite_loss_steps_total{": "its loss stays a number",
    "sentinel_led_by_steps{": "whether a signal leaves its own noise before the loss does is for the run to say",
}
"""What a query asks for that this run need not have. It is answered, and may be answered with nothing."""


@dataclass
class Night:
    """What is left of it in the morning."""

    folder: Path
    prometheus: Prometheus
    phone: Receiver
    """Behind the Alertmanager."""

    pager: Receiver
    """What sentinel itself pages."""

    page: Page
    """It was open before the first step."""

    wrong: list[str]
    """What that page's console said that is an error."""

    began: float
    ended: float = math.nan
    watch_exit: int | None = None
    seen: dict[str, float] = field(default_factory=dict)
    """{what was waited for: when it was first seen}, unix seconds."""

    @property
    def configuration(self) -> str:
        return str(self.folder / "demo.toml")

    @property
    def log(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "state" / "incidents.jsonl")

    @property
    def incident(self) -> Incident:
        (only,) = fold(map(event_of, self.log))
        return only

    @property
    def starts(self) -> list[RunStarted]:
        return [r for r in Journals(self.folder / "state").poll() if isinstance(r, RunStarted)]

    @property
    def in_the_last_attempt(self) -> float:
        """When it was half-way through its steps, unix seconds."""
        samples = [r for r in Journals(self.folder / "state").poll() if isinstance(r, Sample)]
        last = self.starts[-1].attempt  # reads all journals: once
        times = [s.time_unix_s for s in samples if s.attempt == last]
        return times[len(times) // 2]

    def at(self, kind: str) -> float:
        """When the log's last event of this kind was written, unix seconds."""
        return [float(e["time_unix_s"]) for e in self.log if e["event"] == kind][-1]

    def sentinel(self, *words: str, expect: int = 0) -> str:
        """What a command says about the run."""
        verb, *rest = words
        line = [sys.executable, "-m", "sentinel", verb, *rest, "--run", self.configuration]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        assert ran.returncode == expect, ran.stderr
        return ran.stdout


def configured(folder: Path, pager: str) -> list[str]:
    """The demo's run on two ranks, with one rung less: what is wrong is tried once before what helps."""
    text = write_configuration(folder, seed=0).read_text()
    for found, instead in (
        ('"-m",\n    "trainer_hooks.gpt"', f'{TWO_RANKS}, "-m", "--", "trainer_hooks.gpt"'),
        ('"--run"', '"--metrics-announce", "127.0.0.1", "--run"'),
        ("[policy]\n", '[policy]\nrestart = "job"\n'),
    ):
        assert found in text
        text = text.replace(found, instead)
    tables = text.split("[[policy.ladder]]\n")
    text = "[[policy.ladder]]\n".join(table for table in tables if "seqlen_start" not in table)
    (folder / "demo.toml").write_text(text + MORE.format(pager=pager))
    return list(tomllib.loads(text)["launcher"]["command"])


@pytest.fixture(scope="module")
def night(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    state = folder / "state"
    state.mkdir()
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in NO_PROXY.items():
            patched.setenv(name, value)
        phone, pager = stack.enter_context(receiver()), stack.enter_context(receiver())
        alerts = stack.enter_context(alertmanager(folder, ROUTING.format(phone=phone.url)))
        scraping = prometheus(
            folder, state=state, evaluated_every="1s", alertmanager=alerts, rules=quicker_rules(folder / "rules")
        )
        asked = stack.enter_context(scraping)
        command, configuration = configured(folder, pager.url), folder / "demo.toml"
        address = stack.enter_context(served(configuration))
        page, wrong, _ = stack.enter_context(opened(browser, address, drawn=False))
        lived = Night(folder, asked, phone, pager, page, wrong, began=time.time())
        jobs = LocalJobs(state)
        stack.callback(jobs.stop, grace_s=5)
        extra = {"OMP_NUM_THREADS": "1"}
        jobs.start(command, cwd=folder, extra_env=extra, log_path=state / "job.log")
        watch = (sys.executable, "-m", "sentinel", "watch", "--run", configuration)
        process = stack.enter_context(running(*watch, folder=folder, name="watch", **extra))
        live_through(lived, process)
        yield lived


def live_through(night: Night, watch: subprocess.Popen[bytes]) -> None:
    """Looks again and again until the watch is over, a minute more for what is late; notes when it saw what."""
    looked_for: dict[str, Callable[[], Any]] = {
        "the live page has steps": lambda: night.page.evaluate("Triage.document.standing.global_step > 0"),
        "the live page has the incident": lambda: night.page.locator("#incident-tabs button").count(),
        "the live page has the second attempt": lambda: night.page.evaluate("Triage.order.includes(2)"),
        "the alert fires": lambda: "SentinelDiverged" in night.prometheus.alerts(),
        "the phone rings": lambda: notified(night.phone, "firing"),
        "the phone is told of its end": lambda: 0 < len(ringing(night, "firing")) == len(ringing(night, "resolved")),
    }
    end = time.monotonic() + NIGHT_S
    while watch.poll() is None and time.monotonic() < end:
        notice(night, looked_for)
    night.watch_exit, night.ended = watch.poll(), time.time()
    end = time.monotonic() + 60
    while looked_for and time.monotonic() < end:
        notice(night, looked_for)


def notice(night: Night, looked_for: dict[str, Callable[[], Any]]) -> None:
    for what in [what for what, there in looked_for.items() if there()]:
        night.seen[what] = time.time()
        del looked_for[what]
    time.sleep(0.2)


def notified(phone: Receiver, status: str, alert: str = "SentinelDiverged") -> list[dict[str, Any]]:
    """The alerts of this name that Alertmanager has sent as firing, or as resolved."""
    alerts = [a for document in list(phone.documents) for a in document["alerts"]]
    return [a for a in alerts if a["status"] == status and a["labels"]["alertname"] == alert]


def ringing(night: Night, status: str) -> set[str]:
    """The attempts for which the alert was sent so."""
    return {alert["labels"]["attempt"] for alert in notified(night.phone, status)}


def test_the_run_diverges_and_is_recovered_with_nobody_there(night: Night) -> None:
    assert night.watch_exit == 0, (night.folder / "watch.log").read_text()[-3000:]
    assert (night.incident.status, night.incident.outcome) == ("closed", "recovered")
    assert all(rollback.proved for rollback in night.incident.rollbacks)
    steps = [r.global_step for r in Journals(night.folder / "state").poll() if isinstance(r, Sample)]
    assert max(steps) == STEPS
    assert [s.rollback for s in night.starts] == [None, *(r.id for r in night.incident.rollbacks)]


def test_the_alarm_comes_within_the_judges_patience(night: Night) -> None:
    incident = night.incident
    assert incident.onset_range is not None
    assert incident.alarm_step is not None
    assert 0 < incident.alarm_step - incident.onset_range[0] <= Thresholds().patience_steps


def test_the_alert_reaches_the_phone_through_alertmanager_while_the_incident_lasts(night: Night) -> None:
    (alert, *_) = notified(night.phone, "firing")
    rang_unix_s = next(r["time_unix_s"] for r in night.phone.requests if b"SentinelDiverged" in r["body"])
    assert rang_unix_s < night.at("closed")
    assert alert["labels"] | {"run": "demo", "attempt": "1", "severity": "critical"} == alert["labels"]
    assert alert["annotations"]["summary"] == "demo has diverged"


def test_its_runbook_link_leads_to_a_section_that_is_there(night: Night) -> None:
    link = notified(night.phone, "firing")[0]["annotations"]["runbook_url"]
    page, _, section = link.partition("#")
    headings = re.findall(r"^#+ (.*)$", (RULES.parents[1] / page).read_text(), re.MULTILINE)
    assert section in {heading.lower().replace(" ", "-") for heading in headings}


def test_the_alert_is_resolved_once_the_run_was_started_anew(night: Night) -> None:
    assert "1" in ringing(night, "resolved")
    assert ringing(night, "resolved") == ringing(night, "firing")
    assert night.seen["the phone is told of its end"] > night.seen["the phone rings"]
    assert "SentinelDiverged" not in night.prometheus.alerts()


def test_sentinels_own_page_arrives_while_the_incident_lasts_and_then_its_end(night: Night) -> None:
    told = [(r["time_unix_s"], json.loads(r["body"])) for r in night.pager.requests]
    of_it = [(at, one) for at, one in told if (one["topic"], one["incident"]) == ("divergence", "incident-1")]
    at, first = of_it[0]
    assert (first["status"], first["severity"], first["run"]) == ("firing", "warning", "demo")
    assert at < night.at("closed") <= of_it[-1][0]
    assert of_it[-1][1]["status"] == "resolved"
    assert "recovered" in of_it[-1][1]["summary"]


def verdicts(night: Night) -> list[tuple[str, str]]:
    """(attempt, verdict), in the order in which Prometheus saw them, none twice in a row."""
    series = night.prometheus.series(
        "max by (attempt, verdict) (sentinel_verdict == 1)", start=night.began, end=night.ended, step=0.25
    )
    moments = sorted(
        (at, s["metric"].get("attempt", ""), s["metric"]["verdict"]) for s in series for at, _ in s["values"]
    )
    order = [(attempt, verdict) for _, attempt, verdict in moments]
    return [each for i, each in enumerate(order) if i == 0 or order[i - 1] != each]


def test_prometheus_saw_it_warm_up_then_diverged_then_healthy(night: Night) -> None:
    seen, last = verdicts(night), str(night.starts[-1].attempt)
    places = [seen.index(each) for each in (("1", "warming_up"), ("1", "diverged"), (last, "healthy"))]
    assert places == sorted(places), seen
    assert (last, "diverged") not in seen
    assert {attempt for attempt, _ in seen} >= {str(s.attempt) for s in night.starts}


def test_prometheus_scraped_every_attempt_of_the_trainer(night: Night) -> None:
    series = night.prometheus.series("sentinel_loss", start=night.began, end=night.ended, step=0.25)
    assert {s["metric"]["attempt"] for s in series} == {str(s.attempt) for s in night.starts}
    truth = {(str(r.attempt), repr(r.loss)) for r in Journals(night.folder / "state").poll() if isinstance(r, Sample)}
    assert {(s["metric"]["attempt"], repr(float(v))) for s in series for _, v in s["values"]} <= truth  # nan is nan


OF_ONE_RUN = [asked for asked in queries() if asked.board in ("spike-triage.json", "fleet.json")]


@pytest.mark.parametrize("asked", OF_ONE_RUN, ids=str)
def test_every_query_of_the_dashboards_is_answered(night: Night, asked: Asked) -> None:
    expr = asked.expr
    for variable, value in CHOSEN.items():
        expr = expr.replace(variable, value)
    when = (
        {"time": night.in_the_last_attempt}
        if asked.instant
        else {"start": night.began, "end": night.ended, "step": 0.25}
    )
    series = night.prometheus.series(expr, **when)
    if not any(name in expr for name in NOT_OF_THIS_RUN):
        assert series, expr


def test_the_live_page_followed_the_recovery_while_it_went_on(night: Night) -> None:
    for what in ("steps", "the incident", "the second attempt"):
        assert night.seen[f"the live page has {what}"] < night.at("closed"), what


def test_in_the_morning_the_live_page_has_everything_and_no_complaint(night: Night) -> None:
    attempts = [s.attempt for s in night.starts]
    until(night.page, f"JSON.stringify(Triage.order) === '{json.dumps(attempts, separators=(',', ':'))}'")
    until(night.page, "document.querySelector('#incident-tabs button').innerText.includes('recovered')")
    until(night.page, f"Triage.document.standing.global_step === {STEPS}")
    until(night.page, f"Triage.charts[0].curves.length === {len(attempts)}")
    assert night.page.locator("#legend .chip").count() == len(attempts)
    assert night.wrong == []


def test_the_file_tells_the_same_story(night: Night, browser: Browser) -> None:
    report = night.folder / "report.html"
    night.sentinel("triage", "-o", str(report))
    with opened(browser, report.as_uri()) as (page, wrong, asked):
        told = page.locator("#incident").inner_text()
        for expected in ("incident-1", "recovered", night.incident.reason, *(r.rung for r in night.incident.rollbacks)):
            assert expected in told, expected
        assert page.locator("#attempts tbody tr").count() == len(night.starts)
        assert wrong == []
        assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]


def test_the_commands_tell_it_too_and_undo_still_answers(night: Night) -> None:
    status = json.loads(night.sentinel("status", "--json"))
    assert (status["verdict"], status["global_step"]) == ("finished", STEPS)
    latest = (night.folder / "checkpoints" / "latest").read_text()
    offered = night.sentinel("undo", "incident-1", expect=1)  # nobody says yes
    assert all(rollback.id in offered for rollback in night.incident.rollbacks)
    assert (night.folder / "checkpoints" / "latest").read_text() == latest
