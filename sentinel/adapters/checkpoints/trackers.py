"""The small files beside the checkpoints that say which one is resumed from: `latest` and its kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import DEEPSPEED, HUGGING_FACE, MEGATRON_LM, RELEASE, UNIVERSAL, Named
from sentinel.adapters.checkpoints.shown import shown
from sentinel.bounded import open_regular
from sentinel.durable import sync_folder, write_atomically

__all__ = ["TRACKERS", "Trackers"]

TRACKERS = ("latest", "latest_checkpointed_iteration.txt", "latest_universal")
"""DeepSpeed's, Megatron's and the universal checkpoint's; all that are there must agree."""

_LONGEST_BYTES = 4096
_UNIVERSAL = "_universal"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meant:
    """What a tracker should say of a target; a text of None is that it has no word for it."""

    text: str | None
    required: bool
    """Whether it is written where there is none."""


class Trackers:
    """The trackers of one folder."""

    def __init__(self, folder: Path, listed: Callable[[], Sequence[Named]]) -> None:
        self._folder, self._listed = folder, listed

    def latest(self) -> str | None:
        """The tag that a restart would resume from; "" when its tracker is torn or empty, None when nothing says.

        DeepSpeed goes by `latest`, Megatron-LM by its number, and Hugging Face takes the newest folder.
        """
        if (text := self.read("latest")) is not None:
            return text
        if (text := self.read("latest_checkpointed_iteration.txt")) is not None:
            return self._by_number(text)
        newest = [named.tag for named in self._listed() if named.layout is HUGGING_FACE]
        return newest[-1] if newest else None

    def read(self, name: str) -> str | None:
        """What one of them says, None where there is none. Never more than the first 4096 bytes."""
        path = self._folder / name
        if not path.is_file():
            return None
        with open_regular(path) as file:
            return file.read(_LONGEST_BYTES).decode(errors="replace").strip()

    def disagreement(self) -> str | None:
        """How they contradict one another or the folder, as a sentence; None when they do not."""
        said = {name: text for name in TRACKERS if (text := self.read(name)) is not None}
        there = {named.tag: named for named in self._listed()}
        steps: dict[str, int] = {}
        for name, text in said.items():
            if not text:
                return f"{name} is empty: writing it was cut short"
            by_number = name == "latest_checkpointed_iteration.txt" and text.isascii() and text.isdigit()
            named = [n for tag, n in there.items() if (n.global_step == int(text) if by_number else tag == text)]
            if not named:
                return f"{name} says {shown(text)}, and there is no such checkpoint"
            steps[name] = named[-1].global_step
        if len(set(steps.values())) > 1:
            told = ", ".join(f"{name} says {shown(said[name])}" for name in steps)
            return f"the trackers disagree: {told}"
        return None

    def point(self, target: Named | None, global_step: int, taken_away: Path) -> None:
        """Makes every tracker that is there name the target in its own words, or takes it away where it has none."""
        meant = self._meant(target, global_step)
        for name in reversed(TRACKERS):  # `latest` last: it is what loading goes by
            path, (text, required) = self._folder / name, (meant[name].text, meant[name].required)
            if text is None:
                if path.exists():
                    path.rename(taken_away / f"{name}.taken-away")
            elif required or path.exists():
                write_atomically(path, text)
        sync_folder(taken_away)
        sync_folder(self._folder)

    def _meant(self, target: Named | None, global_step: int) -> dict[str, _Meant]:
        """What each tracker is to say; all go away where training starts from scratch or nothing reads them."""
        layout = target.layout if target else None
        tag = target.tag if target else ""
        number = RELEASE if tag == RELEASE else str(global_step)
        universal = tag if layout is UNIVERSAL else f"{tag}{_UNIVERSAL}"
        by_tag = layout in (DEEPSPEED, UNIVERSAL)
        by_number = by_tag or layout is MEGATRON_LM
        return {
            "latest": _Meant(text=tag if by_tag else None, required=True),
            "latest_checkpointed_iteration.txt": _Meant(
                text=number if by_number else None, required=layout is MEGATRON_LM
            ),
            "latest_universal": _Meant(
                text=universal if by_tag and (self._folder / universal).is_dir() else None, required=False
            ),
        }

    def _by_number(self, text: str) -> str:
        """The tag that Megatron's tracker means, among those that are there; else what Megatron-LM would call it."""
        if not (text.isascii() and text.isdigit()):
            return text
        of_step = [n for n in self._listed() if n.layout in (DEEPSPEED, MEGATRON_LM) and n.global_step == int(text)]
        return of_step[-1].tag if of_step else f"iter_{int(text):07d}"
