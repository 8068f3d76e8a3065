"""Each peer against a table computed by hand, and what is known of them on published incidents."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

from benchmarks.backtest.curves import Curve, read_folder
from benchmarks.backtest.peers import PEERS
from benchmarks.backtest.reading import Reading

PUBLIC = Path(__file__).parents[2] / "benchmarks" / "public"
INCIDENTS = (
    "tr8_104b_exp_6900",
    "tr8_104b_exp11_spike_11446",
    "tr8_104b_exp12_diverge_8738",
    "bloom176b_spike_31214",
    "tr1_13b_diverge_29050",
)
NAN, INF = math.nan, math.inf
EVEN = [1.0, 3.0] * 64  # mean 2, deviation 1
QUIET_NORMS = [*([0.9, 1.1] * 12), 1.0]  # mean 1, variance 0.0096


def fires(name: str, losses: Sequence[float | None] = (), norms: Sequence[float | None] = ()) -> list[int]:
    """The rows at which it fires."""
    peer = PEERS[name](max(len(losses), len(norms)))
    rows = [Reading(loss, norm) for loss, norm in zip_longest(losses, norms)]
    return [i for i, row in enumerate(rows) if peer.push(row)]


@pytest.mark.parametrize(
    ("name", "losses", "expected"),
    [
        ("loss_ratio_1_2", [3.0, 2.5, 3.0, 3.01, NAN, 2.5, INF], [3, 4, 6]),  # 3.0 / 2.5 is 1.2, and not above it
        ("cusum", [2.0, 2.2] * 64 + [2.4, 2.4, 2.4, NAN], [130, 131]),  # about 2.5 deviations more each time; nan
        ("kill_loss_spike", [2.0] * 100 + [5.0] * 5, [104]),  # five in a row above 2 x (2.00 … 2.12)
        ("kill_loss_spike", [2.0] * 100 + [5.0] * 4 + [2.0] + [5.0] * 4, []),
        ("kill_loss_spike", [2.0] * 100 + [2.5] * 100, [199]),  # half above the cap 2.0, from two windows on
        ("kill_loss_spike", [2.0] * 99 + [5.0] * 5, []),  # not armed
        ("kill_loss_spike", [2.0] * 100 + [NAN] + [50.0] * 9, []),  # the mean is nan
        ("lightning_spike", [2.0, 5.99, 2.0], []),
        ("lightning_spike", [2.0, 6.0, 6.0, 2.0], [1, 2]),  # what fires does not enter the mean of 2
        ("lightning_spike", [NAN, 2.0, NAN, INF], [2, 3]),  # the first step is not judged
        ("olmo_skip_step", [*EVEN[:62], 2.0, 8.0], []),  # mean 2, unbiased deviation 1
        ("olmo_skip_step", [*EVEN[:62], 2.0, 8.01], [63]),
        ("olmo_skip_step", [*EVEN[:62], 80.0], []),  # the 63rd value: not armed
        ("olmo_skip_step", [*EVEN[:62], 2.0, NAN, 1.0], [63, 64]),
        ("olmo_skip_step", [*EVEN[:62], 2.0, -80.0], []),
        ("olmo_stability", [*EVEN, 8.0], []),  # mean 2, population deviation 1
        ("olmo_stability", [*EVEN, 8.01], [128]),
        ("olmo_stability", [*EVEN[:127], 80.0], []),
        ("olmo_stability", [*EVEN, NAN, 80.0], []),
        ("megatron_rerun", [3.0, *[2.0] * 99, 29.9, NAN, INF, 30.0], [103]),
        ("megatron_rerun", [3.0, *[2.0] * 98, 30.0], []),
        ("flagscale_spiky", [5.0, 6.0, 5.9, 7.0, INF], [1, 4]),  # from 5.9, 7.0 is 18.6 % more
        ("flagscale_spiky", [5.0, NAN, 100.0, 120.0], [3]),
        ("metaseq_ewm", [2.0, 2.4, 2.5, 2.49], [2]),  # the mean is 0.8 x 2 + 0.2 x 2.4 = 2.08
        ("metaseq_ewm", [2.0, NAN, 100.0, 200.0], []),
        ("axolotl_watchdog", [2.0, 4.1, 4.1, 3.0, 4.1, 4.1, 4.1, 4.0], [6]),
        ("axolotl_watchdog", [2.0, 4.1, 4.1, NAN, 4.1], []),
    ],
)
def test_a_peer_fires_where_its_rule_says(name: str, losses: list[float], expected: list[int]) -> None:
    assert fires(name, losses) == expected


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([*QUIET_NORMS, 1.2], []),  # z = 2.04
        ([*QUIET_NORMS, 1.25], [25]),  # z = 2.55
        ([*QUIET_NORMS[:24], 9.0], []),
        ([*QUIET_NORMS, NAN, 1000.0], []),
        # learned as 1.24, not 50: mean 1.0149, variance 0.0108, so z = 2.26 for the last
        ([*QUIET_NORMS, 1.25, 1.25], [25]),
    ],
)
def test_zclip_reads_the_gradient_norm(norms: list[float], expected: list[int]) -> None:
    assert fires("zclip", norms=norms) == expected


def test_zclip_learns_the_clipped_norm() -> None:
    """z of 1000 is 10196: it learns 1 + 2.5 x 0.098 / 4078 = 1.00006, and 1.25 fires as if nothing had been."""
    assert fires("zclip", norms=[*QUIET_NORMS, 1000.0, 1.25]) == [25, 26]


def test_gradient_norms_alone_let_olmo_skip() -> None:
    losses = [2.0] * 64
    assert fires("olmo_skip_step", losses, [*EVEN[:62], 2.0, 8.01]) == [63]
    assert fires("olmo_skip_step", losses, [*EVEN[:62], 2.0, 8.0]) == []


@pytest.mark.parametrize("name", PEERS)
def test_a_reading_that_is_not_there_is_not_asked_about(name: str) -> None:
    assert fires(name, [None] * 300) == []


def test_the_window_of_kill_loss_spike_grows_with_the_run() -> None:
    long = [2.0] * 150 + [5.0] * 5
    assert fires("kill_loss_spike", [*long, *[2.0] * 5000]) == []  # 5 % of 5,155 is 258: not full at 150


@pytest.fixture(scope="module")
def public() -> dict[str, Curve]:
    return {curve.name: curve for curve in read_folder(PUBLIC)}


@pytest.mark.parametrize("name", ["kill_loss_spike", "lightning_spike", "megatron_rerun"])
@pytest.mark.parametrize("incident", INCIDENTS)
def test_three_peers_never_fire_on_the_published_lines(name: str, incident: str, public: dict[str, Curve]) -> None:
    curve = public[incident]
    assert fires(name, curve.losses, curve.columns["grad_norm"]) == []


@pytest.mark.parametrize("name", ["olmo_skip_step", "zclip"])
@pytest.mark.parametrize("incident", ["tr8_104b_exp11_spike_11446", "bloom176b_spike_31214"])
def test_two_peers_do_not_tell_a_spike_from_a_divergence(name: str, incident: str, public: dict[str, Curve]) -> None:
    """With a quiet stretch before the published lines, so that their windows are full."""
    curve, rng = public[incident], random.Random(0)
    level, norm = curve.losses[0], curve.columns["grad_norm"][0]
    assert level is not None
    assert norm is not None
    losses = [level * rng.gauss(1, 0.01) for _ in range(200)]
    norms = [norm * rng.gauss(1, 0.1) for _ in range(200)]
    fired = fires(name, [*losses, *curve.losses], [*norms, *curve.columns["grad_norm"]])
    assert max(fired) >= 200


def test_zclip_raises_several_false_alarms_per_400_quiet_steps() -> None:
    rng = random.Random(0)
    alarms = len(fires("zclip", norms=[rng.gauss(1, 0.1) for _ in range(40_000)])) / 100
    assert 3 < alarms < 10


def test_the_loss_ratio_misses_a_small_offset_for_good() -> None:
    assert fires("loss_ratio_1_2", [1.96] * 50 + [2.02] * 5 + [1.975] * 50) == []
