"""The commands for data: convert, check, stats, split, formats."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestree.cli.options import (
    Files,
    From,
    Read,
    Sentences,
    Shape,
    SkipBad,
    Source,
    TableShape,
    To,
    Words,
    Write,
    format_names,
    option_values,
    reading_options,
)
from nestree.cli.running import (
    BAD_INPUT,
    FOUND_ERRORS,
    QUIET,
    USUAL,
    Commands,
    Quiet,
    Verbose,
    print_json,
    progress,
    say,
)
from nestree.errors import InputError

if TYPE_CHECKING:
    from nestree.data.tally import Tally

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
    from nestree.data.converting import convert as converted
    from nestree.data.formats import guess

    with reading([source]):
        source_format = source_format or guess(source)
        target_format = target_format or guess(target, to_write=True)
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
        say(done.as_text())


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
    if report.of("error") or (strict and report.of("warning")):
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
    from nestree.data.tally import Tally

    parts, tally = {}, Tally(skip_bad)
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
    from nestree.cli.formats import described, table
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
        say(f"done in {monotonic() - started:.2f} s")


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
    from nestree.data.formats import guess

    return reading_options(format or guess(paths[0]), read, words, sentences)


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


def say_account(*tallies: "Tally") -> None:
    """Tell what was changed, left out or skipped in reading; nothing if all is as it was."""
    from nestree.data.converting import account

    if lines := account(*tallies):
        say("\n".join(lines))
