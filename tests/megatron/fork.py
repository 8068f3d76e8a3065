"""Microsoft's Megatron-DeepSpeed, patched so that it trains on this machine's CPU; the fork itself is not part of this.

The fork is looked for at SENTINEL_MEGATRON_DEEPSPEED and in `Megatron-DeepSpeed` beside the project. Its copy gets what
a CPU and today's torch need, the hook's lines (examples/megatron/microsoft.patch), a vocabulary and data of our own.
DeepSpeed 0.18 trains it as it is; 0.19.8 needs the guard around `deepspeed.compression`, and refuses
`curriculum_learning` in the JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PROJECT", "Fork", "found", "missing"]

PROJECT = Path(__file__).parents[2]
_EXTRA = "SENTINEL_MEGATRON_SITE"  # a folder of packages that come before the environment's: DeepSpeed 0.18, pybind11
_LEFT_OUT = shutil.ignore_patterns(".git", "dataset", "docs", "examples*", "images", "tasks", "tests")

_VIEWS = ("query_layer.view(output_size[2]", "key_layer.view(output_size[3]", "value_layer.view(value_layer.size(0)")
_COMPRESSION = "from deepspeed.compression.compress import init_compression, redundancy_clean\n"
_GUARDED = f"try:\n    {_COMPRESSION}except ImportError:\n    init_compression = redundancy_clean = None\n"
_NO_COMPILING = "import deepspeed.ops\ndeepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False\n"
_ALWAYS = """
--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
--micro-batch-size 2 --global-batch-size 4 --tokenizer-type GPT2BPETokenizer --data-impl mmap --split 90,10,0
--distributed-backend gloo --num-workers 0 --log-interval 1 --eval-iters 1 --eval-interval 1000
--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion
--no-async-tensor-model-parallel-allreduce --deepspeed --zero-stage 0 --no-pipeline-parallel
--attention-dropout 0 --hidden-dropout 0 --vocab-file vocab.json --merge-file merges.txt --data-path text
"""


def found() -> Path | None:
    """The fork's folder; None where it is not at hand."""
    named = os.environ.get("SENTINEL_MEGATRON_DEEPSPEED")
    places = [Path(named)] if named else [PROJECT.parent / "Megatron-DeepSpeed"]
    return next((place for place in places if (place / "pretrain_gpt.py").is_file()), None)


def missing() -> str | None:
    """Why the fork can't be trained here, as a phrase; None where it can."""
    if found() is None:
        return "no Megatron-DeepSpeed at SENTINEL_MEGATRON_DEEPSPEED or beside the project"
    site = _site()
    absent = [n for n in ("six", "pybind11") if importlib.util.find_spec(n) is None and not _lies_in(site, n)]
    return f"not installed: {', '.join(absent)} (pip install {' '.join(absent)})" if absent else None


def _site() -> list[Path]:
    return [Path(each) for each in os.environ.get(_EXTRA, "").split(os.pathsep) if each]


def _lies_in(folders: list[Path], name: str) -> bool:
    return any((folder / name).exists() or (folder / f"{name}.py").exists() for folder in folders)


class Fork:
    """A copy of the fork in a folder, and trainings with it."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.root, self.folder = folder / "fork", folder
        shutil.copytree(source, self.root, ignore=_LEFT_OUT)
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, [*_site(), self.root, PROJECT])),
            "DS_ACCELERATOR": "cpu",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
        }
        self._patch()
        self._compile()
        self._make_data()

    def _patch(self) -> None:
        for name, text in (("transforms", ""), ("datasets", "class VisionDataset: ...\n")):  # of its vision models
            (self.root / "torchvision" / name).mkdir(parents=True)
            (self.root / "torchvision" / name / "__init__.py").write_text(text)
        model = self.root / "megatron" / "model" / "transformer.py"
        text = model.read_text()
        for view in _VIEWS:
            assert text.count(view) == 1, view
            text = text.replace(view, view.replace(".view(", ".reshape("))
        model.write_text(text)
        program = self.root / "pretrain_gpt.py"  # shared-memory collectives take minutes to compile
        program.write_text(_NO_COMPILING + program.read_text())
        training = self.root / "megatron" / "training.py"
        patch = PROJECT / "examples" / "megatron" / "microsoft.patch"
        self._run([shutil.which("git") or "git", "apply", "--unidiff-zero", str(patch)], {}, self.root)
        text = training.read_text()
        assert text.count(_COMPRESSION) == 1
        training.write_text(text.replace(_COMPRESSION, _GUARDED))

    def _compile(self) -> None:
        data = self.root / "megatron" / "data"
        library = data / f"helpers{sysconfig.get_config_var('EXT_SUFFIX')}"
        includes = self._run([sys.executable, "-m", "pybind11", "--includes"], {}).split()
        command = [shutil.which("g++") or "g++", "-O1", "-shared", "-std=c++17", "-fPIC", *includes]
        self._run([*command, str(data / "helpers.cpp"), "-o", str(library)], {})

    def _make_data(self) -> None:
        """Bytes as tokens, words that a small model can learn, in the fork's own format."""
        letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
        names = [chr(byte) for byte in letters] + [chr(256 + n) for n in range(256 - len(letters))]
        (self.folder / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate([*names, "<|endoftext|>"])}))
        (self.folder / "merges.txt").write_text("#version: 0.2\n")
        drawn = random.Random(3)
        words = [[drawn.randrange(60, 90) for _ in range(5)] for _ in range(40)]
        documents = [[token for _ in range(60) for token in drawn.choice(words)] for _ in range(200)]
        (self.folder / "tokens.json").write_text(json.dumps(documents))
        code = (
            "import json, sys, numpy, torch\n"
            "from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder as Builder\n"
            "made = Builder(sys.argv[1] + '/text.bin', dtype=numpy.uint16)\n"
            "for document in json.load(open(sys.argv[1] + '/tokens.json')):\n"
            "    made.add_item(torch.tensor(document)); made.end_document()\n"
            "made.finalize(sys.argv[1] + '/text.idx')\n"
        )
        self._run([sys.executable, "-c", code, str(self.folder)], {})

    def script(self, options: str) -> str:
        """A job script that trains with these options, and makes its JSON from a template by sed, as the fork's own."""
        template = {"train_batch_size": "GBSIZE", "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0}
        (self.folder / "template.json").write_text(json.dumps(template).replace('"GBSIZE"', "GBSIZE"))
        own = " ".join(_ALWAYS.split())
        return (
            "#!/bin/bash\n"
            'sed "s/GBSIZE/4/" template.json > ds_config.json\n'
            f'options=" \\\n    {own} \\\n    {options} \\\n    --deepspeed_config ds_config.json"\n'
            f"{sys.executable} fork/pretrain_gpt.py $options\n"
        )

    def train(self, script: str, **environment: str) -> str:
        """Runs a job script, and returns what was printed; AssertionError with its end where the training dies."""
        (self.folder / "job.sh").write_text(script)
        return self._run([shutil.which("bash") or "bash", "-e", "job.sh"], environment)

    def deepspeed(self) -> str:
        """The version of DeepSpeed that it is trained with."""
        return self._run([sys.executable, "-c", "import deepspeed; print(deepspeed.__version__)"], {}).split()[-1]

    def go_back(self, step: int) -> None:
        """Points the checkpoints at this step, as a rollback does."""
        (self.folder / "checkpoints" / "latest").write_text(f"global_step{step}")
        (self.folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))

    def _run(self, command: list[str], environment: Mapping[str, str], folder: Path | None = None) -> str:
        env = self.environment | {"MASTER_PORT": str(29500 + random.randrange(2000))} | dict(environment)
        where = folder or self.folder
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout
