"""The formats of log lines, as a table. A new format is one entry here and one recorded log in tests/data/log_samples.

Where two formats read the same number of a log's lines, the earlier entry is taken: the peculiar come first, `generic`
last. What a trainer does that a reader of its numbers would not expect stands in the entry's `note` or beside it.
"""

from __future__ import annotations

import re

from sentinel.sources.dict_lines import Fairseq, JsonLines, Metaseq, MlPerf
from sentinel.sources.generic_lines import Generic, NanoGpt
from sentinel.sources.huggingface_lines import HuggingFace
from sentinel.sources.line_decoders import BlockPattern, LineFormat, LinePattern
from sentinel.sources.megatron_lines import GptNeox, Megatron, NeMo
from sentinel.sources.step_and_loss import EVALUATES
from sentinel.vocabulary.errors import ConfigError

FORMATS: tuple[LineFormat, ...] = (
    LineFormat(  # examples/megatron/variance_line.py
        name="sentinel",
        sample="sentinel: step 7 | loss: 2.5 | lr: 3e-4 | adam_variance_l1: 12.5 | adam_variance_max: 0.1 |",
        traps="written by examples/megatron/variance_line.py",
        reads=LinePattern(
            line=re.compile(r"\bsentinel: step (?P<step>\d+)"), contains=("sentinel: step ", "loss"), bars=True
        ),
        one_writer=True,
    ),
    LineFormat(
        name="nanotron",
        sample="10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 9 | lm_loss: 2.5 | lr: 1e-05",
        traps="`85.8G` has three digits",
        reads=LinePattern(
            line=re.compile(
                r"^(?!.*reduced_train_loss)(?=.*(?:\| lr:|DP=))(?P<head>.*?)"
                r"\b(?i:iteration):?\s*(?P<step>\d[\d,]*)\s*/\s*(?P<total>\d[\d,.]*(?i:[KMBG])?)"
            ),
            contains=("teration", "|"),
            bars=True,
            note="consumed tokens are rounded to three digits, as nanotron writes them",
        ),
    ),
    LineFormat(
        name="nemo",
        sample="Training epoch 0, iteration 6/19 | lr: 2.999e-07 | global_step: 6 | reduced_train_loss: 2.5",
        traps="NeMo 1 and 2; step 0 is update 1",
        reads=NeMo,
    ),
    LineFormat(
        name="gpt_neox",
        sample=" samples/sec: 87.558 | iteration 7/ 3072 | lm_loss: 2.5 | loss scale: 4096.0 |",
        reads=GptNeox,
        one_writer=True,
    ),
    LineFormat(
        name="megatron",
        sample=" iteration 7/ 1000 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.5 |",
        traps="Megatron-LM, Megatron-DeepSpeed, forks: also arguments, checkpoints, validations. With `--log-interval`"
        " the loss is a mean. `lm loss` is left out when it is nan, on skipped steps. `grad norm: 0.000`: not known",
        reads=Megatron,
        one_writer=True,
    ),
    LineFormat(
        name="huggingface",
        sample="{'loss': 2.5, 'grad_norm': 0.24, 'learning_rate': 5e-05, 'epoch': 0.0, 'step': 7}",
        traps="without a step in the line one line is one step; nan is logged as loss 0.0",
        reads=HuggingFace,
    ),
    LineFormat(
        name="metaseq",
        sample='2022-11-11 14:05:27 | INFO | train_inner | {"actv_norm": "0", "loss": "3.606738", "num_updates": "7"}',
        traps="bits, converted to nats",
        reads=Metaseq,
    ),
    LineFormat(
        name="fairseq",
        sample='2022-11-11 14:05:27 | INFO | train_inner | {"loss": "3.606738", "num_updates": "7", "gnorm": "1"}',
        traps="bits, converted to nats; where only sums of epochs are written, these",
        reads=Fairseq,
    ),
    LineFormat(  # a line for each rank, or one; Meta's lingua writes `grad`
        name="torchtitan",
        traps="a pipeline rank without the last stage prints loss -1: not averaged; alone in a log it is blind",
        sample="[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 7  loss:  2.5  grad_norm:  0.8319",
        reads=LinePattern(
            line=re.compile(r"\bstep:\s*(?P<step>\d+(?:,\d{3})*)(?:\s*/\s*(?P<total>\d+(?:,\d{3})*))?\s+(?=\w+:)"),
            contains=("step:", "loss:"),
            pairs=re.compile(r"(\w{1,64}):\s*(\S{1,64})"),
            validation_head=EVALUATES,
            starts_at=re.compile(r"\bTraining starts at step (\d+)"),
            not_visible=re.compile(r"\b[Ll]oss is not visible\b.{0,80}?\brank (\d+)"),
            start_words=("Training starts at step ", "oss is not visible"),
        ),
    ),
    LineFormat(  # OLMo and OLMo-core
        name="olmo",
        sample="INFO    [step=7/739328,epoch=0]\n    train/CrossEntropyLoss=2.5",
        traps="OLMo and OLMo-core; a step is complete when the next block begins",
        reads=BlockPattern(
            sign="[",
            header=re.compile(r"\[step=(?P<step>\d[\d,]*)(?:/(?P<total>\d[\d,]*))?[^\]]{0,200}\]"),
            item=re.compile(r"^[^=|{}]{0,120}?(?P<name>[A-Za-z_][\w/ ().-]{0,120}?)\s*=\s*(?P<value>\S+)\s*$"),
            validation=re.compile(r"^eval/.*(?:CrossEntropyLoss|CE loss)$"),
        ),
    ),
    LineFormat(
        name="composer",
        sample="[batch=7/100]:\n         Train loss/train/total: 2.5",
        traps="a step is complete when the next block begins",
        reads=BlockPattern(
            sign="[",
            header=re.compile(r"\[batch=(?P<step>\d[\d,]*)(?:/(?P<total>\d[\d,]*))?\]"),
            item=re.compile(r"^.{0,120}?\b(?P<name>(?:Train|Eval) [A-Za-z][\w/ .-]{0,120}?)\s*:\s+(?P<value>\S+)\s*$"),
            validation=re.compile(r"^Eval .*CrossEntropy$"),
        ),
    ),
    LineFormat(  # several iterations make a step; the loss at its end is litgpt's mean over them
        name="litgpt",
        sample="Epoch 1 | iter 14 step 7 | loss train: 2.5, val: n/a | iter time: 548.72 ms (step)",
        reads=LinePattern(
            line=re.compile(
                r"(?:\bEpoch (?P<epoch>\d+).{0,40}?)?\biter\s+(?P<iteration>\d[\d,]*)\s+step\s+(?P<step>\d[\d,]*)"
                r"\s*[|:]\s*(?:loss train|train loss|loss):?\s*(?P<loss>[^\s,|]+)"
            ),
            contains=("iter ", "loss"),
            validation=re.compile(r"\biter\s+\d+:\s*val loss:?\s*(?P<loss>[^\s,|]+)"),
        ),
    ),
    LineFormat(
        name="mlperf",
        sample=':::MLLOG {"key": "train_loss", "value": 2.5, "metadata": {"step": 7}}',
        traps="a count of samples is divided by the batch size that the log names",
        reads=MlPerf,
    ),
    LineFormat(  # seq2seq's: GNMT in NVIDIA's examples and in MLPerf; batches of an epoch are counted from 0
        name="gnmt",
        sample="0: TRAIN [0][7/3416]\tTime 0.332 (0.318)\tTok/s 54321 (52000)\tLoss/tok 2.5 (7.9)\tLR 1.000e-03",
        traps="batches of an epoch, counted over all epochs",
        reads=LinePattern(
            line=re.compile(
                r"\b(?:TRAIN|(?P<validation>VALIDATION)) \[(?P<epoch>\d+)\]\[(?P<step>\d+)/(?P<per_epoch>\d+)\]"
                r".*?\bLoss/tok (?P<loss>\S+)(?:.*?\bLR (?P<lr>\S+))?"
            ),
            contains=("Loss/tok",),
            note="the loss is of a token; steps are batches over all epochs",
            checkpoint_words=(),
        ),
    ),
    LineFormat(  # modded-nanogpt's descendants: `500/20000 train_loss: 3.39 train_time: 0.9m tok/s: 7669991`
        name="modded-nanogpt",
        sample="7/20000 train_loss: 2.5 train_time: 0.9m tok/s: 7669991",
        reads=LinePattern(
            line=re.compile(
                r"(?:^|\s)(?P<step>\d+)/(?P<total>\d+)\s+(?:train_loss|(?P<validation>val_loss)):\s*(?P<loss>[^\s,|]+)"
                r"(?:.*?\blr:\s*(?P<lr>[^\s,|]+))?(?:.*?\bgrad_norm:\s*(?P<grad_norm>[^\s,|]+))?"
            ),
            contains=("_loss:",),
            checkpoint_words=(),
        ),
    ),
    LineFormat(  # NVIDIA's; also its JSON lines, `DLLL {"type": "LOG", "step": [0, 1787], "data": {…}}`
        name="dllogger",
        sample="DLL 2020-05-29 11:31:45.763470 - Training Epoch: 0 Training Iteration: 7  step_loss : 2.5",
        reads=LinePattern(
            line=re.compile(
                r"^(?>(?P<head>.*?)DLL)(?P<time>.*?)(?:\bIteration\s*:\s*|[-:]\s*\((?:\d+,\s*)*(?=\d+,?\s*\))"
                r'|"step"\s*:\s*\[?(?:\s*\d+\s*,)*\s*)(?P<step>\d[\d,]*\d|\d)'
            ),
            contains=("DLL", "loss"),
            pairs=re.compile(r'(\w{1,64})"?\s*:\s*"?([-+]?(?:\d[\d.,eE+-]*|nan|inf|NaN|Infinity))'),
            checkpoint_words=(),
        ),
    ),
    LineFormat(  # Marian, a translator's trainer; its validations are sums over a sentence and are not read
        name="marian",
        sample="[2021-07-17 12:54:33] Ep. 1 : Up. 7 : Sen. 965,843 : Cost 2.5 : Time 359.59s : L.r. 3.0e-04",
        reads=LinePattern(
            line=re.compile(
                r"(?<!\[valid\] )\bEp\. \d+ : Up\. (?P<step>\d[\d,]*) : Sen\. [\d,]+ : Cost (?P<loss>[^\s:]+)"
                r"(?:.*? : gNorm (?P<grad_norm>[^\s:]+))?(?:.*? : L\.r\. (?P<lr>[^\s:]+))?"
            ),
            contains=(" : Up. ", " : Cost "),
            checkpoint_words=(),
        ),
        one_writer=True,
    ),
    LineFormat(
        name="mlx",
        sample="Iter 7: Train loss 2.5, Learning Rate 7.000e-05, It/sec 0.999, Trained Tokens 9699",
        reads=LinePattern(
            line=re.compile(
                r"\bIter (?P<step>\d[\d,]*): (?:Train|(?P<validation>Val)) loss (?P<loss>[^\s,]+)"
                r"(?:.*?\bLearning Rate (?P<lr>[^\s,]+))?(?:.*?\bTrained Tokens (?P<consumed_tokens>[^\s,]+))?"
            ),
            contains=("Iter ", " loss "),
            checkpoint_words=("heckpoint", "Saved adapter"),
        ),
    ),
    LineFormat(
        name="fms_fsdp",
        sample="step: 7\nloss: 2.5\nLR: 0.0003",
        traps="a step is complete when the next block begins",
        reads=BlockPattern(
            sign="step: ",
            header=re.compile(r"(?:^|[\]\s])step: (?P<step>\d[\d,]*)\s*$"),
            item=re.compile(
                r"^(?:.*[\]:] ?)?(?P<name>loss|LR|tokens seen|gradient norm|current step time): (?P<value>\S+)\s*$"
            ),
            validation=re.compile(r"(?!)"),
        ),
    ),
    LineFormat(  # llm.c's main.log, and build-nanogpt's log.txt: `250 train 5.87`, `250 val 5.91`, `250 hella 0.25`
        name="llm.c",
        sample="s:7 trl:2.5 lr:0.0006 norm:1.2",
        traps="llm.c and build-nanogpt; step 0 is update 1",
        reads=LinePattern(
            line=re.compile(
                r"(?:^|\s)(?:s:(?=\d+ t[re]l:)|(?=\d+ (?:train|val) \S+\s*$))(?P<step>\d+) "
                r"(?:trl:|train |(?P<validation>tel:|val ))(?P<loss>\S+)"
                r"(?:.*?\blr:(?P<lr>\S+))?(?:.*?\bnorm:(?P<grad_norm>\S+))?"
            ),
            checkpoint_words=(),
        ),
        one_writer=True,
    ),
    LineFormat(  # older versions: `Epoch:[0/19](100/24681) loss:5.251 lr:0.00020000 epoch_Time:98.0min:`
        name="minimind",
        sample="Epoch:[1/2](7/39695), loss: 2.6, logits_loss: 2.5, aux_loss: 0.1, lr: 0.0005, epoch_time: 4767.0min",
        traps="batches of an epoch, counted over all epochs",
        reads=LinePattern(
            line=re.compile(
                r"\bEpoch:\[(?P<epoch>\d+)/(?P<epochs>\d+)\]\((?P<step>\d+)/(?P<per_epoch>\d+)\),? "
                r"loss:\s*(?:[^\s,]+,\s*logits_loss:\s*)?(?P<loss>[^\s,]+)(?:.*?\b(?:lr|learning_rate):\s*(?P<lr>[^\s,]+))?"
            ),
            contains=("Epoch:[",),
            note="steps are MiniMind's batches over all epochs: --accumulation_steps of them make an update",
        ),
    ),
    LineFormat(  # numbers before their names; also `7 221.74 ms run, …, 2.50 loss, …` with milliseconds
        name="tinygrad",
        sample="    7 4.34 s run, 2.5 loss, 0.000100000000 LR, 1454.57 GB used, 399822.57 GFLOPS",
        reads=LinePattern(
            line=re.compile(
                r"(?:^|\s)(?P<step>\d+) +(?:(?P<step_time_s>[\d.]+) s|[\d.]+ ms) (?:run|step), "
                r"(?:.*?, )?\s*(?P<loss>\S+) loss, (?:.*?(?P<lr>\S+) (?:LR|lr), )?"
            ),
            contains=(" loss, ", " GFLOPS"),
            checkpoint_words=(),
        ),
        one_writer=True,
    ),
    LineFormat(
        name="nanogpt",
        sample="iter 7: loss 2.5, ppl 71.0037, time 3286.79ms, mfu 0.42%",
        traps="step 0 is update 1",
        reads=NanoGpt,
    ),
    LineFormat(name="jsonl", sample='{"train/loss": 2.5, "train/grad_norm": 21.2, "step": 7}', reads=JsonLines),
    LineFormat(
        name="generic",
        sample="step 7/100 | loss 2.5 | norm 1.2 | lr 3e-4",
        traps="a step and a loss on one line, in any words; only where nothing else fits",
        reads=Generic,
    ),
)


def format_named(name: str) -> LineFormat:
    """The format of that name. ConfigError lists the names that there are."""
    found = next((each for each in FORMATS if each.name == name), None)
    if found is None:
        raise ConfigError(f"no log format is called {name!r}; there are {', '.join(each.name for each in FORMATS)}")
    return found
