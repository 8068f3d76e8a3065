"""Every form of log in `public_logs` is read right, or refused; what it says of itself is said."""

from __future__ import annotations

import pytest

from tests.sources.public_logs import FORMS, Form, outcome

SAID = {
    "a step here is an epoch": ("mindocr, data sinking (epochs only)",),
    "in bits (base 2)": (
        "fairseq before it counted updates",
        "fairseq 0.6",
        "fairseq, epochs only",
        "fairseq, JSON of epochs",
    ),
    "lines are numbered": ("DeiT, MAE: a JSON object for each epoch", "fastText's progress (no step)"),
    "a step here is one logged line": ("sentence-transformers 3",),
    "reinforcement learning": (
        "DeepSpeed-Chat, step 3 (reinforcement)",
        "verl (reinforcement)",
        "LMOps MiniLLM (a policy loss beside a pre-training loss)",
    ),
    "steps are counted anew in each epoch": ("flair", "timm", "OpenPCDet, timm's style"),
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
def test_a_log_in_a_form_of_another_trainer_is_read_right_or_refused(form: Form) -> None:
    how, said = outcome(form)
    assert how == form.is_read, said
    for sentence, kinds in SAID.items():
        assert sentence in said or form.kind not in kinds
