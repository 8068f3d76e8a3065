"""Logs of many trainers in the form in which they were seen in public, with numbers that are drawn here: what is true of
them is known without any reader. `python -m tests.sources.public_logs` prints how each is read.

Of a form stand here the lines of one step, with a name in angle brackets where a number is drawn:

n, i            the step; its place in the epoch, which begins again in each
e, e0           the epoch, from 1 and from 0
p               the step before
loss            the training loss, with two digits
val, x, y, z    other numbers; lr, norm
per, total      steps of an epoch, of the run
t               a time of day
"""

# ruff: noqa: E501 - the lines are as the trainers write them

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError

_STEPS, _NAN = 24, 21  # steps of a log, and the one whose loss is nan
_NAME = re.compile(r"<([a-z]+0?)(?::([^>]*))?>")


@dataclass(frozen=True, slots=True)
class Form:
    """How a trainer writes its steps."""

    kind: str
    seen: str
    """Where: of GitHub without the host."""

    line: str
    """One step; several lines where it takes them."""

    is_read: str = "right"
    """right; refused; or part, where steps are left out and that is said."""

    every: int = 10
    first: int = 10
    per_epoch: int = 0  # steps; 0: the log has no epochs
    adds: int = 0  # 1 where the log counts from 0
    fifth: str = ""  # what follows each fifth step
    head: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)  # what a person has to say for it to be read
    has_nan: bool = True
    last: str = ""  # what ends the log
    bits: bool = False  # losses in base 2
    suffix: str = ".log"


FORMS: tuple[Form, ...] = (
    Form(
        "NeMo Automodel",
        "NVIDIA-NeMo/Automodel/pull/3473",
        "2026-08-10 <t> | INFO | root | step <n> | epoch 0 | loss <loss:.4f> | grad_norm <norm:.4f> | lr 1.00e-05 | mem 31.55 "
        "GiB | tps 6574.51(821.81/gpu) | num_label_tokens 26779",
        every=1,
    ),
    Form(
        "caikit, one JSON object for each value",
        "caikit/caikit-nlp/pull/208",
        '{"name": "loss", "data": {"epoch": 0.01, "step": <n>, "value": <loss>, "timestamp": "2023-09-26T<t>.737364"}}',
        is_read="refused",
    ),
    Form(
        "mlx with a gradient's micro-steps between",
        "ml-explore/mlx-lm/pull/326",
        "[GRAD-DBG] it=<n> micro=9/10 loss=<x:.4f> toks=108 grad_l2=1.253e+01 grad_absmax=1.424e+00\n"
        "[GRAD-DBG] UPDATE(local) GA=10 local_l2=1.009e+01 local_absmax=1.212e+00\n"
        "Iter <n>: Train loss <loss:.3f>, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 6521",
    ),
    Form(
        "Keras, a bar for each epoch",
        "gretelai/gretel-synthetics/pull/7",
        "Epoch <n>/24\n13/13 [==============================] - 15s 1s/step - loss: <loss:.4f> - accuracy: 0.1634 - perplexity: "
        "<x:.4f>",
        is_read="refused",
        every=1,
        first=1,
    ),
    Form(
        "Keras, a bar drawn within the epoch",
        "keras-team/keras/pull/8169",
        "<n>/60000 [=====>........................] - ETA: 3s - loss: <loss:.4f> - acc: 0.<i>7",
        is_read="refused",
        head="Epoch 1/12\n",
    ),
    Form(
        "batches of epochs with a test loss after each",
        "mesolitica/NLP-Models-Tensorflow/issues/10",
        "Epoch   <e0> Batch  <i>/<per> - Loss: <loss:.4f> - perplextity: <x:.4f>\n"
        "Epoch   <e0> Batch  <i>/<per> - Test Loss: <val:.4f> - Test perplextity: <y:.4f>",
        per_epoch=80,
    ),
    Form(
        "PaddleNLP's trainer",
        "PaddlePaddle/PaddleNLP/pull/1761",
        "{'loss': <loss>, 'learning_rate': 4.4e-05, 'global_step': <n>, 'epoch': 2.0}        ",
        fifth=" 33%|####      | 200/600 [01:11<01:58,  3.37it/s][2022-03-25 <t>,060] [    INFO] - ***** Running Evaluation *****\n"
        "[2022-03-25 <t>,072] [    INFO] -   Num examples = 1200",
    ),
    Form(
        "PaddleSeg",
        "PaddlePaddle/PaddleSeg/pull/928",
        "2021-03-30 <t> [INFO]\t[TRAIN] epoch: 1, iter: <n>/500, loss: <loss:.4f>, lr: 0.009657, batch_cost: 0.5344, "
        "reader_cost: 0.07273, ips: 3.7425 samples/sec | ETA 00:04:16",
        every=20,
        first=20,
    ),
    Form(
        "PaddleSeg, older",
        "PaddlePaddle/PaddleSeg/pull/792",
        "2021-01-19 <t> [INFO]\t[TRAIN] epoch=1, iter=<n>/500, loss=<loss:.4f>, lr=0.009639, batch_cost=0.8913, "
        "reader_cost=0.2592 | ETA 00:01:24",
        every=5,
        first=5,
    ),
    Form(
        "PaddleOCR, OpenOCR",
        "Topdu/OpenOCR/issues/9",
        "[2024/08/06 <t>] openrec INFO: epoch: [<e>/3], global_step: <n>, lr: 0.000005, loss: <loss:.6f>, avg_reader_cost: 0.00971 "
        "s, avg_batch_cost: 0.18023 s, avg_samples: 64.0, ips: 355.10891 samples/s, eta: 0:32:33",
        per_epoch=80,
    ),
    Form(
        "Paddle's Transformer, a sum and an average",
        "PaddlePaddle/models/pull/810",
        "epoch: <e0>, batch: <i>,  sum loss: <x:.6f>, avg loss: <loss:.6f>, ppl: <y:.6f>",
        per_epoch=80,
        fifth="epoch: <e0>, val sum loss: <y:.6f>, val avg loss: <val:.6f>, val ppl: <z:.6f>, consumed 12.0s",
    ),
    Form(
        "LMOps MiniLLM (a policy loss beside a pre-training loss)",
        "microsoft/LMOps/issues/130",
        "train | data_epochs  0/10 | inner iter:   7/  8 | ppo epoch:  2/ 4 | global iter:     <n>/  5000| tot_loss: <loss:.4f> | "
        "rl_loss: -0.0407 | pt_loss: <x:.4f> | pg_loss: -0.0428 | reg_loss: 0.0021 | reward: 0.0000 | rev_kl: 0.0000 | lr: 2.5000e-07",
        is_read="refused",
        every=1,
    ),
    Form(
        "mindyolo",
        "mindspore-lab/mindyolo/issues/370",
        "2024-10-18 <t>,266 [INFO] Epoch <e>/500, Step <i>/<per>, imgsize (640, 640), loss: <loss:.4f>, lbox: <x:.4f>, lcls: "
        "<y:.4f>, dfl: <z:.4f>, cur_lr: 0.07888522744178772\n"
        "2024-10-18 <t>,268 [INFO] Epoch <e>/500, Step <i>/<per>, step time: 92.90 ms",
        per_epoch=80,
    ),
    Form(
        "mindocr",
        "mindspore-lab/mindocr/issues/77",
        "2023-02-17 <t>,405:INFO:epoch: [<e>/10] step: [<i>/<per>], lr: 0.001000, loss: <loss:.6f>, per step time: 3096.616 ms, fps: "
        "16.54 img/s",
        per_epoch=80,
    ),
    Form(
        "mindocr, data sinking (epochs only)",
        "mindspore-lab/mindocr/issues/77",
        "2023-02-17 <t>,405:INFO:epoch: [<n>/90] loss: <loss:.6f>, epoch time: 40.559 s, per step time: 207.995 ms, fps: 16.54",
        every=1,
        first=1,
    ),
    Form(
        "MMEngine, XTuner",
        "InternLM/xtuner/issues/658",
        "2024/05/07 <t> - mmengine - INFO - Iter(train) [<n>/2046]  lr: 3.3994e-05  eta: 0:29:39  time: 24.9128  data_time: 22.0483  "
        "memory: 15266  loss: <loss:.4f>  grad_norm: <norm:.4f>",
        fifth="2024/05/07 <t> - mmengine - INFO - Saving checkpoint at <n> iterations",
    ),
    Form(
        "MMCV, mmdetection 2",
        "open-mmlab/mmdetection/issues/2672",
        "2020-05-08 <t>,494 - mmdet - INFO - Epoch [<e>][<i>/<per>]\tlr: 0.00125, eta: 4:44:04, time: 0.593, data_time: 0.031, memory: "
        "6836, loss_rpn_cls: <x:.4f>, loss_rpn_bbox: <y:.4f>, loss_cls: <z:.4f>, acc: 94.0625, loss: <loss:.4f>",
        per_epoch=80,
    ),
    Form(
        "Detectron2",
        "facebookresearch/detectron2/issues/195",
        "[11/01 <t> d2.utils.events]: eta: 8:05:12  iter: <n>  total_loss: <loss>  loss_cls: <x:.3f>  loss_box_reg: <y:.3f>  time: "
        "0.3322  data_time: 0.0334  lr: 0.010000  max_mem: 3961M",
        every=20,
        first=19,
    ),
    Form(
        "Detectron",
        "facebookresearch/Detectron/issues/610",
        'json_stats: {"accuracy_cls": 1.000000, "eta": "0:21:51", "iter": <n>, "loss": <loss:.6f>, "loss_bbox": <x:.6f>, "loss_cls": '
        '<y:.6f>, "lr": 0.000025, "mb_qsize": 64, "mem": 3084, "time": 0.266505}',
        every=20,
        first=20,
        has_nan=False,
    ),
    Form(
        "maskrcnn-benchmark, with a mean in brackets",
        "facebookresearch/maskrcnn-benchmark/issues/976",
        "INFO: eta: 11:21:28  iter: <n>  loss: <loss:.4f> (<x:.4f>)  loss_box_reg: <y:.4f> (<z:.4f>)  time: 0.5088 (0.4600)  data: "
        "0.0164 (0.0177)  lr: 0.020000  max mem: 3150",
        every=20,
        first=20,
    ),
    Form(
        "torchtune",
        "meta-pytorch/torchtune/pull/1358",
        "Step <n> | loss:<loss> lr:2e-05 tokens_per_second_per_gpu:57.828881833956174",
        every=1,
        first=1,
        head="DEBUG:torchtune.utils.logging:Setting manual seed to local seed 3903944230. Local seed is seed + rank = 3903944230 + 0\n",
    ),
    Form(
        "torchtune, from 0",
        "meta-pytorch/torchtune/pull/640",
        "Step <n> | loss:<loss> lr:2e-05 gpu_resources:13708965376 ",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "MaxText",
        "AI-Hypercomputer/maxtext/pull/2232",
        "completed step: <n>, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: <loss:.3f>",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "fairseq before it counted updates",
        "facebookresearch/fairseq/issues/301",
        "| epoch 00<e>  <i> / <per> loss=<loss> (<x:.2f>), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=<norm:.4f>",
        per_epoch=80,
        fifth="| epoch 00<e> | valid on 'valid' subset  1000 / 1311 loss=<val:.2f>\n"
        "| epoch 00<e> | valid on 'valid' subset | valid loss <val:.2f> | valid ppl 3.83",
    ),
    Form(
        "fairseq 0.6",
        "facebookresearch/fairseq/issues/514",
        "| epoch 009:   <i> / 2737 loss=<loss:.3f>, nll_loss=<x:.3f>, ppl=33.60, wps=12800, ups=4.7, wpb=2568, bsz=108, num_updates=<n>, "
        "lr=0.000208983, gnorm=<norm:.3f>, clip=0%, oom=0, wall=4847, train_wall=4501",
        bits=True,
        fifth="| epoch 009 | loss <x:.3f> | nll_loss <y:.3f> | ppl 33.94 | wps 12857 | num_updates <n> | lr 0.0002 | gnorm 1.241\n"
        "| epoch 009 | valid on 'valid' subset | valid_loss <val:.5f> | valid_nll_loss <y:.5f> | valid_ppl 35.44 | num_updates <n>",
    ),
    Form(
        "fairseq, epochs only",
        "facebookresearch/XLM/issues/168",
        "| epoch 0<n> | loss <loss:.3f> | nll_loss <x:.3f> | ppl 1698.45 | wps 14018 | ups 0 | wpb 262316.708 | bsz 8438.088 | "
        "num_updates <n> | lr 5.65943e-05 | gnorm <norm:.3f> | clip 0.000 | oom 0.000 | wall 4255 | train_wall 4119",
        bits=True,
    ),
    Form(
        "fairseq, JSON of epochs",
        "facebookresearch/fairseq/issues/233",
        '{"epoch": 24, "loss": "<loss:.3f>", "nll_loss": "<x:.3f>", "ppl": "2.51", "wps": 1667443, "wpb": 617153, "num_updates": <n>, "lr": '
        '0.00019096, "gnorm": "<norm:.3f>", "clip": "100%", "oom": 0.026, "loss_scale": "4.000", "wall": 20721}\n'
        '{"epoch": 24, "valid_loss": <val:.6f>, "valid_nll_loss": <y:.6f>, "valid_ppl": "2.50"}',
    ),
    Form(
        "FastFold on Colossal-AI",
        "hpcaitech/FastFold/pull/138",
        "                    INFO     colossalai - colossalai - INFO: Training, Epoch: 0, Step: <i>, Global_Step: <n>, Loss: distogram="
        "<x:.3f> experimentally_resolved=0.693 fape=<y:.3f>\n"
        "                             lddt=3.912 masked_msa=3.135 violation=404.925 unscaled_loss=<z:.3f> loss=<loss:.3f> lddt_ca=0.010",
        is_read="refused",
        every=1,
        first=1,
    ),
    Form(
        "Lightning's bar",
        "official-stockfish/nnue-pytorch/issues/83",
        "\rEpoch 0:  39%|####      | <n>/12331 [05:59<09:15, 13.47it/s, loss=<loss>, v_num=1]",
    ),
    Form(
        "sentence-transformers 3",
        "huggingface/sentence-transformers/pull/2449",
        "{'loss': <loss>, 'learning_rate': 1.3934426229508198e-05, 'epoch': <n>}",
        every=1,
        first=1,
        fifth="{'eval_loss': <val>, 'eval_pearson_cosine': 0.870816510562672, 'eval_runtime': 49.1914, 'epoch': <n>}",
    ),
    Form(
        "llama.cpp finetune",
        "ggml-org/llama.cpp/issues/7611",
        "train_opt_callback: iter=    <n> sample=72/5608 sched=0.700000 loss=<loss:.6f> dt=00:04:59 eta=03:29:33 |----------------->",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "open_clip (the count is of samples)",
        "mertyg/vision-language-models-are-bows/issues/27",
        "2023-06-29,<t> | INFO | Train Epoch: <e0> [  <i>/<per> (3%)] Loss: <loss:.4f> (<x:.3f>) Data (t): 14.173 Batch (t): 18.240, "
        "1.75441/s LR: 0.000001 Logit Scale: 100.000 - V4",
        per_epoch=80,
        is_read="refused",
    ),
    Form(
        "ESPnet 1",
        "espnet/espnet/issues/3370",
        "iterations:<n>, train acc:0.440, train loss:<loss:.3f>, train loss ctc:<x:.3f>, train loss att:<y:.3f>,",
        every=1,
        first=1,
    ),
    Form(
        "ESPnet 2 (a line for a range of batches)",
        "espnet/espnet/issues/2183",
        "[gpu01:0/2] 2020-07-19 <t>,080 (trainer:464) INFO: <e>epoch:train:1-<i>batch: iter_time=2.878e-04, forward_time=0.134, "
        "loss=<loss:.3f>, loss_att=<x:.3f>, loss_ctc=<y:.3f>, acc=0.013, backward_time=0.111, optim_step_time=0.030, lr_0=3.460e-06, "
        "train_time=1.816",
        per_epoch=80,
    ),
    Form(
        "DeiT, MAE: a JSON object for each epoch",
        "yuhuan-wu/P2T/issues/13",
        '{"train_lr": 0.00052572, "train_loss": <loss>, "test_loss": <val>, "test_acc1": 74.15, "epoch": <n>, "n_parameters": 11590840}',
        every=1,
        first=0,
        adds=1,
        has_nan=False,
    ),
    Form(
        "OpenPCDet, timm's style",
        "open-mmlab/OpenPCDet/pull/1229",
        "2023-01-05 <t>,748   INFO  Train:    <e>/3 ( 33%) [  <i>/<per> ( 15%)]  Loss: <loss> (<x:.1f>)  LR: 1.351e-04  Time cost: "
        "00:15/01:25 [00:15/04:48]  Acc_iter <n>          Data time: 0.00(0.02)  Forward time: 0.31(0.29)  Batch time: 0.31(0.31)",
        per_epoch=80,
    ),
    Form(
        "timm",
        "huggingface/pytorch-image-models (train.py)",
        "Train: <e0> [ <i>/<per> (  4%)]  Loss: <loss:#.3g> (<x:.3f>)  Time: 0.358s,  715.34/s  (0.390s,  656.21/s)  LR: 5.000e-02  Data: "
        "0.011 (0.027)",
        per_epoch=80,
    ),
    Form(
        "OpenNMT-py (the loss is called xent)",
        "OpenNMT/OpenNMT-py/issues/1362",
        "[2019-03-21 <t>,773 INFO] Step <n>/200000; acc:  31.18; ppl: 57.53; xent: <loss>; lr: 0.00028; 5092/261 tok/s;   6641 sec",
        every=50,
        first=50,
        fifth="[2019-03-21 <t>,631 INFO] Loading dataset from XXXX.train.0.pt, number of examples: 66620",
    ),
    Form(
        "OpenNMT-py before steps",
        "OpenNMT/OpenNMT-py/issues/709",
        "Epoch  <e>, <i>/<per>; acc:   4.48; ppl: <x:.2f>; xent:  <loss>; 3599 src tok/s; 3678 tgt tok/s;   9861 s elapsed",
        per_epoch=80,
    ),
    Form(
        "OpenNMT's first port (no loss)",
        "Eurus-Holmes/MNMT/issues/8",
        "Epoch  2,   <n>/  725; acc:   0.00; ppl:  11.85; 5187 src tok/s; 5634 tgt tok/s;     55 s elapsed",
        is_read="refused",
    ),
    Form(
        "Transformer-XL",
        "kimiyoung/transformer-xl/issues/15",
        "| epoch   1 step     <n> |   <n> batches | lr 0.000249 | ms/batch 619.56 | loss  <loss> | ppl  <x:.3f>",
        every=200,
        first=200,
        fifth="----------------------------\n| Eval   2 at step     <n> | time: 2484.77s | valid loss  <val:.2f> | valid ppl  1616.071\n"
        "----------------------------",
    ),
    Form(
        "TF-Slim, each line twice",
        "tensorflow/models/issues/2980",
        "INFO:tensorflow:global step <n>: loss = <loss:.4f> (57.126 sec/step)\n"
        "INFO:tensorflow:global step <n>: loss = <loss:.4f> (57.126 sec/step)",
        every=1,
        first=1,
        fifth="INFO:tensorflow:Recording summary at step <n>.\nINFO:tensorflow:global_step/sec: 0.0339311",
    ),
    Form(
        "TensorFlow's estimator, Tensor2Tensor",
        "tensorflow/tensorflow/issues/43014",
        "INFO:tensorflow:loss = <loss:.6f>, step = <n> (124.394 sec)\nINFO:tensorflow:global_step/sec: 0.682575",
        every=100,
        first=100,
        fifth="INFO:tensorflow:Saving dict for global step <n>: global_step = <n>, loss = <val:.6f>\n"
        "INFO:tensorflow:Saving checkpoints for <n> into model.ckpt.",
    ),
    Form(
        "DeepSpeed-Chat, step 3 (reinforcement)",
        "deepspeedai/DeepSpeedExamples/issues/586",
        "epoch: 0|step: <n>|ppo_ep: 1|act_loss: <loss>|cri_loss: <x>|unsuper_loss: 0.0\naverage reward score: 0.20556640625\n-------",
        is_read="refused",
        every=1,
    ),
    Form(
        "verl (reinforcement)",
        "verl-project/verl/issues/7412",
        "(TaskRunner pid=222265) step:<n> - global_seqlen/min:419336 - actor/entropy:0.22266578674316406 - actor/pg_loss:<x> - "
        "actor/kl_loss:0.0013 - actor/loss:<loss> - actor/grad_norm:0.129 - actor/lr:2e-06 - training/global_step:<n> - "
        "critic/rewards/mean:-0.018",
        is_read="refused",
        every=1,
    ),
    Form(
        "verl, supervised",
        "verl-project/verl (fsdp_sft_trainer)",
        "step:<n> - train/loss:<loss:.3f> - train/lr(1e-3):<x:.3f> - train/time(s):<y:.3f>",
        every=1,
        first=1,
        fifth="step:<n> - val/loss:<val:.3f>",
    ),
    Form(
        "CPM-2",
        "TsinghuaAI/CPM-2-Finetune/issues/11",
        "epoch   3/ 10 | global iteration     <n>/    3402 | learning rate 3e-06 | lm loss <loss> | loss scale 1024.0 |",
        fifth="iteration <n> |  eval_loss: <val> | eval acc(mrr): 0.24293154761904762",
    ),
    Form(
        "Sockeye (no loss)",
        "awslabs/sockeye/issues/706",
        "[INFO:sockeye.training] Epoch[0] Batch [<n>]   Speed: 1293.60 samples/sec 36902.07 tokens/sec 6.25 updates/sec "
        "perplexity=<x:.6f>   accuracy=0.209457",
        is_read="refused",
    ),
    Form(
        "Marian (the loss is called Cost)",
        "marian-nmt/marian/issues/376",
        "[2021-07-17 <t>] Ep. 1 : Up. <n> : Sen. 965,843 : Cost <loss:.8f> : Time 359.59s : 3007.81 words/s",
        every=2000,
        first=2000,
        fifth="[2021-07-17 <t>] [valid] Ep. 1 : Up. <n> : cross-entropy : <val:.2f> : new best",
    ),
    Form(
        "flair",
        "flairNLP/flair/issues/3028",
        "2022-12-13 <t>,390 epoch <e> - iter <i>/<per> - loss <loss:.8f> - samples/sec: 71.79 - lr: 0.000023",
        per_epoch=80,
        fifth="2022-12-13 <t>,654 EPOCH <e> done: loss <x:.4f> - lr 0.000020",
    ),
    Form(
        "llm.c",
        "anthonix/llm.c/issues/2",
        "step   <n>/74 | loss <loss:.6f> (+0.12z)| norm <norm:.4f> (+nanz)| lr 3.00e-04 | 36.58 ms | 9.2% bf16 MFU | 112241 tok/s",
        every=1,
        first=1,
        fifth="val loss <val:.6f>",
    ),
    Form(
        "nanoVLM",
        "huggingface/nanoVLM/issues/187",
        "\nStep: <n>, Loss: <loss:.4f>, Val Loss: <val:.4f>, Tokens/s: 1200.12",
        every=100,
        first=100,
    ),
    Form(
        "nanochat",
        "karpathy/nanochat/issues/157",
        "step <n>/21400 (19.84%) | loss: <loss:.6f> | lrm: 1.00 | dt: 13776.73ms | tok/sec: 594 | mfu: 13.44 | total time: 971.74m",
        every=1,
        first=1,
        fifth="Step <n> | Validation bpb: <val:.4f>",
    ),
    Form(
        "icefall, a transducer (a batch and a running mean)",
        "k2-fsa/icefall/pull/399",
        "2022-06-08 <t>,072 INFO [train.py:815] Epoch <e>, batch <i>, loss[loss=<loss>, simple_loss=<x:.4f>, pruned_loss=<y:.3f>, over "
        "5392.00 frames.], tot_loss[loss=<z:.4f>, simple_loss=<y:.4f>, pruned_loss=9.21, over 31213.18 frames.], batch size: 18, lr: 3.00e-03",
        per_epoch=80,
    ),
    Form(
        "icefall, CTC and attention",
        "k2-fsa/icefall/issues/320",
        "2022-04-21 <t>,518 INFO [train.py:518] Epoch <e0>, batch <i>, loss[ctc_loss=<x:.4f>, att_loss=<y:.4f>, loss=<loss>, over 2223 "
        "frames.], tot_loss[ctc_loss=1.098, att_loss=1.086, loss=<z:.4f>, over 438207.72270125535 frames.], batch size: 8",
        per_epoch=80,
    ),
    Form(
        "NeMo 1's bar",
        "NVIDIA/NeMo-Framework-Launcher/issues/55",
        "\rEpoch 0:   1%|          | <n>/77225 [9:07:58<878:01:48, 41.36s/it, loss=<x:.1f>, v_num=, reduced_train_loss=<loss:.3f>, "
        "global_step=<p>.0, consumed_samples=1.63e+6]",
        every=1,
        first=2,
    ),
    Form(
        "BioNeMo (a validation loss stays on the lines)",
        "NVIDIA-BioNeMo/bionemo-recipes/pull/740",
        "Training epoch 0, iteration <n>/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: <n> | "
        "reduced_train_loss: <loss> | train_step_timing in s: 0.03146 | val_loss: <val>",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "LLaMA-Factory's trainer_log.jsonl",
        "hiyouga/LlamaFactory/issues/774",
        '{"current_steps": <n>, "total_steps": 3235, "loss": <loss>, "eval_loss": null, "predict_loss": null, "reward": null, '
        '"learning_rate": 1.44e-08, "epoch": 0.99, "percentage": 98.92, "elapsed_time": "5:13:22", "remaining_time": "0:03:25"}',
        last='{"current_steps": 3235, "total_steps": 3235, "loss": null, "eval_loss": null, "learning_rate": null, "epoch": 1.0}\n',
        has_nan=False,
        suffix=".jsonl",
    ),
    Form(
        "ms-swift",
        "modelscope/ms-swift/issues/2391",
        "\rTrain:   0%|          | 150/250250 [4:46:55<156:07:10,  2.25s/it]{'loss': <loss>, 'acc': 0.0, 'grad_norm': <norm>, "
        "'learning_rate': 8.4e-07, 'memory(GiB)': 17.11, 'train_speed(iter/s)': 0.006129, 'epoch': 0.0, 'global_step/max_steps': "
        "'<n>/250250', 'percentage': '0.04%', 'elapsed_time': '4h 45m 30s'}\n",
        every=5,
        first=5,
        fifth="{'eval_loss': <val>, 'eval_acc': 5.8e-07, 'eval_runtime': 8420.8682, 'epoch': 0.0, 'global_step/max_steps': '<n>/250250'}",
    ),
    Form(
        "ms-swift, DPO",
        "modelscope/ms-swift/issues/4146",
        "{'loss': <loss>, 'grad_norm': <norm>, 'learning_rate': 1e-06, 'rewards/chosen': -0.06152344, 'rewards/rejected': -1.625, "
        "'rewards/accuracies': 0.97916669, 'rewards/margins': 1.5625, 'logps/chosen': -176.0, 'nll_loss': <x>, 'epoch': 0.26, "
        "'global_step/max_steps': '<n>/94'}",
        every=1,
        first=1,
    ),
    Form(
        "kohya's bar",
        "kohya-ss/sd-scripts/issues/304",
        "\rsteps:  5%|##        | <n>/17824 [0:30:00<10:00:00,  1.49s/it, loss=<loss>]",
        every=1,
        first=1,
    ),
    Form(
        "Caffe",
        "BVLC/caffe/issues/4371",
        "I0627 <t>.020539 13757 solver.cpp:228] Iteration <n>, loss = <loss>\n"
        "I0627 <t>.020617 13757 solver.cpp:244]     Train net output #0: loss = <loss> (* 1 = <loss> loss)\n"
        "I0627 <t>.190858 13757 sgd_solver.cpp:106] Iteration <n>, lr = 0.001",
        every=20,
        first=20,
    ),
    Form(
        "Caffe, several outputs",
        "libornovax/master_thesis_code/issues/50",
        "I1109 <t>.646253  9709 solver.cpp:219] Iteration <n> (0.173887 iter/s, 57.5088s/10 iters), loss = <loss>\n"
        "I1109 <t>.646277  9709 solver.cpp:238]     Train net output #0: loss_x16 = <x> (* 1 = <x> loss)\n"
        "I1109 <t>.646282  9709 solver.cpp:238]     Train net output #1: loss_x2 = <y> (* 1 = <y> loss)\n"
        "I1109 <t>.646296  9709 sgd_solver.cpp:105] Iteration <n>, lr = 7.8125e-07",
    ),
    Form(
        "darknet",
        "AlexeyAB/darknet/issues/2449",
        " <n>: <x:.6f>, <loss:.6f> avg loss, 0.000000 rate, 20.457852 seconds, 6336 images\nLoaded: 0.000029 seconds",
        every=1,
        first=1,
        is_read="refused",
    ),
    Form(
        "MAE's meter",
        "keke-nice/rPPG-MAE/issues/8",
        "Epoch: [<e0>]  [ <i>/<per>]  eta: 0:00:26  lr: 0.000110  loss: <loss:.4f> (<x:.4f>)  time: 0.1171  data: 0.0001  max mem: 16887",
        per_epoch=80,
        fifth="Averaged stats: lr: 0.000150  loss: <y:.4f> (<z:.4f>)",
    ),
    Form(
        "fastText's progress (no step)",
        "facebookresearch/fastText/issues/604",
        '{"progress":62.8,"loss":<loss>,"lr":0.018593,"words":199549,"eta":"0h0m","eta_msec":0}',
        has_nan=False,
        every=1,
        first=1,
    ),
    Form(
        "fastai's table",
        "hamelsmu/code_search/issues/44",
        "    <n>      <loss:.6f>   <val:.6f>  ",
        head="epoch      trn_loss   val_loss                                \n",
        is_read="refused",
        every=1,
        first=0,
    ),
    Form(
        "MeshMAE, bars of epochs with their sums",
        "liang3588/MeshMAE/issues/11",
        "\rEpoch <e>/99 [Pretrain]:  10%|#####| <i>/<per> [2:21:16<00:00,  2.76s/it, loss=<loss:.6f>, lr=0.000100]",
        fifth="\nEpoch <e> Pretrain | Loss: <x:.6f> | Best Loss: 2.271230 | Best Epoch: 0 | Time: 2.4h",
        per_epoch=80,
    ),
    Form(
        "tinygrad (numbers before their names)",
        "tinygrad/tinygrad/pull/13803",
        "    <n> 93.44 s run, <loss:.4f> loss, 0.000000000001 LR, 642.43 GB used,  19644.30 GFLOPS",
        every=1,
        first=1,
    ),
    Form(
        "torch's examples (the count is of samples)",
        "pytorch/examples (mnist)",
        "Train Epoch: <e> [<i>/<per> (7%)]\tLoss: <loss:.6f>",
        per_epoch=80,
        fifth="\nTest set: Average loss: <val:.4f>, Accuracy: 9800/10000 (98%)\n",
        is_read="refused",
    ),
    Form(
        "torch's word_language_model",
        "pytorch/examples (word_language_model)",
        "| epoch   <e> |   <i>/ <per> batches | lr 20.00 | ms/batch 12.34 | loss  <loss> | ppl  <x:.2f>",
        per_epoch=80,
        fifth="| end of epoch   <e> | time: 40.12s | valid loss  <val:.2f> | valid ppl   500.10",
    ),
    Form(
        "GLM on SwissArmyTransformer",
        "THUDM/SwissArmyTransformer (training)",
        "[2023-05-18 <t>,100] [INFO] [RANK 0]  iteration       <n>/    1000 | elapsed time per iteration (ms): 1234.5 | learning rate "
        "1.000E-04 | total loss <loss:.6E> | loss <loss:.6E> | speed 12.34 samples/(min*GPU)",
        fifth="[2023-05-18 <t>,200] [INFO] [RANK 0]  validation loss at iteration <n> | loss: <val:.6E> | PPL: 1.0E+01",
    ),
    Form(
        "InternLM",
        "InternLM/InternLM (doc/en/usage.md)",
        "2023-07-07 <t>,802\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=<x>,step=<n>,loss=<loss>,"
        "tgs (tokens/gpu/second)=1424.64,lr=4.0000000000000003e-07,loss_scale=65536.0,grad_norm=<norm>,micro_num=4,"
        "num_consumed_tokens=131072",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "InternEvo",
        "InternLM/InternEvo (training_internlm.py)",
        "2024-03-27 <t>,047 INFO training_internlm.py:599 in record_current_batch_training_metrics -- tflops=<x> step=<n> loss=<loss> "
        "tgs (tokens/gpu/second)=3345.72 tgs/last_tgs_1=3345.74 lr=1e-05 loss_scale=65536.0 grad_norm={'0_default': <norm>, '1_fp32': "
        "0.0} micro_num=4 num_consumed_tokens=10485760",
        every=1,
        first=0,
        adds=1,
    ),
    Form(
        "RWKV-LM's bar",
        "BlinkDL/RWKV-LM (train.py)",
        "\rEpoch 0:   1%|          | <n>/40320 [00:40<1:10:20, 9.50it/s, loss=<loss:.3f>, lr=0.0006, REAL it/s=9.520, Kt/s=77.90]",
        every=1,
        first=1,
    ),
    Form(
        "diffusers' bar",
        "huggingface/diffusers (train_text_to_image)",
        "\rSteps:  10%|#         | <n>/1000 [01:00<09:00,  1.67it/s, lr=1e-5, step_loss=<loss>]",
        every=1,
        first=1,
    ),
    Form(
        "Open-Sora's bar",
        "hpcaitech/Open-Sora (train.py)",
        "\rEpoch <e0>:  10%|#         | <i>/<per> [01:00<09:00,  1.67it/s, loss=<loss>, step=<i>, global_step=<n>]",
        per_epoch=80,
    ),
    Form(
        "Levanter",
        "stanford-crfm/levanter (train_lm)",
        "2023-10-01T<t> - 0 - levanter.callbacks - INFO :: Progress on:train <n>it/10.0kit rate:1.2it/s remaining:1:20:00 "
        "elapsed:00:40 postfix:loss=<loss:.3f>",
        every=1,
        first=1,
    ),
    Form(
        "a JAX trainer with a batch size beside the step",
        "(a log in a README, its repository not named by the search)",
        "I0325 <t>.381767 130295542103168 train.py:652] Finished training step <n>. Batch size: 512, Loss: <loss:.5f>, LR: 0.00000\n"
        "I0325 <t>.335362 130245504009792 logging_writer.py:48] [<n>] steps_per_sec=0.014434",
        every=1,
        first=1,
    ),
    Form(
        "BMTrain",
        "OpenBMB/CPM-Bee (finetune)",
        "| Iter:  <n> | loss: <loss:.4f> | lr: 1.0000e-04, scale: 1024.0000 | time: 1.2345 |",
        every=1,
        first=1,
    ),
    Form(
        "XLNet's GPU trainer",
        "zihangdai/xlnet (train_gpu)",
        "I0623 <t>.123456 140 train_gpu.py:310] [<n>] | gnorm <norm:.2f> lr 0.000250 | loss <loss> | pplx <x:.2f>, bpc  10.4512",
        every=100,
        first=100,
    ),
    Form(
        "ELECTRA",
        "google-research/electra (run_pretraining)",
        "<n>/10000 = 0.1%, SPS: 1.2, ELAP: 10:00, ETA: 9:00:00 - loss: <loss:.4f>",
        every=100,
        first=100,
    ),
    Form(
        "t5x",
        "google-research/t5x (metrics)",
        "I0501 <t>.123456 140 logging_writer.py:48] [<n>] accuracy=0.1, cross_ent_loss=<x>, learning_rate=0.01, loss=<loss>, "
        "loss_per_nontarget=1.2",
        every=100,
        first=100,
    ),
)


def drawn(form: Form) -> tuple[str, list[tuple[int, float]]]:
    """A log of that form, and its steps with their losses."""
    draw, text, truth = random.Random(form.kind), [form.head], []
    for k in range(_STEPS):
        n = form.first + form.every * k
        loss = round(draw.uniform(5, 7) - 0.1 * k, 2)
        if k == _NAN and form.has_nan:
            loss = math.nan
        values = {name: round(draw.uniform(8, 9), 5) + 1e-6 for name in ("val", "x", "y", "z")}
        epoch, place = divmod(n - 1, form.per_epoch) if form.per_epoch else (0, n - 1)
        values |= {
            "n": n,
            "i": place + 1,
            "p": n - 1,
            "e": epoch + 1,
            "e0": epoch,
            "loss": loss,
            "norm": round(draw.uniform(1, 2), 4),
        }
        values |= {"per": form.per_epoch, "t": f"{k // 3600:02d}:{k // 60 % 60:02d}:{k % 60:02d}"}
        text.append(_filled(form.line, values) + "\n")
        if k % 5 == 4 and form.fifth:
            text.append(_filled(form.fifth, values) + "\n")
        truth.append((n + form.adds, loss * (math.log(2) if form.bits else 1)))
    return "".join(text) + form.last, truth


def _filled(line: str, values: Mapping[str, object]) -> str:
    return _NAME.sub(lambda found: format(values[found[1]], found[2] or ""), line)


def outcome(form: Form) -> tuple[str, str]:
    """How the log is read: right, part, refused or WRONG; and what is said of it."""
    text, truth = drawn(form)
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"log{form.suffix}"
        path.write_text(text)
        try:
            (source,) = open_sources(path, form.columns)
            read = [
                (int(step), float(loss))
                for block in source
                for step, loss in zip(block.steps, block.columns["loss"], strict=True)
            ]
        except ConfigError as error:
            return "refused", str(error).removeprefix(f"{path}: ")
        said = "; ".join(source.notes)
    if not read:
        return "refused", "no step"
    return compared(read, truth, said), said


def compared(read: list[tuple[int, float]], truth: list[tuple[int, float]], said: str) -> str:
    """right; part, where steps are missing and that is said; WRONG."""
    if _equal(read, truth):
        return "right"
    rest = iter(truth)
    is_part = all(any(_equal([one], [true]) for true in rest) for one in read)
    return "part" if is_part and said else "WRONG"


def _equal(read: list[tuple[int, float]], truth: list[tuple[int, float]]) -> bool:
    return len(read) == len(truth) and all(
        step == true and (math.isclose(loss, wanted, rel_tol=1e-6) or (math.isnan(loss) and math.isnan(wanted)))
        for (step, loss), (true, wanted) in zip(read, truth, strict=True)
    )


def _rows() -> Iterator[str]:
    for form in FORMS:
        how, said = outcome(form)
        yield f"{how:8} {'' if how == form.is_read else '<>' + form.is_read:10} {form.kind[:40]:40} {said[:150]}"


if __name__ == "__main__":
    print("\n".join(_rows()))
