"""Imported by each Python that a command of `python -m trainer_hooks.run` starts: this folder is then on PYTHONPATH.

Python imports the first `sitecustomize` that it finds. This one begins to look for Trainers, then runs the one that it
hides, as Python would have.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _look_for_trainers() -> None:
    try:
        from trainer_hooks.integrations.on_import import look_for_trainers

        look_for_trainers()
    except Exception as error:  # noqa: BLE001 - the program is not ours, and may have another Python
        print(f"sentinel: no Trainer of {sys.executable} is watched: {error}", file=sys.stderr)  # noqa: T201


def _run_the_hidden_one() -> None:
    here = Path(__file__).parent.resolve()
    spec = PathFinder.find_spec("sitecustomize", [one for one in sys.path if Path(one).resolve() != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_look_for_trainers()
_run_the_hidden_one()
