"""A fleet of which half asks a Prometheus that sends a byte each 20 ms: the other half's divergences are seen in time.

`sentinel watch --all --observe`, one process. Each run of the other half writes its journal, a step a second with a
past of 300, and its loss becomes nan at one moment. `lag`: from that moment to the incident in its log.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.campaigns.table import Row, campaign
from benchmarks.simulated.daemon import started, usage
from sentinel.vocabulary.sample import RunStarted, Sample, encode
from tests.adapters.deceivers import Drip, deceiving

RUNS, SHORT_RUNS = 40, 6
LIMIT_S = 60.0
_DRIPS = Drip(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")


def configured(folder: Path, name: str, source: str) -> Path:
    """Writes the run's configuration; its state folder."""
    state = folder / "state" / name
    (state / "attempts").mkdir(parents=True)
    (state / "checkpoints").mkdir()
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / f"{name}.toml").write_text(
        f'[run]\nname = "{name}"\ncheckpoints = "{state}/checkpoints"\nstate_dir = "{state}"\n'
        f'[source]\n{source}\n[launcher]\nkind = "elsewhere"\n[metrics]\nport = 0\n[watch]\npoll_interval_s = 2\n'
    )
    return state


def told(state: Path, steps: range, now_s: float, *, nan: bool = False) -> None:
    """So many steps more, the last of them now."""
    noise = random.Random(steps.start)  # noqa: S311 - numbers that are drawn again alike
    with (state / "attempts" / "0001.jsonl").open("a") as journal:
        if steps.start == 1:
            journal.write(encode(RunStarted(attempt=1, time_unix_s=now_s - len(steps) - 1)) + "\n")
        for step in steps:
            at, loss = now_s - (steps.stop - 1 - step), float("nan") if nan else 3.0 + noise.gauss(0, 0.01)
            adam = float("nan") if nan else 1.0
            made = Sample(attempt=1, global_step=step, time_unix_s=at, loss=loss, adam_variance_l1=adam)
            journal.write(encode(made) + "\n")


def measured(number: int, drips: int) -> tuple[list[float], float, float, bool]:
    """Lags of the runs that are well, CPU seconds and MB of the daemon, whether it ended when it was told to."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, deceiving(_DRIPS) as port:
        folder = Path(name).resolve()
        well = [configured(folder, f"well-{n}", 'kind = "journal"') for n in range(number)]
        for n in range(drips):
            configured(folder, f"drip-{n}", f'kind = "prometheus"\nurl = "http://127.0.0.1:{port}"\ntimeout_s = 10')
        now_s = time.time()
        for state in well:
            told(state, range(1, 301), now_s)
        command = [sys.executable, "-m", "sentinel", "watch", "--all", "--observe"]
        with started([*command, "--config-dir", str(folder / "runs")], folder / "daemon.log") as daemon:
            time.sleep(15)
            began_s = time.time()
            for state in well:
                told(state, range(301, 304), began_s, nan=True)
            lags: dict[Path, float] = {}
            while len(lags) < len(well) and time.time() - began_s < LIMIT_S:
                for state in set(well) - lags.keys():
                    log = state / "incidents.jsonl"
                    if log.exists() and '"opened"' in log.read_text():
                        lags[state] = time.time() - began_s
                time.sleep(0.1)
            cpu_s, rss_mb = usage(daemon)
            alive = daemon.is_running()
        return sorted(lags.values()), cpu_s, rss_mb, alive


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Without and with those that drip."""
    number, table, wrong = SHORT_RUNS if short else RUNS, list[Row](), list[str]()
    for drips in (0, number):
        lags, cpu_s, rss_mb, alive = measured(number, drips)
        slowest = f"{lags[-1]:.1f}" if lags else "-"
        table.append((number, drips, f"{len(lags)} of {number}", slowest, f"{cpu_s:.1f}", f"{rss_mb:.0f}"))
        if len(lags) < number or not alive:
            wrong.append(f"with {drips} that drip: {number - len(lags)} not seen in {LIMIT_S:.0f} s, alive: {alive}")
    return table, wrong


if __name__ == "__main__":
    campaign(__doc__, ("runs", "that drip", "seen", "slowest lag s", "CPU s", "MB"), rows)
