#!/bin/bash
#SBATCH --job-name=arrays --nodes=2
#SBATCH --time="12:00:00"
#SBATCH --signal=USR1@120

set -euo pipefail

CONFIG=ds_config.json
cat > "$CONFIG" <<"JSON"
{
    "train_batch_size": 64,
    "note": "costs $5, \"quoted\"",
    "optimizer": {}
}
JSON

declare -a COMMON=( --micro-batch-size 4 --global-batch-size 64 )
TRAINING=(
    "${COMMON[@]}"
    --lr=1e-4            # was 2e-4, see --lr-decay-style
    --lr-decay-style cosine
    --lr-warmup-iters 2000
    # --seed 1
    --seed "1234"
    --adam-beta2 '0.95'
    --train-iters 100000
    --title 'a title; with $signs "and" quotes'
    --split 949,50,1
)
TRAINING+=( --save-interval 500 --fp16 )

launch() {
    local CHECKPOINTS=checkpoints
    torchrun --nproc_per_node 4 pretrain_gpt.py \
        "${TRAINING[@]}" --deepspeed_config="$CONFIG" \
        --save "$CHECKPOINTS" "$@"
}

launch
