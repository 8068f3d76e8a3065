"""The curvature that Adam's update meets: its limit, how it is measured in a training, and how its warnings count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.batched.training import Setting, Training
from benchmarks.curvature.measured import EVERY, Measured
from benchmarks.curvature.quadratic import agreement, begins
from benchmarks.curvature.ratio import Adam, along_gradient, along_update, curved
from benchmarks.curvature.scoring import Seen, tally, warnings_of
from trainer_hooks.gpt.data import Corpus
from trainer_hooks.gpt.model import GPT, Shape
from trainer_hooks.gpt.order import DataOrder

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "sharpness.py"
SHAPE = Shape(layers=2, width=16, heads=2, seqlen=16)
CORPUS = Corpus(
    tokens=np.random.default_rng(0).integers(0, 32, 4001),
    vocabulary=32,
    seqlen=16,
    training_samples=200,
    validation_samples=50,
)
CLIP, PADDED = 0.05, 1 / 4


def adam(m: float, v: float, lr: float, beta1: float, updates: int = 10_000) -> Adam:
    """One run of one parameter, long after the bias corrections."""

    def one(value: float) -> torch.Tensor:
        return torch.tensor([[value]], dtype=torch.float64)

    return Adam(m=one(m), v=one(v), updates=updates, lr=one(lr), beta1=one(beta1), beta2=one(0.999), eps=one(0.0))


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("ratio", [0.98, 1.02])
def test_with_v_held_adam_oscillates_away_where_the_ratio_is_above_1(beta1: float, ratio: float) -> None:
    root, lr = 0.5, 0.01
    k = ratio * root * 2 * (1 + beta1) / ((1 - beta1) * lr)
    x, m, sizes = 1.0, 0.0, []
    for _ in range(4000):
        m = beta1 * m + (1 - beta1) * k * x
        x -= lr * m / root
        sizes.append(abs(x))
        if sizes[-1] > 1e6:
            break
    assert (max(sizes[-50:]) > 1e6) == (ratio > 1)
    one = torch.ones(1, 1, dtype=torch.float64)
    state = adam(m=1.0, v=root**2 * (1 - 0.999**10_000), lr=lr, beta1=beta1)
    assert along_gradient(state, one, k * one).item() == pytest.approx(ratio)
    assert along_update(state, 3 * one, 3 * k * one).item() == pytest.approx(ratio)


def test_the_curvature_along_the_update_is_never_above_the_largest_eigenvalue() -> None:
    torch.manual_seed(0)
    half = torch.randn(6, 6, dtype=torch.float64)
    hessian, m, g = half @ half.T, torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    row = torch.ones(1, 1, dtype=torch.float64)
    v, nines = torch.rand(1, 6, dtype=torch.float64), 0.9 * row
    state = Adam(m=m, v=v, updates=3, lr=0.1 * row, beta1=nines, beta2=nines, eps=0 * row)
    update = m / state.root
    at = torch.randn(1, 6, dtype=torch.float64)
    product = curved(lambda x: x @ hessian, at, at @ hessian, update)
    assert product == pytest.approx(update @ hessian, rel=1e-6)
    largest = torch.linalg.eigvals(torch.diag(1 / state.root[0]) @ hessian).real.max() / state.limit
    assert 0 < along_update(state, update, product).item() <= largest.item()
    by_hand = (g / state.root * (g @ hessian)).sum() / g.square().sum() * 0.1 * 0.1 / (2 * 1.9 * (1 - 0.9**3))
    assert along_gradient(state, g, g @ hessian).item() == pytest.approx(by_hand.item())


def test_on_the_papers_quadratic_the_predicted_step_is_within_2_in_95_of_100() -> None:
    found = agreement(beta1=0.0)
    assert found["with_spike"] == found["predicted"] == 100
    assert found["within_2"] >= 95


def test_a_spike_begins_where_a_lasting_oscillation_does() -> None:
    falls = [2.0**-step * (-1) ** step for step in range(20)]
    grows = [2.0**step * (-1) ** (19 + step) * 2.0**-19 for step in range(1, 12)]
    assert begins([*falls, *grows]) == 20
    assert begins([*falls, *grows[:5], 1e-9, *grows[5:9]]) is None


def measured(steps: int) -> Measured:
    setting = Setting(lr=1e-2, warmup=3, clip=CLIP, padded_steps=100, padded_scale=PADDED)
    training = Measured(SHAPE, CORPUS, [setting, setting], [5, 6], batch=4, validate_every=EVERY)
    training.train(steps=steps)
    return training


def test_what_is_measured_is_the_reference_models_under_torchs_adamw() -> None:
    ours = measured(EVERY).recorded
    torch.manual_seed(5)
    model, order = GPT(SHAPE, CORPUS.vocabulary), DataOrder(CORPUS.training_samples, 5)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-2, betas=(0.9, 0.999), weight_decay=0.01)
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(1, EVERY + 1):
            optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, step / 3)
            loss = model(torch.from_numpy(CORPUS.training(order.indices(4 * (step - 1), 4))))
            raw = torch.autograd.grad(loss, weights, create_graph=step == EVERY)
            flat = torch.cat([one.reshape(-1) for one in raw])
            scale = float(PADDED * min(1.0, CLIP / (PADDED * flat.norm().item() + 1e-6)))
            for weight, one in zip(weights, raw, strict=True):
                weight.grad = scale * one.detach()
            if step < EVERY:
                optimizer.step()
        g = scale * flat.detach()
        states = [optimizer.state[weight] for weight in weights]
        m = 0.9 * torch.cat([s["exp_avg"].reshape(-1) for s in states]) + 0.1 * g
        v = 0.999 * torch.cat([s["exp_avg_sq"].reshape(-1) for s in states]) + 0.001 * g.square()
        root = (v / (1 - 0.999**EVERY)).sqrt() + 1e-8
        limit = 2 * 1.9 * (1 - 0.9**EVERY) / (0.1 * 1e-2)
        (hg, hu) = (
            torch.cat(
                [o.reshape(-1) for o in torch.autograd.grad(scale * (flat * d).sum(), weights, retain_graph=True)]
            )
            for d in (g, m / root)
        )
    along_g = (g / root * hg).sum() / g.square().sum() / limit
    along_u = (m / root * hu).sum() / (m * m / root).sum() / limit
    assert ours.of("curvature_gradient")[0, 0] == pytest.approx(along_g.item(), rel=0.03)
    assert ours.of("curvature_update")[0, 0] == pytest.approx(along_u.item(), rel=0.03)


def test_a_training_that_is_measured_is_the_same_training() -> None:
    watched = measured(2 * EVERY)
    plain = Training(SHAPE, CORPUS, watched.settings, [5, 6], batch=4, validate_every=EVERY)
    assert np.array_equal(plain.train(steps=2 * EVERY).of("loss"), watched.recorded.of("loss"))
    assert torch.equal(plain.state.flat, watched.state.flat)


def seen(onset: int | None, ratios: list[float], logits: tuple[int, ...] = ()) -> Seen:
    column = [(10 * at, ratio) for at, ratio in enumerate(ratios, 1)]
    return Seen(
        task="logits",
        draw=1,
        seed=0,
        steps=10 * len(ratios),
        onset=onset,
        by_judge=True,
        curvature={"curvature_gradient": column, "curvature_update": column},
        others={"attention logits": logits, "variance alone": (), "early warning": ()},
    )


def test_a_warning_counts_ahead_of_the_onset_alone_where_no_other_was_there_and_false_in_a_healthy_run() -> None:
    ill = [seen(90, [0, 0, 2, 0, 2, 2, float("nan"), 0, 0]), seen(90, [2, 0, 0], logits=(40,)), seen(None, [2])]
    healthy = [seen(None, [0.5, 2, 2, 0.5]), seen(None, [0.5] * 6)]
    once, thrice = (tally(f"along the update{more}", ill, healthy) for more in ("", ", 3 in a row"))
    assert (once.leads, once.with_onset, once.alone, once.false, once.healthy_steps) == ((60, 80), 2, 1, 1, 100)
    assert (thrice.leads, thrice.alone, thrice.false) == ((20,), 1, 0)
    assert warnings_of(ill[0], "along the update", every=20) == (60,)
    assert tally("attention logits", ill, healthy).leads == (50,)
    assert tally("along the gradient", ill, healthy, limit=3.0).leads == (20,)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_document_has_the_quadratic_the_error_the_cost_and_each_rule(tmp_path: Path) -> None:
    tables = tmp_path / "tables.txt"
    command = [sys.executable, str(PROGRAM), "--quick", "--json", f"--folder={tmp_path}", f"--results={tables}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["quadratic"][0]["within_2"] == document["quadratic"][0]["draws"]
    assert all(min(map(abs, row["relative_errors"]["1e-05"])) < 0.1 for row in document["precision"])
    assert document["cost"]["least_every"] > 1
    for row in document["rules"]:
        assert row["false_per_10000_95"][0] <= row["false_per_10000"] <= row["false_per_10000_95"][1]
        assert row["rule"] in tables.read_text()
