"""Names under which a trainer finds the checkpoint to resume from: a link to it, or a copy (Lightning's `last.ckpt`,
Composer's `latest-rank0.pt`). Where there was a link a link is made, and a copy where there was a copy: a trainer that
writes `last.ckpt` anew would write through a link, into the target."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.adapters.checkpoints.archive import UnsoundError
from sentinel.adapters.checkpoints.declared import plain_values
from sentinel.adapters.checkpoints.layouts import LAYOUTS, Layout, Named, recognise
from sentinel.adapters.checkpoints.walk import shown
from sentinel.durable import sync_folder

_ASIDE, _NEW = ".taken-away", ".sentinel-new"


def linked(folder: Path, listed: Sequence[Named]) -> str | None:
    """The tag that the newest of the names stands for, or what it says where that is none; "" where its change was cut
    short; None where there is no such name."""
    links = dict(_links(folder))
    if any(name not in links for name in _half(folder)):
        return ""
    if not links:
        return None
    newest = max(links, key=lambda name: ((folder / name).lstat().st_mtime_ns, name))
    return _stands_for(folder / newest, links[newest], listed)


def dangling(folder: Path) -> str | None:
    """The first link to nothing, as a sentence."""
    for name, _ in _links(folder):
        if (folder / name).is_symlink() and not (folder / name).exists():
            return f"{name} links to {shown(str((folder / name).readlink()))}, which is not there"
    return None


def point_links(folder: Path, target: Named | None, room: Path) -> None:
    """Makes every such name of the target's layout stand for it; without a target takes them all away."""
    taken = (path.name.removesuffix(_ASIDE) for path in room.glob(f"*{_ASIDE}"))
    names = {name for name, _ in _links(folder)} | {*taken}
    for name in sorted(names):
        layout = _layout_of(name)
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


def bring_links_back(folder: Path, room: Path) -> None:
    """Makes the names what they were; what stands there now goes into the room."""
    for aside in sorted(room.glob(f"*{_ASIDE}")):
        link = folder / aside.name.removesuffix(_ASIDE)
        if _layout_of(link.name) is not None:
            _away(link, room / f"{link.name}.after")
            aside.rename(link)


def _links(folder: Path) -> Iterator[tuple[str, Layout]]:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from ((name, layout) for name in names if (layout := _layout_of(name)) is not None)


def _half(folder: Path) -> list[str]:
    """Names whose successor is made already."""
    return [path.name[1:].removesuffix(_NEW) for path in folder.glob(f".*{_NEW}")]


def _layout_of(name: str) -> Layout | None:
    return next((each for each in LAYOUTS.values() if each.links is not None and each.links.fullmatch(name)), None)


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
    status = link.stat()
    step = _step_in(link, (status.st_ino, status.st_mtime_ns, status.st_size))
    return next((n.tag for n in listed if n.layout is layout and n.global_step == step), link.name)


@functools.lru_cache(maxsize=16)
def _step_in(path: Path, identity: tuple[int, int, int]) -> object:  # noqa: ARG001 - what is remembered is of this file
    """Lightning's own global_step, in the file or in the folder's meta.pt; None where it can't be read."""
    try:
        return plain_values(path / "meta.pt" if path.is_dir() else path).get("global_step")
    except (OSError, UnsoundError):
        return None


def _make(link: Path, entry: Path, *, like: Path) -> None:
    """Beside the name, whole on the disk: it takes the name by a rename."""
    new = _new(link)
    if new.is_dir() and not new.is_symlink():
        shutil.rmtree(new)  # sentinel's own copy, left by a crash
    new.unlink(missing_ok=True)
    if like.is_symlink():
        new.symlink_to(entry.name)
    elif entry.is_dir():
        shutil.copytree(entry, new, copy_function=_copied)
    else:
        _copied(entry, new)


def _copied(source: Path | str, destination: Path | str) -> None:
    """With its times: a copy that is new would look like a save."""
    shutil.copy2(source, destination, follow_symlinks=False)
    with Path(destination).open("rb") as file:
        os.fsync(file.fileno())


def _away(link: Path, aside: Path) -> None:
    """The first that is moved there is what undo brings back."""
    number, free = 1, aside
    while os.path.lexists(free):
        number, free = number + 1, aside.with_name(f"{aside.name}-{number}")
    if os.path.lexists(link):
        link.rename(free)
