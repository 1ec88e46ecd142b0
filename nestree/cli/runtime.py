"""How commands run: what they say and where, what becomes of errors, and which code they exit with.

Results go to standard output, everything else to standard error. Nothing that a user can cause ends in a traceback.
Data may hold characters that steer a terminal or hide text: messages show their numbers, and so do data that are
written to a terminal. Data in a file or a pipe stay as they are.
"""

import functools
import inspect
import io
import logging
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TextIO,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.core import TyperGroup

from nestree import __version__
from nestree.errors import InputError, NestreeError, shorten_numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestree.evaluation import Evaluation

FOUND_ERRORS, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141
QUIET, USUAL = -1, 0  # and more with each -v


class Commands(TyperGroup):
    """The commands; what goes wrong in one becomes a sentence and an exit code."""

    verbosity = USUAL
    log: logging.Handler | None = None  # where -v tells more
    given: Sequence[str] = ()  # what was written after `nestree`

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        Commands.verbosity, Commands.given = USUAL, tuple(args)
        if Commands.log is not None:  # of a command before this one, in the same process
            Commands.log.close()
            logging.getLogger().removeHandler(Commands.log)
            logging.getLogger().setLevel(logging.WARNING)
            Commands.log = None
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        with escaped_streams(), errors_reported():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with errors_reported():  # --help and --version print here
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        ctx.color = True  # nothing is taken out of what is printed: `EscapedStream` escapes it
        with errors_reported():
            with ending_as_interrupted():
                result = super().invoke(ctx)
            sys.stdout.flush()  # what goes wrong here is still ours to tell
            return result


@contextmanager
def errors_reported() -> Iterator[None]:
    """An error becomes a sentence and an exit code."""
    try:
        yield
    except NestreeError as error:
        stop(f"Error: {error}", BAD_INPUT)
    except typer.BadParameter as error:
        if type(error) is not typer.BadParameter or error.param is None:
            raise  # something is missing: how the command is used is told with it
        stop(f"Error: {not_fitting(error.param.opts, error.message, Commands.given)}", BAD_INPUT)
    except BrokenPipeError:
        forget_output()
        raise SystemExit(CLOSED_PIPE) from None
    except KeyboardInterrupt:
        stop("Interrupted.", INTERRUPTED)
    except OSError as error:
        forget_output()
        stop(f"Error: {error.filename or 'standard output'}: {error.strerror or error}.", BAD_INPUT)
    except MemoryError:
        stop("Error: there is not enough memory for this. Try it with a part of the data.", BAD_INPUT)


# Control characters but tabs and ends of lines, and those that reorder the text after them.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """The text with the numbers of characters that could steer a terminal, as JSON has them.

    >>> print(escaped("\x1b]0;title\x07"))
    \\u001b]0;title\\u0007
    """
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EscapedStream:
    """A stream that escapes what is written to it; bytes only if it is a terminal. `unescaped` is the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream
        self.is_terminal = stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        self.unescaped.write(escaped(text))
        return len(text)

    @property
    def buffer(self) -> Any:
        return EscapedBuffer(self.unescaped) if self.is_terminal else self.unescaped.buffer


class EscapedBuffer:
    """The bytes of a terminal. Each `write` has whole characters."""

    def __init__(self, stream: TextIO) -> None:
        self.encoding, self.unescaped = stream.encoding, stream.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, data: bytes) -> int:
        text = escaped(data.decode(self.encoding, "backslashreplace"))
        self.unescaped.write(text.encode(self.encoding, "backslashreplace"))
        return len(data)


def unescaped(stream: Any) -> TextIO:
    """The stream itself, for colours and progress bars."""
    return getattr(stream, "unescaped", stream)


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Within this, both standard streams escape, and neither is None.

    A standard output that is closed becomes one that cannot be written to; messages to a closed standard error vanish.
    """
    before = sys.stdout, sys.stderr
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, mode), "w", encoding="utf-8")
        if isinstance(
            getattr(stream, "buffer", None), io.RawIOBase
        ):  # PYTHONUNBUFFERED: a short write would not be noticed
            stream = os.fdopen(stream.fileno(), "w", encoding=stream.encoding, closefd=False)
        if hasattr(stream, "reconfigure"):  # where a terminal lacks a character, its number is shown
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, EscapedStream(stream))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def not_fitting(names: Sequence[str], why: str, given: Sequence[str]) -> str:
    """What is wrong with the value of an option, or of an argument, in a sentence that names it.

    >>> not_fitting(["--first"], "Input should be greater than or equal to 1", ["show", "--first=0"])
    '--first is 0; it should be greater than or equal to 1.'
    """
    why = why.removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
    why = re.sub("^Input should", "it should", why)
    for name in names:
        for argument, after in zip(given, [*given[1:], ""], strict=True):
            if name.startswith("-") and argument.partition("=")[0] == name:
                return f"{name} is {argument.partition('=')[2] if '=' in argument else after}; {why}."
    return f"{why}."


@contextmanager
def ending_as_interrupted() -> Iterator[None]:
    """Who tells the program to end (SIGTERM) is heard as Ctrl-C is, so that what is half written is removed."""

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop(why: str, code: int) -> NoReturn:
    with suppress(OSError):  # whoever read the messages went away; the code tells
        typer.echo(shorten_numbers(why), err=True)
    raise SystemExit(code) from None


def forget_output() -> None:
    """What could not be written is not tried again when Python ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return


def print_line(text: str) -> None:
    """Tell the user something that is not the result."""
    if Commands.verbosity > QUIET:
        typer.echo(text, err=True)


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nestree {__version__}")
        raise typer.Exit


def set_quiet(wanted: bool) -> None:
    if wanted:
        Commands.verbosity = QUIET


def set_verbose(times: int) -> None:
    if times:
        Commands.verbosity = times
        if Commands.log is None:  # -v may stand before and after the name of a command
            Commands.log = logging.StreamHandler(sys.stderr)
            Commands.log.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logging.getLogger().addHandler(Commands.log)
        logging.getLogger().setLevel(logging.INFO if times == 1 else logging.DEBUG)


Version = Annotated[
    bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version.")
]
# Both work by their callbacks, before and after the name of a command.
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=set_verbose,
        show_default=False,
        help="Say more; -vv: everything.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=set_quiet, help="Say nothing but results and errors.")
]


@contextmanager
def progress(paths: Iterable[Path]) -> Iterator[None]:
    """A bar of how much of these files is read, if that takes more than a second and somebody looks on."""
    if Commands.verbosity == QUIET or not (sys.stderr and sys.stderr.isatty()):
        yield
        return
    from nestree.data.io import report_progress

    total = sum(size(path) for path in paths)
    bar = progress_bar(total=total, unit="B", unit_scale=True, desc="reading", delay=1)
    with bar, report_progress(lambda n: bar.update(min(n, total - bar.n))):
        yield


def progress_bar(**options: Any) -> Any:
    """A bar of tqdm on standard error, which vanishes when it is closed."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(file=unescaped(sys.stderr), leave=False, **options)


def size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder; 0 if that cannot be told."""
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def print_json(value: Any, to_stderr: bool = False) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2), err=to_stderr)


def print_page(*parts: "RenderableType", **how: Any) -> None:
    """Print in colour where there is any, and in ASCII where there is nothing else."""
    from rich.console import Console
    from rich.segment import Segment

    from nestree.show import in_ascii

    class EscapedConsole(Console):
        def render(self, *given: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*given):
                yield Segment(text if control else escaped(text), style, control)

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # for `errors_reported`; rich would exit with 1

    stream = unescaped(sys.stdout)
    console = EscapedConsole(file=stream, highlight=False)
    if console.encoding.startswith("utf"):
        console.print(*parts, sep="\n", **how)
        return
    with console.capture() as page:
        console.print(*parts, sep="\n", **how)
    stream.write(in_ascii(page.get()))


def counted(number: int, one: str, many: str) -> str:
    """
    >>> counted(1, "entity", "entities"), counted(2000, "entity", "entities")
    ('1 entity', '2,000 entities')
    """
    return f"{number:,} {one if number == 1 else many}"


def headline(evaluation: "Evaluation", duplicates: bool) -> str:
    """Precision, recall and F1 in a line."""
    score = evaluation.duplicates if duplicates else evaluation.entities
    counted = " (each copy counted)" if duplicates else ""
    return f"P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}{counted}"


class Shape(StrEnum):
    text = "text"
    json = "json"


class TableShape(StrEnum):
    text = "text"
    markdown = "markdown"
    json = "json"


def format_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def writable_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in format_names(incomplete) if FORMATS[name].writable]


def word_styles(incomplete: str) -> list[str]:
    from nestree.text import WORD_STYLES

    return [name for name in WORD_STYLES if name.startswith(incomplete)]


def sentence_rules(incomplete: str) -> list[str]:
    from nestree.text import SENTENCE_RULES

    return [name for name in SENTENCE_RULES if name.startswith(incomplete)]


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        autocompletion=format_names,
        help="What format the data is in; guessed where that can be told. `nestree formats` lists them.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        autocompletion=writable_names,
        help="What format to write; guessed from the name where that can be told.",
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="NAME=VALUE",
        help="An option of the format that is read, such as ends=inclusive; may be repeated.",
    ),
]
Write = Annotated[
    list[str] | None,
    typer.Option(
        "--write", metavar="NAME=VALUE", help="An option of the format that is written; may be repeated."
    ),
]
Words = Annotated[
    str | None,
    typer.Option(
        "--words",
        metavar="STYLE",
        autocompletion=word_styles,
        help="How text is split into words: treebank, ud, split-hyphens, whitespace.",
    ),
]
Sentences = Annotated[
    str | None,
    typer.Option(
        "--sentences",
        metavar="RULE",
        autocompletion=sentence_rules,
        help="How text is split into sentences: rules, lines.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on after what cannot be read, and list it.")]
Model = Annotated[
    Path, typer.Option("--model", metavar="DIR", help="A model directory, as `nestree train` makes them.")
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or mps; auto: the best there is.")
]
# What a file may cost to read: of every command that reads data, see `with_limits`.
LIMITS = {
    "longest_line": ("BYTES", "Read lines up to this length. [default: 64 MB]"),
    "max_bytes": ("BYTES", "Read compressed files that expand to so much. [default: 4 GB]"),
    "max_docbin_bytes": ("BYTES", "Read DocBins of spaCy that expand to so much. [default: 512 MB]"),
    "max_xml_depth": ("N", "Read XML with so many elements inside each other. [default: 1000]"),
    "max_nesting": ("N", "Read sentences where so many entities share a word. [default: 100]"),
}
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")]
Source = Annotated[Path, typer.Argument(metavar="IN", help="A file or folder; - is standard input.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILES", help="Files or folders; - is standard input.")]


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of LIMITS, which hold while it runs; any other if it reads no data."""
    signature = inspect.signature(command)
    if "source_format" not in signature.parameters:
        return command

    @functools.wraps(command)
    def limited(**given: Any) -> None:
        from nestree.data.io import limits

        chosen = {name: value for name in LIMITS if (value := given.pop(name)) is not None}
        with limits(**chosen):
            command(**given)

    added = {
        name: Annotated[
            int | None, typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, min=1, help=told)
        ]
        for name, (metavar, told) in LIMITS.items()
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in added.items()
    ]
    limited.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])  # type: ignore[attr-defined]
    limited.__annotations__ = {**command.__annotations__, **added}
    return limited


def option_values(given: Iterable[str], format: str, verb: Literal["read", "write"]) -> dict[str, Any]:
    """The values of NAME=VALUE arguments, as the reader or writer of the format wants them.

    >>> option_values(["word=2"], "columns", "read")
    {'word': 2}
    """
    from nestree.data.formats import function, options

    known = options(format, verb)
    kinds = get_type_hints(function(format, verb))
    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--{verb} {each} has no value: write --{verb} {each}=VALUE.")
        if name not in known:
            raise InputError(f"--{verb} {each}: {format} has no such option. {nearest(name, known)}")
        try:
            values[name] = typed(value, kinds[name])
        except ValueError as why:
            raise InputError(f"--{verb} {each}: {why}.") from None
    return values


def nearest(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    import difflib

    if not known:
        return "It has none."
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Is {close[0]} meant?" if close else f"It has: {', '.join(known)}."


def typed(value: str, kind: Any) -> Any:
    """A string as a value of this type; a ValueError says what was expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [each for each in inner if each is not type(None)]
        return None if value == "" and len(others) < len(inner) else typed(value, others[0])
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"choose one of {', '.join(map(str, inner))}")
        return value
    if origin is not None:  # a list, tuple or other collection
        return (list if origin is list else tuple)(typed(part, inner[0]) for part in value.split(",") if part)
    if kind is bool:
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError("the value must be true or false")
        return value.lower() in ("true", "yes", "1")
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError("the value must be a whole number") from None
    return Path(value) if kind is Path else value


def reading_options(
    format: str, read: Sequence[str] | None, words: str | None, sentences: str | None
) -> dict[str, Any]:
    """All that was said about how to read this format."""
    from nestree.data.formats import options
    from nestree.text import SENTENCE_RULES, WORD_STYLES

    values = option_values(read or (), format, "read")
    known = options(format, "read")
    for name, value, choices in (("words", words, WORD_STYLES), ("sentences", sentences, SENTENCE_RULES)):
        if value is None:
            continue
        if value not in choices:
            raise InputError(f"--{name} {value}: choose one of {', '.join(choices)}.")
        if name not in known:
            raise InputError(f"--{name} {value}: {format} data has its own {name}. Leave this out.")
        values[name] = value
    return values
