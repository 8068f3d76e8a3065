"""Microsoft's Megatron-DeepSpeed diverging by itself under a real Slurm, rescued by a changed job script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.adapters.journal import Journals
from sentinel.plan.incident.incident import Proof
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.adapters.pagers import free_port
from tests.megatron.fork import Fork, found, missing
from tests.slurm.cluster import Cluster
from tests.support.log_lines import lines_of
from tests.support.slurm_runs import incidents

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500), pytest.mark.skipif(bool(missing()), reason=str(missing()))]

# SGD without clipping, towards a rate that this model does not bear: it learns, and then it does not.
OPTIONS = (
    "--optimizer sgd --lr 3.0 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-iters 100 --train-iters 400 --seed 7 "
    "--clip-grad 0 --save-interval 10 --save checkpoints --load checkpoints"
)
CONFIGURATION = """\
[run]
name = "megatron"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
kind = "slurm"
job_name = "megatron"
changes_in_script = true
query_interval_s = 0.4

[watch]
poll_interval_s = 0.3

[policy]
mode = "act"
margin_steps = 10
hold_steps = 60
confirm_within_s = 300

[[policy.ladder]]
name = "reseed + LR / 10"
hypothesis = "this model does not bear this learning rate"
reseed = true
lr_factor = 0.1
"""
PASSED_ON = ("PYTHONPATH", "DS_ACCELERATOR", "CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS", "RANK", "LOCAL_RANK")


def test_the_fork_is_rescued_from_a_divergence_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    source = found()
    assert source is not None
    fork = Fork(source, tmp_path)
    named = {name: fork.environment[name] for name in (*PASSED_ON, "WORLD_SIZE", "MASTER_ADDR")}
    named |= {"SENTINEL_STATE_DIR": str(tmp_path / "state"), "MASTER_PORT": f"$(({free_port()} + SLURM_JOB_ID % 10))"}
    exports = "".join(f"export {name}={value}\n" for name, value in named.items())
    script = tmp_path / "train.sh"
    script.write_text(fork.script(OPTIONS).replace("#!/bin/bash\n", f"#!/bin/bash\n#SBATCH --time=1:00:00\n{exports}"))
    (tmp_path / "state").mkdir()
    (tmp_path / "megatron.toml").write_text(CONFIGURATION)
    submitted = ("--job-name=megatron", "--output=log-%j.txt")
    first = cluster.slurm("sbatch", "--parsable", *submitted, str(script), cwd=tmp_path)
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(tmp_path / "megatron.toml")]
    watched = subprocess.run(line, capture_output=True, text=True, timeout=1300, check=False)
    assert watched.returncode == 0, watched.stderr[-3000:]
    (incident,) = incidents(tmp_path)
    assert (incident.status, incident.outcome) == ("closed", "recovered")
    (rollback,) = incident.rollbacks
    assert rollback.proof is Proof.CONFIRMED

    records = list(Journals(tmp_path / "state").poll())
    before, after = (r for r in records if isinstance(r, RunStarted))
    assert (before.job_id, before.seed) == (first, 7)
    assert (after.rollback, after.resumed_from) == (rollback.id, rollback.target_step)
    assert after.seed not in (None, 7)
    own, rescued = ([r for r in records if isinstance(r, Sample) and r.attempt == n] for n in (1, 2))
    assert rescued[0].lr == pytest.approx(0.1 * next(s.lr for s in own if s.global_step == rescued[0].global_step))
    assert max(s.loss for s in rescued) < max(s.loss for s in own)
    events = lines_of(tmp_path / "state" / "incidents.jsonl")
    assert [e["fault"] for e in events if e["event"] == "start_audited" and e["attempt"] == 2] == [None]
