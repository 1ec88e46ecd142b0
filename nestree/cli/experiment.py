"""The command `experiment`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nestree.cli.data import Table
from nestree.cli.learning import Device, decided
from nestree.cli.options import TableShape
from nestree.cli.running import BAD_INPUT, Quiet, Verbose, print_json, say
from nestree.errors import InputError


def experiment(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory for all runs.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data", metavar="NAME=DIR", help="A folder with train, dev and test; may be repeated."
        ),
    ],
    recipes: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="RECIPE", help="A TOML file or a recipe; may be repeated."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,...", help="Each recipe is trained once with each.")
    ] = "1,2,3",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Change a setting in all runs; may be repeated."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at the same time.")] = 1,
    device: Device = "auto",
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Train every recipe on every data set with every seed; show means and deviations.

    What is done is not done again: after an interruption, start it again.
    """
    from nestree.pipeline import best_device
    from nestree.training import experiment

    best_device(device)  # what is wrong is better known now
    check(out, changes or ())
    folders = folders_of(data)
    runs = experiment.cells(
        out, recipes or ["default"], folders, numbers(seeds), changes or (), ["--device", device]
    )
    for name, folder in folders.items():
        say_what_lacks(name, folder, experiment.parts_of(folder))
    try:
        failed = experiment.run_all(runs, jobs, say)
    except KeyboardInterrupt:
        say("What was running is saved. Start the experiment again to go on.")
        raise
    groups = experiment.groups(runs)
    if format is TableShape.json:
        print_json([experiment.as_values(group) for group in groups])
    else:
        show(experiment.table(groups), format)
    if failed:
        say(f"\n{len(failed)} of {len(runs)} runs failed:")
        for name, why in failed.items():
            say(f"  {name}: {why}")
        say("Start the experiment again to try them again.")
        raise typer.Exit(BAD_INPUT)


def check(out: Path, changes: Sequence[str]) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(
            f"{out} is a file, and runs need a directory. Give the name of a new one; data is named with --data "
            "NAME=DIR."
        )
    if decided(changes, "training.seed"):
        raise InputError("--set training.seed: an experiment takes its seeds from --seeds. Give them there.")


def say_what_lacks(name: str, folder: Path, parts: Mapping[str, Path]) -> None:
    if "dev" not in parts:
        say(f"{name}: {folder} has no file called dev. A share of train takes its place.")
    if "test" not in parts:
        say(
            f"{name}: {folder} has no file called test. Its numbers are those of dev, which chooses the epoch."
        )


def folders_of(data: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for each in data:
        name, folder = named(each)
        if name in found:
            raise InputError(
                f"--data {each}: there is a data set called {name} already. Call it something else."
            )
        found[name] = folder
    return found


def named(each: str) -> tuple[str, Path]:
    name, equals, folder = each.partition("=")
    if not (name and equals and folder) or Path(name).name != name:
        raise InputError(f"--data {each}: write --data NAME=DIR, such as genia=data/genia.")
    return name, Path(folder)


def numbers(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds}: write numbers with commas between them, such as 1,2,3.") from None


def show(rows: list[list[str]], format: TableShape) -> None:
    """A table; its first row names the columns."""
    head, *body = rows
    if format is TableShape.markdown:
        for row in (head, ["---"] * len(head), *body):
            typer.echo(f"| {' | '.join(row)} |")
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
