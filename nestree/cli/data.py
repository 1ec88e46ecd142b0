"""The commands for data: convert, check, stats, formats and split."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from nestree.cli.options import (
    PARTS,
    Files,
    OutArgument,
    OutputFormat,
    Reading,
    Source,
    TableFormat,
    complete,
    output_path,
    parse_options,
)
from nestree.cli.runtime import BAD_INPUT, FOUND_ERRORS, QUIET, Commands, print_json, print_line, reading_progress
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.data.io import ConversionReport
    from nestree.data.split import Unit
    from nestree.data.statistics import Statistics


def print_report(*reports: "ConversionReport") -> None:
    """Print what was changed, left out or skipped in reading, if anything was."""
    from nestree.data.convert import conversion_summary

    if lines := conversion_summary(*reports):
        print_line("\n".join(lines))


def print_statistics(parts: "Mapping[str, Statistics]", format: TableFormat) -> None:
    from nestree.data import statistics

    if format == "json":
        print_json(statistics.as_json(parts))
    else:
        show = statistics.as_markdown if format == "markdown" else statistics.as_text
        typer.echo(show(parts))


def convert(
    source: Source,
    reading: Reading,
    target: OutArgument = None,
    out: Path | None = None,
    target_format: str | None = None,
    write: list[str] | None = None,
    skip_bad: bool = False,
    format: OutputFormat = "text",
) -> None:
    """Convert data from one format to another.

    A summary of what was read, written, changed and left out goes to standard error; with --format json to standard
    output, unless that is OUT.
    """
    from nestree.data.convert import convert as convert_data
    from nestree.data.formats import detect_format, detect_output_format

    path = output_path(target, out)
    with reading_progress([source]):
        source_format = reading.source_format or detect_format(source)
        target_format = target_format or detect_output_format(path)
        chosen = {"read_options": reading.options(source_format)}
        chosen["write_options"] = parse_options(write or (), target_format, "write")
        conversion = convert_data(source, path, source_format, target_format, skip_bad=skip_bad, **chosen)
    if format == "json":
        print_json(conversion.as_json(), to_stderr=str(path) == "-")
    else:
        print_line(conversion.as_text())


def check(
    files: Files,
    reading: Reading,
    long_sentence: int = 200,
    show_all: bool = False,
    strict: bool = False,
    format: OutputFormat = "text",
) -> None:
    """Find problems in data, each with its place and a remedy.

    Files for training and for testing, recognised by their names, are compared: nothing should be in both.
    Exit codes: 0 no errors; 1 errors; 2 a file cannot be read.
    """
    from nestree.data.checks import SHOWN
    from nestree.data.checks import check as check_data
    from nestree.data.formats import data_files, detect_format

    files = [file for path in files for file in data_files(path)]
    if duplicates := [path for path in files if files.count(path) > 1]:
        raise InputError(f"{duplicates[0]} is named twice. Name each file once.")
    with reading_progress(files):
        options = {}
        if reading.read or reading.words or reading.sentences:  # all files have the format of the first
            options = reading.options(reading.source_format or detect_format(files[0]))
        report = check_data(files, reading.source_format, long_sentence=long_sentence, options=options)
    if format == "json":
        print_json(report.as_json())
    elif Commands.verbosity == QUIET:
        typer.echo(report.verdict)
    else:
        typer.echo(report.as_text(None if show_all else SHOWN))
    if report.unreadable:
        raise typer.Exit(BAD_INPUT)
    if report.count("error") or (strict and report.count("warning")):
        raise typer.Exit(FOUND_ERRORS)


def stats(files: Files, reading: Reading, skip_bad: bool = False, format: TableFormat = "text") -> None:
    """Count sentences, entities and nesting, one column for each file (of more than 12, one for all).

    Nested: contains another entity or lies in one; the same span with another label counts.
    """
    from nestree.data import statistics
    from nestree.data.formats import data_files
    from nestree.data.io import ConversionReport

    files = [file for path in files for file in data_files(path)]
    names = [path.name.split(".")[0] or path.name for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{duplicates[0]} is named twice. Name each file once.")
    report = ConversionReport(skip_bad)
    with reading_progress(files):
        parts = {
            name: statistics.count(reading.documents(path, report)) for name, path in zip(names, files, strict=True)
        }
    print_report(report)
    print_statistics(parts, format)


def formats(
    name: Annotated[str | None, Argument(metavar="NAME", autocompletion=complete("source_format"))] = None,
    format: OutputFormat = "text",
) -> None:
    """List the formats, or describe one of them."""
    from nestree.data.formats import FORMATS, get_function, options

    def defaults(key: str, verb: str) -> dict[str, Any]:
        return {name: option.default for name, option in options(key, verb).items()}

    if format == "json":
        descriptions = {
            key: {
                "read": defaults(key, "read"),
                "write": defaults(key, "write") if FORMATS[key].writable else None,
                "folder": not FORMATS[key].ending,
                "what": FORMATS[key].description,
            }
            for key in ([name] if name else FORMATS)
        }
        print_json(descriptions)
    elif name is None:
        for key, about in FORMATS.items():
            typer.echo(f"{key:<13} {'read, write' if about.writable else 'read':<12} {about.description}")
    else:
        parts = [f"{name}: {inspect.getdoc(inspect.getmodule(get_function(name, 'read')))}"]
        for verb in ("read", "write") if FORMATS[name].writable else ("read",):
            listed = ", ".join(f"{key}={value}" for key, value in defaults(name, verb).items())
            parts += [f"--{verb} {listed or 'has no options'}", f"{inspect.getdoc(get_function(name, verb))}"]
        typer.echo("\n\n".join(parts))


def split(
    source: Source,
    reading: Reading,
    target: OutArgument = None,
    out: Path | None = None,
    parts: str | None = None,
    lists: list[str] | None = None,
    rest: str | None = None,
    by: str | None = None,
    stratify: bool = False,
    in_order: bool = False,
    seed: int = 0,
    target_format: str | None = None,
    write: list[str] | None = None,
    skip_bad: bool = False,
    format: TableFormat = "text",
) -> None:
    """Divide data into parts, such as train, dev and test. All are written, or none.

    Shows the statistics of the parts.
    """
    from nestree.data import formats, statistics
    from nestree.data.io import ConversionReport
    from nestree.data.split import assemble_parts, ending, make_units, write_parts

    folder = output_path(target, out)
    if lists and (parts or stratify or in_order):
        raise InputError("--list names every unit of a part. Leave out --parts, --stratify and --in-order.")
    if rest and not lists:
        raise InputError("--rest needs --list: it names the part of what is in no list.")
    if stratify and in_order:
        raise InputError("--in-order leaves nothing to choose. Leave out --stratify.")
    report = ConversionReport(skip_bad)
    with reading_progress([source]):
        source_format = reading.source_format or formats.detect_format(source)
        writable = formats.FORMATS.get(source_format, formats.FORMATS["jsonl"]).writable
        target_format = target_format or (source_format if writable else "jsonl")
        write_options = parse_options(write or (), target_format, "write")
        documents = list(formats.read(source, source_format, report, **reading.options(source_format)))
    by = by or ("sentence" if any(document.id is document.text is None for document in documents) else "document")
    units = make_units(documents, by, report)
    if lists:
        names = split_by_id_files(units, lists, rest)
    else:
        parts = parts or "train=80,dev=10,test=10"
        names = split_by_shares(units, parts, stratify, in_order, seed)
    named = [argument.partition("=")[0].strip() for argument in lists or (parts or "").split(",")]
    documents_of = assemble_parts(units, names, first=[name for name in (*PARTS, *named) if name in names])
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
    return split_by_lists(units, ids_of, rest or (None if "train" in ids_of else "train"))


def split_by_shares(units: "Sequence[Unit]", parts: str, stratify: bool, in_order: bool, seed: int) -> list[str]:
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
            raise InputError(f"--parts {parts}: write NAME=SHARE,..., such as train=80,dev=10,test=10.") from None
    if in_order:
        return split_in_order(units, shares)
    return (split_stratified if stratify else split_shuffled)(units, shares, seed)
