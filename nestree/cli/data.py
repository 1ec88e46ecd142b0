"""What there is to say about the formats: from their table, and from the readers and writers themselves."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.runtime import (
    BAD_INPUT,
    FOUND_ERRORS,
    QUIET,
    USUAL,
    Commands,
    Files,
    From,
    Quiet,
    Read,
    Sentences,
    Shape,
    SkipBad,
    Source,
    TableShape,
    To,
    Verbose,
    Words,
    Write,
    format_names,
    option_values,
    print_json,
    print_line,
    progress,
    reading_options,
)
from nestree.data.formats import FORMATS, function, options
from nestree.errors import InputError


def table(*names: str) -> dict[str, dict[str, Any]]:
    """What each format is, and its options with their defaults; `write` is None where it is only read."""
    return {
        name: {
            "read": defaults(name, "read"),
            "write": defaults(name, "write") if FORMATS[name].writable else None,
            "folder": FORMATS[name].folder,
            "what": FORMATS[name].what,
        }
        for name in names or FORMATS
    }


def defaults(name: str, verb: str) -> dict[str, Any]:
    return {
        key: value if isinstance(value := option.default, str | int | float | bool | None) else str(value)
        for key, option in options(name, verb).items()
    }


def described(name: str) -> str:
    """All about one format."""
    parts = [f"{name}: {inspect.getdoc(inspect.getmodule(function(name, 'read')))}"]
    for verb in ("read", "write") if FORMATS[name].writable else ("read",):
        given = ", ".join(f"{key}={value}" for key, value in defaults(name, verb).items())
        parts.append(f"--{verb} {given or 'has no options'}\n\n{inspect.getdoc(function(name, verb))}")
    return "\n\n".join(parts)


if TYPE_CHECKING:
    from nestree.data.io import ConversionReport

JsonOrText = Annotated[Shape, typer.Option("--format", help="json: for programs.")]
Table = Annotated[TableShape, typer.Option("--format", help="How to show the table.")]


def convert(
    source: Source,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="A file or a new folder; - is standard output.")
    ],
    source_format: From = None,
    target_format: To = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    write: Write = None,
    skip_bad: SkipBad = False,
    format: JsonOrText = Shape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Bring data from one format into another.

    Says what was read, written, changed and left out. This summary goes to standard error; with --format json to
    standard output, unless that is OUT.
    """
    from nestree.data.convert import convert as converted
    from nestree.data.formats import detect_format

    with reading([source]):
        source_format = source_format or detect_format(source)
        target_format = target_format or detect_format(target, to_write=True)
        done = converted(
            source,
            target,
            source_format,
            target_format,
            skip_bad=skip_bad,
            read_options=reading_options(source_format, read, words, sentences),
            write_options=option_values(write or (), target_format, "write"),
        )
    if format is Shape.json:
        print_json(done.as_json(), to_stderr=str(target) == "-")
    else:
        print_line(done.as_text())


def check(
    files: Files,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    long_sentence: Annotated[
        int, typer.Option("--long-sentence", metavar="WORDS", min=1, help="Report longer sentences.")
    ] = 200,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all places, not only the first five.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    format: JsonOrText = Shape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Find what is odd in data, with its place and a remedy.

    Files for training and for testing, told by their names, are compared: nothing should be in both.
    Exit codes: 0 no errors; 1 errors; 2 a file cannot be read.
    """
    from nestree.data.checks import SHOWN
    from nestree.data.checks import check as checked

    with reading(files):
        options = options_for(files, source_format, read, words, sentences)
        report = checked(files, source_format, long_sentence=long_sentence, options=options)
    if format is Shape.json:
        print_json(report.as_json())
    elif Commands.verbosity == QUIET:
        typer.echo(report.verdict)
    else:
        typer.echo(report.as_text(None if everything else SHOWN))
    if report.unreadable:
        raise typer.Exit(BAD_INPUT)
    if report.count("error") or (strict and report.count("warning")):
        raise typer.Exit(FOUND_ERRORS)


def stats(
    files: Files,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    skip_bad: SkipBad = False,
    format: Table = TableShape.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Count sentences, entities and nesting, one column for each file.

    Nested: contains another entity or lies in one; the same span with another label counts.
    """
    from nestree.data import formats, statistics
    from nestree.data.io import ConversionReport

    parts, tally = {}, ConversionReport(skip_bad)
    with reading(files):
        for name, path in zip(short_names(files), files, strict=True):
            options = options_for([path], source_format, read, words, sentences)
            parts[name] = statistics.count(formats.read(path, source_format, tally, **options))
    say_account(tally)
    if format is TableShape.json:
        print_json(statistics.as_json(parts))
    elif format is TableShape.markdown:
        typer.echo(statistics.as_markdown(parts))
    else:
        typer.echo(statistics.as_text(parts))


def formats(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=format_names)] = None,
    format: JsonOrText = Shape.text,
) -> None:
    """List the formats, or describe one of them."""
    from nestree.cli.data import described, table
    from nestree.data.formats import FORMATS

    if format is Shape.json:
        print_json(table() if name is None else table(name))
    elif name is None:
        for each, about in FORMATS.items():
            typer.echo(f"{each:<13} {'read, write' if about.writable else 'read':<12} {about.what}")
    else:
        typer.echo(described(name))


@contextmanager
def reading(paths: Sequence[Path]) -> Iterator[None]:
    """Files are read within this, with a bar to watch it."""
    if list(paths).count(Path("-")) > 1:
        raise InputError("standard input can be read once: name - once.")
    started = monotonic()
    with progress(paths):
        yield
    if Commands.verbosity > USUAL:
        print_line(f"done in {monotonic() - started:.2f} s")


def options_for(
    paths: Sequence[Path],
    format: str | None,
    read: Sequence[str] | None,
    words: str | None,
    sentences: str | None,
) -> dict[str, Any]:
    """The options for reading these files, which are of one format if there are any options."""
    if not (read or words or sentences):
        return {}
    from nestree.data.formats import detect_format

    return reading_options(format or detect_format(paths[0]), read, words, sentences)


def short_names(paths: Sequence[Path]) -> list[str]:
    """What to call files in a table: the names without their endings or, if these are not different, the paths.

    >>> short_names([Path("genia/train.jsonl.gz"), Path("genia/dev.jsonl.gz")])
    ['train', 'dev']
    """
    names = [path.name.split(".")[0] or path.name for path in paths]
    paths_given = [str(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    if len(set(paths_given)) < len(paths_given):
        twice = next(name for name in paths_given if paths_given.count(name) > 1)
        raise InputError(f"{twice} is named twice. Name each file once.")
    return paths_given


def say_account(*tallies: "ConversionReport") -> None:
    """Tell what was changed, left out or skipped in reading; nothing if all is as it was."""
    from nestree.data.convert import conversion_summary

    if lines := conversion_summary(*tallies):
        print_line("\n".join(lines))


if TYPE_CHECKING:
    from nestree.data.split import Unit

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
    from nestree.data.io import ConversionReport
    from nestree.data.split import assemble_parts, ending, units, write_parts

    check_choice(parts, lists, rest, stratify, in_order)
    tally = ConversionReport(skip_bad)
    with reading([source]):
        source_format = source_format or formats.detect_format(source)
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
    found = assemble_parts(pieces, names, first=[name for name in ("train", "dev", "test") if name in names])
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
    from nestree.data.io import lines
    from nestree.data.split import check_listed, ids_of, split_by_lists

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
    return split_by_lists(pieces, found, rest)


def by_shares(pieces: "Sequence[Unit]", parts: str, stratify: bool, in_order: bool, seed: int) -> list[str]:
    from nestree.data import split as splitting

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
        return splitting.split_in_order(pieces, shares)
    choose = splitting.split_stratified if stratify else splitting.split_shuffled
    return choose(pieces, shares, seed)
