#!/bin/bash
# What the Ray job runs, on the cluster. Its environment has SENTINEL_STATE_DIR, which the hook in the trainer needs; in a
# job that a person submits, set it here. SENTINEL_JOB, by which sentinel knows the trainer's job, is the submission id.
set -euo pipefail
id='import json, os; print(json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"])'
export SENTINEL_JOB=${SENTINEL_JOB:-$(python3 -c "$id")}
cd /where/the/trainer/is
exec python train.py
