#!/bin/bash
#$ -S /bin/bash
# What the job runs. Add queue, slots and limits as #$ lines. Its environment has SENTINEL_STATE_DIR, which the hook in
# the trainer needs; in a job that a person submits, set it here. SENTINEL_JOB, by which sentinel knows the trainer's
# job, is the job's name.
set -euo pipefail
export SENTINEL_JOB=${SENTINEL_JOB:-$JOB_NAME}
cd /where/the/trainer/is
exec python train.py
