"""A save folder: what is there, whether it is whole, and moving it aside. Never deletes, never unpickles.

The data's path: a name (`layouts`) → a cheap look (`looks`) → of a target everything (`walk`, `declared`, `reading`:
`archive`, `pickled`) → a judgement (`verify`) → moves (`trackers`, `quarantine`, `probes`, `pins`, and `claim`: by
one state folder alone). `folder` puts them behind one class.
"""

from sentinel.adapters.checkpoints.claim import Claim
from sentinel.adapters.checkpoints.folder import Checkpoints, room_for, write_manifest
from sentinel.adapters.checkpoints.pins import PINNED
from sentinel.adapters.checkpoints.probes import Adoptions, event_files, journals_of
from sentinel.adapters.checkpoints.quarantine import QUARANTINE, UNDONE, probe_folder
from sentinel.adapters.checkpoints.verify import MANIFESTS

__all__ = [
    "MANIFESTS",
    "PINNED",
    "QUARANTINE",
    "UNDONE",
    "Adoptions",
    "Checkpoints",
    "Claim",
    "event_files",
    "journals_of",
    "probe_folder",
    "room_for",
    "write_manifest",
]
