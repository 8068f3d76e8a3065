"""Whether what a call has changed of a tree of folders is on the disk when the call returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

__all__ = ["synced"]


@contextmanager
def synced(root: Path) -> Iterator[None]:
    """Every folder at or below `root` whose entries change in the block is synced in it, and after its last rename."""
    fsync, done, before = os.fsync, set(), _entries(root)
    renamed: dict[int, Path] = {}

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        done.add(os.fstat(descriptor).st_ino)
        renamed.pop(os.fstat(descriptor).st_ino, None)

    def noting(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def moving(source: Path, target: Path) -> Path:
            renamed.update({place.stat().st_ino: place for place in (source.parent, Path(target).parent)})
            return move(source, target)

        return moving

    moves = patch.multiple(Path, rename=noting(Path.rename), replace=noting(Path.replace))
    with patch.object(os, "fsync", noted), moves:
        yield
    assert [str(path.relative_to(root)) for path in renamed.values()] == []
    changed = {n: path for n, (path, names) in _entries(root).items() if names != before.get(n, (path, frozenset()))[1]}
    assert [str(path.relative_to(root)) for n, path in changed.items() if n not in done] == []


def _entries(root: Path) -> dict[int, tuple[Path, frozenset[str]]]:
    """Inode -> the folder and the names in it, of every folder."""
    folders = [root, *(p for p in root.rglob("*") if p.is_dir())]
    return {p.stat().st_ino: (p, frozenset(q.name for q in p.iterdir())) for p in folders}
