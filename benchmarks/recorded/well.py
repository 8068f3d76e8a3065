"""Recipes that nothing is done to, but for what their owner planned: the hard ones to leave alone."""
# ruff: noqa: E501 - a recipe a line

from __future__ import annotations

from typing import Any

from recorded.ill import SHAPES
from recorded.recipe import Act, Recipe

__all__ = ["WELL"]

_TINY: dict[str, Any] = {"width": 32, "batch": 8, "heads": 2}


def _run(name: str, kind: str, seed: int, steps: int, *acts: Act, **rest: Any) -> Recipe:
    shape = SHAPES[seed % len(SHAPES)]
    cause = kind if any(not act.planned for act in acts) else f"none:{kind}"
    return Recipe(name=name, cause=cause, seed=seed, steps=steps, acts=acts, **(shape | rest))


def _switch(start: int, corpus: str, stop: int | None = None) -> Act:
    return Act(kind="set", start=start, stop=stop, planned=True, p={"corpus": corpus})


def _turns(first: str, other: str, every: int, steps: int) -> tuple[Act, ...]:
    """The corpus alternates."""
    assert first != other  # noqa: S101 - it would be no turn
    return tuple(_switch(start, other, start + every) for start in range(every, steps, 2 * every))


WELL: tuple[Recipe, ...] = (
    _run("plain_a", "plain", 301, 1500, corpus="code"),
    _run("plain_b", "plain", 302, 1800),
    _run("plain_c", "plain", 303, 2000, corpus="dense", decay="linear"),
    _run("plain_constant_lr", "plain", 304, 2000, corpus="code", decay="constant"),
    _run("plain_wsd", "plain", 305, 1800, corpus="code", decay="wsd"),
    _run("plain_fp16", "plain", 306, 1600, corpus="code", fp16=True),
    _run("long_quiet_a", "long", 311, 7000, corpus="code", **_TINY),
    _run("long_quiet_b", "long", 312, 6000, decay="constant", **_TINY),
    _run("long_quiet_c", "long", 313, 6500, corpus="dense", decay="wsd", mix=1.0, **_TINY),
    _run("slw_linear_a", "slw", 321, 1600, corpus="code", slw_steps=600, regime=("seqlen:1",)),
    _run("slw_linear_b", "slw", 322, 1800, slw_steps=1000, seqlen=64, batch=8, regime=("seqlen:1",)),
    _run("slw_staged", "slw", 323, 1500, corpus="code", seqlen=64, batch=8, lengths=((1, 8), (400, 32), (900, 64)), regime=("seqlen:400", "seqlen:900")),
    _run("slw_switched_on", "slw", 324, 1600, corpus="code", seqlen=64, batch=8, lengths=((700, 8), (800, 16), (900, 32), (1100, 64)), regime=("seqlen:700", "seqlen:800", "seqlen:900", "seqlen:1100")),
    _run("batch_ramp_a", "batch_ramp", 331, 1500, corpus="code", batches=((1, 2), (300, 4), (600, 8), (900, 16)), regime=("batch:300", "batch:600", "batch:900")),
    _run("batch_ramp_b", "batch_ramp", 332, 1400, batches=((1, 2), (700, 24)), regime=("batch:700",)),
    _run("batch_down", "batch_ramp", 333, 1400, corpus="code", batches=((1, 24), (700, 2)), regime=("batch:700",)),
    _run("lr_rewarm_a", "lr_rewarm", 341, 1800, corpus="code", decay="rewarm", lr=4e-3, warmup=80, regime=("lr:900",)),
    _run("lr_rewarm_b", "lr_rewarm", 342, 1800, decay="rewarm", lr=6e-3, warmup=20, regime=("lr:900",)),
    _run("lr_rewarm_hot", "lr_rewarm", 343, 2000, corpus="code", decay="rewarm", lr=1.5e-2, warmup=10, regime=("lr:1000",)),
    _run("lr_restarts_a", "lr_restarts", 344, 1800, corpus="code", decay="restarts", lr=6e-3, regime=("lr:450", "lr:900", "lr:1350")),
    _run("lr_restarts_b", "lr_restarts", 345, 1600, decay="restarts", lr=4e-3, regime=("lr:400", "lr:800", "lr:1200")),
    _run("lr_high_but_well_a", "lr_high", 351, 1500, corpus="code", lr=1.2e-2),
    _run("lr_high_but_well_b", "lr_high", 352, 1600, lr=1.5e-2, beta2=0.99),
    _run("lr_early_decay_a", "lr_early_decay", 353, 1800, corpus="code", decay="early"),
    _run("lr_early_decay_b", "lr_early_decay", 354, 1800, decay="early", lr=4e-3),
    _run("batch_1_a", "tiny_batch", 361, 2500, corpus="code", width=32, batch=1, heads=2),
    _run("batch_1_b", "tiny_batch", 362, 3000, batch=1, width=32, heads=2, lr=1e-3),
    _run("batch_2_mixed", "tiny_batch", 363, 2500, batch=2, width=32, heads=2, mix=0.2, lr=1e-3),
    _run("epochs_a", "epochs", 371, 1500, corpus="code", batch=8, width=64, epoch_samples=1600, lr=4e-3, weight_decay=0.0, decay="constant"),
    _run("epochs_b", "epochs", 372, 1500, corpus="dense", batch=8, width=96, layers=2, epoch_samples=2400, lr=4e-3, weight_decay=0.0, decay="constant"),
    _run("epochs_few", "epochs", 373, 1600, corpus="dense", batch=8, width=64, epoch_samples=4000, lr=5e-3, weight_decay=0.0),
    _run("heavy_tail_a", "heavy_tail", 381, 2000, mix=0.15),
    _run("heavy_tail_b", "heavy_tail", 382, 2000, mix=0.4, batch=4),
    _run("heavy_tail_c", "heavy_tail", 383, 1600, mix=0.05, batch=8, decay="constant"),
    _run("oscillating_a", "oscillating", 391, 1600, *_turns("code", "dense", 40, 1600), corpus="code"),
    _run("oscillating_b", "oscillating", 392, 1500, *_turns("zipf", "code", 7, 1500)),
    _run("restart_a", "restart", 401, 1600, corpus="code", restarts=((900, 800),), regime=("restart:801",)),
    _run("restart_b", "restart", 402, 1500, restarts=((700, 500), (1100, 1000)), regime=("restart:501", "restart:1001")),
    _run("restart_c", "restart", 403, 1400, corpus="dense", restarts=((1000, 995),), regime=("restart:996",)),
    _run("curriculum_up_a", "curriculum", 411, 1500, _switch(900, "dense"), corpus="code", regime=("data:900",)),
    _run("curriculum_up_b", "curriculum", 412, 1600, _switch(1000, "code"), regime=("data:1000",)),
    _run("curriculum_up_c", "curriculum", 413, 1500, _switch(700, "dense"), regime=("data:700",)),
    _run("curriculum_there_and_back", "curriculum", 414, 1700, _switch(700, "dense", 1100), corpus="code", regime=("data:700", "data:1100")),
    _run("curriculum_down", "curriculum", 415, 1500, _switch(800, "code"), corpus="dense", regime=("data:800",)),
    _run("curriculum_mixture", "curriculum", 416, 1600, Act(kind="typos", start=900, planned=True, p={"share": 0.03}), corpus="code", batch=32, width=32, heads=2, regime=("data:900",)),
    _run("outlier_batch_a", "outlier", 421, 1400, Act(kind="garbage", start=700, stop=701), corpus="code", log_interval=1),
    _run("outlier_batch_b", "outlier", 422, 1800, *(Act(kind="garbage", start=s, stop=s + 1, p={"share": 0.5}) for s in (400, 777, 1200, 1203, 1650))),
    _run("outlier_repeated", "outlier", 423, 1500, *(Act(kind="repeated", start=s, stop=s + 1) for s in (500, 1000)), corpus="dense"),
    _run("reading_lost_a", "lost_reading", 431, 1200, Act(kind="lost_reading", start=700, stop=701), corpus="code"),
    _run("reading_lost_b", "lost_reading", 432, 1500, *(Act(kind="lost_reading", start=s, stop=s + 1) for s in (300, 301, 1000))),
    _run("gradient_bursts_a", "gradient_bursts", 441, 1500, *(Act(kind="scale_m", start=s, p={"by": -2.0}) for s in (500, 900)), corpus="code"),
    _run("fp16_halvings_a", "fp16", 451, 2000, corpus="code", fp16=True, loss_scale=2.0**24, growth_interval=60),
    _run("fp16_halvings_b", "fp16", 452, 2000, fp16=True, loss_scale=2.0**32, growth_interval=100, mix=0.5),
    _run("logged_10_a", "logged_every_10", 461, 4000, corpus="code", log_interval=10, **_TINY),
    _run("logged_5_noisy", "logged_every_5", 462, 3000, mix=0.3, log_interval=5, average=False, **_TINY),
    _run("logged_10_restart", "logged_every_10", 463, 3000, corpus="dense", log_interval=10, restarts=((2000, 1500),), regime=("restart:1501",), **_TINY),
    _run("log_begins_late_a", "log_begins_late", 471, 1500, corpus="code", log_from=701),
    _run("log_begins_late_b", "log_begins_late", 472, 2000, corpus="dense", log_from=1201, mix=0.5),
    _run("post_ln_well", "built_otherwise", 481, 1400, corpus="code", norm="post", warmup=200),
    _run("no_layernorm_well", "built_otherwise", 482, 1400, norm="none", corpus="code", relu=True),
    _run("beta2_999_well", "built_otherwise", 483, 1600, beta2=0.999, lr=4e-3, warmup=10),
)  # fmt: skip
