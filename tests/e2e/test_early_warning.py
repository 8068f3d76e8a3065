"""An early warning on a live run: what is pinned, the save that is asked for, and what is left once it has passed.

The reference trainer learns noise: the learning rate rises to where it has never been, and the loss cannot fall.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.journal import Journals
from sentinel.plan.restart.actions import KINDS, AskForSave
from sentinel.vocabulary.sample import CheckpointSaved, Record, Sample
from tests.adapters.pagers import until
from tests.e2e.live_trainer import events
from tests.e2e.stepping import as_a_fork
from tests.hooks.trainer import command, environment, train

RAMP_STEPS = 400
BEFORE, END = 20, 100_000
PASSED_STEP = RAMP_STEPS + 320  # 256 samples after the last sign, and a few blocks


@dataclass
class Live:
    folder: Path
    process: subprocess.Popen[bytes]
    journals: Journals
    records: list[Record]

    def at(self, reached: Callable[[], bool]) -> None:
        """Lets the trainer run until then, and suspends it: a slow `watch` does not miss the moment."""
        self.process.send_signal(signal.SIGCONT)
        until(lambda: self._read() and reached())
        self.process.send_signal(signal.SIGSTOP)
        code, said = as_a_fork(self.folder, ("watch", "--once"))
        assert code == 0, said

    def _read(self) -> bool:
        self.records += self.journals.poll()
        return True

    @property
    def step(self) -> int:
        return max((r.global_step for r in self.records if isinstance(r, Sample)), default=0)

    @property
    def saved(self) -> list[int]:
        """Of this attempt."""
        return [r.global_step for r in self.records if isinstance(r, CheckpointSaved) and r.attempt == 2]

    @property
    def asked(self) -> list[int]:
        intents = [e["action"] for e in events(self.folder) if e["event"] == "intent"]
        return [action["step"] for action in intents if action["kind"] == KINDS[AskForSave]]

    def pinned(self) -> tuple[str, ...]:
        return Checkpoints(self.folder / "checkpoints").pins.tags()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    tokens = np.random.default_rng(0).integers(0, 256, 400_000).astype(np.uint16)
    tokens.tofile(tmp_path / "noise.bin")
    noise = ("--data", str(tmp_path / "noise.bin"), "--vocabulary", "256", "--seqlen", "16", "--lr-min", "1e-3")
    schedule = ("--lr-warmup", str(RAMP_STEPS), "--lr-decay", str(END), "--validate-every", str(END))
    train(tmp_path, *noise, *schedule, "--steps", str(BEFORE), "--save-interval", str(BEFORE))
    line = command(tmp_path, *noise, *schedule, "--steps", str(END), "--save-interval", str(END))
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "live"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f'[launcher]\ncommand = {json.dumps(line)}\n[policy]\nmode = "act"\nwarn = "save"\n'
    )
    with subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        try:
            yield Live(tmp_path, process, Journals(tmp_path / "state"), [])
        finally:
            process.kill()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_warning_pins_and_asks_for_one_save_and_its_pin_ends_with_it(live: Live) -> None:
    live.at(lambda: live.step >= 60)
    assert (live.pinned(), live.asked) == (("global_step20",), [])  # the last healthy one; nothing to be seen yet
    live.at(lambda: live.step >= 200)
    (warned,) = live.asked
    assert 100 < warned <= 200
    assert json.loads((live.folder / "state" / "SAVE").read_text())["step"] == warned
    assert (live.pinned(), live.saved) == (("global_step20",), [])
    live.at(lambda: bool(live.saved) and live.step >= live.saved[0] + 20)
    asked_for = f"global_step{live.saved[0]}"
    assert live.pinned() == ("global_step20", asked_for)  # from before the rise, and the last healthy one
    live.at(lambda: live.step >= PASSED_STEP)
    assert (live.pinned(), live.asked, len(live.saved)) == ((asked_for,), [warned], 1)
    assert (live.folder / "checkpoints" / "global_step20").is_dir()
