"""Reading and writing files: limits, lines, JSON records, atomic writes, and the report of all changes to the data."""

import errno
import gzip
import importlib
import io
import itertools
import json
import logging
import math
import os
import platform
import shutil
import stat
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Span

log = logging.getLogger(__name__)
STDIO = Path("-")
MAX_PLACES = 5  # of each change that a report keeps


@dataclass
class ConversionReport:
    """Counts what was read or written, and every change to it, with the first places of each change.

    >>> report = ConversionReport()
    >>> report.note("widened to word borders", "a.ann:3")
    >>> report.counts["widened to word borders"], report.places["widened to word borders"]
    (1, ['a.ann:3'])
    """

    skip_bad: bool = False
    documents: int = 0
    texts: int = 0  # documents that came as a text, without words
    sentences: int = 0
    entities: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # the messages of errors that were skipped

    def note(self, what: str, place: str, times: int = 1) -> None:
        """Count a change: `what` is a short phrase, the same for all changes of a kind."""
        self.counts[what] += times
        places = self.places.setdefault(what, [])
        if len(places) < MAX_PLACES and place not in places:
            places.append(place)

    def bad(self, error: DataError) -> None:
        """Raise the error or, with `skip_bad`, list it as skipped."""
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))

    def count(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The same documents, counted as they pass."""
        for document in documents:
            self.documents += 1
            self.sentences += len(document.sentences)
            self.entities += sum(len(sentence.entities) for sentence in document.sentences)
            yield document


def optional_import(module: str, what: str, extra: str) -> Any:
    """A module of a library that belongs to one of the extras of nestree.

    >>> optional_import("no_such_module", "BioC", "formats")
    Traceback (most recent call last):
        ...
    nestree.errors.DataError: BioC needs the library no_such_module: pip install 'nestree[formats]'.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise DataError(f"{what} needs the library {missing.name}: pip install 'nestree[{extra}]'.") from None


# Limits


@dataclass(frozen=True)
class Limits:
    longest_line: int = 64 * 2**20  # bytes of a line
    max_bytes: int = 4 * 2**30  # bytes that a compressed file expands to, or of a file that is read at once
    max_docbin_bytes: int = 512 * 2**20  # bytes that a DocBin of spaCy expands to
    max_xml_depth: int = 1000  # elements inside each other
    max_nesting: int = 100  # entities that share a word

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise InputError(f"{name} is {value!r:.40}, and must be a whole number from 1 on.")


LIMIT_NAMES = tuple(field.name for field in fields(Limits))
current_limits: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 (it is frozen)


@contextmanager
def limits(**changed: int) -> Iterator[None]:
    """Changes limits for all files that are read within the context.

    >>> with limits(max_nesting=7):
    ...     current_limits.get().max_nesting
    7
    """
    token = current_limits.set(replace(current_limits.get(), **changed))
    try:
        yield
    finally:
        current_limits.reset(token)


def limit_remedy(name: str) -> str:
    """How to raise a limit, on the command line and in Python."""
    return f"If that is meant, allow more with --{name.replace('_', '-')} (in Python, {name})."


def check_nesting(entities: Iterable[Entity | Span], place: str) -> None:
    """Raise if more entities than `max_nesting` share a word."""
    limit = current_limits.get().max_nesting
    spans = [entity.span if isinstance(entity, Entity) else entity for entity in entities]
    if len(spans) <= limit:
        return
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    deepest = max(itertools.accumulate(step for _, step in edges))
    if deepest > limit:
        raise DataError(
            f"{place}: {deepest:,} entities share a word, and at most {limit:,} may. {limit_remedy('max_nesting')}"
        )


def check_bytes(size: int, path: Path) -> None:
    """Raise if the unpacked size of a file is more than `max_bytes`."""
    if size > (limit := current_limits.get().max_bytes):
        raise DataError(f"{path} holds more than {limit:,} bytes, unpacked. {limit_remedy('max_bytes')}")


def line_too_long_error(path: Path, line: int, longest: int) -> DataError:
    return DataError(
        f"{path}:{line}: this line is longer than {longest:,} bytes. {limit_remedy('longest_line')}"
    )


# Reading

on_progress: ContextVar[Callable[[int], None] | None] = ContextVar("on_progress", default=None)


@contextmanager
def report_progress(callback: Callable[[int], None]) -> Iterator[None]:
    """Within the context, `callback` gets the number of bytes of each read from a file, before decompression."""
    token = on_progress.set(callback)
    try:
        yield
    finally:
        on_progress.reset(token)


class ProgressReader(io.FileIO):
    """A file that reports what is read to the callback of `report_progress`."""

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if callback := on_progress.get():
            callback(count or 0)
        return count

    def readall(self) -> bytes:
        data = super().readall()
        if callback := on_progress.get():
            callback(len(data))
        return data


class GzipReader(io.RawIOBase):
    """The bytes that a gzip file expands to; raises if they are more than `max_bytes`."""

    def __init__(self, file: BinaryIO, path: Path):
        self.file, self.path, self.size = gzip.GzipFile(fileobj=file), path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.file.read1(len(buffer))
        buffer[: len(part)] = part
        self.size += len(part)
        check_bytes(self.size, self.path)
        return len(part)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is gzip; `-` is standard input."""
    try:
        if path == STDIO:
            if sys.stdin is None:
                raise DataError("there is no standard input: it is closed. Name a file.")
            yield decompress(sys.stdin.buffer, path)
            return
        if path.is_dir():
            raise DataError(f"{path} is a directory, and a file is meant. Name one of the files in it.")
        with io.BufferedReader(ProgressReader(path), 2**17) as file:
            yield decompress(file, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name and the directory.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as why:
        raise DataError(
            f"{path} cannot be unpacked: {why}. It may be cut off; fetch or make it again."
        ) from None
    except OSError as why:
        raise DataError(f"{path} cannot be read: {why.strerror or why}.") from None


def decompress(file: BinaryIO, path: Path) -> BinaryIO:
    """The file itself or, if it is gzip, its unpacked bytes."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BytesIO(file.read())
    start = buffered.peek(2) if isinstance(buffered, io.BufferedReader) else buffered.getvalue()
    is_gzip = start[:2] == b"\x1f\x8b"
    return io.BufferedReader(GzipReader(buffered, path), 2**17) if is_gzip else buffered


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file with its number, from 1, without line end (LF or CRLF) and byte order mark."""
    for number, line in read_lines_or_errors(path):
        if isinstance(line, DataError):
            raise line
        yield number, line


def read_lines_or_errors(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """Like `lines`; the error of a line that cannot be read, or of a file that is cut off, takes its place."""
    number, longest = 0, current_limits.get().longest_line
    try:
        with open_file(path) as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    yield number, line_too_long_error(path, number, longest)
                    while line and not line.endswith(b"\n"):
                        line = file.readline(longest + 1)
                    continue
                try:
                    text = decode_text(line.removesuffix(b"\n").removesuffix(b"\r"), path, number)
                except DataError as error:
                    yield number, error
                    continue
                yield number, text
    except DataError as error:
        if not number:
            raise  # the file does not exist, or nothing of it can be read
        yield number + 1, error


def read_text(path: Path) -> str:
    """The whole text of a UTF-8 file, with its line ends, without byte order mark."""
    data = read_bytes(path)
    longest = current_limits.get().longest_line
    if len(data) > longest:
        for number, line in enumerate(data.split(b"\n"), 1):
            if len(line) > longest:
                raise line_too_long_error(path, number, longest)
    return decode_text(data, path, 1)


def read_bytes(path: Path) -> bytearray:
    """All bytes of a file, unpacked if it is gzip."""
    data = bytearray()
    with open_file(path) as file:
        while part := file.read(2**20):
            data += part
            check_bytes(len(data), path)
    return data


def decode_text(data: bytes | bytearray, path: Path, line: int) -> str:
    """The text of UTF-8 that begins at this line of a file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as why:
        line += data.count(b"\n", 0, why.start)
        raise DataError(
            f"{path}:{line}: byte {data[why.start]:#04x} is not UTF-8. Convert the file to UTF-8, for example "
            "with iconv."
        ) from None
    return text.removeprefix("\ufeff") if line == 1 else text


# JSON


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number. Write null instead")


def parse_finite(digits: str) -> float:
    """A float; numbers beyond the range of floats would become infinite, and raise."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits} is too large for a number. Write a smaller one, or null")
    return value


STRICT = json.JSONDecoder(parse_float=parse_finite, parse_constant=refuse_constant)


def parse_json(text: str, place: str) -> Any:
    """The value of JSON that has no NaN, no infinity, and nothing that cannot be written again as UTF-8."""
    try:
        value = STRICT.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{place}: one half of a surrogate pair stands alone. Correct this character."
        ) from None
    except json.JSONDecodeError as why:
        line = f"line {why.lineno}, " if "\n" in text.strip() else ""
        raise DataError(
            f"{place}: this is not JSON: {why.msg} at {line}character {why.colno}: {excerpt(text, why.pos)}."
        ) from None
    except (ValueError, RecursionError) as why:
        raise DataError(f"{place}: this is not JSON that can be read: {why}.") from None
    return value


def excerpt(text: str, position: int) -> str:
    return repr(text[max(0, position - 20) : position + 20])


def json_records(path: Path, tally: ConversionReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSON list, of JSON lines, or of concatenated JSON, with its place.

    Values that are no objects go through `tally.bad`.
    """
    numbered = read_lines_or_errors(path)
    records: Iterator[tuple[str, Any]] = iter(())
    for number, line in numbered:
        if isinstance(line, DataError):
            tally.bad(line)
        elif line and not line.isspace():
            rest = itertools.chain([(number, line)], numbered)
            one_per_line = line.lstrip()[0] != "[" and line.rstrip()[-1] not in "{[,:"
            parse = parse_lines if one_per_line else parse_stream
            records = parse(path, number, rest, tally)
            break
    for place, value in records:
        if isinstance(value, dict):
            yield place, value
        else:
            tally.bad(DataError(f"{place}: an object {{...}} is meant here, and this is {value!r:.40}."))


NumberedLines = Iterator[tuple[int, str | DataError]]


def parse_lines(
    path: Path, first: int, numbered: NumberedLines, tally: ConversionReport
) -> Iterator[tuple[str, Any]]:
    """The values of JSON lines, each with its place."""
    for number, line in numbered:
        if isinstance(line, str) and (not line or line.isspace()):
            continue
        place = f"{path}:{number}"
        try:
            if isinstance(line, DataError):
                raise line
            value = parse_json(line, place)
        except DataError as error:
            tally.bad(error)
            continue
        yield place, value


def parse_stream(
    path: Path, first: int, numbered: NumberedLines, tally: ConversionReport
) -> Iterator[tuple[str, Any]]:
    """The values of a JSON list, or of concatenated JSON, each with its place.

    After an error the next value cannot be found: the rest is not read.
    """
    stream = JsonStream(path, first, numbered)
    try:
        is_list = stream.skip("[")
        for count in itertools.count(1):
            if stream.peek() is None or (is_list and count == 1 and stream.peek() == "]"):
                break
            place = f"{stream.place()}, record {count}"
            yield place, stream.value()
            if is_list and not stream.skip(","):
                break
        if is_list and not stream.skip("]"):
            raise DataError(
                f"{stream.place()}: a comma or ] is missing{stream.before_next()}. The file may be cut off."
            )
        if stream.peek() is not None:
            raise DataError(f"{stream.place()}: the list has ended, and more follows{stream.before_next()}.")
    except DataError as error:
        tally.bad(error)


class JsonStream:
    """Parses JSON values of several lines without holding the whole file."""

    def __init__(self, path: Path, first: int, numbered: NumberedLines):
        self.path, self.numbered = path, numbered
        self.buffer, self.position = "", 0  # whole lines; where the next value is looked for
        self.line, self.counted = first, 0  # the line of the position `counted` in the buffer
        self.last_line = first  # that was read

    def fill(self, characters: int = 1) -> bool:
        """Read lines until there are this many more characters, and drop what was parsed; False at the end."""
        self.place()
        parts, size = [self.buffer[self.position :]], 0
        while size < characters and (numbered_line := next(self.numbered, None)):
            self.last_line, line = numbered_line
            if isinstance(line, DataError):
                raise line
            parts.append(line + "\n")
            size += len(parts[-1])
        self.buffer, self.position, self.counted = "".join(parts), 0, 0
        return size > 0

    def peek(self) -> str | None:
        """The next character that is not blank."""
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in " \t\n\r":
                self.position += 1
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self.fill():
                return None

    def skip(self, character: str) -> bool:
        """Whether this character comes next; if so, go past it."""
        is_next = self.peek() == character
        self.position += is_next
        return is_next

    def value(self) -> Any:
        """The JSON value that comes next."""
        self.peek()
        while True:
            try:
                value, end = STRICT.raw_decode(self.buffer, self.position)
                break
            except json.JSONDecodeError as why:
                size, longest = len(self.buffer) - self.position, current_limits.get().longest_line
                is_cut = why.pos >= len(self.buffer.rstrip())  # no token of JSON runs across a line end
                if is_cut and size <= longest and self.fill(size):
                    continue  # with twice as many characters
                if is_cut and size > longest:
                    raise DataError(
                        f"{self.place()}: this object is longer than {longest:,} characters. "
                        + limit_remedy("longest_line")
                    ) from None
                self.place()
                line = min(self.last_line, self.line + self.buffer.count("\n", self.counted, why.pos))
                raise DataError(
                    f"{self.path}:{line}: this is not JSON: {why.msg}: {excerpt(self.buffer, why.pos)}."
                ) from None
            except (ValueError, RecursionError) as why:
                raise DataError(f"{self.place()}: this is not JSON that can be read: {why}.") from None
        if self.buffer.find("\\u", self.position, end) >= 0:
            parse_json(self.buffer[self.position : end], self.place())  # raises for half of a surrogate pair
        self.position = end
        return value

    def place(self) -> str:
        """The file and line of the position."""
        self.line += self.buffer.count("\n", self.counted, self.position)
        self.counted = self.position
        return f"{self.path}:{min(self.last_line, self.line)}"

    def before_next(self) -> str:
        following = self.buffer[self.position : self.position + 30]
        return f" before {following!r}" if following else ""


def json_objects(record: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    """The list of objects under this key; empty if the key is missing."""
    values = record.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise DataError(f"{place}: `{key}` must be a list of objects, and is {values!r:.60}.")
    return values


def label_studio_regions(record: dict[str, Any]) -> list[str]:
    """The keys of a record in Label Studio's short export (JSON-MIN) that hold regions, named after the controls.

    >>> label_studio_regions({"text": "Rome", "ner": [{"start": 0, "end": 4, "labels": ["GPE"]}]})
    ['ner']
    """
    return [
        key
        for key, values in record.items()
        if isinstance(values, list)
        and values
        and all(isinstance(value, dict) and value.keys() >= {"start", "end", "labels"} for value in values)
        and all(isinstance(label, str) for value in values for label in value["labels"] or ())
    ]


def parse_probability(score: Any, tally: ConversionReport, place: str) -> float | None:
    """The score as a float; None, and counted, if it is no probability."""
    if score is None:
        return None
    if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1:
        return float(score)
    tally.note("scores left out: no probability", place)
    return None


# Writing


def bom_prefix(text: str) -> str:
    """A byte order mark if the text, the first of a file, begins with one: readers take the first one off."""
    return "\ufeff" if text.startswith("\ufeff") else ""


streams_stdout = ContextVar("streams_stdout", default=False)


@contextmanager
def stream_stdout() -> Iterator[None]:
    """Within the context, standard output is written at once, not when all of it is complete."""
    token = streams_stdout.set(True)
    try:
        yield
    finally:
        streams_stdout.reset(token)


class Utf8Stdout(io.TextIOBase):
    """Standard output in UTF-8, whatever the encoding of the terminal, without buffering."""

    def write(self, text: str) -> int:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return len(text)


def check_output_path(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raise if a file cannot be written there, or is one of the sources; called before long computations."""
    if path == STDIO:
        return
    check_output_is_not_input(path, sources)
    if path.is_dir():
        raise DataError(f"{path} is a directory, and a file is meant. Give the name of a file in it.")
    if path.exists() and not path.is_file():
        return  # a device or a pipe
    folder = path.resolve().parent
    while not folder.exists():  # it will be made
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as why:
        raise write_error(path, why) from None


def check_output_is_not_input(path: Path, sources: Iterable[Path]) -> None:
    """Raise if the output is one of the inputs."""
    for source in sources:
        if STDIO not in (source, path) and source.resolve() == path.resolve():
            raise InputError(f"{path} is what is read. Write to somewhere else.")


def write_error(path: Path, why: OSError) -> DataError:
    """The error for a file that cannot be written, with a remedy."""
    not_a_folder = "Choose another place: what would be a folder there is a file"
    remedy = {
        errno.EACCES: "Choose another place, or get the right to write there",
        errno.ENOENT: "Choose another place: no folder can be made there",
        errno.EEXIST: not_a_folder,
        errno.ENOTDIR: not_a_folder,
        errno.ENOSPC: "Make room, or choose another place",
    }.get(why.errno or 0, "Choose another place")
    return DataError(f"{path} cannot be written: {why.strerror or why}. {remedy}.")


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text file that appears under its name when it is complete; gzip if the name ends so; `-`: standard output."""
    if path == STDIO and streams_stdout.get():
        yield Utf8Stdout()  # type: ignore[misc]
        return
    if path == STDIO:
        with tempfile.SpooledTemporaryFile(2**24, "w+", encoding="utf-8", newline="\n") as spool:
            yield spool  # type: ignore[misc]
            spool.seek(0)
            while part := spool.read(2**20):
                sys.stdout.buffer.write(part.encode())
            sys.stdout.flush()
        return
    if path.is_dir():
        raise DataError(f"{path} is a directory, and a file is meant. Give the name of a file in it.")
    with atomic_path(path) as temporary:
        if path.suffix == ".gz":
            with (
                open(temporary, "wb") as raw,
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
            ):
                yield file
        else:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` for a file or a folder, which becomes `path` if the context ends without error.

    An existing folder must be empty. A device or a pipe is written to directly.
    """
    if path == STDIO:
        raise DataError("this format cannot go to standard output. Give the name of a file or folder.")
    if path.is_dir() and any(path.iterdir()):
        raise DataError(f"{path} is a directory that is not empty. Give a new name.")
    is_device = path.exists() and not (path.is_file() or path.is_dir())
    path = path.resolve() if path.is_symlink() and not is_device else path
    try:
        if is_device:
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        folder, lock = claim_temporary_folder(path)
    except OSError as why:
        raise write_error(path, why) from None
    try:
        temporary = folder / (path.name if path.name != LOCK else "file")
        yield temporary
        if path.is_dir() and temporary.is_dir():
            path.rmdir()
        elif path.is_dir():
            raise DataError(f"{path} is a directory, and a file is meant. Give the name of a file in it.")
        os.replace(temporary, path)
    except OSError as why:
        raise write_error(path, why) from None
    except UnicodeEncodeError as why:
        raise DataError(f"{path} cannot be written: {why}. Correct this text in its source.") from None
    finally:
        remove_locked_folder(folder, lock)


SLOTS = 8  # processes that may write the same output at once and remove each other's remains
LOCK = ".lock"
locked_folders: set[Path] = set()  # by this process, whose threads could lock a file twice
locking = threading.Lock()


def claim_temporary_folder(path: Path) -> tuple[Path, int | None]:
    """A new folder beside `path`, and the descriptor of its lock file.

    Folders that killed processes left for the same output are removed: their locks are free.
    """
    claimed = None
    for slot in range(SLOTS):
        folder = path.with_name(f".{path.name[:40]}.{slot}.tmp")
        if claimed is not None and not folder.exists():
            continue
        lock = lock_folder(folder)
        if lock is not None and claimed is None:
            claimed = folder, lock
        elif lock is not None:
            remove_locked_folder(folder, lock)
    return claimed or (Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent)), None)


def lock_folder(folder: Path) -> int | None:
    """Make or empty a folder and lock it; None if it is locked, or locks are not supported.

    A folder of another user, or with files and no lock file, is left alone.
    """
    lock = None
    with locking:
        try:
            folder.mkdir(0o700, exist_ok=True)
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if not is_ours or folder.resolve() in locked_folders:
                return None
            if not (folder / LOCK).exists() and any(folder.iterdir()):
                return None
            lock, is_locked = open_locked(folder / LOCK, 0o600)
            # Otherwise another process has just removed the folder.
            if is_locked and os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
                for file in folder.iterdir():
                    if file.is_dir() and not file.is_symlink():
                        shutil.rmtree(file)
                    elif file.name != LOCK:
                        file.unlink()
                locked_folders.add(folder.resolve())
                return lock
        except (AttributeError, OSError):  # Windows has no geteuid
            pass
        if lock is not None:
            os.close(lock)
    return None


def remove_locked_folder(folder: Path, lock: int | None) -> None:
    with locking:
        locked_folders.discard(folder.resolve())
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def open_locked(path: Path, mode: int) -> tuple[int, bool]:
    """A descriptor of the file, and whether it is locked until it is closed: not all systems have locks.

    Raises BlockingIOError if another process holds the lock. A process can lock a file twice; closing any descriptor
    of the file frees the lock.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(file)
        raise BlockingIOError from None
    except (ImportError, OSError):
        return file, False
    return file, True


def lock_file(path: Path) -> int:
    """A descriptor of the file, locked until it is closed; BlockingIOError: another process has locked it.

    Where locks are not supported, the file is only opened.
    """
    file, is_locked = open_locked(path, 0o666)
    if not is_locked:
        log.info("%s: no locks here; nothing keeps two processes from writing to one directory", path)
    os.truncate(file, os.write(file, f"{os.getpid()} on {platform.node()}".encode()))
    return file


def lock_owner(path: Path) -> str:
    """The process that has locked this file, in brackets; "" if it is unknown."""
    try:
        owner = path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return f" ({owner})" if owner else ""
