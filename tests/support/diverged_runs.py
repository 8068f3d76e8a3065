"""A run's folder whose journal ends in a divergence, and a watch of it."""

from __future__ import annotations

from pathlib import Path
from threading import Event

from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.slurm import Queues
from sentinel.config import Config, load_config
from sentinel.daemon.sources import source_of
from sentinel.daemon.watched_run import Shared, Watched
from sentinel.vocabulary.sample import Sample, encode


def diverged_run(folder: Path, *lines: str) -> Config:
    """In mode act, with a journal that ends in a divergence which no incident tells of yet."""
    (folder / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\ntensorboard = "tb"\n'
        '[launcher]\ncommand = ["true"]\n[policy]\nmode = "act"\n' + "\n".join(lines)
    )
    for name in ("c/global_step10", "c/global_step20", "s/attempts", "tb"):
        (folder / name).mkdir(parents=True)
    (folder / "c" / "latest").write_text("global_step20")
    losses = [3.0 + 0.03 * ((7 * step) % 11 - 5) / 5 if step < 300 else 9.0 for step in range(1, 601)]
    samples = [Sample(attempt=1, global_step=n, time_unix_s=float(n), loss=x) for n, x in enumerate(losses, 1)]
    (folder / "s" / "attempts" / "0001.jsonl").write_text("".join(encode(s) + "\n" for s in samples))
    return load_config(folder / "a.toml")


def watched(config: Config, folder: Path) -> Watched:
    exposition = Exposition(config.metrics, folder / "scrape.json", {}, once=True)
    return Watched(
        config,
        Shared(
            exposition=exposition,
            queues=Queues(),
            sources=source_of,
            say=lambda _: None,
            stop=Event(),
            observe=False,
            once=False,
            alone=False,
        ),
    )
