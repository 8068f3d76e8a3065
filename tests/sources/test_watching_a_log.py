"""A run whose trainer only logs, as `sentinel watch` sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.config import Config, load_config
from sentinel.daemon.doctor import journal
from sentinel.daemon.finding import adapters_of
from sentinel.daemon.wiring import assemble
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.alerts.alerts import alerts_of
from sentinel.plan.outcome import Memory
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import ConfigError
from tests.sources.reading import megatron
from tests.support.there import there


def test_a_run_is_judged_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        '[source]\nkind = "log"\npath = "logs/main_log.txt"\n'
    )
    config = load_config(tmp_path / "a.toml")
    parts = assemble(config, config.policy, say=lambda _: None)
    assert parts.observer.look(1000.0).history.latest is None
    log = tmp_path / "logs" / "main_log.txt"
    log.parent.mkdir()
    log.write_text("".join(megatron(s, 3.0 + 0.01 * (s % 7)) + "\n" for s in range(1, 301)))
    parts.observer.look(1000.0)
    look = parts.observer.look(1000.0)
    assert there(look.history.latest).samples[-1].global_step == 300
    with log.open("a") as file:
        file.write("".join(megatron(s, None) + "\n" for s in range(301, 340)))
    parts.observer.look(1010.0)
    verdict = parts.observer.look(1010.0).verdict
    assert (verdict.kind, verdict.onset_range) == (VerdictKind.DIVERGED, (301, 301))


TWO_READINGS = "step {0} train_loss: {1} lm_loss: {2}\n"


def watched(folder: Path, more: str = "") -> Config:
    (folder / "checkpoints").mkdir()
    (folder / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f'[source]\nkind = "log"\npath = "a.log"\n{more}'
    )
    return load_config(folder / "a.toml")


def two_readings(steps: range) -> str:
    return "".join(TWO_READINGS.format(s, 3.0 + 0.01 * (s % 7), 9.0 if s > 40 else 2.0) for s in steps)


@pytest.mark.parametrize("late", [False, True], ids=["from the first line", "from a later line"])
def test_a_log_with_two_readings_is_not_judged_and_the_reason_is_paged(tmp_path: Path, late: bool) -> None:
    config = watched(tmp_path)
    log = tmp_path / "a.log"
    if late:
        log.write_text("".join(f"step {s} loss: {3.0 + 0.01 * (s % 7)}\n" for s in range(1, 30)))
    parts = assemble(config, config.policy, say=lambda _: None)
    if late:
        assert parts.observer.look(1000.0).verdict.kind is not VerdictKind.BLIND
    with log.open("a") as file:
        file.write(two_readings(range(30 if late else 1, 60)))
    for now in (1010.0, 1020.0):
        look = parts.observer.look(now)
        assert look.verdict.kind is VerdictKind.BLIND
        assert "train_loss" in look.verdict.reason
        assert "[source] loss = NAME" in look.verdict.reason
    assert not decide(look.facts, config.policy, Memory()).actions
    alerts = {alert.topic: alert.reason for alert in alerts_of(look.facts, config.policy, None)}
    assert alerts["blind"] == look.verdict.reason
    if not late:
        assert [f.sentence for f in journal(config, adapters_of(config)) if f.what != "ladder"] == [look.verdict.reason]


def test_a_name_in_the_configuration_decides_which_loss_is_judged(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(two_readings(range(1, 60)))
    config = watched(tmp_path, 'loss = "lm_loss"\n')
    latest = there(assemble(config, config.policy, say=lambda _: None).observer.look(1000.0).history.latest)
    assert (latest.samples[0].loss, latest.samples[-1].loss) == (2.0, 9.0)


def test_a_format_with_names_of_its_own_takes_no_others(tmp_path: Path) -> None:
    config = watched(tmp_path, 'loss = "lm_loss"\nformat = "megatron"\n')
    with pytest.raises(ConfigError, match="names of the format megatron are fixed"):
        assemble(config, config.policy, say=lambda _: None)


def test_a_log_of_reinforcement_learning_is_not_judged(tmp_path: Path) -> None:
    line = "step:{0} - actor/pg_loss:0.01 - actor/loss:0.04 - critic/rewards/mean:0.1 - actor/kl_loss:0.001\n"
    (tmp_path / "a.log").write_text("".join(line.format(s) for s in range(1, 40)))
    config = watched(tmp_path)
    verdict = assemble(config, config.policy, say=lambda _: None).observer.look(1000.0).verdict
    assert verdict.kind is VerdictKind.BLIND
    assert "reinforcement" in verdict.reason


def test_a_doctor_says_of_a_log_that_nothing_in_it_is_a_step(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[source]\nkind = "log"\npath = "a.log"\n'
    )
    config = load_config(tmp_path / "a.toml")
    said = [f.sentence for f in journal(config, adapters_of(config)) if f.what != "ladder"]
    assert said == [f"{tmp_path / 'a.log'}: no training step found, or no such file; see docs/SOURCES.md"]
    (tmp_path / "a.log").write_text(megatron(1) + "\n" + megatron(2) + "\n")
    assert "attempt 1, 2 samples; its last sample, of step 2, has no time" in [
        f.sentence for f in journal(config, adapters_of(config))
    ]
