"""What names the checkpoint to resume from: small files beside the checkpoints (DeepSpeed's `latest`, Megatron's
number), and names under which a trainer finds a link to it, or a copy (Lightning's `last.ckpt`, Composer's
`latest-rank0.pt`). Where there was a link a link is made, and a copy where there was a copy: a trainer that writes
`last.ckpt` anew would write through a link, into the target."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.entries import Entries, linking_layout
from sentinel.adapters.checkpoints.layouts import LAYOUTS, TRACKERS, Layout, Named, recognise
from sentinel.bounded import open_regular
from sentinel.durable import copy_file, free_name, link_atomically, sync_folder, write_atomically
from sentinel.vocabulary.names import shown

_LONGEST_BYTES = 4096
_ASIDE, _NEW = ".taken-away", ".sentinel-new"


class Trackers:
    """The trackers of one folder, and its links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def latest_of(self, entries: Entries, texts: Mapping[str, str]) -> str | None:
        """The tag that a restart would resume from; "" when its tracker is torn or empty, None when nothing names one.
        `texts`: as of `texts_in`."""
        listed = entries.checkpoints
        for layout in LAYOUTS:
            if (text := layout.named_by(texts, listed)) is not None:
                return text
        if (text := _linked(self._folder, entries)) is not None:
            return text
        by_layout: dict[Layout, list[Named]] = {}
        for named in listed:
            by_layout.setdefault(named.layout, []).append(named)
        found = (layout.newest(self._folder, own) for layout, own in by_layout.items())
        newest = max((n for n in found if n is not None), key=lambda named: named.order, default=None)
        return None if newest is None else newest.tag

    def by_newest(self, entries: Entries, texts: Mapping[str, str]) -> bool:
        """Whether nothing names the checkpoint to resume from, nor would `point` make such a name: a restart takes the
        newest."""
        layouts = {named.layout for named in entries.checkpoints}
        named = bool(texts or entries.links) or any(each.trackers or not each.resumes_newest for each in layouts)
        return bool(layouts) and not named

    def disagreement_of(self, entries: Entries, texts: Mapping[str, str]) -> str | None:
        """How they contradict one another or the folder, as a sentence; None when they do not."""
        there = entries.checkpoints
        steps: dict[str, int] = {}
        for name, text in texts.items():
            if not text:
                return f"{name} is empty: writing it was cut short"
            named = [n for n in there if TRACKERS[name].stands_for(text, n)]
            if not named:
                return f"{name} says {shown(text)}, and there is no such checkpoint"
            steps[name] = named[-1].global_step
        if len(set(steps.values())) > 1:
            return f"the trackers disagree: {', '.join(f'{name} says {shown(texts[name])}' for name in steps)}"
        return _dangling(self._folder, entries)

    def keep(self, room: Path) -> None:
        """Copies latest* aside, once: a rollback that is resumed must not take its own change for the original. A link
        is kept as a link of the same text; what it led to may have been moved by now."""
        kept, unfinished = room / "latest-before", room / "latest-before.unfinished"
        if kept.is_dir():
            return
        if unfinished.exists():
            shutil.rmtree(unfinished)  # sentinel's own copies of a few bytes, left by a crash
        unfinished.mkdir()
        for name in TRACKERS:
            _reproduce(self._folder / name, unfinished / name)
        unfinished.rename(kept)
        sync_folder(room)

    def point(self, target: Named | None, taken_away: Path) -> None:
        """Makes every tracker that is there name the target in its own words, or takes it away where it has none; the
        links and copies likewise. Last the one that loading goes by, which is written also where there is none."""
        texts = target.layout.texts_for(self._folder, target.tag, target.global_step) if target else {}
        required = target.layout.trackers[:1] if target else ()
        for name, tracker in reversed(TRACKERS.items()):
            path, text = self._folder / name, texts.get(name)
            if text is not None and (tracker in required or os.path.lexists(path)):
                tracker.write(path, text)
            elif text is None and os.path.lexists(path):
                path.rename(taken_away / f"{name}.taken-away")
        sync_folder(taken_away)
        sync_folder(self._folder)
        _point_links(self._folder, target, taken_away)

    def kept(self, room: Path) -> dict[str, str | None]:
        """What `bring_back` makes the trackers say again, by name; None for one that it takes away."""
        before, says = room / "latest-before", dict[str, str | None]()
        for name in TRACKERS if before.is_dir() else ():
            if (before / name).is_symlink():
                says[name] = os.readlink(before / name)  # noqa: PTH115 - the text as it is
            elif (before / name).exists():
                says[name] = _content(before / name).decode(errors="replace").strip()
            elif os.path.lexists(self._folder / name):
                says[name] = None
        links = {aside.name.removesuffix(_ASIDE): "" for aside in sorted(room.glob(f"*{_ASIDE}"))}
        return says | {name: "what it was" for name in links if linking_layout(name) is not None}

    def bring_back(self, room: Path) -> None:
        """Makes them what they were when they were kept; what stands there now goes into the room."""
        for aside in sorted(room.glob(f"*{_ASIDE}")):
            link = self._folder / aside.name.removesuffix(_ASIDE)
            if linking_layout(link.name) is not None:
                _away(link, room / f"{link.name}.after")
                aside.rename(link)
        before = room / "latest-before"
        for name in TRACKERS if before.is_dir() else ():
            if not _reproduce(before / name, self._folder / name) and os.path.lexists(self._folder / name):
                (self._folder / name).rename(room / f"{name}.after")


def is_tracker(name: str) -> bool:
    """Whether a trainer resumes by an entry of that name."""
    return name in TRACKERS or linking_layout(name) is not None


def texts_in(folder: Path, entries: Entries) -> dict[str, str]:
    """The text of each tracker that is there, at most its first 4096 bytes; read anew each time. OSError."""
    found = {}
    for name in (name for name in TRACKERS if entries.kinds.get(name) in ("file", "link")):
        with contextlib.suppress(FileNotFoundError):  # taken away since, or a link to nothing
            if entries.kinds[name] == "file" or (folder / name).is_file():
                found[name] = _content(folder / name).decode(errors="replace").strip()
    return found


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(_LONGEST_BYTES)


def _reproduce(source: Path, destination: Path) -> bool:
    """Replaces the destination by the same: a link of the same text, or a file of the same content. False where the
    source is not there."""
    if source.is_symlink():
        link_atomically(destination, os.readlink(source))  # noqa: PTH115 - the text as it is
    elif source.exists():
        write_atomically(destination, _content(source), alone=True)
    else:
        return False
    return True


def _linked(folder: Path, entries: Entries) -> str | None:
    """The tag that the newest of the names stands for, or what it says where that is none; "" where its change was cut
    short; None where there is no such name."""
    links, making = entries.links, (n for n in entries.kinds if n.startswith(".") and n.endswith(_NEW))
    if any(name[1:].removesuffix(_NEW) not in links for name in making):
        return ""  # its successor is made already
    if not links:
        return None
    newest = max(links, key=lambda name: ((folder / name).lstat().st_mtime_ns, name))
    return _stands_for(folder / newest, links[newest], entries.checkpoints)


def _dangling(folder: Path, entries: Entries) -> str | None:
    """The first link to nothing, as a sentence."""
    for name in entries.links:
        if entries.kinds[name] == "link" and not (folder / name).exists():
            return f"{name} links to {shown(str((folder / name).readlink()))}, which is not there"
    return None


def _point_links(folder: Path, target: Named | None, room: Path) -> None:
    """Makes every such name of the target's layout stand for it; without a target takes them all away."""
    taken = (path.name.removesuffix(_ASIDE) for path in room.glob(f"*{_ASIDE}"))
    for name in sorted({*taken, *(path.name for path in folder.glob("*"))}):
        layout = linking_layout(name)
        if layout is None or (target is not None and layout is not target.layout):
            continue
        link, aside = folder / name, room / f"{name}{_ASIDE}"
        if target is None:
            _away(link, aside)
        elif not os.path.lexists(link) or _stands_for(link, layout, [target]) != target.tag:
            _make(link, _entry(folder, target, name), like=link if os.path.lexists(link) else aside)
            _away(link, aside)
            _new(link).rename(link)
    sync_folder(room)
    sync_folder(folder)


def _new(link: Path) -> Path:
    return link.with_name(f".{link.name}{_NEW}")


def _entry(folder: Path, target: Named, name: str) -> Path:
    """What the name has to stand for: the target, or the file of it that ends as the name does."""
    match = target.layout.links.fullmatch(name) if target.layout.links else None
    ends = match[1] if match is not None and match.re.groups else ""
    of_rank = folder / f"{target.tag}{ends}"
    return of_rank if of_rank.exists() else folder / target.tag


def _stands_for(link: Path, layout: Layout, listed: Sequence[Named]) -> str:
    if link.is_symlink():
        text = link.readlink()
        named = recognise(text.name)
        is_here = (link.parent / text).parent.resolve() == link.parent.resolve()
        return named.tag if named is not None and is_here else shown(str(text))
    step = layout.step_in(link)
    return next((n.tag for n in listed if n.layout is layout and n.global_step == step), link.name)


def _make(link: Path, entry: Path, *, like: Path) -> None:
    """Beside the name, whole on the disk: it takes the name by a rename."""
    new = _new(link)
    if new.is_dir() and not new.is_symlink():
        shutil.rmtree(new)  # sentinel's own copy, left by a crash
    new.unlink(missing_ok=True)
    if like.is_symlink():
        new.symlink_to(entry.name)
    elif entry.is_dir():
        shutil.copytree(entry, new, copy_function=lambda one, other: copy_file(Path(one), Path(other)))
    else:
        copy_file(entry, new)  # with its times: a copy that is new would look like a save


def _away(link: Path, aside: Path) -> None:
    """The first that is moved there is what undo brings back."""
    if os.path.lexists(link):
        link.rename(free_name(aside))
