"""Runs that are trained at once are what each is alone, and what torch makes of it; the intervals; the verdicts."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.batched.intervals import of_mean, of_share, sign_test
from benchmarks.batched.model import Models
from benchmarks.batched.outcomes import Group, first_lasting, save, verdict
from benchmarks.batched.training import Setting, State, Training
from benchmarks.correlation import pooled
from benchmarks.instabilities import fluctuation, summary
from sentinel.lab.tune.search import ProbeSeen
from sentinel.vocabulary.pacing import FixedLinear, RandomLtdSchedule
from trainer_hooks.gpt.data import Corpus
from trainer_hooks.gpt.model import GPT, Block, Shape
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.random_ltd import RandomLtd

ROOT = Path(__file__).parents[2]
SHAPE = Shape(layers=2, width=16, heads=2, seqlen=16)
CORPUS = Corpus(
    tokens=np.random.default_rng(0).integers(0, 32, 4001),
    vocabulary=32,
    seqlen=16,
    training_samples=200,
    validation_samples=50,
)
SETTING = Setting(lr=1e-2, warmup=3, clip=0.5)


def trained(settings: list[Setting], seeds: list[int], steps: int = 6, shape: Shape = SHAPE) -> Training:
    training = Training(shape, CORPUS, settings, seeds, batch=4, validate_every=2)
    training.train(steps=steps)
    return training


@pytest.mark.parametrize("norm", [True, False])
def test_a_seed_in_the_batch_is_the_seed_alone(norm: bool) -> None:
    shape = replace(SHAPE, block_layernorm=norm)
    settings = [SETTING, replace(SETTING, lr=0.5, beta2=0.9), replace(SETTING, warmup=1, eps=1e-3)]
    together = trained(settings, [0, 1, 2], shape=shape)
    for run, setting in enumerate(settings):
        alone = trained([setting], [run], shape=shape)
        for name in together.recorded.rows:
            ours, theirs = together.recorded.of(name)[:, run], alone.recorded.of(name)[:, 0]
            assert ours == pytest.approx(theirs, rel=1e-4, nan_ok=True), name


def test_a_run_is_the_reference_model_under_torchs_adamw() -> None:
    ours = trained([SETTING, replace(SETTING, lr=0.1)], [5, 6]).recorded
    torch.manual_seed(5)
    model, order = GPT(SHAPE, CORPUS.vocabulary), DataOrder(CORPUS.training_samples, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.999), weight_decay=0.01)
    for step in range(1, 7):
        optimizer.param_groups[0]["lr"] = SETTING.rate(step)
        loss = model(torch.from_numpy(CORPUS.training(order.indices(4 * (step - 1), 4))))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        assert ours.of("loss")[step - 1, 0] == pytest.approx(loss.item(), rel=1e-5)
        assert ours.of("grad_norm")[step - 1, 0] == pytest.approx(norm.item(), rel=1e-4)
        root = torch.cat([s["exp_avg_sq"].sqrt().reshape(-1) for s in optimizer.state.values()])
        assert ours.of("adam_variance_l1")[step - 1, 0] == pytest.approx(root.sum().item(), rel=1e-4)
        assert ours.of("adam_variance_max")[step - 1, 0] == pytest.approx(root.max().item(), rel=1e-4)
    held = torch.from_numpy(CORPUS.validation(np.arange(16)))
    assert ours.of("validation_loss")[-1, 0] == pytest.approx(model(held).item(), rel=1e-5)


def test_the_largest_attention_logit_is_that_of_the_queries_and_keys() -> None:
    models, tokens = Models(SHAPE, 32, [0, 1]), torch.randint(32, (2, 3, 17))
    with torch.no_grad():
        models.p["blocks.1.qkv.weight"][1] *= 50
    peaks: dict[str, torch.Tensor] = {}
    models.losses(tokens, peaks)
    for run in range(2):
        model = GPT(SHAPE, 32)
        torch.nn.utils.vector_to_parameters(models.flat[run], model.parameters())
        found: dict[object, torch.Tensor] = {}
        for block in model.blocks:
            block.get_submodule("qkv").register_forward_hook(lambda one, _, out, to=found: to.update({one: out}))
        model(tokens[run])
        q, k, _ = torch.stack(list(found.values())).view(2, 3, 16, 3, 2, 8).permute(3, 0, 1, 4, 2, 5)
        seen = (q @ k.mT / math.sqrt(8)).tril().abs().max()
        assert peaks["attention_logit"][run].item() == pytest.approx(seen.item(), rel=1e-4)


def test_a_layernorm_of_queries_and_keys_bounds_the_attention_logits_and_a_z_loss_is_added() -> None:
    models, tokens = Models(SHAPE, 32, [0, 1], qk_norm=True), torch.randint(32, (2, 3, 17))
    peaks: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        models.p["blocks.0.qkv.weight"] *= 1000
        models.p["blocks.1.k_gain"][1] *= 3
        without = models.losses(tokens, peaks)
        models.p["norm.weight"].zero_()  # all output logits are 0, the softmax's sum is the vocabulary
        plain, with_z = models.losses(tokens), models.losses(tokens, z_loss=0.5)
    assert peaks["attention_logit"][0] <= math.sqrt(8) < peaks["attention_logit"][1] <= 3 * math.sqrt(8)
    assert (with_z - plain).tolist() == pytest.approx([0.5 * math.log(32) ** 2] * 2)
    assert without.isfinite().all()


def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = trained([SETTING], [3], steps=8)
    first = trained([SETTING], [3], steps=4)
    first.state.save(tmp_path / "state.npz")
    second = Training(SHAPE, CORPUS, [SETTING], [3], batch=4, validate_every=2)
    second.load(State.read(tmp_path / "state.npz"))
    second.train(steps=8)
    assert second.recorded.of("loss")[:, 0].tolist() == whole.recorded.of("loss")[4:, 0].tolist()
    second.load(State.read(tmp_path / "state.npz"))
    second.reseed(1)
    second.train(steps=5)
    assert second.recorded.of("loss")[-1, 0] != whole.recorded.of("loss")[4, 0]


def test_gradients_are_scaled_before_the_clip_up_to_a_step_of_each_runs_own() -> None:
    padded = replace(SETTING, padded_steps=3, padded_scale=1 / 64)
    made = trained([SETTING, padded, padded], [0, 0, 1], steps=4)
    alone, (norms, lr) = trained([padded], [1], steps=4), (made.recorded.of(name) for name in ("grad_norm", "lr"))
    assert norms[0, 1] == pytest.approx(norms[0, 0] / 64, rel=1e-3)
    assert norms[2, 2] < 0.1 < norms[3, 2]
    assert norms[:, 2] == pytest.approx(alone.recorded.of("grad_norm")[:, 0], rel=1e-3)
    assert lr[:, 0].tolist() == lr[:, 1].tolist()


def test_updates_are_clipped_by_tensor_where_v_lags() -> None:
    """StableAdamW: after three steps of tiny gradients v is a quarter of the squares of the first whole ones."""
    padded = replace(SETTING, padded_steps=3, padded_scale=1e-3, clip=1e9, weight_decay=0.0)
    made = trained([padded, replace(padded, clips_updates=True)], [0, 0], steps=4).recorded
    assert made.of("update_norm")[:3, 1] == pytest.approx(made.of("update_norm")[:3, 0], rel=1e-2)
    assert made.of("update_norm")[3, 1] == pytest.approx(made.of("update_norm")[3, 0] / 2, rel=0.02)


def test_an_update_above_the_limit_is_left_out_and_leaves_no_trace() -> None:
    setting = replace(SETTING, padded_steps=70, padded_scale=1e-3, lr=1e-4)
    training = trained([setting, replace(setting, skips_from=6.0)], [0, 0], steps=70)
    before = training.saved()
    training.train(steps=71)
    for now, then in zip((training.state.flat, training.state.m), (before.flat, before.m), strict=True):
        assert not torch.equal(now[0], then[0])
        assert torch.equal(now[1], then[1])


def test_bound_once_no_attention_logit_of_normed_inputs_is_larger() -> None:
    training = trained([SETTING, SETTING], [0, 1], steps=1)
    with torch.no_grad():
        for layer in range(SHAPE.layers):
            training.models.p[f"blocks.{layer}.qkv.weight"][1] *= 1000
    small = training.state.flat[0].clone()
    training.bound_logits(50.0)
    assert torch.equal(training.state.flat[0], small)
    peaks: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        training.models.losses(torch.randint(32, (2, 3, 17)), peaks)
    assert 1 < peaks["attention_logit"][1] <= 50


def test_shorter_sequences_and_the_end_by_tokens() -> None:
    schedule = FixedLinear(start=8, full=16, total_steps=4)
    training = Training(SHAPE, CORPUS, [replace(SETTING, seqlen=schedule)], [0], batch=4)
    made = training.train(tokens=6 * 4 * 16)
    lengths = [schedule.seqlen(step) for step in made.steps]
    assert made.tokens == (4 * np.cumsum(lengths)).tolist()
    assert made.tokens[-2] < 6 * 4 * 16 <= made.tokens[-1]


def test_reshaped_samples_are_trained_on_in_pieces() -> None:
    schedule = FixedLinear(start=8, full=16, total_steps=4)
    training = Training(SHAPE, CORPUS, [replace(SETTING, seqlen=schedule, reshaped=True)], [0], batch=4)
    with torch.no_grad():
        training.models.flat *= 8  # weights so large that the place within a piece counts
    row = torch.from_numpy(CORPUS.training(DataOrder(CORPUS.training_samples, 0).indices(0, 4)))[None]
    halves = [training.models.losses(row[..., at : at + 9]).item() for at in (0, 8)]
    made = training.train(steps=1)
    assert made.of("loss")[0, 0] == pytest.approx(np.mean(halves), rel=1e-5)
    assert abs(halves[0] - halves[1]) > 1e-3
    assert (made.tokens, training.state.samples) == ([4 * 16], 4)


def test_the_intervals_are_the_books() -> None:
    share = of_share(8, 10)  # Wilson 1927; Brown, Cai & DasGupta 2001
    assert (share.low, share.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert of_share(0, 10).low == 0
    assert of_share(0, 10).high == pytest.approx(0.2775, abs=1e-4)
    mean = of_mean([1.0, 2.0, 3.0])  # t of 2 degrees of freedom: 4.3027
    assert (mean.low, mean.high) == (
        pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4),
        pytest.approx(4.4841, abs=1e-4),
    )
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(0, 0) == 1.0
    found, p = pooled([0.1, 0.2, 0.3])
    assert found.low < 0.2 < found.high
    assert 0.05 < p < 0.11  # t = 3.4 of 2 degrees of freedom


def test_an_onset_is_where_the_lasting_rise_begins() -> None:
    assert first_lasting([4, 3, 2, 2.5, 2, 2.5, 2.6, 2.7]) == 5
    assert first_lasting([4, 3, 2, 2.5, 2.6, 2.2, 2.7]) is None
    assert first_lasting([4, 3, 2, math.nan, math.inf, 9]) == 3
    assert first_lasting([2.5, 2.5, 2.5], smallest=2.0) == 0


def group(onsets: list[float], lr: float = 0.1, final: float = 1.0) -> Group:
    n = len(onsets)
    return Group(
        name="x",
        seeds=tuple(range(n)),
        onsets=tuple(onsets),
        lr_at_onset=0.1,
        best=(1.0,) * n,
        final=(final,) * n,
        largest_lr=lr,
        steps_at_peak=100,
        steps=200,
        attention_logit=1.0,
    )


def test_what_a_rung_did_is_said_by_pairs_and_by_the_lr_that_it_reached() -> None:
    ill = group([50.0] * 10)
    assert verdict(group([math.inf] * 6 + [50.0] * 4), ill, 1.0)[0] == "fewer fail"
    assert verdict(group([math.inf] * 6 + [50.0] * 4, lr=0.02), ill, 1.0)[0] == "fewer fail, at a lower LR"
    assert verdict(group([math.inf] * 5 + [50.0] * 5), ill, 1.0)[0] == "nothing shown"  # p = 0.0625
    assert verdict(group([90.0] * 10), ill, 1.0)[0] == "postpones"
    assert verdict(group([40.0] * 10), ill, 1.0)[0] == "hastens"
    assert verdict(ill, group([math.inf] * 10), 1.0)[0] == "more fail"
    never_well = group([math.inf] * 10, final=2.0)
    assert never_well.failed(2.5) == (False,) * 10
    assert never_well.failed_from(1.0) == (200.0,) * 10  # well at first, and ill at the very end
    assert verdict(never_well, ill, 1.0)[0] == "postpones"
    assert all(map(math.isnan, replace(never_well, best=(1.5,) * 10).failed_from(1.0)))
    assert verdict(replace(never_well, best=(1.5,) * 10), ill, 1.0)[0] == "nothing shown"


def test_a_group_is_read_from_its_file(tmp_path: Path) -> None:
    made = trained([SETTING, SETTING], [0, 1], steps=8).recorded
    made.rows["validation_loss"] = [np.array(row) for row in ([3.1, 3.1], [2.0, 3.7], [2.0, 3.7], [2.0, 3.7])]
    save(tmp_path / "x.npz", "x", [0, 1], SETTING.lr, np.array([math.inf, 2.5]), made)
    found = Group.read(tmp_path / "x.npz")
    assert (found.onsets, found.best, found.final) == ((math.inf, 2.0), (2.0, 2.5), (2.0, 3.7))
    assert (found.largest_lr, found.steps_at_peak, found.steps) == (pytest.approx(0.01), 6, 8)
    assert found.lr_at_onset == pytest.approx(SETTING.rate(2))  # the prior minimum of 2.5 makes 3.1 the first rise


def test_the_summary_is_of_the_longest_runs_and_leaves_out_what_was_not_run(tmp_path: Path) -> None:
    made = trained([SETTING] * 10, list(range(10)), steps=8).recorded
    well, ill = np.full((4, 10), 2.0), np.array([[2.0] * 10] + [[4.0] * 10] * 3)

    def run(name: str, losses: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        made.rows["validation_loss"] = list(losses)
        save(tmp_path / f"logits-{name}.npz", name, list(range(10)), 1.0, np.full(10, math.inf), made)

    run("baseline", ill)
    run("LR-warmup-x-2", well)
    run("LR-warmup-x-2--held-longer", ill)
    run("qk-LayerNorm--held-longer", well)
    lines = list(summary(tmp_path))
    assert lines[:2] == ["| change | logits |", "|---|---|"]
    assert lines[2:5] == [
        "| baseline | 10 of 10 |",
        "| LR warmup x 2 | 0 of 10; held longer 10 of 10 |",
        "| qk LayerNorm | 0 of 10, fewer fail |",
    ]
    assert lines[6].startswith("1 of 2 comparisons show something")


def test_a_probe_fluctuates_as_sentinel_tune_reads_it() -> None:
    assert fluctuation([10, 20, 30], [3.0, 2.0, 2.3]) == ProbeSeen(fluctuated_at=30, calm_through=30)
    assert fluctuation([10, 20, 30], [3.0, 2.0, 2.2]) == ProbeSeen(calm_through=30)


def test_layers_see_the_tokens_that_random_ltd_keeps_in_the_reference_model() -> None:
    shape = replace(SHAPE, layers=4)
    ltd = RandomLtdSchedule(start=4, full=16, total_steps=10, multiple=4)
    setting = replace(SETTING, random_ltd=ltd)
    training = Training(shape, CORPUS, [setting, setting], [7, 8], batch=4)
    torch.manual_seed(8)
    model = GPT(shape, CORPUS.vocabulary)
    with torch.no_grad():  # weights so large that the order of the tokens within a layer counts
        training.models.flat *= 8
        for parameter in model.parameters():
            parameter.mul_(8)
    made = training.train(steps=1)
    dropping = RandomLtd(model, Block, ltd, seed=8)
    dropping.begin(1, 0)
    batch = CORPUS.training(DataOrder(CORPUS.training_samples, 8).indices(0, 4))
    assert made.of("loss")[0, 1] == pytest.approx(model(torch.from_numpy(batch)).item(), rel=1e-5)
    dropping.remove()
    assert abs(made.of("loss")[0, 1] - model(torch.from_numpy(batch)).item()) > 1e-2
    assert made.tokens == [4 * (16 * 2 + 4 * 2) // 4]


def test_the_data_efficiency_cases_end_by_the_same_effective_tokens() -> None:
    program = [sys.executable, "benchmarks/data_efficiency.py", "--seeds", "2", "--steps", "16"]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=280, check=True)
    lines = ran.stdout.splitlines()
    tokens = [int(line[39:48]) for line in lines[3 : lines.index("")]]
    step = 8 * 64
    assert len(tokens) == 8
    assert all(16 * step <= found < 17 * step for found in tokens[:4])
    assert all(8 * step <= found < 9 * step for found in tokens[4:])
