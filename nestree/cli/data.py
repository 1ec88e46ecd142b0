"""The commands for data: convert, check, stats, formats, split; and what all commands that read files share."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.runtime import (
    BAD_INPUT,
    FOUND_ERRORS,
    NORMAL,
    QUIET,
    Commands,
    Files,
    From,
    OutputFormat,
    Quiet,
    Read,
    Sentences,
    SkipBad,
    Source,
    TableFormat,
    To,
    Verbose,
    Words,
    Write,
    format_names,
    option_values,
    print_json,
    print_line,
    reading_options,
    reading_progress,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.data.io import ConversionReport
    from nestree.data.split import Unit
    from nestree.data.statistics import Statistics

JsonOrText = Annotated[OutputFormat, typer.Option("--format", help="json: for programs.")]
Table = Annotated[TableFormat, typer.Option("--format", help="How to show the table.")]


@contextmanager
def read_progress(paths: Sequence[Path]) -> Iterator[None]:
    """Shows the progress of reading these files."""
    if list(paths).count(Path("-")) > 1:
        raise InputError("standard input can be read once: name - once.")
    started = monotonic()
    with reading_progress(paths):
        yield
    if Commands.verbosity > NORMAL:
        print_line(f"done in {monotonic() - started:.2f} s")


def read_options(
    paths: Sequence[Path],
    format: str | None,
    read: Sequence[str] | None,
    words: str | None,
    sentences: str | None,
) -> dict[str, Any]:
    """The options for reading these files; if there are any, all files have the format of the first."""
    if not (read or words or sentences):
        return {}
    from nestree.data.formats import detect_format

    return reading_options(format or detect_format(paths[0]), read, words, sentences)


def print_report(*reports: "ConversionReport") -> None:
    """Print what was changed, left out or skipped in reading, if anything was."""
    from nestree.data.convert import conversion_summary

    if lines := conversion_summary(*reports):
        print_line("\n".join(lines))


def print_statistics(parts: "Mapping[str, Statistics]", format: TableFormat) -> None:
    from nestree.data import statistics

    if format is TableFormat.json:
        print_json(statistics.as_json(parts))
    else:
        show = statistics.as_markdown if format is TableFormat.markdown else statistics.as_text
        typer.echo(show(parts))


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
    format: JsonOrText = OutputFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Convert data from one format to another.

    A summary of what was read, written, changed and left out goes to standard error; with --format json to standard
    output, unless that is OUT.
    """
    from nestree.data.convert import convert as convert_data
    from nestree.data.formats import detect_format

    with read_progress([source]):
        source_format = source_format or detect_format(source)
        target_format = target_format or detect_format(target, to_write=True)
        conversion = convert_data(
            source,
            target,
            source_format,
            target_format,
            skip_bad=skip_bad,
            read_options=reading_options(source_format, read, words, sentences),
            write_options=option_values(write or (), target_format, "write"),
        )
    if format is OutputFormat.json:
        print_json(conversion.as_json(), to_stderr=str(target) == "-")
    else:
        print_line(conversion.as_text())


def check(
    files: Files,
    source_format: From = None,
    words: Words = None,
    sentences: Sentences = None,
    read: Read = None,
    long_sentence: Annotated[
        int, typer.Option("--long-sentence", metavar="WORDS", min=1, help="Report longer sentences.")
    ] = 200,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all places, not only the first five.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    format: JsonOrText = OutputFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Find problems in data, each with its place and a remedy.

    Files for training and for testing, recognised by their names, are compared: nothing should be in both.
    Exit codes: 0 no errors; 1 errors; 2 a file cannot be read.
    """
    from nestree.data.checks import SHOWN
    from nestree.data.checks import check as check_data

    with read_progress(files):
        options = read_options(files, source_format, read, words, sentences)
        report = check_data(files, source_format, long_sentence=long_sentence, options=options)
    if format is OutputFormat.json:
        print_json(report.as_json())
    elif Commands.verbosity == QUIET:
        typer.echo(report.verdict)
    else:
        typer.echo(report.as_text(None if show_all else SHOWN))
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
    format: Table = TableFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Count sentences, entities and nesting, one column for each file.

    Nested: contains another entity or lies in one; the same span with another label counts.
    """
    from nestree.data import formats, statistics
    from nestree.data.io import ConversionReport

    names = [path.name.split(".")[0] or path.name for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{duplicates[0]} is named twice. Name each file once.")
    parts, report = {}, ConversionReport(skip_bad)
    with read_progress(files):
        for name, path in zip(names, files, strict=True):
            options = read_options([path], source_format, read, words, sentences)
            parts[name] = statistics.count(formats.read(path, source_format, report, **options))
    print_report(report)
    print_statistics(parts, format)


def formats(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=format_names)] = None,
    format: JsonOrText = OutputFormat.text,
) -> None:
    """List the formats, or describe one of them."""
    from nestree.data.formats import FORMATS, get_function

    if format is OutputFormat.json:
        print_json(
            {
                key: {
                    "read": option_defaults(key, "read"),
                    "write": option_defaults(key, "write") if FORMATS[key].writable else None,
                    "folder": FORMATS[key].folder,
                    "what": FORMATS[key].description,
                }
                for key in ([name] if name else FORMATS)
            }
        )
    elif name is None:
        for key, about in FORMATS.items():
            typer.echo(f"{key:<13} {'read, write' if about.writable else 'read':<12} {about.description}")
    else:
        parts = [f"{name}: {inspect.getdoc(inspect.getmodule(get_function(name, 'read')))}"]
        for verb in ("read", "write") if FORMATS[name].writable else ("read",):
            options = ", ".join(f"{key}={value}" for key, value in option_defaults(name, verb).items())
            parts.append(
                f"--{verb} {options or 'has no options'}\n\n{inspect.getdoc(get_function(name, verb))}"
            )
        typer.echo("\n\n".join(parts))


def option_defaults(name: str, verb: str) -> dict[str, Any]:
    from nestree.data.formats import options

    return {
        key: value if isinstance(value := option.default, str | int | float | bool | None) else str(value)
        for key, option in options(name, verb).items()
    }


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
    format: Table = TableFormat.text,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Divide data into parts, such as train, dev and test. All are written, or none.

    Shows the statistics of the parts.
    """
    from nestree.data import formats, statistics
    from nestree.data.io import ConversionReport
    from nestree.data.split import assemble_parts, ending, make_units, write_parts

    if lists and (parts or stratify or in_order):
        raise InputError(
            "--list names every unit of a part, so --parts, --stratify and --in-order do not go with it."
        )
    if rest and not lists:
        raise InputError("--rest goes with --list.")
    if stratify and in_order:
        raise InputError("--in-order leaves nothing to choose, so --stratify does not go with it.")
    report = ConversionReport(skip_bad)
    with read_progress([source]):
        source_format = source_format or formats.detect_format(source)
        writable = formats.FORMATS.get(source_format, formats.FORMATS["jsonl"]).writable
        target_format = target_format or (source_format if writable else "jsonl")
        write_options = option_values(write or (), target_format, "write")
        options = reading_options(source_format, read, words, sentences)
        documents = list(formats.read(source, source_format, report, **options))
    by = by or ("sentence" if any(document.id is None for document in documents) else "document")
    split_units = make_units(documents, by, report)
    if lists:
        names = split_by_id_files(split_units, lists, rest)
    else:
        shares = parts or "train=80,dev=10,test=10"
        names = split_by_shares(split_units, shares, stratify, in_order, seed)
    usual_order = [name for name in ("train", "dev", "test") if name in names]
    documents_of = assemble_parts(split_units, names, first=usual_order)
    write_parts(documents_of, folder, target_format, report, ending(target_format, source), **write_options)
    print_report(report)
    print_statistics({name: statistics.count(part) for name, part in documents_of.items()}, format)


def split_by_id_files(units: "Sequence[Unit]", lists: Sequence[str], rest: str | None) -> list[str]:
    """The part of each unit, by --list arguments NAME=FILE."""
    from nestree.data.io import read_lines
    from nestree.data.split import check_listed, split_by_lists

    known = {unit.id for unit in units}
    ids_of: dict[str, list[str]] = {}
    for argument in lists:
        name, equals, path = argument.partition("=")
        if not (name and equals and path):
            raise InputError(f"--list {argument}: write --list NAME=FILE, such as dev=dev_ids.txt.")
        ids = ids_of.setdefault(name, [])
        for number, line in read_lines(Path(path)):
            if id := line.strip():
                check_listed(id, known, f"{path}:{number}")
                ids.append(id)
    if rest is None and "train" not in ids_of:
        rest = "train"
    return split_by_lists(units, ids_of, rest)


def split_by_shares(
    units: "Sequence[Unit]", parts: str, stratify: bool, in_order: bool, seed: int
) -> list[str]:
    """The part of each unit, by a --parts argument NAME=SHARE,..."""
    from nestree.data.split import split_in_order, split_shuffled, split_stratified

    shares: dict[str, float] = {}
    for part in parts.split(","):
        name, _, share = part.partition("=")
        if name.strip() in shares:
            raise InputError(f"--parts {parts}: {name.strip()} is named twice. Name each part once.")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise InputError(
                f"--parts {parts}: write NAME=SHARE,..., such as train=80,dev=10,test=10."
            ) from None
    if in_order:
        return split_in_order(units, shares)
    return (split_stratified if stratify else split_shuffled)(units, shares, seed)
