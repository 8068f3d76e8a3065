"""The commands. Each finds its run, calls one thing, and prints the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli.around import AROUND
from sentinel.cli.options import FLEET_DIR, RUNS, ConfigDir, Json, RunOption
from sentinel.cli.past import PAST

__all__ = ["app"]


def _exit_with(code: int) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    result_callback=_exit_with,
    name="sentinel",
    help="Watches a DeepSpeed GPT run, knows a spike from a divergence, and rolls it back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The run's name.")],
    checkpoints: Annotated[str, typer.Option(help="The trainer's save folder, from here.")] = "checkpoints",
    command: Annotated[list[str] | None, typer.Option(help="One word of the trainer's command; repeat it.")] = None,
    launcher: Annotated[str | None, typer.Option(help="local, slurm, elsewhere: how the job is started.")] = None,
    metrics_address: Annotated[
        str | None, typer.Option(help="Where the trainer's /metrics is to listen; with slurm it is asked for.")
    ] = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    """Write a commented configuration for a run."""
    from sentinel.cli import beginning

    return beginning.init(
        name,
        config_dir,
        checkpoints=checkpoints,
        command=tuple(command or ()),
        launcher=launcher,
        metrics_address=metrics_address,
    )


@app.command()
def watch(
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="A name under --config-dir, or a path to a TOML file; repeat it for several."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every run that is configured under --config-dir.")] = False,
    config_dir: ConfigDir = RUNS,
    observe: Annotated[bool, typer.Option("--observe", help="Only watch and speak, whatever the mode.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One look, then exit with its answer.")] = False,
    fleet_dir: Annotated[
        Path, typer.Option(help="Of several runs: where their one /metrics is announced, and a probe finds it alive.")
    ] = FLEET_DIR,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
) -> int:
    """Follow a run, or many; in mode act, recover them. Of several the largest exit code counts."""
    from sentinel.daemon import supervisor, wiring
    from sentinel.daemon.choosing import Chosen

    wiring.log_to_stderr(verbose=verbose)
    chosen = Chosen(runs=tuple(run or ()), everything=everything, config_dir=config_dir)
    return supervisor.watch(chosen, observe=observe, once=once, fleet_dir=fleet_dir)


@app.command(name="sbatch-watch")
def sbatch_watch(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    observe: Annotated[bool, typer.Option("--observe", help="Only watch and speak, whatever the mode.")] = False,
    sbatch: Annotated[list[str] | None, typer.Option(help="One more of sbatch's options; repeat it.")] = None,
) -> int:
    """Submit the watch as a Slurm job of its own; only one of a run runs at a time."""
    from sentinel.cli import submitting
    from sentinel.daemon import wiring

    path = wiring.config_path(run, config_dir).resolve()
    return submitting.sbatch_watch(wiring.find_config(str(path), config_dir), str(path), sbatch or [], observe=observe)


@app.command()
def status(run: RunOption = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Say where the run stands. Exit 1 when it has diverged, stalled or gone down."""
    from sentinel.cli import telling
    from sentinel.daemon import wiring

    return telling.status(wiring.find_config(run, config_dir), as_json=as_json)


@app.command()
def incidents(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    shadow: Annotated[bool, typer.Option("--shadow", help="What sentinel would have done in mode act.")] = False,
    as_json: Json = False,
) -> int:
    """List the run's incidents and what was tried."""
    from sentinel.cli import telling
    from sentinel.daemon import wiring

    config = wiring.find_config(run, config_dir)
    return telling.shadows(config, as_json=as_json) if shadow else telling.incidents(config, as_json=as_json)


@app.command()
def incident(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Tell one incident's story, event by event."""
    from sentinel.cli import chronicling
    from sentinel.daemon import wiring

    return chronicling.incident(wiring.find_config(run, config_dir), name, as_json=as_json)


@app.command()
def chronicle(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and its pictures.")] = Path(
        "chronicle"
    ),
) -> int:
    """Write the run's chronicle as Markdown with plots: what broke, what was tried, what it cost, what helped."""
    from sentinel.cli import chronicling
    from sentinel.daemon import wiring

    return chronicling.chronicle(wiring.find_config(run, config_dir), output)


@app.command()
def approve(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Mode approve: say yes to what watch has proposed. Exit 1 when there is nothing to say yes to."""
    from sentinel.cli import agreeing
    from sentinel.daemon import wiring

    return agreeing.approve(wiring.find_config(run, config_dir), name, yes=yes)


@app.command()
def purge(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete what a closed incident's rollbacks moved aside: the only deletion there is, and only by hand."""
    from sentinel.cli import agreeing
    from sentinel.daemon import wiring

    return agreeing.purge(wiring.find_config(run, config_dir), name, yes=yes)


@app.command()
def doctor(run: RunOption = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Try everything that a recovery will need, without touching anything. Exit 1 when something would fail."""
    from sentinel.daemon import doctor as checks
    from sentinel.daemon import wiring

    return checks.doctor(wiring.find_config(run, config_dir), as_json=as_json)


@app.command()
def pin(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; without it, what is pinned is listed.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    release: Annotated[bool, typer.Option("--release", help="Let the pin go.")] = False,
) -> int:
    """Keep a checkpoint from keep-last-k and site purges, by hard links."""
    from sentinel.cli import keeping
    from sentinel.daemon import wiring

    return keeping.pin(wiring.find_config(run, config_dir), tag, release=release)


@app.command()
def manifest(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; default is the last whole one.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    """Digest a checkpoint whole, so that a flipped bit is found before it is resumed from."""
    from sentinel.cli import keeping
    from sentinel.daemon import wiring

    return keeping.manifest(wiring.find_config(run, config_dir), tag)


@app.command()
def pause(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever finds it paused.")] = None,
) -> int:
    """Have sentinel watch and speak, and not act, until `resume`."""
    from sentinel.cli import holding
    from sentinel.daemon import wiring

    return holding.pause(wiring.find_config(run, config_dir), reason)


@app.command()
def resume(run: RunOption = None, config_dir: ConfigDir = RUNS) -> int:
    """Let sentinel act again. Exit 1 when the run was not paused."""
    from sentinel.cli import holding
    from sentinel.daemon import wiring

    return holding.resume(wiring.find_config(run, config_dir))


@app.command()
def rollback(
    to: Annotated[str, typer.Option("--to", help="A checkpoint's tag, e.g. global_step3000, or scratch.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; touch nothing.")] = False,
    rung: Annotated[str | None, typer.Option(help="Apply this rung of the ladder as well.")] = None,
    seed: Annotated[int | None, typer.Option(help="New seed for the data not yet consumed.")] = None,
    start: Annotated[bool, typer.Option(help="Start the job again afterwards.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Allow a target after the onset.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> int:
    """Roll the run back to a checkpoint. Moves, never deletes; `undo` takes it back."""
    from sentinel.cli import rolling
    from sentinel.daemon import wiring

    wanted = rolling.Wanted(to=to, rung=rung, seed=seed, start=start, force=force)
    return rolling.rollback(wiring.find_config(run, config_dir), wanted, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def undo(
    incident: Annotated[str | None, typer.Argument(help="The incident; default is the last one.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    every: Annotated[bool, typer.Option("--all", help="Undo every incident that can be undone, newest first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Bring back, byte for byte, what an incident's rollbacks took away. The job is stopped, and not started again."""
    from sentinel.cli import undoing
    from sentinel.daemon import wiring

    return undoing.undo(wiring.find_config(run, config_dir), incident, every=every, yes=yes)


@app.command()
def page(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    test: Annotated[bool, typer.Option("--test", help="Send a test page through every channel, now.")] = False,
) -> int:
    """Say which pages wait to be delivered (exit 1 if any), or send a test page (exit 3 if it did not arrive)."""
    from sentinel.cli import paging
    from sentinel.daemon import wiring

    config = wiring.find_config(run, config_dir)
    return paging.test(config) if test else paging.waiting(config)


for _command in (*AROUND, *PAST):
    app.command()(_command)
