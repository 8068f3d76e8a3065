"""A job script like that of tr8-104B, and small ones, as lint reads them."""

from __future__ import annotations

WIDE = """#!/bin/bash
#SBATCH --job-name=tr8-104B
#SBATCH --nodes=64
#SBATCH --gres=gpu:4
#SBATCH --time 20:00:00
GPUS_PER_NODE=4
NNODES=64
NHIDDEN=16384
FFN_HIDDEN_SIZE=20480
GPT_ARGS=" \\
    --num-layers 32 --hidden-size $NHIDDEN --ffn-hidden-size $FFN_HIDDEN_SIZE --num-attention-heads 32 \\
    --seq-length 2048 --micro-batch-size 1 --global-batch-size 2048 --rampup-batch-size 16 16 6_000_000 \\
    --train-samples 300_000_000 --lr-warmup-samples 216_320 --lr 6e-5 --adam-beta2 0.999 --fp16 \\
    --exit-duration-in-mins 1190 \\
    "
cat <<EOT > ds_config.json
{"train_batch_size": 2048, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12},
 "zero_optimization": {"stage": $ZERO_STAGE}}
EOT
export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
export CMD="`pwd`/pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 $GPT_ARGS \\
    --save-interval 1500 --save checkpoints --deepspeed --deepspeed_config ds_config.json"
srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a main_log.txt
"""


def script(words: str, *above: str) -> str:
    return "\n".join(["#!/bin/bash", *above, f"python pretrain_gpt.py --train-iters 1000 {words}", ""])
