"""How commands run: standard streams, errors, exit codes, messages and progress bars.

Results go to standard output, everything else to standard error. Nothing that a user can cause ends in a traceback.
Data may contain control characters. Messages, and data written to a terminal, show them as escape sequences; data
written to a file or a pipe stay as they are.
"""

import difflib
import gc
import io
import json
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from nestree.errors import InputError, NestreeError, escape_newlines, format_duration, shorten_numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nestree.predict_files import Progress
    from nestree.training import EpochEnd, Step
    from nestree.training.pretrain import PretrainStep

FOUND_ERRORS, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141
QUIET, NORMAL = -1, 0  # one more for each -v
USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class: typer does not export it
COMPILATION = "nestree.treecrf.numba_kernels.simd"  # logs it: nothing else happens for up to a minute
GC_THRESHOLD = 50_000  # by default, garbage collection takes 0.35 s of the four that `nestree predict` takes to start
URL_OPTIONS = ("--cors-origin", "--ray", "--set")  # whose values may look like URLs
# What options and commands of other tools are called here. Of several, the first that a command has is suggested.
SYNONYMS = {
    "--out": "--output --output-dir --output-file --save --html",
    "--batch-words": "--batch-size --bs",
    "--device": "--gpu --cuda --use-gpu --cpu",
    "--onnx": "--out --output --output-dir",
    "--to": "--output-format --to-format --write-format --format",
    "--from": "--input-format --from-format --type --format",
    "--model": "--model-path --model-name --checkpoint",
    "--init": "--model-path --model-name --checkpoint",
    "--lr": "--learning-rate --rate",
    "--epochs": "--num-epochs --max-epochs --num-train-epochs --max-steps",
    "--dev": "--valid --validation --dev-data",
    "--config": "--recipe --settings",
    "--encoder": "--pretrained --bert --model",
    "--format json": "--json",
    "--set training.early_stopping_patience=N": "--patience",
    "--first": "-n --limit --max",
    "--parts": "--train --dev --test --test-size --ratio --ratios --sizes",
    "--seed": "--random-state",
    "--threshold": "--min-score",
    "predict": "ner tag annotate extract run",
    "evaluate": "eval score test",
    "check": "validate lint",
    "show": "visualize render display view",
    "train": "fit finetune fine-tune",
    "stats": "statistics",
    "--help": "help",
    "--version": "version",
}


class Commands(TyperGroup):
    """The group of all commands. An error in one becomes one sentence and an exit code."""

    verbosity = NORMAL
    arguments: Sequence[str] = ()  # of this call

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        Commands.verbosity, Commands.arguments = NORMAL, tuple(args)
        return super().parse_args(ctx, complete_ray_option(args))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and (meant := suggest_names(cmd_name)):
            raise InputError(f"nestree has no command {cmd_name}. Did you mean nestree {meant[0]}?")
        return command

    def main(self, *args: Any, **options: Any) -> Any:
        gc.set_threshold(GC_THRESHOLD)
        with escape_streams(), report_errors(), show_log():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with report_errors():  # --help and --version print here
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        ctx.color = True  # click must not strip escape sequences: `EscapedStream` shows them
        with report_errors():
            with handle_signals():
                result = super().invoke(ctx)
            sys.stdout.flush()  # while errors are still reported
            return result


class Command(TyperCommand):
    """A command that refuses an option that is given twice; click would ignore all but the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "" in args:  # as a path it would be the current folder
            before = f" after {args[args.index('') - 1]}" if args[0] else ""
            raise InputError(f"there is an empty argument{before}. Is a variable of the shell not set?")
        check_urls(ctx.info_name, args)
        given = [argument.partition("=")[0] for argument in args[: (*args, "--").index("--")]]
        for option in self.params:
            once = option.param_type_name == "option" and not any(
                getattr(option, name) for name in ("multiple", "is_flag", "count")
            )
            if once and sum(given.count(name) for name in option.opts) > 1:
                others = [other for parameter in self.params for other in parameter.opts]
                compare = option.name == "model" and "--compare" in others
                hint = "Name another model with --compare." if compare else "Give it once."
                raise InputError(f"{option.opts[0]} is given more than once. {hint}")
        return super().parse_args(ctx, args)


def check_urls(command: str, arguments: list[str]) -> None:
    """Raise if a file is named by a URL: as a path it would be a folder called "s3:"."""
    for before, argument in pairwise(["", *arguments]):
        option, _, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
        is_output = command == "predict" and option in ("--out", "-o")
        if re.match(r"[A-Za-z][\w+.-]+://", value) and not is_output and option not in URL_OPTIONS:
            url = re.sub(r"//[^/]*@", "//", value)  # without credentials
            raise InputError(
                f"{url} is a URL, and this command reads and writes files. `nestree predict --out` writes to an object "
                "store; to read from one, copy the files, or use Ray Data, as docs/scale.md shows."
            )


def complete_ray_option(arguments: list[str]) -> list[str]:
    """The arguments with the address "local" after a --ray without one.

    >>> complete_ray_option(["predict", "--ray", "texts", "--ray", "head:6379"])
    ['predict', '--ray', 'local', 'texts', '--ray', 'head:6379']
    """
    complete = []
    for argument, following in pairwise([*arguments, ""]):
        complete.append(argument)
        if argument == "--ray" and not re.fullmatch(r"auto|local|\S+:\S*\d", following):
            complete.append("local")
    return complete


class LogHandler(logging.StreamHandler[TextIO]):
    """Shows warnings; without --quiet, also the compilation of kernels; with -v, the whole log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == COMPILATION:
            return Commands.verbosity >= NORMAL
        return record.levelno >= logging.WARNING or Commands.verbosity > NORMAL

    def format(self, record: logging.LogRecord) -> str:
        prefix = "Warning: " if record.levelno >= logging.WARNING and record.name != COMPILATION else ""
        return (f"{record.name}: " if Commands.verbosity > NORMAL else prefix) + super().format(record)


@contextmanager
def show_log() -> Iterator[None]:
    logger, compilation, handler = logging.getLogger("nestree"), logging.getLogger(COMPILATION), LogHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.NOTSET)  # -v of an earlier command in the same process
    compilation.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        compilation.setLevel(logging.NOTSET)


def set_quiet(quiet: bool) -> None:
    if quiet:
        Commands.verbosity = QUIET


def set_verbose(count: int) -> None:
    """Show the log of nestree: -v INFO, -vv DEBUG."""
    if count:
        Commands.verbosity = count
        logging.getLogger("nestree").setLevel(logging.INFO if count == 1 else logging.DEBUG)


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn errors into one sentence on standard error and an exit code."""
    try:
        yield
    except NestreeError as error:
        exit_with(f"Error: {escape_newlines(str(error))}", BAD_INPUT)
    except USAGE_ERROR as error:
        if hasattr(error, "possibilities"):
            message = unknown_option_message(error.option_name, error.ctx)
        elif type(error) is typer.BadParameter and error.param is not None:
            message = bad_value_message(error.param.opts, error.message, Commands.arguments)
        elif error.ctx is None:  # an option without its value, or a flag with one
            message = f"{error.format_message().rstrip('.')}. `nestree COMMAND --help` lists all options."
        else:
            context: Any = error.ctx  # of a missing argument, one too many, or an unknown command
            usage = context.get_usage().removeprefix("Usage: ")
            is_group = hasattr(context.command, "commands")
            remedy = "`nestree --help` lists the commands." if is_group else f"Usage: {usage}"
            problem = error.format_message().rstrip(".")
            message = f"{problem}{'' if problem.endswith('?') else '.'} {remedy}"
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


def suggest_names(name: str) -> list[str]:
    """What a command or option of another tool may be called here."""
    return [meant for meant, names in SYNONYMS.items() if name in names.split()]


def unknown_option_message(name: str, context: Any) -> str:
    """A sentence with the option that was probably meant: by another tool's name, as a setting, or by spelling."""
    from nestree.config import SECTIONS

    options = [option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"]
    setting = name.strip("-").replace("-", "_")
    keys = [f"{section}.{setting}" for section, kind in SECTIONS.items() if setting in kind]
    close = difflib.get_close_matches(name, options, 1, 0.65)
    if known := [meant for meant in suggest_names(name) if meant.split()[0] in options]:
        hint = f"Did you mean {known[0]}?"
    elif name == "--text":
        hint = f"Pipe the text: echo TEXT | {context.command_path} -"
    elif name in ("--input", "--file", "--files", "--data", "--source", "--gold"):
        hint = "Name files without an option."
    elif keys and "--set" in options:
        hint = f"It is a setting: write {' or '.join(f'--set {key}=VALUE' for key in keys)}."
    else:
        hint = f"Did you mean {close[0]}?" if close else f"`{context.command_path} --help` lists all options."
    return f"{context.command_path} has no option {name}. {hint}"


def bad_value_message(names: Sequence[str], reason: str, arguments: Sequence[str]) -> str:
    """A sentence that names the option, its value and the reason for rejecting it.

    >>> bad_value_message(["--first"], "Input should be greater than or equal to 1", ["show", "--first=0"])
    '--first is 0; it should be greater than or equal to 1.'
    >>> bad_value_message(["FILES"], "path 'a.txt' is not readable.", ["stats", "a.txt"])
    'a.txt cannot be read: Permission denied.'
    """
    from nestree.data.formats import FORMATS

    reason = reason.removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
    if path := re.fullmatch("path '(.*)' is not readable", reason, re.DOTALL):
        return f"{path[1]} cannot be read: Permission denied."
    reason = re.sub("^Input should", "it should", reason)
    for argument, following in pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if name.startswith("-") and name in names:
            value = value if equals else following
            is_data_format = name == "--format" and value in FORMATS
            hint = " Formats of data are named with --from and --to." if is_data_format else ""
            return f"{name} is {value}; {reason}.{hint}"
    return f"{reason}."


@contextmanager
def handle_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that unfinished files are removed. Both wait until an import is done.

    An interrupted import of numpy or torch fails with other errors, or aborts the process.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not Commands.invoke.__code__:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Streams

# Control characters except tab and newline, and characters that change the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_control(text: str) -> str:
    """The text with JSON escapes in place of characters that could control a terminal.

    >>> print(escape_control("\x1b]0;title\x07"))
    \\u001b]0;title\\u0007
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class EscapedStream:
    """A text stream that escapes control characters; in its `buffer`, only if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped, self.is_terminal = stream, stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        self.unescaped.write(escape_control(text))
        return len(text)

    @property
    def buffer(self) -> Any:
        return EscapedBuffer(self.unescaped) if self.is_terminal else self.unescaped.buffer


class EscapedBuffer:
    """The `buffer` of a terminal, which escapes control characters. Each `write` gets whole characters."""

    def __init__(self, stream: TextIO) -> None:
        self.encoding, self.unescaped = stream.encoding, stream.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, data: bytes) -> int:
        text = escape_control(data.decode(self.encoding, "backslashreplace"))
        self.unescaped.write(text.encode(self.encoding, "backslashreplace"))
        return len(data)


def unescaped(stream: TextIO) -> TextIO:
    """The underlying stream, for colours and progress bars."""
    return stream.unescaped if isinstance(stream, EscapedStream) else stream


@contextmanager
def escape_streams() -> Iterator[None]:
    """Escape control characters on both standard streams, and open those that are closed.

    Writing to a closed standard output is an error; messages to a closed standard error are dropped.
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


# Messages and results


def print_line(text: str) -> None:
    """Print to standard error, unless --quiet."""
    if Commands.verbosity > QUIET:
        typer.echo(text, err=True)


def print_json(value: Any, to_stderr: bool = False) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2), err=to_stderr)


def terminal_width() -> int | None:
    """The width of the terminal that standard output goes to; None: it goes to a file or a pipe."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else None


def print_rich(*parts: "RenderableType", **options: Any) -> None:
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
    stream.flush()  # typer.echo has a buffer of its own if standard output is ASCII


# Progress: a bar on a terminal; elsewhere a line at most every 30 seconds

LINE_SECONDS = 30.0  # between two lines
MAX_EPOCH_LINES = 30  # of a run


def on_terminal() -> bool:
    """Whether progress bars are shown."""
    return Commands.verbosity > QUIET and sys.stderr.isatty()


def progress_bar(**options: Any) -> Any:
    """A tqdm bar on standard error that disappears when it is closed."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    return tqdm(file=unescaped(sys.stderr), leave=False, **options)


def total_bytes(path: Path) -> int:
    """The bytes of a file or of all files in a folder; 0 if they cannot be read."""
    from nestree.data.io import list_files
    from nestree.errors import DataError

    try:
        files = list_files(path) if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except (OSError, DataError):
        return 0


@contextmanager
def reading_progress(paths: Sequence[Path]) -> Iterator[None]:
    """Show on a terminal how much of these files has been read, after one second; with -v, how long it took."""
    if list(paths).count(Path("-")) > 1:
        raise InputError("standard input can be read once: name - once.")
    started = monotonic()
    if not on_terminal():
        yield
    else:
        from nestree.data.io import report_progress

        total = sum(map(total_bytes, paths))
        bar = progress_bar(total=total, unit="B", unit_scale=True, desc="reading", delay=1)
        with bar, report_progress(lambda n: bar.update(min(n, total - bar.n))):
            yield
    if Commands.verbosity > NORMAL:
        print_line(f"done in {monotonic() - started:.2f} s")


class ProgressDisplay(AbstractContextManager[Any]):
    """A progress bar on a terminal; elsewhere, a line at most every LINE_SECONDS."""

    bar_format = "{desc} {percentage:3.0f} %|{bar}|{postfix}"

    def __init__(self, delay: float = 1.0) -> None:
        self.bar: Any = progress_bar(total=100, delay=delay, disable=None, bar_format=self.bar_format)
        self.last_line = monotonic()

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def print_line(self, text: str) -> None:
        self.bar.clear()
        print_line(text)
        self.last_line = monotonic()

    def show(self, share: float, description: str, postfix: str = "") -> None:
        """Update the bar, or print a line if one is due."""
        if sys.stderr.isatty():
            self.bar.set_description_str(description, refresh=False)
            self.bar.set_postfix_str(postfix, refresh=False)
            self.bar.n = round(100 * share)
            self.bar.update(0)
        elif monotonic() - self.last_line >= LINE_SECONDS:
            self.print_line(f"{100 * share:3.0f} %  {description}  {postfix}".rstrip())


class TrainingProgress(ProgressDisplay):
    """Callbacks of training: a line for each note and each epoch; of many epochs, for about MAX_EPOCH_LINES."""

    def __init__(self) -> None:
        super().__init__(delay=0)
        self.time_left = ""

    def note(self, text: str, updates: int) -> None:
        self.print_line(text)

    def step(self, step: "Step") -> None:
        self.time_left = "" if step.seconds_left is None else f"{format_duration(step.seconds_left)} left"
        f1 = f"  F1 {100 * step.best_f1:.2f}" if step.best_f1 else ""
        rate = f"{step.sentences_per_second:,.0f} sentences/s"
        losses = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
        self.show(step.share, f"epoch {step.epoch}/{step.epochs}", f"{losses}{f1}  {rate}  {self.time_left}".rstrip())

    def epoch(self, end: "EpochEnd") -> None:
        if end.epoch != 1 and end.epoch % math.ceil(end.epochs / MAX_EPOCH_LINES):
            return
        losses = "  ".join(f"{name} {value:.3f}" for name, value in end.losses.items())
        left = f"  at most {self.time_left}" if self.time_left and end.epoch < end.epochs else ""
        self.print_line(
            f"epoch {end.epoch:>{len(str(end.epochs))}}/{end.epochs}  {losses}  dev P "
            f"{100 * end.precision:.2f} R {100 * end.recall:.2f} F1 {100 * end.f1:.2f}  "
            f"{format_duration(end.seconds)}{left}{'  best so far' * (end.best_epoch == end.epoch)}"
        )


class PretrainProgress(ProgressDisplay):
    """Callback of pretraining: one line for each pass over the text."""

    passes = 0

    def __call__(self, batch: "PretrainStep") -> None:
        time_left = f"{format_duration(batch.seconds_left)} left"
        if batch.passes > self.passes:
            self.passes = batch.passes
            self.print_line(f"pass {batch.passes}: loss {batch.loss:.3f}, {time_left}")
        self.show(batch.share, f"loss {batch.loss:.3f}  {time_left}")


class PredictionProgress(ProgressDisplay):
    """Callback of prediction: files, words per second and the time left, both since the first words were done.

    Loading models and compiling kernels, on a cluster by each worker, says nothing about the rate.
    """

    bar_format = "{desc}"
    first: "tuple[float, Progress] | None" = None  # when the first words were done

    def __init__(self, files: int) -> None:
        super().__init__()
        self.files = files

    def __call__(self, progress: "Progress") -> None:
        files = f"{progress.files:,}/{self.files:,} files  " if self.files > 1 else ""
        if progress.share is not None:
            self.bar.bar_format = ProgressDisplay.bar_format
        if self.first is None and progress.words:
            self.first = monotonic(), progress
        started, before = self.first or (monotonic(), progress)
        seconds, words = monotonic() - started, progress.words - before.words
        share = (progress.share or 0) - (before.share or 0)
        speed = f"{words / seconds:,.0f} words/s" if words else f"{progress.words:,} words"
        left = f"  {format_duration(seconds / share * (1 - (progress.share or 0)))} left" if share > 0 else ""
        self.show(progress.share or 0, f"{files}{speed}{left}")
