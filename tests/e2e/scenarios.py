"""The runs and the commands that are struck, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.kill_points import Point, build, copy_run, live, strike, write_events
from tests.e2e.stepping import BY_HAND, SCRATCH, UNDO, WATCH, Scenario, as_a_process

STRADDLES = "events.out.tfevents.1700000000.host.b"
"""The event file that begins before the target and ends after it."""

KEPT = STRADDLES.replace("tfevents", ".sentinel-kept")
ROOM = ".sentinel-quarantine/incident-1/incident-1-r1/tensorboard-originals"


def scenarios(root: Path) -> dict[str, Scenario]:
    """By name, each with the run as it stands when its command begins.

    rollback: a person's, on a run that is well; undo: of that, after a new attempt has trained; watch: of an ill run;
    torn: from scratch, with `latest` torn; again: the rollback typed again, after a first one was killed half-way.
    """
    well, ill = build(root / "well", ill=False), build(root / "ill", ill=True)
    rolled = copy_run(well, root / "rolled")
    _done(rolled, BY_HAND)
    trained = _trained_on(copy_run(rolled, root / "trained"))
    recovered = copy_run(ill, root / "recovered")
    assert as_a_process(recovered, WATCH)[0] == 4
    scratched = copy_run(well, root / "scratched")
    _done(scratched, SCRATCH)
    torn = copy_run(well, root / "torn")
    (torn / "checkpoints" / "latest").write_bytes(b"global_st\xff")
    killed = copy_run(well, root / "killed")
    assert strike(killed, BY_HAND, Point(call="rename", path=f"tensorboard/{KEPT}", number=1), "KILL").code == 137
    by_hand = {BY_HAND: ("after",), WATCH: ("after", "before"), UNDO: ("before",)}
    return {
        "rollback": Scenario(
            name="rollback", start=well, words=BY_HAND, whole=well, routes=by_hand,
            ends={"before": live(well), "after": live(rolled)},
        ),
        "torn": Scenario(
            name="torn", start=torn, words=SCRATCH, whole=torn,
            routes={SCRATCH: ("after",), WATCH: ("after", "before"), UNDO: ("before",)},
            ends={"before": live(torn), "after": live(scratched)},
        ),
        "again": Scenario(
            name="again", start=killed, words=BY_HAND, whole=well, routes=by_hand,
            ends={"before": live(well), "after": live(rolled)},
        ),
        "undo": Scenario(
            name="undo", start=trained, words=UNDO, whole=well,
            routes={UNDO: ("before",), WATCH: ("before", "trained"), BY_HAND: ("after",)},
            ends={"before": live(well), "after": live(rolled), "trained": live(trained)},
        ),
        "watch": Scenario(
            name="watch", start=ill, words=WATCH, whole=ill,
            routes={WATCH: ("after",), UNDO: ("before",), BY_HAND: ("after",)},
            ends={"before": live(ill), "after": live(recovered)},
        ),
    }  # fmt: skip


def _done(run: Path, words: tuple[str, ...]) -> None:
    code, said = as_a_process(run, words)
    assert code == 0, said


def _trained_on(run: Path) -> Path:
    """What a new attempt writes: a checkpoint under a name that was moved away, `latest`, events."""
    shutil.copytree(run / "checkpoints" / "global_step20", run / "checkpoints" / "global_step40")
    shard = run / "checkpoints" / "global_step40" / "mp_rank_00_model_states.pt"
    shard.write_bytes(shard.read_bytes() + b"\0")
    for name, text in (("latest", "global_step40"), ("latest_checkpointed_iteration.txt", "40")):
        (run / "checkpoints" / name).write_text(text)
    write_events(run / "tensorboard", range(21, 41), ".d")
    return run
