#!/bin/bash
# GPT with values at the top, and a command that is put together and evaluated
SEQ_LEN=2048
GLOBAL_BATCH_SIZE=256
TRAIN_TOKENS=300000000000
LR=2.0e-4
MIN_LR=1.0e-6
SEED=1234
WARMUP_TOKENS=$((375 * 1000000))
ACTIVATION_CHECKPOINT="true"
NAME="gpt-lr-${LR}-seed-${SEED}"
OUTPUT=output/${NAME}
mkdir -p ${OUTPUT}

TRAIN_SAMPLES=$(( ${TRAIN_TOKENS} * 3 / ${SEQ_LEN} ))

config_json="ds_config_${NAME}.json"
cat <<'EOT' > ${config_json}
{"train_batch_size": 256, "steps_per_print": 10, "prescale_gradients": false}
EOT

megatron_options=" \
        --override-opt_param-scheduler \
        --adam-beta1 0.9 \
        --adam-beta2 0.95 \
        --init-method-std 0.013 \
        --lr-decay-tokens 260000000000 \
        --lr-warmup-tokens ${WARMUP_TOKENS} \
        --micro-batch-size 4 \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --train-samples ${TRAIN_SAMPLES} \
        --lr ${LR} \
        --min-lr ${MIN_LR} \
        --clip-grad 1.0 \
        --save-interval 1000 \
        --seed ${SEED} \
        --save ${OUTPUT}"

if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
megatron_options="${megatron_options} \
        --checkpoint-activations"
fi

deepspeed_options=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --no-pipeline-parallel"

run_cmd="deepspeed ./pretrain_gpt.py ${megatron_options} ${deepspeed_options} 2>&1 | tee log_${NAME}.txt"
echo ${run_cmd}
eval ${run_cmd}
