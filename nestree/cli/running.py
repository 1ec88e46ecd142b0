"""How commands run: what they say and where, what becomes of errors, and which code they exit with.

Results go to standard output, everything else to standard error. Nothing that a user can cause ends in a traceback.
"""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from nestree import __version__
from nestree.errors import NestreeError, shorten_numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

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

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # where a terminal lacks a character, its number is shown
                stream.reconfigure(errors="backslashreplace")
        try:
            with ending_as_interrupted():
                result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # what goes wrong here is still ours to tell
            return result
        except NestreeError as error:
            stop(f"Error: {error}", BAD_INPUT)
        except typer.BadParameter as error:
            if type(error) is not typer.BadParameter or error.param is None:
                raise  # something is missing: how the command is used is told with it
            stop(f"Error: {not_fitting(error.param.opts, error.message, Commands.given)}", BAD_INPUT)
        except BrokenPipeError:
            forget_output()
            raise typer.Exit(CLOSED_PIPE) from None
        except KeyboardInterrupt:
            stop("Interrupted.", INTERRUPTED)
        except OSError as error:
            forget_output()
            stop(f"Error: {error.filename or 'standard output'}: {error.strerror or error}.", BAD_INPUT)
        except MemoryError:
            stop("Error: there is not enough memory for this. Try it with a part of the data.", BAD_INPUT)


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
    typer.echo(shorten_numbers(why), err=True)
    raise typer.Exit(code)


def forget_output() -> None:
    """What could not be written is not tried again when Python ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return


def say(text: str) -> None:
    """Tell the user something that is not the result."""
    if Commands.verbosity > QUIET:
        typer.echo(text, err=True)


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nestree {__version__}")
        raise typer.Exit


def be_quiet(wanted: bool) -> None:
    if wanted:
        Commands.verbosity = QUIET


def be_verbose(times: int) -> None:
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
        callback=be_verbose,
        show_default=False,
        help="Say more; -vv: everything.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=be_quiet, help="Say nothing but results and errors.")
]


@contextmanager
def progress(paths: Iterable[Path]) -> Iterator[None]:
    """A bar of how much of these files is read, if that takes more than a second and somebody looks on."""
    if Commands.verbosity == QUIET or not (sys.stderr and sys.stderr.isatty()):
        yield
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    from nestree.data.files import watching

    total = sum(size(path) for path in paths)
    bar = tqdm(total=total, unit="B", unit_scale=True, desc="reading", delay=1, leave=False)
    with bar, watching(lambda n: bar.update(min(n, total - bar.n))):
        yield


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

    from nestree.show import in_ascii

    console = Console(highlight=False)
    if console.encoding.startswith("utf"):
        console.print(*parts, sep="\n", **how)
        return
    with console.capture() as page:
        console.print(*parts, sep="\n", **how)
    sys.stdout.write(in_ascii(page.get()))
