#!/bin/bash
#SBATCH --partition=gpu
export LR_WARMUP=2000
python tools/preprocess.py --seed 5 --output data
shuf --random-source=/dev/zero -e --head-count=1 a >/dev/null
srun --export=ALL --ntasks=8 \
  python -u pretrain_gpt.py \
    --micro-batch-size 4 --global-batch-size 64 \
    --lr 1.5e-4 --lr 1.6e-4 \
    --lr-warmup-iters "$LR_WARMUP" \
    --seed 1234 \
    --train-iters 500000 \
    --no-load-rng \
    --betas 0.9 0.95 \
    --clip-grad -1.0
echo "finished --seed 1234"
