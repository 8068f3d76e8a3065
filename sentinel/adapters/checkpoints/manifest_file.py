"""STATE_DIR/manifests/TAG.json: the manifests of a run's checkpoints, written whole and read with distrust."""

from __future__ import annotations

from pathlib import Path

from sentinel import bounded
from sentinel.adapters.checkpoints.layouts import recognise
from sentinel.durable import sync_folder, write_atomically
from sentinel.vocabulary.errors import CheckpointError, LineError
from sentinel.vocabulary.manifest import Manifest, decode_manifest, encode_manifest

__all__ = ["MANIFESTS", "ManifestFiles"]

MANIFESTS = "manifests"
"""Below the run's state folder."""


class ManifestFiles:
    """The manifests of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, tag: str) -> tuple[Manifest, int] | None:
        """A checkpoint's manifest, and when it was written (mtime, ns); None where there is none. CheckpointError."""
        path = self.path(tag)
        try:
            status = path.stat()
            manifest = decode_manifest(bounded.read_text(path))
        except FileNotFoundError:
            return None
        except (LineError, OSError) as error:
            raise CheckpointError(f"the manifest {path} can't be read: {error}") from error
        if manifest.tag != tag:
            raise CheckpointError(f"the manifest {path} is of another checkpoint, {manifest.tag!r}")
        return manifest, status.st_mtime_ns

    def write(self, manifest: Manifest) -> Path:
        """Writes it, whole or not at all, and returns where."""
        path = self.path(manifest.tag)
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            sync_folder(self.folder.parent)
        write_atomically(path, encode_manifest(manifest))
        return path

    def path(self, tag: str) -> Path:
        """Where a checkpoint's manifest is. CheckpointError for what is no checkpoint's name."""
        if recognise(tag) is None:
            raise CheckpointError(f"{tag!r} can't have a manifest: it is not the name of a checkpoint")
        return self.folder / f"{tag}.json"
