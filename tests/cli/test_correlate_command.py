"""`sentinel correlate`: what it prints and draws, and what scripts can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import LayerVariance, RunStarted, Sample, encode
from tests.sources.reading import megatron
from tests.support.called import Sentinel

KEYS = {"signal", "lag", "pearson_r", "p_value", "n", "n_effective", "p_value_adjusted", "method"}
LEAD = 5
ONSET = 1500


def samples(attempt: int, first: int, last: int) -> list[Sample]:
    """Adam's variance leads the loss ratio by LEAD steps, and the gradient's norm bursts before step ONSET."""
    rng = np.random.default_rng(attempt)
    news = rng.standard_normal(last + 1)
    variance = np.cumsum(0.1 * news) + 100
    ratio = 1.1 + 0.01 * np.roll(news, LEAD) + 0.005 * rng.standard_normal(last + 1)
    return [
        Sample(
            attempt=attempt,
            global_step=step,
            time_unix_s=float(step),
            loss=2 * float(ratio[step]),
            loss_ratio=float("inf") if step == 50 else float(ratio[step]),
            adam_variance_l1=float(variance[step]),
            adam_variance_max=float(variance[step] ** 2),
            grad_norm=float(1 + 0.1 * rng.standard_normal() + 9 * (step >= ONSET - 3)),
        )
        for step in range(first, last + 1)
    ]


@pytest.fixture
def correlate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Sentinel:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.toml").write_text('[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "state"\n')
    folder = tmp_path / "runs" / "state" / "attempts"
    folder.mkdir(parents=True)
    second = RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=1000)
    for number, records in ((1, samples(1, 1, 1200)), (2, [second, *samples(2, 1001, ONSET + 20)])):
        (folder / f"{number:04}.jsonl").write_text("".join(encode(r) + "\n" for r in records))
    return Sentinel(monkeypatch, capsys, ("correlate",))


def test_the_json_begins_with_table_3_and_says_where_the_signal_leads(correlate: Sentinel) -> None:
    answer = correlate("--json")
    rows = json.loads(answer.out)
    assert answer.code == 0
    assert all(set(row) == KEYS for row in rows)
    assert [(r["signal"], r["lag"], r["method"]) for r in rows[:2]] == [
        ("adam_variance_l1", 0, "plain"),
        ("adam_variance_max", 0, "plain"),
    ]
    assert rows[0]["n"] == 1200 + ONSET + 20 - 1000 - 1
    best = [r for r in rows if r["lag"]]
    assert {(r["signal"], r["lag"]) for r in best if r["p_value_adjusted"] < 0.01} == {
        ("adam_variance_l1", LEAD),
        ("adam_variance_max", LEAD),
    }
    assert "1 steps with an infinite ratio left out" in answer.err


def test_every_lag_on_request(correlate: Sentinel) -> None:
    rows = json.loads(correlate("--json", "--lags").out)
    lags = [r["lag"] for r in rows if (r["signal"], r["method"]) == ("adam_variance_l1", "prewhitened")]
    assert lags == list(range(-200, 201))


def test_an_attempt_has_what_its_weights_descend_from(correlate: Sentinel) -> None:
    rows = json.loads(correlate("--json", "--attempt", "2").out)
    assert rows[0]["n"] == ONSET + 20 - 1
    answer = correlate("--attempt", "7")
    assert answer.code == 2
    assert "a: no attempt 7; the attempts are 1, 2" in answer.err


def test_the_table_says_how_far_to_trust_it(correlate: Sentinel) -> None:
    out = " ".join(correlate().out.split())
    assert "prewhitened" in out
    assert "at a positive lag the signal is earlier" in out.lower()


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_drawn(correlate: Sentinel, tmp_path: Path, suffix: str, magic: bytes) -> None:
    picture = tmp_path / "pictures" / f"a.{suffix}"
    answer = correlate("--json", "--plot", str(picture))
    assert picture.read_bytes().startswith(magic)
    json.loads(answer.out)


def test_another_format_is_refused_before_anything_is_read(correlate: Sentinel) -> None:
    answer = correlate("--plot", "a.pdf")
    assert (answer.code, "'a.pdf': a picture is a" in answer.err) == (2, True)


def test_what_moved_first_before_a_step(correlate: Sentinel) -> None:
    answer = correlate("--around", str(ONSET), "--window", "50", "--json")
    assert [(d["signal"], d["first_step"], d["steps_before_onset"]) for d in json.loads(answer.out)] == [
        ("grad_norm", ONSET - 3, 3)
    ]
    assert "grad_norm" in correlate("--around", str(ONSET)).out


def test_what_moved_first_before_an_incident(correlate: Sentinel, tmp_path: Path) -> None:
    opened = {
        "event": "opened",
        "incident": "incident-1",
        "time_unix_s": 0.0,
        "attempt": 2,
        "onset_range": [ONSET, ONSET + 2],
        "alarm_step": ONSET + 10,
        "onset_tokens": None,
        "best_mean": 2.0,
        "reason": "the loss left its band",
        "led_by": [],
        "baseline": {"lr": None, "seqlen": None},
    }
    by_hand = opened | {"incident": "incident-2", "onset_range": None}
    log = tmp_path / "runs" / "state" / "incidents.jsonl"
    log.write_text("".join(dump_json(event) + "\n" for event in (opened, by_hand)))
    answer = correlate("--incident", "incident-1", "--json")
    assert [d["signal"] for d in json.loads(answer.out)] == ["grad_norm"], answer.err
    assert correlate("--incident", "incident-2").code == 2
    assert correlate("--incident", "incident-9").code == 2
    assert correlate("--incident", "incident-1", "--around", "5").code == 2
    assert correlate("--around", "99999").code == 2


def test_a_run_without_samples_has_an_empty_table(correlate: Sentinel, tmp_path: Path) -> None:
    for journal in (tmp_path / "runs" / "state" / "attempts").iterdir():
        journal.unlink()
    rows = json.loads(correlate("--json", "--plot", "nothing.png").out)
    assert [r["n"] for r in rows if r["method"] == "plain"] == [0, 0]
    assert "a has no attempt yet, so no step 5" in correlate("--around", "5").err


def state(tmp_path: Path) -> str:
    return str(tmp_path / "runs" / "state")


def test_a_path_has_the_same_rows_as_the_run_it_belongs_to(correlate: Sentinel, tmp_path: Path) -> None:
    for more in ((), ("--attempt", "2"), ("--around", str(ONSET)), ("--lags",)):
        assert json.loads(correlate(state(tmp_path), "--json", *more).out) == json.loads(correlate("--json", *more).out)
    assert correlate(state(tmp_path), "--attempt", "7").code == 2
    assert correlate(state(tmp_path), "--around", "99999").code == 2


def test_of_several_paths_each_row_says_whose_it_is(correlate: Sentinel, tmp_path: Path) -> None:
    both = [str(tmp_path / "runs" / "state" / "attempts" / f"000{n}.jsonl") for n in (1, 2)]
    rows = json.loads(correlate(*both, "--json").out)
    assert {row["path"] for row in rows} == set(both)
    assert all(set(row) == KEYS | {"path"} for row in rows)
    assert "one picture shows one series" in correlate(*both, "--plot", "a.png").err
    assert f"{both[1]}: no attempt 1; the attempts are 2" in correlate(*both, "--attempt", "1").err
    around = f"{both[0]}: attempt 1 and those it descends from have no step 99999"
    assert around in correlate(*both, "--around", "99999").err


def test_a_log_knows_no_ratio_and_it_is_made_from_its_losses(correlate: Sentinel, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [megatron(step, 3 + float(rng.random()), norm=float(1 + rng.random())) for step in range(1, 301)]
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines) + "\n")
    (tmp_path / "runs" / "logged.toml").write_text(
        '[run]\nname = "logged"\ncheckpoints = "c"\nstate_dir = "s"\n[source]\nkind = "log"\npath = "../a.log"\n'
    )
    of_run = correlate("--run", "logged", "--json")
    rows = json.loads(of_run.out)
    assert rows == json.loads(correlate(str(log), "--json").out)
    assert [row["n"] for row in rows if (row["signal"], row["lag"]) == ("grad_norm", 0)] == [300, 299]
    correlate(str(log), "--plot", "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_column_of_another_name_is_told_by_hand(correlate: Sentinel, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("step,perplex,grad_norm\n" + "".join(f"{i},{3 + i % 7},{i % 5}\n" for i in range(1, 100)))
    assert correlate(str(table)).code == 2
    rows = json.loads(correlate(str(table), "--json", "--column", "loss=perplex").out)
    assert {"grad_norm", "adam_variance_l1"} <= {row["signal"] for row in rows}
    assert correlate(str(table), "--run", "a").code == 2
    assert correlate(str(table), "--incident", "incident-1").code == 2


def test_layers_have_rows_of_their_own_at_the_steps_where_they_were_measured(correlate: Sentinel) -> None:
    journal = Path("runs/state/attempts/0001.jsonl")
    measured = [
        LayerVariance(
            attempt=1,
            global_step=one.global_step,
            time_unix_s=0.0,
            layers=("embedding", "h.0"),
            adam_variance_l1=(2 * (one.loss_ratio or 0.0), 1.0),
            adam_variance_max=(-3 * (one.loss_ratio or 0.0), float(one.global_step % 7)),
        )
        for one in samples(1, 1, 1200)
        if one.global_step % 10 == 0 and one.global_step != 50
    ]
    journal.write_text(journal.read_text() + "".join(encode(one) + "\n" for one in measured))
    answer = correlate("--layers", "--json")
    assert answer.code == 0, answer.err
    plain = {row["signal"]: row for row in json.loads(answer.out) if row["method"] == "plain"}
    assert plain["adam_variance_l1[embedding]"]["pearson_r"] == pytest.approx(1.0)
    assert plain["adam_variance_max[embedding]"]["pearson_r"] == pytest.approx(-1.0)
    assert plain["adam_variance_max[embedding]"]["n"] == 119
    assert abs(plain["adam_variance_max[h.0]"]["pearson_r"]) < 0.3
    assert "adam_variance_l1[h.0]" not in plain  # it never varies
    assert plain["adam_variance_l1"]["n"] > 1200


def test_without_layers_in_the_journal_it_says_who_measures_them(correlate: Sentinel) -> None:
    answer = correlate("--layers")
    assert answer.code == 2
    assert "no layer was measured" in answer.err
