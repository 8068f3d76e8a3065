"""Every form of log in `public_logs` is read right, or refused; what it says of itself is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sentinel.judge.readings import CARRIED, COLUMNS
from sentinel.sources.followed_log import FollowedLog
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from tests.sources.public_logs import FORMS, Form, compared, drawn, outcome
from tests.sources.reading import samples
from tests.sources.readings import told

SAID = {
    "a step here is an epoch": ("mindocr, data sinking (epochs only)",),
    "in bits (base 2)": (
        *("fairseq before it counted updates", "fairseq 0.6", "fairseq, epochs only", "fairseq, JSON of epochs"),
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


@pytest.mark.parametrize("form", [form for form in FORMS if form.fields], ids=lambda form: form.kind)
def test_what_else_the_line_of_a_step_says_is_read(tmp_path: Path, form: Form) -> None:
    (tmp_path / "a.log").write_text(drawn(form)[0])
    (source,) = open_sources(tmp_path / "a.log", {})
    source.fields = (*COLUMNS, *CARRIED)
    sample, fields = told(source)[3], form.fields or {}
    assert {field: sample.get(field) for field in fields} == pytest.approx(dict(fields))
    assert ("grad_norm" in sample) == ("grad_norm" in fields)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
def test_followed_as_it_grows_it_gives_the_same_and_never_another_loss(tmp_path: Path, form: Form) -> None:
    text, truth = drawn(form)
    followed, records, lines = FollowedLog(tmp_path / "log", now=lambda: math.nan), [], text.splitlines(keepends=True)
    for k in range(0, len(lines) + 14, 7):
        with (tmp_path / "log").open("a") as file:
            file.writelines(lines[k : k + 7])
        try:
            records += followed.poll()
        except ConfigError:
            break
    read = [(one.global_step, one.loss) for one in samples(records)]
    is_numbered = form.kind in SAID["lines are numbered"]  # a table, which is no log to be followed
    assert (compared(read, truth, "") if read else "refused") == ("refused" if is_numbered else form.is_read)
