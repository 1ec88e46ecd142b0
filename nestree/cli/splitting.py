"""The command `split`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nestree.cli.data import Table, reading, say_account
from nestree.cli.options import (
    From,
    Read,
    Sentences,
    SkipBad,
    Source,
    TableShape,
    To,
    Words,
    Write,
    option_values,
    reading_options,
)
from nestree.cli.running import Quiet, Verbose, print_json
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.data.splitting import Unit

Parts = Annotated[
    str | None,
    typer.Option(
        "--parts",
        metavar="NAME=SHARE,...",
        help="The parts and their shares. [default: train=80,dev=10,test=10]",
    ),
]
Lists = Annotated[
    list[str] | None,
    typer.Option(
        "--list", metavar="NAME=FILE", help="Instead: the ids of a part, one a line; may be repeated."
    ),
]
Rest = Annotated[
    str | None, typer.Option("--rest", metavar="NAME", help="With --list: the part of what is in no list.")
]
By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="UNIT",
        help="What stays together: sentence, document. [default: document, if the data names them]",
    ),
]
Stratify = Annotated[
    bool, typer.Option("--stratify", help="Give each part its share of the entities of each label.")
]
InOrder = Annotated[
    bool, typer.Option("--in-order", help="Do not shuffle: the first part gets the first units.")
]


def split(
    source: Source,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder for the parts.")],
    parts: Parts = None,
    lists: Lists = None,
    rest: Rest = None,
    by: By = None,
    stratify: Stratify = False,
    in_order: InOrder = False,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same parts.")] = 0,
    source_format: From = None,
    target_format: To = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    write: Write = None,
    skip_bad: SkipBad = False,
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Divide data into parts, such as train, dev and test. All are written, or none.

    Shows the statistics of the parts.
    """
    from nestree.data import formats, statistics
    from nestree.data.splitting import assembled, ending, units, write_parts
    from nestree.data.tally import Tally

    check_choice(parts, lists, rest, stratify, in_order)
    tally = Tally(skip_bad)
    with reading([source]):
        source_format = source_format or formats.guess(source)
        writable = formats.FORMATS.get(source_format, formats.FORMATS["jsonl"]).writable
        target_format = target_format or (source_format if writable else "jsonl")
        write_options = option_values(write or (), target_format, "write")
        options = reading_options(source_format, read, words, sentences)
        documents = list(formats.read(source, source_format, tally, **options))
    by = by or ("sentence" if any(document.id is None for document in documents) else "document")
    pieces = units(documents, by, tally)
    if lists:
        names = by_lists(pieces, lists, rest)
    else:
        names = by_shares(pieces, parts or "train=80,dev=10,test=10", stratify, in_order, seed)
    found = assembled(pieces, names, first=[name for name in ("train", "dev", "test") if name in names])
    write_parts(found, folder, target_format, tally, ending(target_format, source), **write_options)

    say_account(tally)
    counted = {name: statistics.count(found[name]) for name in found}
    if format is TableShape.json:
        print_json(statistics.as_json(counted))
    else:
        show = statistics.as_markdown if format is TableShape.markdown else statistics.as_text
        typer.echo(show(counted))


def check_choice(
    parts: str | None, lists: list[str] | None, rest: str | None, stratify: bool, in_order: bool
) -> None:
    """Some options say different things of the same."""
    if lists and (parts or stratify or in_order):
        raise InputError(
            "--list names every unit of a part, so --parts, --stratify and --in-order do not go with it."
        )
    if rest and not lists:
        raise InputError("--rest goes with --list.")
    if stratify and in_order:
        raise InputError("--in-order leaves nothing to choose, so --stratify does not go with it.")


def by_lists(pieces: "Sequence[Unit]", lists: Sequence[str], rest: str | None) -> list[str]:
    from nestree.data.files import lines
    from nestree.data.splitting import check_listed, ids_of, listed

    known = ids_of(pieces)
    found: dict[str, list[str]] = {}
    for each in lists:
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise InputError(f"--list {each}: write --list NAME=FILE, such as dev=dev_ids.txt.")
        ids = found.setdefault(name, [])
        for number, line in lines(Path(path)):
            if id := line.strip():
                check_listed(id, known, f"{path}:{number}")
                ids.append(id)
    if rest is None and "train" not in found:
        rest = "train"
    return listed(pieces, found, rest)


def by_shares(pieces: "Sequence[Unit]", parts: str, stratify: bool, in_order: bool, seed: int) -> list[str]:
    from nestree.data import splitting

    shares: dict[str, float] = {}
    for each in parts.split(","):
        name, _, share = each.partition("=")
        if name.strip() in shares:
            raise InputError(f"--parts {parts}: {name.strip()} is named twice. Name each part once.")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise InputError(
                f"--parts {parts}: write NAME=SHARE,..., such as train=80,dev=10,test=10."
            ) from None
    if in_order:
        return splitting.in_order(pieces, shares)
    choose = splitting.stratified if stratify else splitting.shuffled
    return choose(pieces, shares, seed)
