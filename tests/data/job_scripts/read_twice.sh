#!/bin/bash
#SBATCH --job-name=multilingual
#SBATCH -N 2
#SBATCH -t 100:00:00

set -x -e

export SAVE_INTERVAL=100
readonly GLOBAL_BATCH=2048
declare -i WARMUP=183_105+0 2> /dev/null || declare -i WARMUP=183105
SEED=42
LR=6e-5

OPTIMIZER_ARGS=" --adam-beta2 0.95 --lr ${LR:-1e-4} --lr-decay-style cosine \
    --lr-warmup-samples $((WARMUP * 2)) \
    --clip-grad=1.0 "

GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH \
    --train-samples $(perl -e 'print 110_000_000*2') \
    --seed $SEED \
    $OPTIMIZER_ARGS \
    "

config_json="./ds_config.$SLURM_JOB_ID.json"

cat > $config_json <<-EOT
	{
	  "train_batch_size": $GLOBAL_BATCH,
	  "bf16": {"enabled": true},
	  "curriculum_learning": {
	    "enabled": false,
	    "max_difficulty": $((1024 * 2))
	  }
	}
	EOT

export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node 8 \
    --rdzv_backend c10d \
    --max_restarts 0 \
    --role \$(hostname -s|tr -dc '0-9'): \
    "

export CMD=" \
    `pwd`/pretrain_gpt.py \
    $GPT_ARGS \
    --save-interval $SAVE_INTERVAL \
    --deepspeed --deepspeed_config ${config_json} \
    "

SRUN_ARGS=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    "

clear() { :; }
clear; srun $SRUN_ARGS --jobid $SLURM_JOB_ID --seed=9 bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a log.txt
