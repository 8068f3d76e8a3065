#!/bin/bash
#SBATCH --job-name=wide-7B
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1          # one launcher for each node
#SBATCH --time 20:00:00              # HH:MM:SS
#SBATCH --output=%x-%j.out
##SBATCH --time=1:00:00

set -e

# earlier attempts: --lr 1e-4 --seed 42 diverged at 7k
RUN=$PWD/run
CHECKPOINTS=$RUN/checkpoints
SAVE_INTERVAL=300
HEAD_NODE=$(hostname)
NNODES=4
SEQ_LEN=2048
MICRO_BATCH=1
GLOBAL_BATCH=512
ZERO_STAGE=1

OPTIMIZER_ARGS=" \
    --optimizer adam \
    --adam-beta1 0.9 \
    --adam-beta2 0.999 \
    --lr 6e-5 \
    --min-lr 6e-6 \
    --lr-decay-style cosine \
    --lr-decay-samples 126_953_125 \
    --lr-warmup-samples 216_320 \
    --clip-grad 1.0 \
    "

MODEL_ARGS=" \
    --seq-length $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH \
    --rampup-batch-size 16 16 6_000_000 \
    --global-batch-size $GLOBAL_BATCH \
    --train-samples 300_000_000 \
    --fp16 \
    --seed 43 \
    --seed-offset 7 \
    $OPTIMIZER_ARGS \
    "

OUTPUT_ARGS=" \
    --log-interval 1 \
    --save-interval $SAVE_INTERVAL \
    --eval-interval 1000 \
    "

config_json="./ds_config.$SLURM_JOBID.json"

cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "train_batch_size": $GLOBAL_BATCH, "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "fp16": {
    "enabled": true,
    "initial_scale_power": 12
  },
  "wall_clock_breakdown": false
}
EOT

DEEPSPEED_ARGS=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --zero-stage ${ZERO_STAGE} \
    "

export LAUNCHER="python -u -m torch.distributed.launch \
    --nproc_per_node 8 \
    --nnodes $NNODES \
    --master_addr $HEAD_NODE \
    "

export CMD=" \
    `pwd`/pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    $MODEL_ARGS \
    $OUTPUT_ARGS \
    --save $CHECKPOINTS \
    --load $CHECKPOINTS \
    $DEEPSPEED_ARGS \
    "

echo $CMD

srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a main_log.txt

# perl -pi -e 's|--seed 43|--seed 44|' next.sh
