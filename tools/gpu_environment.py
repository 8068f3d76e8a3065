"""Finds the Python whose torch sees the GPU, adds what it lacks, and runs `python -m benchmarks.gpu` with it.

    python3 tools/gpu_environment.py [--wheels DIR] -- [arguments of benchmarks.gpu]     what `make gpu` does
    python3 tools/gpu_environment.py ask                                                 what this machine has and lacks
    python3 tools/gpu_environment.py wheel [--python 3.12] DIR                           for a machine without network

Standard library alone; the machine's own packages stay as they are. What is missing is put into .gpu-site: from DIR
(default .gpu-wheels) where it is there, else from the package index that pip is configured with. Where no Python has a
torch that sees the GPU, .venv-gpu is made and torch installed as the driver can take it. `wheel` builds DeepSpeed from
its source without compiled ops (it compiles what it needs when it is used) and downloads the rest for that Python.

Exit codes: those of benchmarks.gpu; 3 there is no torch that sees a GPU, and none can be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".gpu-site"

OLDEST_PYTHON = (3, 11)

OF_THE_HOOKS = ("prometheus_client",)
OF_DEEPSPEED = (
    *("deepspeed", "einops", "hjson", "msgpack", "ninja", "numpy", "packaging", "psutil", "py-cpuinfo", "tqdm"),
    *("pydantic", "pydantic_core", "annotated-types", "typing-extensions", "typing-inspection"),
)
OF_THE_TESTS = ("pytest", "iniconfig", "pluggy", "pygments", "hypothesis", "sortedcontainers")
NEEDED = (*OF_THE_HOOKS, *OF_DEEPSPEED, *OF_THE_TESTS)
"""Beside torch. Nothing of the daemon."""

TOGETHER = frozenset(OF_DEEPSPEED[-5:])
"""pydantic and what it takes in one version alone: where one of them is missing, all are added."""

_LOOK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
found = {"python": sys.version_info[:2], "torch": None, "cuda": False, "versions": {n: of(n) for n in sys.argv[1:]}}
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.cuda.is_available())
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["ask"]:
        return _ask()
    if given[:1] == ["wheel"]:
        parser = argparse.ArgumentParser(prog="gpu_environment.py wheel")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]), help="default: this one")
        asked = parser.parse_args(given[1:])
        return _wheels(asked.folder, asked.python)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels")
    parser.add_argument("arguments", nargs="*")
    asked = parser.parse_args(given)
    on_cpu = "cpu" in asked.arguments  # a rehearsal
    python = _with_torch(_pythons(), on_cpu=on_cpu) or _made()
    if python is None:
        return 3
    _add_what_is_missing(python, asked.wheels)
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execve(python, [str(python), "-m", "benchmarks.gpu", *asked.arguments], _environment())  # noqa: S606 - a list
    raise AssertionError("execve does not return")


def torch_for(cuda: str) -> str:
    """The torch whose wheel from PyPI runs on such a driver: those of 2.11 and later are of CUDA 13, before of 12."""
    return "torch>=2.4" if int(cuda.partition(".")[0]) >= 13 else "torch>=2.4,<2.11"


def _ask() -> int:
    python = _with_torch(_pythons())
    print(f"driver: {_driver_cuda() or 'none'} (newest CUDA that it takes)")
    for name in ("nvcc", "compute-sanitizer", "ninja", "make"):
        print(f"{name}: {shutil.which(name) or 'none'}")
    for each in _pythons():
        found = _look(each)
        print(f"{each}: torch {found['torch']}, sees a GPU: {found['cuda']}")
    asked = python or Path(sys.executable)
    versions = dict(_look(asked, (*NEEDED, "triton", "tensorboard"))["versions"])
    print(f"of {asked}: " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items()))
    return 0 if python else 3


def _pythons() -> Iterable[Path]:
    names = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
    made = ROOT / ".venv-gpu" / "bin" / "python"
    found = [str(made) if made.exists() else None, sys.executable, *(shutil.which(name) for name in names)]
    return dict.fromkeys(Path(path) for path in found if path)


def _with_torch(pythons: Iterable[Path], *, on_cpu: bool = False) -> Path | None:
    """The first whose torch sees a GPU; for a CPU the first that has torch."""
    return next((python for python in pythons if _look(python)["torch" if on_cpu else "cuda"]), None)


def _look(python: Path, names: Iterable[str] = ()) -> dict[str, object]:
    """What that Python's torch sees, and the versions of these packages; one that is too old sees nothing."""
    nothing: dict[str, object] = {"torch": None, "cuda": False, "versions": dict.fromkeys(names)}
    try:
        looked = subprocess.run(
            [str(python), "-c", _LOOK, *names],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=_environment(),
        )
        found = json.loads(looked.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return nothing
    return dict(found) if tuple(found["python"]) >= OLDEST_PYTHON else nothing


def _made() -> Path | None:
    """An environment with a torch of its own; None, and a sentence, where there can be none."""
    driver = _driver_cuda()
    if driver is None:
        return _give_up("no Python here has a torch that sees a GPU, and nvidia-smi finds no NVIDIA driver")
    venv = ROOT / ".venv-gpu"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    if _pip(python, torch_for(driver)):
        return _give_up("no Python here has a torch that sees the GPU, and pip reaches no package index that has torch")
    if not (found := _look(python))["cuda"]:
        return _give_up(f"torch {found['torch']} does not see the GPU, whose driver takes CUDA {driver}")
    return python


def _driver_cuda() -> str | None:
    """The newest CUDA that the driver takes, as nvidia-smi says; None without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    told = subprocess.run([program], capture_output=True, text=True, check=False)
    found = re.search(r"CUDA Version:\s*(\d+\.\d+)", told.stdout)
    return found[1] if told.returncode == 0 and found else None


def _add_what_is_missing(python: Path, wheels: Path) -> None:
    """Says what there is, and what is still missing: the cases that need it are left for a later call."""
    found = _look(python, NEEDED)
    print(f"==> {python}: torch {found['torch']}")
    sources = [("--no-index", "--find-links", str(wheels))] if wheels.is_dir() else []
    for source in (*sources, ()):
        missing = _missing(python)
        if not missing:
            return
        print(f"==> adding {', '.join(missing)} from {wheels if source else 'the package index'}", flush=True)
        into = ("--no-deps", "--upgrade", "--target", str(SITE), *source)
        if _pip(python, *into, *missing):
            for name in missing if source else ():  # one that is not there keeps no other away
                _pip(python, *into, name)
    if missing := _missing(python):
        print(
            f"==> still missing: {', '.join(missing)}. Bring wheels along: `python3 tools/gpu_environment.py wheel "
            f"--python {'.'.join(map(str, found['python']))} .gpu-wheels` on a machine with network"  # type: ignore[call-overload]
        )


def _missing(python: Path) -> list[str]:
    versions: dict[str, str | None] = _look(python, NEEDED)["versions"]  # type: ignore[assignment]
    missing = {name for name, version in versions.items() if version is None}
    if missing & TOGETHER:
        missing |= TOGETHER
    return [name for name in NEEDED if name in missing]


def _wheels(folder: Path, python: str) -> int:
    """Into the folder; prints the size of each."""
    folder.mkdir(parents=True, exist_ok=True)
    constraints = ("-c", str(ROOT / "constraints.txt"))
    source = ("--no-deps", "--no-binary", "deepspeed", "--wheel-dir", str(folder), "deepspeed")
    if _pip_run(Path(sys.executable), "wheel", *constraints, *source):
        return _failed("DeepSpeed's wheel can't be built")
    kinds = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
    of = [f"--platform={kind}_{platform.machine()}" for kind in kinds]
    target = (f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "--no-deps")
    rest = [name for name in NEEDED if name != "deepspeed"]
    if _pip_run(Path(sys.executable), "download", *constraints, *target, *of, "--dest", str(folder), *rest):
        return _failed(f"not all wheels can be downloaded for Python {python}")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 2**20:8.2f} MiB  {name}")
    print(f"{sum(sizes.values()) / 2**20:8.2f} MiB  together")
    return 0


def _environment() -> dict[str, str]:
    path = [str(ROOT), str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [os.environ.get("PATH", os.defpath), str(SITE / "bin")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PATH": os.pathsep.join(programs)}


def _pip(python: Path, *what: str) -> int:
    return _pip_run(python, "install", "--no-cache-dir", "--retries=0", "--timeout=20", *what)


def _pip_run(python: Path, *what: str) -> int:
    command = [str(python), "-m", "pip", what[0], "-q", "--disable-pip-version-check", *what[1:]]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_BUILD_STRING": ""}
    return subprocess.run(command, env=environment, check=False).returncode


def _give_up(why: str) -> None:
    print(f"make gpu: {why}", file=sys.stderr)


def _failed(why: str) -> int:
    print(f"{why}: pip's own words are above", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
