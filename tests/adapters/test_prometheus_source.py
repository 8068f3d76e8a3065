"""A run from Prometheus alone: a real one that scrapes the real exporter, and what scrapes of it see without one."""

from __future__ import annotations

import math
import os
import random
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from sentinel.adapters.prometheus.api import Api, Door, Point, PromSeries, TooMuch, series_in
from sentinel.adapters.prometheus.scrapes import Steps, scrapes_of, selector_of
from sentinel.adapters.prometheus.source import ScrapedRun, ScrapedRuns
from sentinel.judge.events import EventKind
from sentinel.judge.series import Series as Judged
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.errors import ScrapeError
from sentinel.vocabulary.sample import Record, RunStarted, Sample, ScrapedSample
from tests.adapters.asking import Asking, Stored
from tests.adapters.pagers import certificate_for_localhost, environment, free_port, until
from tests.adapters.prometheus_server import Server
from tests.adapters.scraped import folded, recorded, scraped, seen, with_loss
from tests.adapters.servers import PROMETHEUS
from tests.tiers import full
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.step_collector import StepCollector

ANSWER = Path(__file__).parents[1] / "data" / "prometheus-2.42" / "query.json"


@pytest.fixture(scope="module")
def diverging() -> list[Sample]:
    """Of a small GPT that really diverged, at step 1000: its attention was scaled up from there on."""
    return recorded("attention_growth_c")


def judged(records: Sequence[Record]) -> Judged:
    return Judged(Thresholds(), [r for r in records if isinstance(r, Sample)])


def records_of(samples: Sequence[Sample], every: int, **of: str) -> list[Record]:
    at = range(every, len(samples) + every, every)
    return folded(list(scraped(samples, at, **of)))


class Trainer:
    """The exporter of one attempt."""

    def __init__(self, port: int, attempt: int = 1) -> None:
        self._shown = threading.Event()
        self._collector = StepCollector("small", attempt, layers=self._shown.set)
        self._exporter = Exporter(self._collector, ExporterSettings(port=port))

    def steps(self, made: Sequence[Sample], at_a_time: int = 25) -> None:
        """So many from one scrape to the next, however long that is."""
        for i in range(0, len(made), at_a_time):
            self.unseen_steps(made[i : i + at_a_time])
            self._shown.clear()
            assert self._shown.wait(120), "nobody scrapes"

    def unseen_steps(self, made: Sequence[Sample]) -> None:
        for sample in made:
            self._collector.push(sample)

    def close(self) -> None:
        self._exporter.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return Server(tmp_path, [free_port(), free_port()])


def polled_to(source: ScrapedRun, step: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        try:
            records.extend(source.new())
        except ScrapeError:  # it is only beginning
            return False
        return any(getattr(record, "global_step", 0) >= step for record in records)

    until(there)
    return records


CONFIGURED = """\
[run]
name = "small"
checkpoints = "not-mounted"
state_dir = "state"
[source]
kind = "prometheus"
url = "{url}"
[launcher]
kind = "elsewhere"
"""


@pytest.mark.full
def test_the_verdict_from_prometheus_is_the_journals(server: Server, tmp_path: Path, diverging: list[Sample]) -> None:
    journal = judged(diverging[:1250]).alarm
    trainer = Trainer(server.targets[0])
    with server.running():
        source = server.source()
        began = polled_to(source, 0)
        trainer.steps(diverging[:1250])
        records = [*began, *polled_to(source, 1250)]
        trainer.close()
        (tmp_path / "a.toml").write_text(CONFIGURED.format(url=server.url))
        look = [sys.executable, "-m", "sentinel", "watch", "--run", str(tmp_path / "a.toml"), "--once"]
        ran = subprocess.run(look, capture_output=True, text=True, timeout=200, check=False)
    alarm, samples = judged(records).alarm, seen(records)
    assert alarm is not None
    assert journal is not None
    widest = 1 + max(sample.unseen_steps for sample in samples)
    assert alarm.onset_range[0] <= journal.onset_range[1] <= alarm.onset_range[1]
    assert alarm.onset_range[1] - journal.onset_range[1] <= widest
    assert all(sample.loss == diverging[sample.global_step - 1].loss for sample in samples)
    assert "is diverged" in ran.stderr
    assert ran.returncode == 1, ran.stderr
    assert not (tmp_path / "not-mounted").exists()


def test_a_watch_without_its_prometheus_is_blind_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CONFIGURED.format(url="http://127.0.0.1:9"))
    look = [sys.executable, "-m", "sentinel", "watch", "--run", str(tmp_path / "a.toml"), "--once"]
    ran = subprocess.run(look, capture_output=True, text=True, timeout=200, check=False, env=environment())
    assert "Prometheus at 127.0.0.1 can't be asked" in ran.stderr
    assert "is blind: the readings are not available" in ran.stderr
    assert ran.returncode == 0


@pytest.mark.full
def test_a_prometheus_that_was_away_is_waited_for_and_a_restart_is_a_new_attempt(
    server: Server, diverging: list[Sample]
) -> None:
    trainer, source = Trainer(server.targets[0]), server.source()
    made = with_loss(diverging, 250, math.nan)
    with server.running():
        records = polled_to(source, 0)
        trainer.steps(made[:200])
        records += polled_to(source, 200)
    with pytest.raises(ScrapeError, match=r"Prometheus at 127\.0\.0\.1 can't be asked: .*refused"):
        source.new()
    trainer.unseen_steps(made[200:300])
    with server.running():
        records += polled_to(source, 300)
        trainer.close()
        again = Trainer(server.targets[1], attempt=2)
        again.steps([replace(sample, attempt=2) for sample in made[280:330]])
        records += polled_to(source, 330)
        again.close()
        assert [*server.source().new()] == records  # whoever begins now reads the same
    across = next(sample for sample in seen(records) if sample.global_step == 300)
    assert (across.unseen_steps, across.unseen_nonfinite) == (99, 1)
    assert [(r.attempt, r.run, r.resumed_from) for r in records if isinstance(r, RunStarted)] == [
        (1, "small", None),
        (2, "small", 280),
    ]
    assert seen(records)[-1].attempt == 2
    assert source.unreadable == 0


@pytest.mark.parametrize("every", [1, 7, 15, 30])
def test_an_onset_is_where_the_journal_has_it_within_a_scrape(diverging: list[Sample], every: int) -> None:
    journal, alarm = judged(diverging).alarm, judged(records_of(diverging, every)).alarm
    assert journal is not None
    assert alarm is not None
    assert alarm.onset_range[0] <= journal.onset_range[1] <= alarm.onset_range[1]
    assert alarm.onset_range[1] - journal.onset_range[1] < every


def test_each_scrape_is_the_step_that_it_shows(diverging: list[Sample]) -> None:
    for sample in seen(records_of(diverging[:100], 7)):
        made = diverging[sample.global_step - 1]
        fields = ("loss", "loss_ratio", "grad_norm", "lr", "seqlen", "adam_variance_l1", "adam_variance_max")
        assert [getattr(sample, name) for name in fields] == [getattr(made, name) for name in fields]
        assert type(sample.seqlen) is int


def test_a_spike_between_two_scrapes_is_seen_by_its_window(diverging: list[Sample]) -> None:
    records = records_of(with_loss(diverging[:900], 804, 9.5), 10)
    (told,) = [sample for sample in seen(records) if sample.unseen_loss_max == 9.5]  # and not once more when it is old
    assert told.global_step == 810
    assert told.unseen_spikes >= 1
    judge = judged(records)
    assert judge.alarm is None
    (event,) = judge.events
    assert event.kind is EventKind.SPIKE
    assert event.onset_range[0] <= 804 <= event.onset_range[1] < 810
    blind = judged([replace(sample, unseen_steps=0) for sample in seen(records)])
    assert blind.events == ()


def test_nan_that_lasts_is_known_at_the_first_scrape_that_sees_it(diverging: list[Sample]) -> None:
    ill = [replace(s, loss=math.nan, loss_ratio=math.inf) if s.global_step >= 804 else s for s in diverging[:810]]
    alarm = judged(records_of(ill, 10)).alarm
    assert alarm is not None
    assert alarm.kind is EventKind.NAN
    assert alarm.onset_range == (801, 804)


def test_a_single_nan_between_two_scrapes_did_not_reach_the_weights(diverging: list[Sample]) -> None:
    records = records_of(with_loss(diverging[:900], 804, math.nan), 10)
    assert [sample.global_step for sample in seen(records) if sample.unseen_nonfinite] == [810]
    assert judged(records).alarm is None


def test_nan_that_may_all_have_been_skipped_is_none_in_the_weights(diverging: list[Sample]) -> None:
    skipped = with_loss(with_loss(diverging[:900], 804, math.nan, skipped=True), 810, math.nan, skipped=True)
    assert judged(records_of(skipped, 10)).alarm is None
    in_between = with_loss(with_loss(diverging[:811], 804, math.nan, skipped=True), 810, math.nan)
    assert judged(records_of(in_between, 10)).alarm is None


def test_updates_that_are_all_skipped_are_counted_between_scrapes_too(diverging: list[Sample]) -> None:
    limit = Thresholds().skipped_run_steps
    standing = [replace(s, skipped=s.global_step > 800) for s in diverging[: 800 + limit + 20]]
    alarm = judged(records_of(standing, 10)).alarm
    assert alarm is not None
    assert "in a row: the weights do not change" in alarm.reason
    one_was_not = [replace(s, skipped=s.skipped and s.global_step != 797 + limit) for s in standing]
    assert judged(records_of(one_was_not, 10)).alarm is None


def test_two_servers_scrape_each_step_once(diverging: list[Sample]) -> None:
    samples = diverging[:300]
    one, other = scraped(samples, range(10, 301, 10), by="a"), scraped(samples, range(10, 301, 15), by="b")
    steps = [sample.global_step for sample in seen(folded([*one, *other]))]
    assert steps == sorted({*range(10, 301, 10), *range(10, 301, 15)})


def test_an_hour_without_scrapes_says_what_the_counters_know(diverging: list[Sample]) -> None:
    made = with_loss(diverging[:700], 300, math.nan)
    records = folded(list(scraped(made, [*range(10, 101, 10), 600, 610])))
    across = next(sample for sample in seen(records) if sample.global_step == 600)
    assert (across.unseen_steps, across.unseen_nonfinite) == (499, 1)
    assert across.unseen_loss_max == max(s.loss for s in made[470:600])  # the window is shorter than the gap


def test_a_step_that_goes_back_is_passed_over_and_counted(diverging: list[Sample]) -> None:
    series = list(scraped(diverging[:100], range(10, 101, 10)))
    twisted = [
        PromSeries(labels=s.labels, values=tuple(Point(105.0 if p.at == 50 else p.at, p.value) for p in s.values))
        for s in series
    ]
    steps = Steps()
    records = [record for scrape in scrapes_of(twisted) for record in steps.take(scrape)]
    assert 50 not in [sample.global_step for sample in seen(records)]
    assert steps.gone_back == 1


def test_before_the_first_step_there_is_an_attempt_and_no_sample(diverging: list[Sample]) -> None:
    (started,) = folded(list(scraped(diverging[:5], [0.5])))
    assert started == RunStarted(attempt=1, time_unix_s=0.5, run="small")


BESIDE = pytest.mark.parametrize("beside", [(), ("small2", "sm.ll", "nobody's")], ids=["alone", "with others"])
"""Whose runs the same daemon watches by the same Prometheus."""


@BESIDE
def test_however_often_it_is_asked_the_records_are_the_same(diverging: list[Sample], beside: tuple[str, ...]) -> None:
    series = list(scraped(diverging[:600], range(10, 601, 10)))
    random.Random(7).shuffle(series)
    often = Asking(Stored(series, beside), beside).at(range(5, 700, 5))
    once = Asking(Stored(series, beside), beside).at([700])
    assert often == once == folded(series)


@BESIDE
def test_what_was_missed_while_it_was_away_comes_afterwards(diverging: list[Sample], beside: tuple[str, ...]) -> None:
    stored = Stored(list(scraped(diverging[:600], range(10, 601, 10))), beside)
    asking = Asking(stored, beside)
    records = asking.at([100])
    stored.away = True
    for moment in range(105, 500, 5):
        with pytest.raises(ScrapeError):
            asking.at([moment])
    stored.away = False
    assert records + asking.at([700]) == folded(stored.of("small"))


@BESIDE
def test_what_came_an_hour_late_is_not_lost_behind_what_came_at_once(
    diverging: list[Sample], beside: tuple[str, ...]
) -> None:
    series = list(scraped(diverging[:600], range(10, 601, 10)))
    held_up = [s for s in series if 100 < s.values[0].at <= 590]
    stored = Stored([s for s in series if s not in held_up], beside)
    asking = Asking(stored, beside)
    records = asking.at(range(5, 535, 5))
    assert seen(records)[-1].global_step == 100
    stored.hold([*series], beside)
    assert records + asking.at(range(590, 610, 5)) == folded(series)


@pytest.mark.parametrize("seed", [0, 1, *full(range(2, 10))])
@BESIDE
def test_whatever_order_scrapes_arrive_in_none_is_lost_that_is_a_minute_late(
    diverging: list[Sample], beside: tuple[str, ...], seed: int
) -> None:
    rng = random.Random(seed)
    one = list(scraped(diverging[:300], range(5, 301, 5)))
    other = list(scraped([replace(s, attempt=2) for s in diverging[:300]], range(3, 301, 7)))
    delay = {"1": 0.0, "2": rng.uniform(0, 55)}
    stored, arrivals = Stored([], beside), {id(s): s.values[0].at + delay[s.labels["attempt"]] for s in (*one, *other)}
    asking, records, now = Asking(stored, beside), [], 0.0
    while now < 600:
        now += rng.choice([1.0, 5.0, 5.0, 20.0])
        stored.hold([s for s in (*one, *other) if arrivals[id(s)] <= now], beside)
        records += asking.at([now])
    for attempt, series in ((1, one), (2, other)):
        assert [r for r in records if r.attempt == attempt] == folded(series)


@BESIDE
def test_a_stretch_that_is_too_long_is_asked_for_in_pieces(diverging: list[Sample], beside: tuple[str, ...]) -> None:
    stored = Stored(list(scraped(diverging[:600], range(10, 601, 10))), beside)
    stored.longest_s = 40.0
    assert Asking(stored, beside, 3600.0).at([700, 700, 700, 700]) == folded(stored.of("small"))


@BESIDE
def test_an_attempts_samples_are_told_again_as_they_were_and_none_that_is_newer(
    diverging: list[Sample], beside: tuple[str, ...]
) -> None:
    one = list(scraped(diverging[:300], range(7, 301, 7)))
    moved = [replace(s, attempt=2, time_unix_s=s.time_unix_s + 300) for s in diverging[:100]]
    stored = Stored([*one, *scraped(moved, range(305, 401, 5))], beside)
    asking = Asking(stored, beside)
    records = asking.at(range(100, 380, 5))
    for attempt in (1, 2):
        given = [sample for sample in seen(records) if sample.attempt == attempt]
        assert given
        assert list(asking.source.again(attempt)) == given
    assert list(asking.source.again(3)) == []
    stored.longest_s = 40.0
    assert [*asking.source.again(1), *asking.source.again(2)] == seen(records)
    stored.away = True
    with pytest.raises(ScrapeError):
        list(asking.source.again(1))


def test_a_poll_ends_while_prometheus_is_slow_and_the_next_goes_on(diverging: list[Sample]) -> None:
    stored = Stored(list(scraped(diverging[:600], range(10, 601, 10))))
    runs = ScrapedRuns(stored, now=lambda: 80_000.0, monotonic=lambda: 20.0 * stored.asked)
    source = runs.run("small")
    records, asked = [], []
    while stored.asked not in asked[-1:] and len(asked) < 20:
        asked.append(stored.asked)
        records += source.new()
        assert stored.asked - asked[-1] <= 2
    assert records == folded(stored.of("small"))


@BESIDE
def test_a_run_that_has_ended_long_ago_costs_few_requests(diverging: list[Sample], beside: tuple[str, ...]) -> None:
    stored = Stored(list(scraped(diverging[:100], range(10, 101, 10))), beside)
    at_its_end, long_after = Asking(stored, beside), Asking(stored, beside)
    at_its_end.at([100])
    asked = stored.asked
    long_after.at([80_000, 80_005, 80_010])
    assert stored.asked - asked < 20 * (1 + len(beside))
    assert (at_its_end.source.unreadable, long_after.source.unreadable) == (0, 0)


@BESIDE
def test_a_scrape_of_which_a_part_is_missing_waits_for_the_rest(
    diverging: list[Sample], beside: tuple[str, ...]
) -> None:
    series = list(scraped(diverging[:50], range(10, 51, 10)))
    late = [s for s in series if s.labels["__name__"] == "sentinel_loss" and s.values[0].at == 50]
    stored = Stored([s for s in series if s not in late], beside)
    asking = Asking(stored, beside)
    assert seen(asking.at([50]))[-1].global_step == 40
    stored.hold(series, beside)
    (sample,) = asking.at([55])
    assert isinstance(sample, ScrapedSample)
    assert sample.global_step == 50


@BESIDE
def test_scrapes_that_arrive_after_newer_ones_are_still_found(diverging: list[Sample], beside: tuple[str, ...]) -> None:
    series = list(scraped(diverging[:50], range(10, 51, 10)))
    stored = Stored(series, beside)
    asking = Asking(stored, beside)
    assert len(seen(asking.at([50]))) == 5
    again = [replace(sample, attempt=2) for sample in diverging[:45]]
    stored.hold([*series, *scraped(again, [30, 45])], beside)
    found = seen(asking.at(range(55, 120, 5)))
    assert [(s.attempt, s.global_step) for s in found] == [(2, 30), (2, 45)]


def test_a_runs_name_is_a_string_of_promql_whatever_is_in_it() -> None:
    assert selector_of(['a"b\\c'], None).endswith(r'run="a\"b\\c"}')
    assert selector_of(["a"], 'cluster="x", ').endswith('run="a",cluster="x"}')


def test_an_answer_of_prometheus_is_read_with_its_nan_and_inf() -> None:
    found = {s.labels["__name__"]: s.values for s in series_in(ANSWER.read_bytes(), 0.0, 1e11)}
    assert math.isnan(found["sentinel_loss"][-1].value)
    assert found["sentinel_loss_ratio"][-1].value == math.inf
    assert found["sentinel_loss_window_max"][-1].value == math.inf
    (_, sample) = folded(series_in(ANSWER.read_bytes(), 0.0, 1e11))[:2]
    assert isinstance(sample, Sample)
    assert math.isfinite(sample.loss)


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ({"url": "http://127.0.0.1:9"}, "refused"),
        ({"token_file": "absent"}, "absent can't be read: No such file"),
        ({"token_file": "two lines"}, "should hold one line"),
        ({"url": "https://127.0.0.1:9", "ca_file": "two lines"}, "two lines can't be read: "),
    ],
)
def test_who_can_not_be_asked_is_named_and_no_secret_is(tmp_path: Path, door: dict[str, str], said: str) -> None:
    (tmp_path / "two lines").write_text("hush\nhush")
    files = {k: tmp_path / v for k, v in door.items() if k != "url"}
    api = Api(Door(url=door.get("url", "http://127.0.0.1:9"), **files))
    with pytest.raises(ScrapeError, match=said) as told:
        api.scraped("{}", 0, 1)
    assert "Prometheus at 127.0.0.1" in str(told.value)
    assert "hush" not in str(told.value)


class Answering(BaseHTTPRequestHandler):
    """Answers with what the address asks for, and keeps what it was told."""

    told: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.told.append(self.headers["Authorization"])
        code, body = ANSWERS[self.path.split("/")[1]]
        self.send_response(code)
        self.send_header("Location", "/good/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


ANSWERS = {
    "good": (200, ANSWER.read_bytes()),
    "denied": (401, b"no"),
    "moved": (302, b""),
    "page": (200, b"<html>log in</html>"),
    "scalar": (200, b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}'),
    "wrong": (400, b'{"status": "error", "errorType": "bad_data", "error": "unexpected identifier"}'),
    "much": (422, b'{"status": "error", "error": "query processing would load too many samples into memory"}'),
}


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[int]:
    """Its port, while it answers."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def answering() -> Iterator[str]:
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Answering)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("denied", "it answers 401: Unauthorized"),
        ("moved", "it answers 302: Found"),
        ("page", "it does not answer as a Prometheus"),
        ("scalar", "it does not answer as a Prometheus"),
        ("wrong", "it answers 400: unexpected identifier"),
    ],
)
def test_an_answer_that_is_none_is_an_error_to_try_again_after(
    answering: str, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ScrapeError, match=said):
        Api(Door(url=f"{answering}/{path}/")).scraped("{}", 0, 1)


def test_an_authority_that_is_replaced_is_trusted_at_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "localhost")
    certificate, key = certificate_for_localhost(tmp_path)
    trusted = tmp_path / "trusted.pem"
    (tmp_path / "other").mkdir()
    other, _ = certificate_for_localhost(tmp_path / "other")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secured.load_cert_chain(certificate, key)
    server.socket = secured.wrap_socket(server.socket, server_side=True)

    def trust(authority: Path, since_unix_s: int) -> None:
        trusted.write_bytes(authority.read_bytes())
        os.utime(trusted, (since_unix_s, since_unix_s))

    with served(server) as port:
        api = Api(Door(url=f"https://localhost:{port}/good", ca_file=trusted))
        trust(other, 1000)
        with pytest.raises(ScrapeError, match="certificate verify failed"):
            api.scraped("{}", 0, 1)
        trust(certificate, 2000)
        assert api.scraped("{}", 0, 1e10)


def test_too_many_samples_ask_for_a_shorter_stretch(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(TooMuch):
        Api(Door(url=f"{answering}/much")).scraped("{}", 0, 1)


def test_a_token_and_a_password_are_read_anew_for_each_request(
    answering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    secret = tmp_path / "secret"
    by_token = Api(Door(url=f"{answering}/good", token_file=secret))
    by_password = Api(Door(url=f"{answering}/good", user="me", password_file=secret))
    Answering.told.clear()
    for written in ("one\n", "two"):
        secret.write_text(written)
        assert by_token.scraped("{}", 0, 1e10)
    assert by_password.scraped("{}", 0, 1e10)
    assert Answering.told == ["Bearer one", "Bearer two", "Basic bWU6dHdv"]
