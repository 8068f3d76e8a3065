"""A run whose trainer only logs, as `sentinel watch` sees it."""

from __future__ import annotations

from pathlib import Path

from sentinel.config import load_config
from sentinel.daemon.doctor import journal
from sentinel.daemon.wiring import assemble
from sentinel.judge.verdict import VerdictKind
from tests.sources.reading import megatron


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
    latest = look.history.latest
    assert latest is not None
    assert latest.samples[-1].global_step == 300
    with log.open("a") as file:
        file.write("".join(megatron(s, None) + "\n" for s in range(301, 340)))
    parts.observer.look(1010.0)
    verdict = parts.observer.look(1010.0).verdict
    assert (verdict.kind, verdict.onset_range) == (VerdictKind.DIVERGED, (301, 301))


def test_a_doctor_says_of_a_log_that_nothing_in_it_is_a_step(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[source]\nkind = "log"\npath = "a.log"\n'
    )
    config = load_config(tmp_path / "a.toml")
    said = [finding.sentence for finding in journal(config)]
    assert said == [f"{tmp_path / 'a.log'}: no training step found, or no such file; see docs/SOURCES.md"]
    (tmp_path / "a.log").write_text(megatron(1) + "\n" + megatron(2) + "\n")
    assert "attempt 1, 2 samples; its last sample, of step 2, has no time" in [f.sentence for f in journal(config)]
