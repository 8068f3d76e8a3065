"""Recipes with a cause. What became of each is in INDEX.csv, not here: some heal, some leave no mark."""
# ruff: noqa: E501 - a recipe a line

from __future__ import annotations

from typing import Any

from recorded.recipe import Act, Recipe

__all__ = ["ILL", "SHAPES"]

SHAPES: tuple[dict[str, Any], ...] = (
    {"width": 64, "batch": 16},
    {"width": 48, "batch": 8},
    {"width": 64, "batch": 8, "layers": 3},
    {"width": 32, "batch": 16, "heads": 2},
    {"width": 48, "batch": 8, "seqlen": 64},
    {"width": 48, "batch": 8, "layers": 4},
)
_TINY: dict[str, Any] = {"width": 32, "batch": 8, "heads": 2}
_QUIET: dict[str, Any] = {"width": 32, "batch": 64, "heads": 2, "corpus": "code", "decay": "constant"}
_SAFE: dict[str, Any] = {"lr": 2e-3, "warmup": 50}


def _run(name: str, cause: str, seed: int, steps: int, *acts: Act, **rest: Any) -> Recipe:
    shape = SHAPES[seed % len(SHAPES)]
    return Recipe(name=name, cause=cause, seed=seed, steps=steps, acts=acts, **(shape | rest))


def _at(kind: str, start: int, stop: int | None = None, **p: Any) -> Act:
    return Act(kind=kind, start=start, stop=stop, p=p)


ILL: tuple[Recipe, ...] = (
    # The learning rate: from the start, after a resume, creeping up
    _run("lr_start_a", "lr_too_high", 101, 900, lr=1.0, clip=0.0, corpus="code", cure=_SAFE),
    _run("lr_start_b", "lr_too_high", 102, 1000, lr=0.3, cure=_SAFE),
    _run("lr_start_c", "lr_too_high", 103, 1200, lr=0.1, corpus="code", decay="constant", cure=_SAFE),
    _run("lr_start_d", "lr_too_high", 104, 1200, lr=0.03, corpus="dense", cure=_SAFE),
    _run("lr_start_long_warmup_a", "lr_too_high", 105, 1500, lr=0.5, warmup=900, decay="constant", corpus="code", cure=_SAFE),
    _run("lr_start_long_warmup_b", "lr_too_high", 106, 1500, lr=0.3, warmup=1400, decay="constant", cure=_SAFE),
    _run("lr_resume_x10_a", "lr_raised", 111, 1300, _at("set", 700, lr_by=10.0), corpus="code"),
    _run("lr_resume_x30_a", "lr_raised", 112, 1400, _at("set", 800, lr_by=30.0)),
    _run("lr_resume_x30_b", "lr_raised", 113, 1800, _at("set", 1400, lr_by=30.0), corpus="code", decay="constant"),
    _run("lr_resume_x100_a", "lr_raised", 114, 1000, _at("set", 300, lr_by=100.0), decay="constant"),
    _run("lr_resume_x100_b", "lr_raised", 115, 1500, _at("set", 1000, lr_by=100.0), corpus="code"),
    _run("lr_resume_x50_c", "lr_raised", 116, 1600, _at("set", 900, lr_by=50.0), corpus="dense", decay="constant"),
    _run("lr_resume_brief_a", "lr_raised", 117, 1600, _at("set", 700, 720, lr_by=40.0), corpus="code"),
    _run("lr_resume_brief_b", "lr_raised", 118, 1700, _at("set", 500, 600, lr_by=20.0)),
    _run("lr_creep_a", "lr_creeping", 121, 1500, corpus="code", decay="creep", creep_steps=150, cure={"decay": "constant"}),
    _run("lr_creep_b", "lr_creeping", 122, 1800, decay="creep", creep_steps=220, cure={"decay": "constant"}),
    _run("lr_creep_c", "lr_creeping", 123, 6000, corpus="code", decay="creep", creep_steps=800, cure={"decay": "constant"}, **_TINY),
    # How the model was built
    _run("no_warmup_post_ln_a", "no_warmup", 131, 1000, norm="post", lr=0.05, warmup=0, cure=_SAFE),
    _run("no_warmup_post_ln_b", "no_warmup", 132, 1000, norm="post", lr=0.2, warmup=0, corpus="code", cure=_SAFE),
    _run("no_warmup_pre_ln", "no_warmup", 133, 1200, lr=0.01, warmup=0, beta2=0.999, corpus="code", cure=_SAFE),
    _run("no_layernorm_a", "no_layernorm", 141, 1000, norm="none", lr=0.05, clip=0.0, cure={"norm": "pre", **_SAFE}),
    _run("no_layernorm_b", "no_layernorm", 142, 1200, norm="none", lr=0.02, clip=0.0, corpus="code", beta2=0.999, cure={"norm": "pre", **_SAFE}),
    _run("no_layernorm_late", "no_layernorm", 143, 1600, norm="none", lr=0.03, warmup=1400, decay="constant", corpus="code", cure=_SAFE),
    _run("no_layernorm_ramp", "no_layernorm", 144, 1500, norm="none", layers=4, lr=0.08, warmup=1400, decay="constant", clip=0.0, relu=True, cure=_SAFE),
    _run("attention_growth_a", "attention_logits", 151, 1200, attention_gain=30.0, lr=5e-3, corpus="code", cure={"attention_gain": 1.0}),
    _run("attention_growth_b", "attention_logits", 152, 1300, _at("scale_weights", 700, of="blocks.0.qkv.weight", by=8.0), corpus="code"),
    _run("attention_growth_c", "attention_logits", 153, 1500, _at("scale_weights", 1000, of="blocks.1.qkv", by=40.0)),
    # fp16
    _run("fp16_weights_grow_a", "fp16_overflow", 161, 1400, _at("set", 600, weight_decay=-8.0), fp16=True, norm="none", corpus="code", decay="constant"),
    _run("fp16_weights_grow_b", "fp16_overflow", 162, 1300, _at("set", 300, weight_decay=-5.0), fp16=True, norm="none", decay="constant"),
    _run("fp16_lr_a", "fp16_overflow", 163, 1200, _at("set", 500, lr_by=60.0), fp16=True, norm="none", corpus="code", decay="constant"),
    _run("fp16_mlp_blowup", "fp16_overflow", 164, 1100, _at("scale_weights", 600, of="blocks.0.mlp_out", by=3e5), fp16=True, corpus="code"),
    _run("fp16_scale_too_high", "fp16_overflow", 165, 1200, _at("scaler", 700, to=2.0**40), fp16=True, corpus="code"),
    # Data
    _run("burst_garbage_2", "bad_data_burst", 171, 1300, _at("garbage", 700, 702), corpus="code"),
    _run("burst_garbage_20", "bad_data_burst", 172, 1500, _at("garbage", 800, 820), corpus="code"),
    _run("burst_garbage_100", "bad_data_burst", 173, 1800, _at("garbage", 900, 1000)),
    _run("burst_garbage_300", "bad_data_burst", 174, 1800, _at("garbage", 700, 1000), corpus="code"),
    _run("burst_repeated_5", "bad_data_burst", 175, 1200, _at("repeated", 600, 605), corpus="code"),
    _run("burst_repeated_40", "bad_data_burst", 176, 1700, _at("repeated", 700, 740)),
    _run("burst_labels_30", "bad_data_burst", 177, 1600, _at("labels", 900, 930), corpus="dense"),
    _run("burst_many", "bad_data_burst", 178, 2200, *(_at("garbage", s, s + 2) for s in (500, 720, 1100, 1130, 1800)), corpus="code"),
    _run("burst_hot_lr", "bad_data_burst", 179, 1500, _at("repeated", 700, 760), _at("set", 700, 760, lr_by=10.0, clip=0.0), corpus="code"),
    _run("dirty_typos_a", "bad_data_for_good", 181, 1500, _at("typos", 900, share=0.01), **_QUIET),
    _run("dirty_typos_b", "bad_data_for_good", 182, 1500, _at("typos", 1000, share=0.004), **_QUIET),
    _run("dirty_typos_c", "bad_data_for_good", 183, 1500, _at("typos", 700, share=0.05), corpus="code"),
    _run("dirty_rank_a", "bad_data_for_good", 184, 1500, _at("garbage", 800, share=0.06), **_QUIET),
    _run("dirty_rank_b", "bad_data_for_good", 185, 1600, _at("garbage", 1000, share=0.25)),
    _run("dirty_all", "bad_data_for_good", 186, 1200, _at("garbage", 700), corpus="code"),
    _run("labels_all_a", "label_shuffle", 191, 1200, _at("labels", 600), corpus="code"),
    _run("labels_all_b", "label_shuffle", 192, 1900, _at("labels", 1500)),
    _run("labels_third", "label_shuffle", 193, 1500, _at("labels", 800, share=0.3), corpus="dense"),
    _run("labels_few", "label_shuffle", 194, 1400, _at("labels", 800, share=0.04), **_QUIET),
    _run("labels_shifted", "label_shuffle", 195, 1500, _at("shifted", 700), corpus="code"),
    _run("wrong_data_a", "wrong_data_resumed", 201, 1500, _at("set", 900, corpus="dense"), corpus="code"),
    _run("wrong_data_b", "wrong_data_resumed", 202, 1600, _at("set", 1000, corpus="dense")),
    _run("wrong_tokenizer_a", "wrong_data_resumed", 203, 1600, _at("vocabulary", 900), corpus="code", decay="linear"),
    _run("wrong_tokenizer_b", "wrong_data_resumed", 204, 2200, _at("vocabulary", 600), corpus="code", decay="constant"),
    # The optimizer
    _run("beta2_a", "beta2", 211, 1300, _at("set", 600, beta2=0.9999, lr_by=15.0), corpus="code"),
    _run("beta2_b", "beta2", 212, 1200, lr=0.03, beta2=0.9999, warmup=10, cure={"lr": 2e-3, "beta2": 0.95}),
    _run("beta2_c", "beta2", 213, 1400, _at("set", 700, beta2=0.5, beta1=0.99), corpus="code", decay="constant"),
    _run("beta1_over_beta2", "beta2", 214, 1400, _at("set", 600, beta2=0.8, beta1=0.995, lr_by=5.0), decay="constant"),
    _run("v_zeroed_a", "optimizer_state", 221, 1300, _at("scale_v", 700, by=0.0), corpus="code", beta2=0.999, decay="constant"),
    _run("v_zeroed_b", "optimizer_state", 222, 1400, _at("scale_v", 600, by=1e-6), beta2=0.9999, lr=5e-3, decay="constant"),
    _run("v_zeroed_c", "optimizer_state", 223, 1500, _at("scale_v", 1000, by=1e-3), corpus="code"),
    _run("m_flipped_a", "optimizer_state", 224, 1400, _at("scale_m", 800, by=-100.0), corpus="code"),
    _run("m_flipped_b", "optimizer_state", 225, 1300, _at("scale_m", 600, by=-3000.0), corpus="code"),
    _run("eps_zero_frozen_v", "optimizer_state", 226, 1400, _at("scale_v", 700, by=1e-8), _at("set", 700, beta2=1.0), decay="constant"),
    _run("v_stuck", "optimizer_state", 227, 1500, _at("scale_v", 800, by=1e-3), _at("set", 800, beta2=0.99999), corpus="code", decay="constant"),
    _run("clip_off_a", "no_clipping", 231, 1400, _at("set", 600, clip=0.0, lr_by=25.0), corpus="dense", decay="constant"),
    _run("clip_off_b", "no_clipping", 232, 1400, lr=0.05, clip=0.0, mix=0.3, cure={"lr": 2e-3, "clip": 1.0}),
    _run("decay_negative_a", "weight_decay", 241, 2000, _at("set", 700, weight_decay=-1.0), corpus="code", decay="constant", lr=4e-3),
    _run("decay_negative_b", "weight_decay", 242, 1600, _at("set", 600, weight_decay=-4.0), decay="constant"),
    _run("decay_negative_c", "weight_decay", 243, 6500, _at("set", 4000, weight_decay=-0.6), corpus="code", decay="constant", **_TINY),
    _run("decay_huge_a", "weight_decay", 244, 1300, _at("set", 700, weight_decay=15.0), corpus="code", decay="constant"),
    _run("decay_huge_b", "weight_decay", 245, 1500, _at("set", 900, weight_decay=4.0), decay="constant"),
    # Weights
    _run("bit_flip_30_embedding", "bit_flip", 251, 1300, _at("bit_flip", 700, of="tokens.weight", bit=30), corpus="code"),
    _run("bit_flip_30_qkv", "bit_flip", 252, 1400, _at("bit_flip", 800, of="blocks.0.qkv.weight", bit=30)),
    _run("bit_flip_30_mlp", "bit_flip", 253, 1500, _at("bit_flip", 1000, of="blocks.1.mlp_out.weight", bit=30), corpus="code"),
    _run("bit_flip_30_norm", "bit_flip", 254, 1200, _at("bit_flip", 600, of="norm.weight", bit=30), corpus="code"),
    _run("bit_flip_29_mlp", "bit_flip", 255, 1400, _at("bit_flip", 700, of="blocks.0.mlp_in.weight", bit=29, count=8)),
    _run("bit_flip_27_embedding", "bit_flip", 256, 1500, _at("bit_flip", 900, of="tokens.weight", bit=27, count=60), corpus="code"),
    _run("bit_flip_26_all", "bit_flip", 257, 1800, _at("bit_flip", 1000, of="", bit=26, count=400), corpus="code"),
    _run("bit_flip_28_positions", "bit_flip", 258, 1500, _at("bit_flip", 800, of="positions", bit=30, count=3), corpus="dense"),
    _run("nan_weight_a", "nan_weight", 261, 900, _at("nan_weight", 600, of="blocks.1.mlp_in.weight"), corpus="code"),
    _run("nan_weight_b", "nan_weight", 262, 1700, _at("nan_weight", 1500, of="tokens.weight")),
    _run("nan_weight_early", "nan_weight", 263, 400, _at("nan_weight", 60, of="norm.weight"), corpus="dense"),
    _run("block_lost_frozen", "weights_lost", 271, 1500, _at("scale_weights", 900, of="blocks.1", by=0.0), _at("set", 900, frozen="blocks.1"), corpus="code"),
    _run("block_lost_relearned", "weights_lost", 272, 1800, _at("scale_weights", 900, of="blocks.0.mlp_out", by=0.0), corpus="code"),
    _run("attention_lost_frozen", "weights_lost", 273, 1500, _at("scale_weights", 800, of="blocks.1.attention_out", by=0.0), _at("set", 800, frozen="blocks.1.attention_out"), **_QUIET),
    _run("mlp_lost_frozen", "weights_lost", 274, 1600, _at("scale_weights", 1100, of="blocks.1.mlp_out", by=0.0), _at("set", 1100, frozen="blocks.1.mlp_out"), **_QUIET),
    _run("blocks_swapped", "weights_lost", 275, 1700, _at("swap_weights", 900, **{"of": "blocks.0", "with": "blocks.1"}), corpus="code"),
    _run("weights_noised", "weights_lost", 276, 1700, _at("noise_weights", 800, by=0.7), corpus="code"),
    _run("gradient_negated_mlp", "wrong_gradient", 281, 1500, _at("set", 800, negated="blocks.1.mlp_out"), corpus="code", decay="constant"),
    _run("gradient_negated_norm", "wrong_gradient", 282, 1600, _at("set", 900, negated="norm"), decay="constant"),
    _run("gradient_negated_bias", "wrong_gradient", 283, 4000, _at("set", 2500, negated="blocks.0.mlp_out.bias"), corpus="code", decay="constant", **_TINY),
    _run("gradient_negated_qkv", "wrong_gradient", 284, 1500, _at("set", 700, negated="blocks.0.qkv"), corpus="code", decay="constant"),
    # More that emerge by themselves, early, late, and in thinned logs
    _run("no_layernorm_ramp_b", "no_layernorm", 291, 1500, norm="none", lr=0.1, warmup=1800, decay="constant", corpus="code", clip=0.0, cure=_SAFE),
    _run("no_layernorm_ramp_c", "no_layernorm", 293, 1800, norm="none", lr=0.06, warmup=1700, decay="constant", corpus="dense", beta2=0.99, cure=_SAFE),
    _run("no_layernorm_early", "no_layernorm", 297, 600, norm="none", lr=0.15, warmup=300, decay="constant", corpus="code", cure=_SAFE),
    _run("post_ln_ramp", "no_warmup", 295, 1400, norm="post", layers=4, lr=0.1, warmup=1400, decay="constant", corpus="code", cure=_SAFE),
    _run("lr_ramp_early", "lr_too_high", 299, 700, lr=1.0, warmup=400, decay="constant", corpus="code", cure=_SAFE),
    _run("lr_creep_early", "lr_creeping", 501, 900, corpus="code", decay="creep", creep_steps=90, cure={"decay": "constant"}),
    _run("lr_resume_early", "lr_raised", 502, 700, _at("set", 120, lr_by=80.0), corpus="dense", decay="constant"),
    _run("lr_resume_late", "lr_raised", 503, 6500, _at("set", 5600, lr_by=60.0), corpus="code", decay="constant", **_TINY),
    _run("lr_resume_logged_10", "lr_raised", 505, 4000, _at("set", 2600, lr_by=50.0), corpus="code", decay="constant", log_interval=10, **_TINY),
    _run("fp16_lr_ramp", "fp16_overflow", 506, 1200, fp16=True, norm="none", lr=0.2, warmup=1200, decay="constant", corpus="code", clip=0.0, cure=_SAFE),
    _run("offset_small_a", "bad_data_for_good", 507, 3000, _at("typos", 2000, share=0.004), width=32, batch=48, heads=2, decay="linear", lr=6e-3, log_interval=10),
    _run("offset_small_b", "bad_data_for_good", 508, 3000, _at("labels", 2200, share=0.01), width=32, batch=48, heads=2, decay="linear", lr=6e-3, log_interval=10),
    _run("gradient_negated_late", "wrong_gradient", 509, 5000, _at("set", 4200, negated="tokens.weight"), corpus="dense", decay="constant", **_TINY),
    _run("bit_flip_30_late", "bit_flip", 510, 5000, _at("bit_flip", 4400, of="blocks.0.norm_1.weight", bit=30), corpus="code", **_TINY),
    _run("nan_weight_logged_10", "nan_weight", 511, 3000, _at("nan_weight", 1203, of="blocks.0.qkv.weight"), corpus="code", log_interval=10, **_TINY),
    _run("decay_negative_logged_5", "weight_decay", 512, 3000, _at("set", 1500, weight_decay=-3.0), corpus="code", decay="constant", log_interval=5, **_TINY),
)  # fmt: skip
