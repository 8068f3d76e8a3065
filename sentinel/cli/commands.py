"""The commands. Each finds its run, calls one thing, and prints the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli.options import RUNS, ConfigDir, Json, RunOption
from sentinel.cli.past import PAST
from sentinel.vocabulary.errors import ConfigError

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
    checkpoints: Annotated[str, typer.Option(help="The trainer's save folder.")] = "checkpoints",
    command: Annotated[list[str] | None, typer.Option(help="One word of the trainer's command; repeat it.")] = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    """Write a commented configuration for a run."""
    from sentinel.config import template

    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is not a name for a run: it becomes a file's name under {config_dir}")
    path = config_dir / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} is there already; nothing was changed")
    config_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(template(name, checkpoints=checkpoints, command=tuple(command or ())), encoding="utf-8")
    typer.echo(f"wrote {path}; mode is observe until you change [policy] mode")
    return 0


@app.command()
def watch(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    observe: Annotated[bool, typer.Option("--observe", help="Only watch and speak, whatever the mode.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One look, then exit with its answer.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
) -> int:
    """Follow a run; in mode act, recover it."""
    from sentinel.cli import watching, wiring

    wiring.log_to_stderr(verbose=verbose)
    return watching.watch(lambda: wiring.find_config(run, config_dir), observe=observe, once=once)


@app.command(name="sbatch-watch")
def sbatch_watch(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    observe: Annotated[bool, typer.Option("--observe", help="Only watch and speak, whatever the mode.")] = False,
    sbatch: Annotated[list[str] | None, typer.Option(help="One more of sbatch's options; repeat it.")] = None,
) -> int:
    """Submit the watch as a Slurm job of its own; only one of a run runs at a time."""
    from sentinel.cli import submitting, wiring

    path = wiring.config_path(run, config_dir).resolve()
    return submitting.sbatch_watch(wiring.find_config(str(path), config_dir), str(path), sbatch or [], observe=observe)


@app.command()
def status(run: RunOption = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Say where the run stands. Exit 1 when it has diverged, stalled or gone down."""
    from sentinel.cli import telling, wiring

    return telling.status(wiring.find_config(run, config_dir), as_json=as_json)


@app.command()
def incidents(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    shadow: Annotated[bool, typer.Option("--shadow", help="What sentinel would have done in mode act.")] = False,
    as_json: Json = False,
) -> int:
    """List the run's incidents and what was tried."""
    from sentinel.cli import telling, wiring

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
    from sentinel.cli import chronicling, wiring

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
    from sentinel.cli import chronicling, wiring

    return chronicling.chronicle(wiring.find_config(run, config_dir), output)


@app.command()
def approve(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Mode approve: say yes to what watch has proposed. Exit 1 when there is nothing to say yes to."""
    from sentinel.cli import agreeing, wiring

    return agreeing.approve(wiring.find_config(run, config_dir), name, yes=yes)


@app.command()
def purge(
    name: Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete what a closed incident's rollbacks moved aside: the only deletion there is, and only by hand."""
    from sentinel.cli import agreeing, wiring

    return agreeing.purge(wiring.find_config(run, config_dir), name, yes=yes)


@app.command()
def doctor(run: RunOption = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Try everything that a recovery will need, without touching anything. Exit 1 when something would fail."""
    from sentinel.cli import doctoring, wiring

    return doctoring.doctor(wiring.find_config(run, config_dir), as_json=as_json)


@app.command()
def pin(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; without it, what is pinned is listed.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    release: Annotated[bool, typer.Option("--release", help="Let the pin go.")] = False,
) -> int:
    """Keep a checkpoint from keep-last-k and site purges, by hard links."""
    from sentinel.cli import keeping, wiring

    return keeping.pin(wiring.find_config(run, config_dir), tag, release=release)


@app.command()
def manifest(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; default is the last whole one.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    """Digest a checkpoint whole, so that a flipped bit is found before it is resumed from."""
    from sentinel.cli import keeping, wiring

    return keeping.manifest(wiring.find_config(run, config_dir), tag)


@app.command()
def pause(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever finds it paused.")] = None,
) -> int:
    """Have sentinel watch and speak, and not act, until `resume`."""
    from sentinel.cli import holding, wiring

    return holding.pause(wiring.find_config(run, config_dir), reason)


@app.command()
def resume(run: RunOption = None, config_dir: ConfigDir = RUNS) -> int:
    """Let sentinel act again. Exit 1 when the run was not paused."""
    from sentinel.cli import holding, wiring

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
    from sentinel.cli import rolling, wiring

    wanted = rolling.Wanted(to=to, rung=rung, seed=seed, start=start, force=force)
    return rolling.rollback(wiring.find_config(run, config_dir), wanted, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def undo(
    incident: Annotated[str | None, typer.Argument(help="The incident; default is the last one.")] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Bring back, byte for byte, what an incident's rollbacks took away. The job is stopped, and not started again."""
    from sentinel.cli import rolling, wiring

    return rolling.undo(wiring.find_config(run, config_dir), incident, yes=yes)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="The run's seed; 0 to 4 were tried.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the run and its picture; it must not hold a run.")] = Path(
        "demo-output"
    ),
    as_json: Json = False,
) -> int:
    """Train a small GPT until it really diverges, and watch sentinel save it. Needs the trainer extra."""
    from sentinel.cli import demonstrating

    return demonstrating.demo(seed=seed, output=output, as_json=as_json)


@app.command()
def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Job scripts, Megatron logs, DeepSpeed JSONs; default is the run's own.")
    ] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    parameters: Annotated[str | None, typer.Option(help="How many there should be, e.g. 104B.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Of all nodes together.")] = None,
    step_time: Annotated[float | None, typer.Option(help="Seconds of a step at full batch.")] = None,
    save_time: Annotated[float | None, typer.Option(help="Seconds for which a save holds the training up.")] = None,
    failures_per_day: Annotated[float | None, typer.Option(help="Of all nodes together.")] = None,
    consumed_samples: Annotated[int | None, typer.Option(help="Where the run resumes; default is its start.")] = None,
    as_json: Json = False,
) -> int:
    """Check shape, batches, schedules, SLW and saves by formula before a run starts. Exit 1 when there is an error."""
    from sentinel.cli import linting, wiring
    from sentinel.plan.lint import Facts
    from sentinel.plan.lint.numbers_in_words import declared_size

    told = Facts(
        declared_parameters=None if parameters is None else declared_size(parameters),
        world_size=gpus,
        step_time_s=step_time,
        save_time_s=save_time,
        node_failures_per_day=failures_per_day,
        consumed_samples=consumed_samples,
    )
    if paths:
        return linting.lint_paths(paths, told, as_json=as_json)
    return linting.lint_run(wiring.find_config(run, config_dir), told, as_json=as_json)


@app.command()
def page(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    test: Annotated[bool, typer.Option("--test", help="Send a test page through every channel, now.")] = False,
) -> int:
    """Say which pages wait to be delivered (exit 1 if any), or send a test page (exit 3 if it did not arrive)."""
    from sentinel.cli import paging, wiring

    config = wiring.find_config(run, config_dir)
    return paging.test(config) if test else paging.waiting(config)


for _command in PAST:
    app.command()(_command)
