"""The small files beside the checkpoints that name the one to resume from: DeepSpeed's `latest`, Megatron's number."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import DEEPSPEED, MEGATRON_LM, RELEASE, UNIVERSAL, Named, Resumes
from sentinel.adapters.checkpoints.links import bring_links_back, dangling, linked
from sentinel.adapters.checkpoints.walk import shown
from sentinel.bounded import open_regular
from sentinel.durable import sync_folder, write_atomically

_LATEST, _NUMBER, _UNIVERSAL = "latest", "latest_checkpointed_iteration.txt", "latest_universal"
_TRACKERS = (_LATEST, _NUMBER, _UNIVERSAL)  # DeepSpeed's, Megatron's, the universal checkpoint's; all must agree
_LONGEST_BYTES = 4096


class Trackers:
    """The trackers of one folder."""

    def __init__(self, folder: Path, listed: Callable[[], Sequence[Named]]) -> None:
        self._folder, self._listed = folder, listed

    def latest(self) -> str | None:
        """The tag that a restart would resume from; "" when its tracker is torn or empty, None when nothing names one.

        DeepSpeed goes by `latest`, Megatron-LM by its number; see `Resumes` for the others.
        """
        if (text := self.read(_LATEST)) is not None:
            return text
        if (text := self.read(_NUMBER)) is not None:
            if not _is_number(text):
                return text
            of_step = [n for n in self._listed() if n.layout in (DEEPSPEED, MEGATRON_LM) and n.global_step == int(text)]
            return of_step[-1].tag if of_step else f"iter_{int(text):07d}"
        listed = self._listed()
        if (text := linked(self._folder, listed)) is not None:
            return text
        newest = (named for named in reversed(listed) if named.layout.resumes in (Resumes.NEWEST, Resumes.LINK))
        return next(
            (n.tag for n in newest if (self._folder / n.tag / n.layout.marker).exists() or n.layout.in_files), None
        )

    def read(self, name: str) -> str | None:
        """The text of one of them, at most its first 4096 bytes; None where there is none."""
        path = self._folder / name
        return _content(path).decode(errors="replace").strip() if path.is_file() else None

    def disagreement(self) -> str | None:
        """How they contradict one another or the folder, as a sentence; None when they do not."""
        texts = {name: text for name in _TRACKERS if (text := self.read(name)) is not None}
        there = self._listed()
        steps: dict[str, int] = {}
        for name, text in texts.items():
            if not text:
                return f"{name} is empty: writing it was cut short"
            by_number = name == _NUMBER and _is_number(text)
            named = [n for n in there if (n.global_step == int(text) if by_number else n.tag == text)]
            if not named:
                return f"{name} says {shown(text)}, and there is no such checkpoint"
            steps[name] = named[-1].global_step
        if len(set(steps.values())) > 1:
            return f"the trackers disagree: {', '.join(f'{name} says {shown(texts[name])}' for name in steps)}"
        return dangling(self._folder)

    def point(self, target: Named | None, global_step: int, taken_away: Path) -> None:
        """Makes every tracker that is there name the target in its own words, or takes it away where it has none."""
        for name, (text, is_required) in self._meant(target, global_step).items():
            path = self._folder / name
            if text is None:
                if path.exists():
                    path.rename(taken_away / f"{name}.taken-away")
            elif is_required or path.exists():
                write_atomically(path, text)
        sync_folder(taken_away)
        sync_folder(self._folder)

    def _meant(self, target: Named | None, global_step: int) -> dict[str, tuple[str | None, bool]]:
        """(text, whether it is written where there is none) of each, `latest` last: it is what loading goes by.

        The text is None where training starts from scratch, or nothing of the target's layout reads the tracker.
        """
        layout, tag = (target.layout, target.tag) if target else (None, "")
        by_tag, by_number = layout in (DEEPSPEED, UNIVERSAL), layout in (DEEPSPEED, UNIVERSAL, MEGATRON_LM)
        universal = tag if layout is UNIVERSAL else f"{tag}_universal"
        number = RELEASE if tag == RELEASE else str(global_step)
        return {
            _UNIVERSAL: (universal if by_tag and (self._folder / universal).is_dir() else None, False),
            _NUMBER: (number if by_number else None, layout is MEGATRON_LM),
            _LATEST: (tag if by_tag else None, True),
        }


def keep_trackers(folder: Path, room: Path) -> None:
    """Copies latest* aside, once: a rollback that is resumed must not take its own change for the original."""
    kept = room / "latest-before"
    if kept.is_dir():
        return
    unfinished = room / "latest-before.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)  # sentinel's own copies of a few bytes, left by a crash
    unfinished.mkdir()
    for name in _TRACKERS:
        if (folder / name).exists():
            write_atomically(unfinished / name, _content(folder / name))
    unfinished.rename(kept)
    sync_folder(room)


def bring_trackers_back(folder: Path, room: Path) -> None:
    """Makes latest* what they were when they were kept; one that was not there goes into the room."""
    bring_links_back(folder, room)
    before = room / "latest-before"
    if not before.is_dir():
        return
    for name in _TRACKERS:
        if (before / name).exists():
            write_atomically(folder / name, _content(before / name))
        elif (folder / name).exists():
            (folder / name).rename(room / f"{name}.after")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(_LONGEST_BYTES)
