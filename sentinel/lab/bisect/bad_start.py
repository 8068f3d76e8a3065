"""What a bisect's control says of a start that did not continue the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sentinel.lab.probes.probe import ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStart:
    """A start of the lineage that did not continue the run, as its audit found."""

    attempt: int
    resumed_from: int
    reason: str  # As a sentence

    @property
    def rung(self) -> Mapping[str, Any]:
        """Keys of the rung that follows."""
        return {"note": f"restart from a checkpoint of step {self.resumed_from} or before, loaded as it was saved"}

    def suspicion(self, control: ProbeResult | None, base_step: int) -> tuple[Literal["likely", "possible"], str]:
        """(how sure it is the cause, why). Possible alone where a control that began at `base_step`, before that start,
        diverged without it; else it is the first suspect."""
        why = f"attempt {self.attempt}, resumed from step {self.resumed_from}: {self.reason}"
        if control is None or control.outcome not in ("calm", "diverged"):
            return "likely", why
        if self.resumed_from < base_step:
            return "likely", f"{why}; every probe begins from a checkpoint that was saved after it"
        if control.outcome == "calm":
            return "likely", f"{why}; the control, without that start, does not diverge"
        return "possible", f"{why}; but the control diverged without that start"
