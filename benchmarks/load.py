"""What one daemon takes to watch many runs, a step a second each: CPU, memory, and how late its verdicts are.

    python benchmarks/load.py [--quick] [--json] [--runs N,N] [--sources journal,prometheus] [--window S]
                              [--workers N,N]

The daemon is `sentinel watch --all --observe` as a process of its own, with its default poll interval of 5 seconds. The
trainers are simulated: one process appends a line a second to each run's metrics journal, or answers as each run's
/metrics, which a real Prometheus scrapes once a second and the daemon asks. One run in twenty diverges, half of them
to nan. All is measured from outside the daemon, over a window that begins once it has made a turn of every run.

- `workers`: of the daemon, its --workers; 1 is one process, without --workers the daemon's default is measured.
- `CPU`: the daemon's share of one core over the window (user and system), and Prometheus's own, and the trainers'.
- `ms a turn`: CPU time per turn made, scrapes included: also where a loaded machine leaves no time for all turns.
- `RSS`: the daemon's memory at the end of the window, and Prometheus's own. Worker processes are counted with it.
- `lag`: from the time of the sample at which a judge that sees every sample at once knows of the divergence, to the
  moment that the run's incident log has it; in poll intervals. Incident logs are looked at ten times a second.
  `of nan`: of those that ended in nan, which is known at once. Of a high loss the judge waits for a hundred samples:
  it knows so much later where a scrape was missed.
- `late`: how much later than they were due turns began (median and 99th percentile over runs, of each one's last turn,
  looked at each 15 seconds), and `turn`, how long one took.
- `/metrics`: how long the daemon takes to answer a scrape of its own metrics, each 15 seconds, and how large it is.
- `start`: seconds from the daemon's start until it had looked at every run, with the past that each has.
- `over steps`: memory, and CPU of the start, of a daemon that finds journals of so many steps.

10, 100, 300 and 1,000 runs and a window of 60 seconds; --quick 6 runs and 12 seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil

from benchmarks.simulated.daemon import PYTHON, Incidents, configure, free_port, plan, scrape, started, usage
from benchmarks.simulated.journals import begun
from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun, simulated

RUNS, QUICK_RUNS = (10, 100, 300, 1000), (6,)
SOURCES = ("journal", "prometheus")
STEPS, QUICK_STEPS = (10**3, 10**4, 10**5), (10**3,)
RUNS_OVER_STEPS = 5
WINDOW_S, QUICK_WINDOW_S = 60.0, 12.0
PAST_S, QUICK_PAST_S = {"journal": 180.0, "prometheus": 60.0}, {"journal": 180.0, "prometheus": 15.0}
"""What each run has behind it when the daemon begins; behind Prometheus it has to be waited for."""

POLL_INTERVAL_S = 5.0
_SCRAPED_EVERY_S = 15.0
_CAN_TAKE_S = 300.0
_STARTS_S, _STARTS_S_A_RUN = 20.0, 0.1
"""After its start and so much, the daemon is expected to follow all runs; the divergences come then."""

Row = dict[str, Any]


def measured(
    source: str, count: int, folder: Path, *, window_s: float, past_s: float, workers: int | None = None
) -> Row:
    """The row of so many runs."""
    begin = time.time() - (past_s if source == "journal" else 0.0)
    known_from = FIRST_STEP + int(past_s + _STARTS_S + count * _STARTS_S_A_RUN)
    runs = simulated(count, known_from=known_from, within=int(window_s))
    port = free_port()
    metrics = f"http://127.0.0.1:{port}/metrics"
    with ExitStack() as stack:
        others: dict[str, psutil.Process] = {}
        server = None if source == "journal" else free_port()
        url = None if server is None else f"http://127.0.0.1:{server}"
        states = configure(folder, runs, port, url)
        more = {"begin_unix_s": begin, "until_unix_s": begin + 3600.0}
        if server is None:
            told = plan(folder / "plan.json", runs, folders=[str(states[run.name]) for run in runs], **more)
            command = [*PYTHON, "benchmarks.simulated.journals", told]
            others["trainers"] = stack.enter_context(started(command, folder / "trainers.log", ready="ready"))
        else:
            target = free_port()
            command = [*PYTHON, "benchmarks.simulated.targets", plan(folder / "plan.json", runs, port=target, **more)]
            others["trainers"] = stack.enter_context(started(command, folder / "trainers.log", ready="ready"))
            others["prometheus"] = stack.enter_context(prometheus(folder, server, target, runs))
            time.sleep(past_s)
        began = time.time()
        command = [*PYTHON, "sentinel", "watch", "--all", "--observe", "--config-dir", str(folder / "runs")]
        command += ["--fleet-dir", str(folder / "fleet")]
        command += [] if workers is None else ["--workers", str(workers)]
        seen = stack.enter_context(Incidents(states))
        daemon = stack.enter_context(started(command, folder / "daemon.log"))
        start_s = until_all_are_seen(daemon, metrics, count, began, folder)
        known_unix_s = begin + known_from - FIRST_STEP
        time.sleep(max(2 * POLL_INTERVAL_S, known_unix_s - time.time()))
        row = over_a_window(daemon, others, metrics, window_s)
        time.sleep(3 * POLL_INTERVAL_S)
    known = {run: run.known_at(FIRST_STEP) for run in runs if run.diverges_at is not None}
    expected = {r: step for r, step in known.items() if step is not None and in_time(step, begin, began + start_s)}
    lag_of = {
        run: (seen.seen[run.name] - (begin + (step - FIRST_STEP) + run.number / count)) / POLL_INTERVAL_S
        for run, step in expected.items()
        if run.name in seen.seen
    }
    lags = list(lag_of.values())
    return {
        "source": source,
        "runs": count,
        "workers": workers,
        "start_s": start_s,
        **row,
        "divergences": len(expected),
        "told": len(lags),
        "untrue": len([name for name in seen.seen if name not in {run.name for run in known}]),
        "verdict_lag_polls_p50": percentile(lags, 50),
        "verdict_lag_polls_p99": percentile(lags, 99),
        "verdict_lag_polls_p99_of_nan": percentile([lag for run, lag in lag_of.items() if run.ends_in_nan], 99),
        "load_average": os.getloadavg()[0],
    }


def in_time(step: int, begin: float, looked_unix_s: float) -> bool:  # its start takes time: not counted
    return begin + (step - FIRST_STEP) > looked_unix_s


def over_a_window(daemon: psutil.Process, others: dict[str, psutil.Process], metrics: str, window_s: float) -> Row:
    """What the processes take, and what the daemon says of its turns."""
    begun_s, used = time.monotonic(), {name: usage(one) for name, one in others.items()}
    cpu_s, _ = usage(daemon)
    answers, late, took, turns = [], [], [], []
    while time.monotonic() < begun_s + window_s:
        answer_s, size, values = scrape(metrics)
        answers.append(answer_s)
        late += values.get("sentinel_last_turn_late_seconds", [])
        took += values.get("sentinel_last_turn_seconds", [])
        turns.append((usage(daemon)[0], sum(values.get("sentinel_turns_total", []))))
        time.sleep(max(0.0, min(_SCRAPED_EVERY_S - answer_s, begun_s + window_s - time.monotonic())))
    passed_s, (cpu_end_s, rss_mb) = time.monotonic() - begun_s, usage(daemon)
    row: Row = {"cpu_share": (cpu_end_s - cpu_s) / passed_s, "rss_mb": rss_mb}
    for name, one in others.items():
        now = usage(one)
        row |= {f"{name}_cpu_share": (now[0] - used[name][0]) / passed_s, f"{name}_rss_mb": now[1]}
    made = turns[-1][1] - turns[0][1]
    return row | {
        "cpu_s_per_turn": (turns[-1][0] - turns[0][0]) / made if made else None,
        "late_s_p50": percentile(late, 50),
        "late_s_p99": percentile(late, 99),
        "turn_s_p50": percentile(took, 50),
        "turn_s_p99": percentile(took, 99),
        "metrics_s_p50": percentile(answers, 50),
        "metrics_s_max": max(answers),
        "metrics_mb": size / 1e6,
    }


def until_all_are_seen(daemon: psutil.Process, metrics: str, count: int, began: float, folder: Path) -> float:
    """Seconds until it has seen a sample of every run."""
    while time.time() < began + _CAN_TAKE_S:
        if not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE:
            break
        try:
            if len(scrape(metrics)[2].get("sentinel_judged_global_step", ())) == count:
                return time.time() - began
        except OSError:
            pass
        time.sleep(0.5 + count / 200)
    raise SystemExit(f"the daemon did not see all runs: {(folder / 'daemon.log').read_text()[-3000:]}")


@contextmanager
def prometheus(folder: Path, port: int, target: int, runs: list[SimulatedRun]) -> Iterator[psutil.Process]:
    """A real one that scrapes each run once a second."""
    groups = [{"targets": [f"127.0.0.1:{target}"], "labels": {"__metrics_path__": f"/{run.name}"}} for run in runs]
    (folder / "targets.json").write_text(json.dumps(groups))
    (folder / "scraping.yaml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        "  - {job_name: sentinel, honor_labels: true, file_sd_configs: [{files: [targets.json]}]}\n"
    )
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("prometheus is not installed: apt-get install prometheus")
    command = [program, "--config.file", "scraping.yaml", "--storage.tsdb.path", "tsdb"]
    with started([*command, "--web.listen-address", f"127.0.0.1:{port}"], folder / "prometheus.log") as process:
        yield process


def over_steps(steps: int, folder: Path) -> Row:
    """A daemon that finds journals of so many steps."""
    runs = [SimulatedRun(number=number, diverges_at=None) for number in range(RUNS_OVER_STEPS)]
    port = free_port()
    for run, state in zip(runs, configure(folder, runs, port, None).values(), strict=True):
        os.close(begun(run, state, steps, time.time() - steps))
    command = [*PYTHON, "sentinel", "watch", "--all", "--observe", "--config-dir", str(folder / "runs")]
    command += ["--fleet-dir", str(folder / "fleet")]
    began = time.time()
    with started(command, folder / "daemon.log") as daemon:
        start_s = until_all_are_seen(daemon, f"http://127.0.0.1:{port}/metrics", len(runs), began, folder)
        time.sleep(2 * POLL_INTERVAL_S)
        cpu_s, rss_mb = usage(daemon)
    return {"runs": len(runs), "steps": steps, "start_s": start_s, "start_cpu_s": cpu_s, "rss_mb": rss_mb}


def percentile(values: list[float], share: float) -> float | None:
    """None of nothing."""
    return float(np.percentile(values, share)) if values else None


def document(rows: list[Row], steps: list[Row]) -> dict[str, Any]:
    """What --json prints: the most runs, and of the sources the one that takes more."""
    most = [row for row in rows if row["runs"] == max(row["runs"] for row in rows)]
    lags = [row["verdict_lag_polls_p99"] for row in most if row["verdict_lag_polls_p99"] is not None]
    return {
        "runs": most[0]["runs"],
        "cpu_share": max(row["cpu_share"] for row in most),
        "rss_mb": max(row["rss_mb"] for row in most),
        "verdict_lag_polls_p99": max(lags, default=None),
        "rows": rows,
        "over_steps": steps,
    }


def _shown(key: str, form: str, times: float = 1.0) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else format(row[key] * times, form)


_COLUMNS: tuple[tuple[str, int, Callable[[Row], str]], ...] = (
    ("runs", 5, _shown("runs", "d", 1)),
    ("workers", 8, _shown("workers", "d", 1)),
    ("CPU", 7, _shown("cpu_share", ".1%")),
    ("ms a turn", 10, _shown("cpu_s_per_turn", ".2f", 1000)),
    ("RSS MB", 8, _shown("rss_mb", ".0f")),
    ("lag p50", 9, _shown("verdict_lag_polls_p50", ".2f")),
    ("p99", 6, _shown("verdict_lag_polls_p99", ".2f")),
    ("of nan", 8, _shown("verdict_lag_polls_p99_of_nan", ".2f")),
    ("told", 7, lambda row: f"{row['told']}/{row['divergences']}"),
    ("late ms", 9, _shown("late_s_p50", ".1f", 1000)),
    ("p99", 8, _shown("late_s_p99", ".1f", 1000)),
    ("turn ms", 9, _shown("turn_s_p50", ".1f", 1000)),
    ("p99", 7, _shown("turn_s_p99", ".1f", 1000)),
    ("/metrics ms", 13, _shown("metrics_s_p50", ".0f", 1000)),
    ("most", 6, _shown("metrics_s_max", ".0f", 1000)),
    ("MB", 6, _shown("metrics_mb", ".2f")),
    ("start s", 9, _shown("start_s", ".1f")),
    ("Prometheus", 12, _shown("prometheus_cpu_share", ".0%")),
    ("MB", 5, _shown("prometheus_rss_mb", ".0f")),
    ("trainers", 10, _shown("trainers_cpu_share", ".0%")),
    ("load", 6, _shown("load_average", ".1f")),
)


def table(rows: list[Row], steps: list[Row]) -> str:
    """The rows for reading."""
    lines = [f"{os.cpu_count()} cores; a poll interval of {POLL_INTERVAL_S:g} s; `load` is the machine's, all together"]
    lines += ["", "source    " + "".join(f"{head:>{width}}" for head, width, _ in _COLUMNS)]
    lines += [f"{r['source']:10}" + "".join(f"{shown(r):>{width}}" for _, width, shown in _COLUMNS) for r in rows]
    if steps:
        lines += ["", f"{RUNS_OVER_STEPS} runs over steps", "   steps   RSS MB  start s  CPU s of the start"]
    lines += [f"{r['steps']:>8,}{r['rss_mb']:>9.0f}{r['start_s']:>9.1f}{r['start_cpu_s']:>12.1f}" for r in steps]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--runs", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--sources", type=lambda text: tuple(text.split(",")), default=SOURCES)
    parser.add_argument("--window", type=float)
    parser.add_argument("--workers", type=lambda text: tuple(map(int, text.split(","))), default=(None,))
    parser.add_argument("--steps", type=lambda text: tuple(int(n) for n in text.split(",") if n))
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended, too
    counts = asked.runs or (QUICK_RUNS if asked.quick else RUNS)
    window_s = asked.window or (QUICK_WINDOW_S if asked.quick else WINDOW_S)
    past_s = QUICK_PAST_S if asked.quick else PAST_S
    lengths = asked.steps if asked.steps is not None else QUICK_STEPS if asked.quick else STEPS
    rows, steps = [], []
    for source in asked.sources:
        for count, workers in itertools.product(counts, asked.workers):
            lasts = {"window_s": window_s, "past_s": past_s[source]}
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(source, count, Path(folder), **lasts, workers=workers))
            print(rows[-1], file=sys.stderr)
    for length in lengths:
        with tempfile.TemporaryDirectory() as folder:
            steps.append(over_steps(length, Path(folder)))
    print(json.dumps(document(rows, steps)) if asked.json else table(rows, steps))


if __name__ == "__main__":
    main()
