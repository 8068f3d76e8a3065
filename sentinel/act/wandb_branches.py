"""STATE_DIR/wandb-branches.json: which W&B run each restart logs to. A trainer is told by its environment, WANDB_RUN_ID
and WANDB_RESUME, which every later start gets alike: a requeue continues the same branch, and branches no second time.

What talks to W&B is a process of its own with a deadline (`wandb_child`): the client keeps a service, threads and
variables that neither the daemon nor the job that it starts should have. A rollback never waits for W&B: where it does
not answer, the branch begins without the shared history, and that is said.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.adapters.wandb import WandbRun
from sentinel.durable import write_atomically
from sentinel.plan.observation import WandbSeen
from sentinel.plan.restart.actions import BranchWandb
from sentinel.vocabulary.codec import Form, document, read
from sentinel.vocabulary.errors import LineError, QuarantineError
from sentinel.vocabulary.numbers import dump_json

log = logging.getLogger(__name__)
_FORM = Form(error=LineError, name="wandb-branches.json")
_DEADLINE_S = 300.0  # the job is stopped meanwhile: what is not copied by then is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One rollback's branch."""

    rollback: str
    of_run: str | None  # None where nobody could say which run it was
    run_id: str
    group: str
    outcome: str  # what became of it, as a sentence
    folder: str | None = None  # the offline run with the copied history, where there is one
    undone: bool = False


class WandbBranches:
    """The branches of one run, and the environment of its next start."""

    def __init__(self, path: Path, name: str, of: WandbRun) -> None:
        self._path, self._name, self._of = path, name, of

    def read(self) -> tuple[Branch, ...]:
        """The first one first. QuarantineError where the file is not what sentinel writes."""
        try:
            data = json.loads(bounded.read_text(self._path))
            return tuple(read(Branch, one, form=_FORM) for one in data["branches"])
        except FileNotFoundError:
            return ()
        except (ValueError, KeyError, TypeError, LineError, RecursionError) as error:
            raise QuarantineError(f"{self._path} is not a list of W&B branches: {error}") from error

    def seen(self) -> WandbSeen:
        branched = frozenset(branch.rollback for branch in self.read() if not branch.undone)
        return WandbSeen(how=self._of.after_rollback, branched=branched)

    def environment(self) -> dict[str, str]:
        """What the job's environment gets; nothing before the first branch."""
        branches = self.read()
        if not branches:
            return {}
        there = [branch for branch in branches if not branch.undone]
        run_id = there[-1].run_id if there else branches[0].of_run
        if run_id is None:
            return {}
        return {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"} | (
            {"WANDB_RUN_GROUP": there[-1].group} if there else {}
        )

    def begin(self, action: BranchWandb) -> None:
        """Makes the branch and records it. One that was cut short is gone on with: its run has the same id."""
        before = [branch for branch in self.read() if branch.rollback != action.rollback]
        there = [branch for branch in before if not branch.undone]
        current = there[-1].run_id if there else next((b.of_run for b in before if b.of_run), None)
        run_id, group = current or self._of.run_id, before[0].group if before else None
        request = asdict(action) | {"of": asdict(self._of), "name": self._name, "run_id": run_id, "group": group}
        answer = _asked(request)
        if (problem := answer.get("problem")) is not None:
            log.warning("W&B: the restart begins without the history up to step %d: %s", action.global_step, problem)
        of_run = answer.get("of_run") or run_id
        group = answer.get("group") or group or of_run or self._name
        branch = Branch(
            rollback=action.rollback,
            of_run=of_run,
            run_id=answer.get("new_id") or f"{group}-{action.rollback}",
            group=group,
            outcome=str(answer.get("outcome") or f"without the shared history: {problem}"),
            folder=answer.get("folder"),
        )
        self._write((*before, branch))

    def undo(self, rollback: str) -> None:
        """The next start logs to the run of before. A run in W&B stays; an offline run's folder is renamed."""
        branches = self.read()
        for branch in branches:
            if branch.rollback == rollback and branch.folder is not None and (folder := Path(branch.folder)).is_dir():
                folder.rename(folder.with_name(f"undone-{folder.name}"))
        if branches:
            self._write(tuple(replace(b, undone=True) if b.rollback == rollback else b for b in branches))

    def _write(self, branches: tuple[Branch, ...]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self._path, dump_json({"branches": [document(branch) for branch in branches]}, indent=2) + "\n"
        )


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """The child's answer; a `problem` where there is none in time. What it printed is not shown: it may quote a key."""
    command, asked = [sys.executable, "-m", "sentinel.act.wandb_child"], json.dumps(request, default=str)
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        answer = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
        return answer if isinstance(answer, dict) else {"problem": "its client gave no answer"}
    except subprocess.TimeoutExpired:
        return {"problem": f"no end within {_DEADLINE_S:.0f} s"}
    except ValueError:
        return {"problem": "its client ended without an answer"}
