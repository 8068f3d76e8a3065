"""Makes .venv-gpu, from which `make gpu` runs: torch with CUDA from the machine's own Python, or the wheel that fits.

    python3 tools/gpu_environment.py [--venv .venv-gpu]

Standard library alone. The first Python whose torch sees a GPU lends its torch (and all else that is beside it); where
there is none, torch is installed as the driver can take it. What else the project needs comes from the package index
that pip is configured with; nothing else is fetched. Where pip reaches none, wheels that were brought along will do:
PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR.

Exit codes: 0 done, 3 no NVIDIA driver, no index that can be reached, or a torch that does not see the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OLDEST_PYTHON = (3, 11)

_LOOK = """
import json, sys
found = {"python": sys.version_info[:2], "torch": None, "cuda": False, "where": None}
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.cuda.is_available(), where=torch.__path__[0])
except Exception as error:
    found["why"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

_MISSING = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def missing(name):
    try:
        version(name)
    except PackageNotFoundError:
        return True
    return False
print(json.dumps([name for name in sys.argv[1:] if missing(name)]))
"""


def main() -> int:
    """Makes what is missing, and says what it does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-gpu")
    venv = parser.parse_args().venv
    driver = driver_cuda()
    if driver is None:
        return _give_up("no NVIDIA driver: nvidia-smi is not installed, or it finds no GPU")
    python = venv / "bin" / "python"
    if not python.exists():
        _make(venv)
    if not _look(python)["cuda"] and _pip(python, torch_for(driver)):
        return _give_up(f"torch can't be installed: {_NO_INDEX}")
    if not (found := _look(python))["cuda"]:
        return _give_up(f"torch {found['torch']} does not see the GPU (the driver is for CUDA {driver}): {found}")
    print(f"==> torch {found['torch']} in {venv} sees the GPU")
    return _install(python, str(found["torch"]))


def driver_cuda() -> str | None:
    """The newest CUDA that the driver takes, as nvidia-smi says; None without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    told = subprocess.run([program], capture_output=True, text=True, check=False)
    found = re.search(r"CUDA Version:\s*(\d+\.\d+)", told.stdout)
    return found[1] if told.returncode == 0 and found else None


def torch_for(cuda: str) -> str:
    """The torch whose wheel from PyPI runs on such a driver: those of 2.11 and later are of CUDA 13, before of 12."""
    return "torch>=2.4" if int(cuda.partition(".")[0]) >= 13 else "torch>=2.4,<2.11"


def requirements() -> list[str]:
    """What the project's own pyproject.toml says that daemon, trainer and the GPU's tests need, but for torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tests = [line for line in extras["dev"] if name_of(line) in ("hypothesis", "pytest", "pytest-timeout")]
    wanted = [*project["dependencies"], *extras["daemon"], *extras["trainer"], *tests]
    return [line for line in dict.fromkeys(wanted) if name_of(line) != "torch"]


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]


def _make(venv: Path) -> None:
    lender = next((python for python in _pythons() if _look(python)["cuda"]), None)
    print(f"==> making {venv}" + (f", with the torch of {lender}" if lender else ""))
    subprocess.run([str(lender or sys.executable), "-m", "venv", str(venv)], check=True)
    if (
        lender
    ):  # by a path of its own: the lender may be an environment itself, which --system-site-packages passes over
        library = next((venv / "lib").glob("python3*")) / "site-packages"
        (library / "the_machines_own.pth").write_text(f"{Path(str(_look(lender)['where'])).parent}\n", encoding="utf-8")


def _pythons() -> Iterable[Path]:
    names = ("python3", "python3.13", "python3.12", "python3.11")
    found = [sys.executable, *(shutil.which(name) for name in names)]
    return dict.fromkeys(Path(path) for path in found if path)


def _look(python: Path) -> dict[str, object]:
    """What that Python's torch sees; one that is too old sees nothing."""
    none: dict[str, object] = {"torch": None, "cuda": False}
    try:
        looked = subprocess.run([str(python), "-c", _LOOK], capture_output=True, text=True, timeout=300, check=False)
        found = json.loads(looked.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return none
    return found if tuple(found["python"]) >= OLDEST_PYTHON else none


def _install(python: Path, torch: str) -> int:
    """What is missing beside torch, which stays as it is."""
    wanted = {name_of(line): line for line in requirements()}
    if not (missing := _missing(python, wanted)):
        return 0
    print(f"==> installing {', '.join(missing)}")
    lines = [wanted[name] for name in missing]
    constraint = python.parents[1] / "torch-stays.txt"
    constraint.write_text(f"torch=={torch}\n", encoding="utf-8")
    if _pip(python, "-c", str(constraint), *lines):
        for line in lines:  # one that can't be had keeps no other away
            _pip(python, "-c", str(constraint), line)
    missing = _missing(python, wanted)
    if missing:
        print(f"==> still missing: {', '.join(missing)}: {_NO_INDEX}")
    if "deepspeed" in missing:
        return _give_up("without DeepSpeed there is nothing to check")
    if missing:
        print("==> the parts that need them will say so")
    return 0


def _missing(python: Path, names: Iterable[str]) -> list[str]:
    told = subprocess.run([str(python), "-c", _MISSING, *names], capture_output=True, text=True, check=True)
    return list(json.loads(told.stdout))


def _pip(python: Path, *what: str) -> int:
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *what]
    return subprocess.run(command, env=dict(os.environ), check=False).returncode


_NO_INDEX = (
    "pip reaches no package index that has it (its own words are above). Bring wheels along and run again with "
    "PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR"
)


def _give_up(why: str) -> int:
    print(f"make gpu: {why}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
