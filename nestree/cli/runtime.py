"""How commands run: standard streams, errors, exit codes, and the options that several commands share.

Results go to standard output, everything else to standard error. Nothing that a user can cause ends in a traceback.
Data may contain control characters. Messages, and data written to a terminal, show them as escape sequences; data
written to a file or a pipe stay as they are.
"""

import difflib
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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
)

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from nestree import __version__
from nestree.errors import InputError, NestreeError, shorten_numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestree.evaluation import Evaluation

FOUND_ERRORS, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141
QUIET, NORMAL = -1, 0  # one more for each -v


class Commands(TyperGroup):
    """The group of all commands. An error in one becomes one sentence and an exit code."""

    verbosity = NORMAL
    log: logging.Handler | None = None  # what -v shows
    arguments: Sequence[str] = ()  # of this call

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        Commands.verbosity, Commands.arguments = NORMAL, tuple(args)
        if Commands.log is not None:  # from an earlier command in the same process
            Commands.log.close()
            logging.getLogger().removeHandler(Commands.log)
            logging.getLogger().setLevel(logging.WARNING)
            Commands.log = None
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        with escape_streams(), report_errors():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with report_errors():  # --help and --version print here
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        ctx.color = True  # click must not strip escape sequences: `EscapedStream` shows them
        with report_errors():
            with sigterm_as_interrupt():
                result = super().invoke(ctx)
            sys.stdout.flush()  # while errors are still reported
            return result


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors into one sentence on standard error and an exit code."""
    try:
        yield
    except NestreeError as error:
        exit_with(f"Error: {error}", BAD_INPUT)
    except typer.BadParameter as error:
        if type(error) is not typer.BadParameter or error.param is None:
            raise  # a missing argument: click shows the usage, too
        message = bad_value_message(error.param.opts, error.message, Commands.arguments)
        exit_with(f"Error: {message}", BAD_INPUT)
    except BrokenPipeError:
        discard_output()
        raise SystemExit(CLOSED_PIPE) from None
    except KeyboardInterrupt:
        exit_with("Interrupted.", INTERRUPTED)
    except OSError as error:
        discard_output()
        exit_with(f"Error: {error.filename or 'standard output'}: {error.strerror or error}.", BAD_INPUT)
    except MemoryError:
        exit_with("Error: not enough memory for this. Try it with a part of the data.", BAD_INPUT)


def exit_with(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # standard error may be closed; the exit code still tells
        typer.echo(shorten_numbers(message), err=True)
    raise SystemExit(code) from None


def discard_output() -> None:
    """Send what standard output still buffers to /dev/null: Python would fail to write it again at exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def bad_value_message(names: Sequence[str], reason: str, arguments: Sequence[str]) -> str:
    """A sentence that names the option, its value and the reason for rejecting it.

    >>> bad_value_message(["--first"], "Input should be greater than or equal to 1", ["show", "--first=0"])
    '--first is 0; it should be greater than or equal to 1.'
    """
    reason = reason.removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
    reason = re.sub("^Input should", "it should", reason)
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name.startswith("-") and name in names:
            return f"{name} is {value if equals else following}; {reason}."
    return f"{reason}."


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that unfinished files are removed."""

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


# Control characters except tab and newline, and characters that change the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_control(text: str) -> str:
    """The text with JSON escapes in place of characters that could control a terminal.

    >>> print(escape_control("\x1b]0;title\x07"))
    \\u001b]0;title\\u0007
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class EscapedStream:
    """A text stream that escapes control characters; in bytes only if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream
        self.is_terminal = stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        self.unescaped.write(escape_control(text))
        return len(text)

    @property
    def buffer(self) -> Any:
        return EscapedBuffer(self.unescaped) if self.is_terminal else self.unescaped.buffer


class EscapedBuffer:
    """The bytes of a terminal. Each `write` gets whole characters."""

    def __init__(self, stream: TextIO) -> None:
        self.encoding, self.unescaped = stream.encoding, stream.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, data: bytes) -> int:
        text = escape_control(data.decode(self.encoding, "backslashreplace"))
        self.unescaped.write(text.encode(self.encoding, "backslashreplace"))
        return len(data)


def unescaped(stream: Any) -> TextIO:
    """The underlying stream, for colours and progress bars."""
    return getattr(stream, "unescaped", stream)


@contextmanager
def escape_streams() -> Iterator[None]:
    """Escape control characters on both standard streams, and open those that are closed.

    A closed standard output becomes one that cannot be written to; messages to a closed standard error are dropped.
    """
    before = sys.stdout, sys.stderr
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, mode), "w", encoding="utf-8")
        # PYTHONUNBUFFERED gives a raw stream, which ignores short writes.
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            stream = os.fdopen(stream.fileno(), "w", encoding=stream.encoding, closefd=False)
        if hasattr(stream, "reconfigure"):  # for characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, EscapedStream(stream))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def print_line(text: str) -> None:
    """Print to standard error, unless --quiet."""
    if Commands.verbosity > QUIET:
        typer.echo(text, err=True)


def print_json(value: Any, to_stderr: bool = False) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2), err=to_stderr)


def print_page(*parts: "RenderableType", **options: Any) -> None:
    """Print with rich, in colour on a terminal, and in ASCII if standard output cannot encode UTF-8."""
    from rich.console import Console
    from rich.segment import Segment

    from nestree.show import to_ascii

    class EscapedConsole(Console):
        def render(self, *args: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*args):
                yield Segment(text if control else escape_control(text), style, control)

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # for `report_errors`; rich would exit with 1

    stream = unescaped(sys.stdout)
    console = EscapedConsole(file=stream, highlight=False)
    if console.encoding.startswith("utf"):
        console.print(*parts, sep="\n", **options)
        return
    with console.capture() as page:
        console.print(*parts, sep="\n", **options)
    stream.write(to_ascii(page.get()))


def pluralize(number: int, one: str, many: str) -> str:
    """
    >>> pluralize(1, "entity", "entities"), pluralize(2000, "entity", "entities")
    ('1 entity', '2,000 entities')
    """
    return f"{number:,} {one if number == 1 else many}"


def format_scores(evaluation: "Evaluation", duplicates: bool) -> str:
    """Precision, recall and F1 in one line."""
    score = evaluation.duplicates if duplicates else evaluation.entities
    note = " (each copy counted)" if duplicates else ""
    return f"P {100 * score.precision:.2f}  R {100 * score.recall:.2f}  F1 {100 * score.f1:.2f}{note}"


@contextmanager
def reading_progress(paths: Iterable[Path]) -> Iterator[None]:
    """Show on a terminal how much of these files has been read, after one second."""
    if Commands.verbosity == QUIET or not sys.stderr.isatty():
        yield
        return
    from nestree.data.io import report_progress

    total = sum(total_bytes(path) for path in paths)
    bar = progress_bar(total=total, unit="B", unit_scale=True, desc="reading", delay=1)
    with bar, report_progress(lambda n: bar.update(min(n, total - bar.n))):
        yield


def progress_bar(**options: Any) -> Any:
    """A tqdm bar on standard error that disappears when it is closed."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(file=unescaped(sys.stderr), leave=False, **options)


def total_bytes(path: Path) -> int:
    """The bytes of a file or of all files in a directory; 0 if they cannot be read."""
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


# Options


class OutputFormat(StrEnum):
    text = "text"
    json = "json"


class TableFormat(StrEnum):
    text = "text"
    markdown = "markdown"
    json = "json"


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"nestree {__version__}")
        raise typer.Exit


def set_quiet(quiet: bool) -> None:
    if quiet:
        Commands.verbosity = QUIET


def set_verbose(count: int) -> None:
    if count:
        Commands.verbosity = count
        if Commands.log is None:  # -v may stand before and after the command
            Commands.log = logging.StreamHandler(sys.stderr)
            Commands.log.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logging.getLogger().addHandler(Commands.log)
        logging.getLogger().setLevel(logging.INFO if count == 1 else logging.DEBUG)


def format_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def writable_names(incomplete: str) -> list[str]:
    from nestree.data.formats import FORMATS

    return [name for name in format_names(incomplete) if FORMATS[name].writable]


def complete_from(constant: str) -> Callable[[str], list[str]]:
    """Shell completion with the names of a constant of nestree.text."""

    def complete(incomplete: str) -> list[str]:
        from nestree import text

        return [name for name in getattr(text, constant) if name.startswith(incomplete)]

    return complete


Version = Annotated[
    bool, Option("--version", callback=print_version, is_eager=True, help="Show the version.")
]
# These two take effect in their callbacks, so they may stand before and after the command.
Verbose = Annotated[
    int, Option("--verbose", "-v", count=True, callback=set_verbose, show_default=False,
                help="Say more; -vv: everything."),
]  # fmt: skip
Quiet = Annotated[bool, Option("--quiet", "-q", callback=set_quiet, help="Print only results and errors.")]
From = Annotated[
    str | None, Option("--from", metavar="FORMAT", autocompletion=format_names,
                       help="The format of the data, if it cannot be guessed; `nestree formats` lists all."),
]  # fmt: skip
To = Annotated[
    str | None, Option("--to", metavar="FORMAT", autocompletion=writable_names,
                       help="The format to write, if the file name does not tell it."),
]  # fmt: skip
Read = Annotated[
    list[str] | None, Option("--read", metavar="NAME=VALUE",
                             help="An option of the input format, such as ends=inclusive; may be repeated."),
]  # fmt: skip
Write = Annotated[
    list[str] | None, Option("--write", metavar="NAME=VALUE", help="An option of the output format; may be repeated."),
]  # fmt: skip
Words = Annotated[
    str | None, Option("--words", metavar="STYLE", autocompletion=complete_from("WORD_STYLES"),
                       help="How text is split into words: treebank, ud, split-hyphens, whitespace."),
]  # fmt: skip
Sentences = Annotated[
    str | None, Option("--sentences", metavar="RULE", autocompletion=complete_from("SENTENCE_RULES"),
                       help="How text is split into sentences: rules, lines."),
]  # fmt: skip
SkipBad = Annotated[bool, Option("--skip-bad", help="Skip what cannot be read, and list it.")]
Model = Annotated[
    Path, Option("--model", metavar="DIR", help="A model directory, as `nestree train` makes them.")
]
Device = Annotated[str, Option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")]
Source = Annotated[Path, Argument(metavar="IN", help="A file or directory; - is standard input.")]
Files = Annotated[list[Path], Argument(metavar="FILES", help="Files or directories; - is standard input.")]
# Limits on what a file may cost to read; `with_limits` gives them to every command that reads data.
LIMITS = {
    "longest_line": ("BYTES", "Read lines up to this length. [default: 64 MB]"),
    "max_bytes": ("BYTES", "Read compressed files that expand to this much. [default: 4 GB]"),
    "max_docbin_bytes": ("BYTES", "Read spaCy DocBins that expand to this much. [default: 512 MB]"),
    "max_xml_depth": ("N", "Read XML with elements nested this deep. [default: 1000]"),
    "max_nesting": ("N", "Read sentences where this many entities share a word. [default: 100]"),
}


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of LIMITS, which apply while it runs. A command that reads no data is unchanged."""
    signature = inspect.signature(command)
    if "source_format" not in signature.parameters:
        return command

    @functools.wraps(command)
    def run(**values: Any) -> None:
        from nestree.data.io import limits

        chosen = {name: value for name in LIMITS if (value := values.pop(name)) is not None}
        with limits(**chosen):
            command(**values)

    added = {
        name: Annotated[int | None, Option(f"--{name.replace('_', '-')}", metavar=metavar, min=1, help=text)]
        for name, (metavar, text) in LIMITS.items()
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **added}
    return run


# Options of formats


def option_values(arguments: Iterable[str], format: str, verb: Literal["read", "write"]) -> dict[str, Any]:
    """NAME=VALUE arguments as keyword arguments for the reader or writer of the format.

    >>> option_values(["word=2"], "columns", "read")
    {'word': 2}
    """
    from nestree.data.formats import options

    known = options(format, verb)
    values = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--{verb} {argument} has no value: write --{verb} {argument}=VALUE.")
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            hint = f"Is {close[0]} meant?" if close else f"It has: {', '.join(known)}."
            raise InputError(
                f"--{verb} {argument}: {format} has no such option. {hint if known else 'It has none.'}"
            )
        try:
            values[name] = parse_value(value, known[name].annotation)
        except ValueError as why:
            raise InputError(f"--{verb} {argument}: {why}.") from None
    return values


def parse_value(value: str, hint: Any) -> Any:
    """The string as a value of the type; raises ValueError with what was expected."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [kind for kind in inner if kind is not type(None)]
        return None if value == "" and len(others) < len(inner) else parse_value(value, others[0])
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"choose one of {', '.join(map(str, inner))}")
        return value
    if origin is not None:  # a list, tuple or other collection
        return (list if origin is list else tuple)(
            parse_value(part, inner[0]) for part in value.split(",") if part
        )
    if hint is bool:
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError("the value must be true or false")
        return value.lower() in ("true", "yes", "1")
    if hint is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError("the value must be a whole number") from None
    return Path(value) if hint is Path else value


def reading_options(
    format: str, read: Sequence[str] | None, words: str | None, sentences: str | None
) -> dict[str, Any]:
    """The options --read, --words and --sentences as keyword arguments for the reader of the format."""
    from nestree.data.formats import options
    from nestree.text import SENTENCE_RULES, WORD_STYLES

    values = option_values(read or (), format, "read")
    for name, value, choices in (("words", words, WORD_STYLES), ("sentences", sentences, SENTENCE_RULES)):
        if value is None:
            continue
        if value not in choices:
            raise InputError(f"--{name} {value}: choose one of {', '.join(choices)}.")
        if name not in options(format, "read"):
            raise InputError(f"--{name} {value}: {format} data has its own {name}. Leave this out.")
        values[name] = value
    return values
