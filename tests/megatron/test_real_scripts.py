"""Job scripts of Microsoft's and BigScience's repositories: what a rung plans is what the changed script asks for.

The repositories are looked for at SENTINEL_MEGATRON_SCRIPTS (folders, separated by colons); they are not part of this.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lint import KnownSettings, new_scripts
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import overrides_for
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor

FOLDERS = [Path(each) for each in os.environ.get("SENTINEL_MEGATRON_SCRIPTS", "").split(os.pathsep) if each]
SCRIPTS = [path for folder in FOLDERS for suffix in ("sh", "slurm") for path in sorted(folder.rglob(f"*.{suffix}"))]
RUNGS = (
    Rung(name="lower LR", hypothesis="…", lr_factor=0.5),
    Rung(name="longer warmup", hypothesis="…", lr_warmup_factor=8),
    Rung(name="SLW", hypothesis="…", seqlen_start=64, seqlen_total_steps=2000),
    Rung(name="clipping", hypothesis="…", clip_grad=0.25),
)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not SCRIPTS, reason="no repository of job scripts at SENTINEL_MEGATRON_SCRIPTS"),
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_numbers_of_the_plan_are_those_of_the_changed_script(path: Path) -> None:
    text = path.read_text(errors="surrogateescape")
    try:
        own = baseline_of_script(text)
    except ConfigError as error:
        pytest.skip(str(error))
    full, batch = own.full_seqlen or 1, own.batch_size.full if own.batch_size else 1
    at = Anchor(global_step=300, consumed_samples=300 * batch, consumed_tokens=300 * batch * full)
    known = KnownSettings(scheduler=read_text(text).facts.lr_scheduler or "lr-scheduler")
    for rung in RUNGS:
        named = {"incident": "incident-1", "rollback": "incident-1-r1"}
        try:
            made = overrides_for(rung, own, **named, anchor=at, new_seed=44)
            text_then = new_scripts(text, made, known).first.text
        except (ConfigError, ScriptRefused):  # refused, with a reason: nothing is written
            continue
        then, wanted = baseline_of_script(text_then), made.standing
        if wanted.lr is not None:
            assert then.lr is not None
            assert (then.lr.peak, then.lr.warmup, then.lr.unit) == (wanted.lr.peak, wanted.lr.warmup, wanted.lr.unit)
        if rung.seqlen_start is not None:
            assert then.total_tokens == wanted.total_tokens
        if rung.clip_grad is not None:
            assert "gradient_clipping" in text_then or not re.search(r"--deepspeed(?![\w-])", text)
