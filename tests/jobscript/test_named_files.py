"""A trainer's YAML and DeepSpeed JSON that a script names or writes: read as its options, and changed in a copy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from sentinel.adapters.slurm.trainer_files import with_named_files
from sentinel.jobscript import SetJson, SetOption, rewrite
from sentinel.jobscript.given import given
from sentinel.jobscript.named_files import named_files
from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lint import new_scripts
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import overrides_for
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor

# As LLaMA-Factory's examples/train_lora have it.
FACTORY = """\
### model
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507

### method
stage: sft
do_train: true
finetuning_type: lora

### 输出
output_dir: saves/qwen3-4b/lora/sft
save_steps: 500
report_to: none  # choices: [none, wandb]

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
max_steps: 3000
lr_scheduler_type: cosine
warmup_ratio: 0.1
seed: 7   # of all
bf16: true
resume_from_checkpoint: null
"""
# As axolotl's examples have it.
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
output_dir: ./outputs/lora-out
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
warmup_ratio: 0.1
max_grad_norm:
weight_decay: 0.0
special_tokens:
   pad_token: <|end_of_text|>
"""
STARTS = {
    "llamafactory-cli train conf/run.yaml": FACTORY,
    "srun llamafactory-cli train $HERE/run.yaml": FACTORY,
    "torchrun --nproc_per_node 2 src/train.py conf/run.yaml": FACTORY,
    "axolotl train conf/run.yaml --launcher torchrun": AXOLOTL,
    "accelerate launch --config_file fsdp.yaml -m axolotl.cli.train conf/run.yaml": AXOLOTL,
    "trl sft --config conf/run.yaml": FACTORY,
}
HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00\nHERE=conf\nset -e\n"


def inside(tmp_path: Path, start: str, content: str, name: str = "run.yaml") -> str:
    (tmp_path / "conf").mkdir(exist_ok=True)
    (tmp_path / "conf" / name).write_text(content)
    (tmp_path / "copies").mkdir(exist_ok=True)
    return with_named_files(f"{HEAD}{start}\n", tmp_path, f"{tmp_path}/copies/7-")


def changed(text: str, *, step: int = 300, **named: object) -> str:
    rung = Rung(name="drawn", hypothesis="drawn", **named)  # type: ignore[arg-type]
    anchor = Anchor(global_step=step)
    made = overrides_for(rung, baseline_of_script(text), incident="i", rollback="i-r1", anchor=anchor, new_seed=44)
    return new_scripts(text, made).first.text


def trained_with(text: str, tmp_path: Path) -> str:
    """The file that the trainer gets of the real bash, where every launcher is a stub that shows its file."""
    stubs = tmp_path / "bin"
    stubs.mkdir(exist_ok=True)
    for name in ("llamafactory-cli", "torchrun", "axolotl", "accelerate", "trl", "srun", "deepspeed"):
        shows = (
            '#!/bin/bash\nfor word in "$@"; do case $word in *fsdp.yaml) ;; *.yaml|*.json) cat "$word";; esac; done\n'
        )
        (stubs / name).write_text(shows)
        (stubs / name).chmod(0o755)
    environment = {"PATH": f"{stubs}:{os.defpath}"}
    ran = subprocess.run(["/bin/bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, check=True)
    return ran.stdout.decode()


@pytest.mark.parametrize(("start", "content"), STARTS.items())
def test_a_yaml_that_a_script_names_is_changed_in_a_copy_at_that_key_alone(
    start: str, content: str, tmp_path: Path
) -> None:
    text = inside(tmp_path, start, content)
    own = baseline_of_script(text)
    factory = content is FACTORY
    assert (own.seed, own.clip_grad, own.total_steps) == ((7, 1.0, 3000) if factory else (42, 1.0, None))
    assert (own.lr is not None) is factory  # axolotl works its warmup out from the number of steps
    assert trained_with(text, tmp_path) == content

    after = trained_with(changed(text, reseed=True, clip_grad=0.25), tmp_path)
    assert yaml.safe_load(after) == yaml.safe_load(content) | {"seed": 44, "max_grad_norm": 0.25}
    if factory:
        assert after == content.replace("seed: 7 ", "seed: 44 ") + "max_grad_norm: 0.25\n"
    else:
        assert after == content.replace("norm:\n", "norm: 0.25\n") + "seed: 44\n"
    assert (tmp_path / "conf/run.yaml").read_text() == content


def test_a_number_is_written_so_that_every_yaml_reader_takes_it_for_one(tmp_path: Path) -> None:
    text = inside(tmp_path, "llamafactory-cli train conf/run.yaml", FACTORY)
    after = trained_with(changed(text, step=0, lr_factor=0.03125, lr_warmup_factor=2.0), tmp_path)
    assert yaml.safe_load(after) == yaml.safe_load(FACTORY) | {"learning_rate": 3.125e-06, "warmup_steps": 600}


def test_axolotl_is_not_left_with_two_warmups(tmp_path: Path) -> None:
    content = AXOLOTL + "warmup_steps: 50\nmax_steps: 1000\n"
    text = inside(tmp_path, "axolotl train conf/run.yaml", content)
    after = yaml.safe_load(trained_with(changed(text, step=0, lr_warmup_factor=4.0), tmp_path))
    assert (after["warmup_steps"], "warmup_ratio" in after) == (200, False)


def test_on_a_resume_a_yaml_is_refused_what_an_option_is(tmp_path: Path) -> None:
    text = inside(tmp_path, "llamafactory-cli train conf/run.yaml", FACTORY + "deepspeed: ds.json\n")
    for named, flag in (({"lr_factor": 0.5}, "--learning_rate"), ({"clip_grad": 0.1}, "--max_grad_norm")):
        with pytest.raises(ConfigError, match=f"takes {flag} from the checkpoint: use StabilityCallback"):
            changed(text, **named)


def test_a_yaml_that_the_script_writes_is_changed_where_it_stands() -> None:
    text = f"{HEAD}RATE=1e-4\ncat > run.yaml <<EOT\n{FACTORY.replace('1.0e-4', '$RATE')}EOT\nlmf train run.yaml\n"
    own = read_text(text).facts
    assert (own.lr, own.clip_grad) == (1e-4, 1.0)
    new = changed(text, step=0, lr_factor=0.5)
    assert new == text.replace("learning_rate: $RATE", "learning_rate: 5.0e-05")


def test_what_the_command_line_gives_counts_and_not_the_yaml(tmp_path: Path) -> None:
    by_option = inside(tmp_path, "axolotl train conf/run.yaml --seed 5", AXOLOTL)
    assert baseline_of_script(by_option).seed == 5
    assert "--seed 44" in changed(by_option, reseed=True)
    by_word = inside(tmp_path, "llamafactory-cli train conf/run.yaml seed=5", FACTORY)
    with pytest.raises(ScriptRefused, match="seed there counts, and not the YAML's"):
        changed(by_word, reseed=True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (FACTORY + "seed: 8\n", "seed is given twice"),
        (FACTORY.replace("seed: 7", "seed: [7]"), "the value of seed is not one"),
        (
            FACTORY.replace("do_train: true", "do_train: &y 7").replace("seed: 7", "seed: *y"),
            "the value of seed is not",
        ),
        (FACTORY.replace("do_train", "- do_train"), "is not YAML"),
    ],
)
def test_a_yaml_that_is_not_surely_changed_is_refused(content: str, why: str, tmp_path: Path) -> None:
    text = inside(tmp_path, "llamafactory-cli train conf/run.yaml", content)
    with pytest.raises((ScriptRefused, ConfigError), match=why):
        rewrite(text, [SetOption(flag="--seed", value="44")])


def test_a_deepspeed_json_that_is_only_named_is_changed_in_a_copy(tmp_path: Path) -> None:
    content = '{\n  "train_batch_size": 16,\n  "gradient_clipping": 1.0\n}'
    start = "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config conf/ds.json --lr 1e-4 --num-layers 2"
    text = inside(tmp_path, start, content, "ds.json")
    assert given(text).deepspeed == {"train_batch_size": 16, "gradient_clipping": 1.0}
    new = rewrite(text, [SetJson(path=("gradient_clipping",), value=0.25)]).text
    assert trained_with(new, tmp_path) == content.replace("1.0", "0.25") + "\n"


@pytest.mark.parametrize(
    "start",
    [
        "cp other.yaml conf/run.yaml\nllamafactory-cli train conf/run.yaml",
        "sed -i s/7/8/ conf/run.yaml; llamafactory-cli train conf/run.yaml",
        "envsubst < t > conf/run.yaml\nllamafactory-cli train conf/run.yaml",
        "F=conf/run.yaml\npython make.py --out $F\nllamafactory-cli train $F",
        "F=conf/run.yaml\nif [ $X ]; then F=b.yaml; fi\nllamafactory-cli train $F",
        "llamafactory-cli train conf/run.yaml\nllamafactory-cli train conf/b.yaml",
    ],
)
def test_a_file_that_the_script_may_write_itself_is_left_alone(start: str, tmp_path: Path) -> None:
    assert inside(tmp_path, start, FACTORY) == f"{HEAD}{start}\n"


def test_the_file_may_be_shown_and_comes_to_lie_before_the_trainer(tmp_path: Path) -> None:
    start = 'F=conf/run.yaml\ncat $F\necho "training with $F"\nif true; then\n  lmf train $F\nfi'
    assert list(named_files(f"{HEAD}{start}\n")) == ["conf/run.yaml"]
    text = inside(tmp_path, start, FACTORY)
    assert text.index("SENTINEL_COPY\nif true") < text.index("lmf train")
    assert inside(tmp_path, start, FACTORY + "SENTINEL_COPY\n").count("SENTINEL_COPY_\n") == 1
