"""A save folder: what is there, whether it is whole, and moving it aside. Never deletes, never unpickles.

The data's path: a name (`layouts`: a class for each trainer, `entries`) → what has changed (`save_folder`) → a cheap
look (`completeness`) → of a target everything (`walk`, `declared`, `reading`: `archive`, `pickled`, at a `pace`) → a
judgement (`verify`; `remembered` file by file) → moves (`trackers`, `quarantine`, `probes`, `pins`, and `claim`: by one
state folder alone). `folder` puts them behind one class.

In: the path of a save folder. Out: its checkpoints as values, verified where that is asked for; and their moves.
"""

from sentinel.adapters.checkpoints.claim import Claim
from sentinel.adapters.checkpoints.folder import Checkpoints, SaveFolderSeen, room_for, write_manifest
from sentinel.adapters.checkpoints.pace import Pace, ReadingStoppedError, lower_priority
from sentinel.adapters.checkpoints.pins import PINNED
from sentinel.adapters.checkpoints.quarantine import QUARANTINE, UNDONE
from sentinel.adapters.checkpoints.remembered import VERIFIED
from sentinel.adapters.checkpoints.save_folder import SaveFolder
from sentinel.adapters.checkpoints.verify import MANIFESTS

__all__ = [
    "MANIFESTS",
    "PINNED",
    "QUARANTINE",
    "UNDONE",
    "VERIFIED",
    "Checkpoints",
    "Claim",
    "Pace",
    "ReadingStoppedError",
    "SaveFolder",
    "SaveFolderSeen",
    "lower_priority",
    "room_for",
    "write_manifest",
]
