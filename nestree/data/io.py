"""Reading and writing files: limits, lines, JSON, XML, atomic writes, and the report of all changes to the data."""

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
import re
import shutil
import stat
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, TextIO

from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Span

log = logging.getLogger(__name__)
STDIO = Path("-")
MAX_PLACES = 5  # of each change that a report keeps


@dataclass
class ConversionReport:
    """Counts what was read or written, and every change to it, with the first places of each change.

    >>> report = ConversionReport()
    >>> report.note("widened to word boundaries", "a.ann:3")
    >>> report.counts["widened to word boundaries"], report.places["widened to word boundaries"]
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
    unwritten_documents: int = 0  # that the format cannot hold
    unwritten_sentences: int = 0  # of these
    bare_sentences: int = 0  # documents of one sentence each, from a format without documents
    fitting_styles: Counter[str] = field(default_factory=Counter)  # word styles by the widened entities that they fit
    place: str = ""  # of the record that is being read

    def note(self, what: str, place: str = "", times: int = 1) -> None:
        """Count a change: `what` is a short phrase, the same for all changes of a kind."""
        self.counts[what] += times
        place, places = place or self.place, self.places.setdefault(what, [])
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
                raise InputError(f"{name} is {value!r:.40}, and must be a whole number, 1 or more.")


LIMIT_NAMES = tuple(field.name for field in fields(Limits))
current_limits: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 (it is frozen)


@contextmanager
def set_within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Within the context, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def limits(**changed: int) -> AbstractContextManager[None]:
    """Changes limits for all files that are read within the context.

    >>> with limits(max_nesting=7):
    ...     current_limits.get().max_nesting
    7
    """
    return set_within(current_limits, replace(current_limits.get(), **changed))


def limit_remedy(name: str) -> str:
    """How to raise a limit, on the command line and in Python."""
    return f"If this is intended, allow more with --{name.replace('_', '-')} (in Python, {name})."


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
    """Raise if the decompressed size of a file is more than `max_bytes`."""
    if size > (limit := current_limits.get().max_bytes):
        raise DataError(f"{path} holds more than {limit:,} bytes, decompressed. {limit_remedy('max_bytes')}")


def line_too_long_error(path: Path, line: int, longest: int) -> DataError:
    return DataError(f"{path}:{line}: this line is longer than {longest:,} bytes. {limit_remedy('longest_line')}")


# Reading

on_progress: ContextVar[Callable[[int], None] | None] = ContextVar("on_progress", default=None)


def report_progress(callback: Callable[[int], None]) -> AbstractContextManager[None]:
    """Within the context, `callback` gets the number of bytes of each read from a file, before decompression."""
    return set_within(on_progress, callback)


class ProgressReader(io.FileIO):
    """A file that reports what is read to the callback of `report_progress`."""

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if callback := on_progress.get():
            callback(count or 0)
        return count


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
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, decompressed if it is gzip; `-` is standard input."""
    try:
        if path == STDIO:
            if sys.stdin is None:
                raise DataError("there is no standard input: it is closed. Name a file.")
            yield decompress(sys.stdin.buffer, path)
            return
        if path.is_dir():
            raise DataError(f"{path} is a directory, and a file is needed. Name one of the files in it.")
        with io.BufferedReader(ProgressReader(path), 2**17) as file:
            yield decompress(file, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name and the directory.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as why:
        raise DataError(
            f"{path} cannot be decompressed: {why}. It may be cut off; download or create it again."
        ) from None
    except OSError as why:
        raise DataError(f"{path} cannot be read: {why.strerror or why}.") from None


COMPRESSED = re.compile(rb"PK\x03\x04|BZh[1-9]1AY&SY|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf")  # zip, bzip2, xz, zstd, 7z


def decompress(file: BinaryIO, path: Path) -> io.BufferedReader:
    """The file itself or, if it is gzip, its decompressed bytes."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(io.BytesIO(file.read()))
    start = buffered.peek(2)
    if COMPRESSED.match(start):
        raise DataError(
            f"{path} is a compressed file or an office document; of compressed files, only gzip is read. "
            "Decompress it, or save it as text."
        )
    is_gzip = start[:2] == b"\x1f\x8b"
    return io.BufferedReader(GzipReader(buffered, path), 2**17) if is_gzip else buffered


def real_path(path: Path) -> Path:
    """The path without links. `Path.resolve` raises a RuntimeError before Python 3.13 if links lead in a circle."""
    return Path(os.path.realpath(path))


def list_files(folder: Path) -> list[Path]:
    """The files in a folder and the folders in it, sorted, without hidden ones.

    Links to folders are followed; a folder that can be reached in several ways is listed once. A folder that cannot be
    read is an error. Broken links are listed, so that reading them is an error, too.
    """

    def fail(why: OSError) -> None:
        if not isinstance(why, FileNotFoundError | NotADirectoryError):  # such a folder has no files
            raise DataError(
                f"{why.filename} cannot be read: {why.strerror}. Get the right to read it, or name other files."
            )

    files, seen = [], set()
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(real)
        visible = (name for name in folders if not name.startswith("."))
        # Links last, so that the files of a folder beside a link to it have its own name.
        folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        paths = (os.path.join(parent, name) for name in names if not name.startswith("."))
        # Not Path.is_file: before Python 3.14, it raises in a folder whose files may not be opened.
        files += [Path(path) for path in paths if os.path.isfile(path) or not os.path.exists(path)]
    return sorted(files)


def read_lines(path: Path, report: ConversionReport | None = None) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file with its number, from 1, without line end (LF or CRLF) and byte order mark.

    Lines that cannot be read go through `report.bad`; without a report, the first of them raises.
    """
    report = report or ConversionReport()
    for number, line in read_lines_or_errors(path):
        if isinstance(line, DataError):
            report.bad(line)
        else:
            yield number, line


def read_lines_or_errors(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """Like `read_lines`; the error of a line that cannot be read, or of a file that is cut off, takes its place."""
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
    """All bytes of a file, decompressed if it is gzip."""
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


def parse_number(digits: str) -> float:
    """A float; constants such as NaN, and numbers beyond the range of floats, raise."""
    value = float(digits)
    if digits in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"{digits} is not a number. Write null instead")
    if math.isinf(value):
        raise ValueError(f"{digits} is too large for a number. Write a smaller one, or null")
    return value


STRICT = json.JSONDecoder(parse_float=parse_number, parse_constant=parse_number)


def parse_json(text: str, place: str) -> Any:
    """The value of JSON that has no NaN, no infinity, and nothing that cannot be written again as UTF-8."""
    try:
        value = STRICT.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: one half of a surrogate pair stands alone. Correct this character.") from None
    except json.JSONDecodeError as why:
        line = f"line {why.lineno}, " if "\n" in text.strip() else ""
        what = why.msg.removesuffix(" at")
        advice = " Write one whole object a line." if text and why.pos >= len(text.rstrip()) else ""
        raise DataError(
            f"{place}: this is not JSON: {what} at {line}character {why.colno}: {excerpt(text, why.pos)}.{advice}"
        ) from None
    except (ValueError, RecursionError) as why:
        raise DataError(f"{place}: this is not JSON that can be read: {why}.") from None
    return value


def excerpt(text: str, position: int) -> str:
    return repr(text[max(0, position - 20) : position + 20])


def json_records(path: Path, report: ConversionReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSON list, of JSON lines, or of concatenated JSON, with its place.

    Values other than objects go through `report.bad`. JSON that is not one object a line is held in memory as a whole,
    and is read up to its first error.
    """
    lines, is_first = read_lines_or_errors(path), True
    for number, line in lines:
        try:
            if isinstance(line, DataError):
                raise line
            if not line or line.isspace():
                continue
            values: Iterable[tuple[str, Any]]
            if is_first and (line.lstrip()[0] == "[" or line.rstrip()[-1] in "{[,:"):
                values = parse_values(line, lines, path, number)
            else:
                values = [(f"{path}:{number}", parse_json(line, f"{path}:{number}"))]
            is_first = False
            for place, value in values:
                if isinstance(value, dict):
                    yield place, value
                else:
                    error = f"{place}: an object {{...}} is expected here, and this is {value!r:.40}."
                    report.bad(DataError(error))
        except DataError as error:
            report.bad(error)


def parse_values(
    first: str, lines: Iterator[tuple[int, str | DataError]], path: Path, line: int
) -> Iterator[tuple[str, Any]]:
    """The values of a JSON list or of concatenated JSON, each with its place; it begins with `first`, in `line`."""
    parts = [first]
    for _, text in lines:
        if isinstance(text, DataError):
            raise text
        parts.append(text)
    text = "\n".join(parts).rstrip()
    at = counted = 0

    def skip(character: str = "") -> bool:
        """Skip white space and then this character, if it comes next; return whether it does."""
        nonlocal at, line, counted
        while text[at : at + 1].isspace():
            at += 1
        is_next = bool(character) and text.startswith(character, at)
        at += is_next
        line, counted = line + text.count("\n", counted, at), at
        return is_next

    is_list = skip("[")
    is_closed = is_list and skip("]")
    for count in itertools.count(1):
        skip()
        if is_closed or at == len(text):
            break
        try:
            value, end = STRICT.raw_decode(text, at)
        except json.JSONDecodeError as why:
            line += text.count("\n", at, why.pos)
            what = why.msg.removesuffix(" at")
            raise DataError(f"{path}:{line}: this is not JSON: {what}: {excerpt(text, why.pos)}.") from None
        except (ValueError, RecursionError) as why:
            raise DataError(f"{path}:{line}: this is not JSON that can be read: {why}.") from None
        if text.find("\\u", at, end) >= 0:
            parse_json(text[at:end], f"{path}:{line}")  # raises for half of a surrogate pair
        yield f"{path}:{line}, record {count}", value
        at = end
        if is_list and not skip(","):
            is_closed = skip("]")
            break
    skip()
    rest = text[at : at + 30]
    if is_list and not is_closed:
        before = f" before {rest!r}" if rest else ""
        raise DataError(f"{path}:{line}: a comma or ] is missing{before}. The file may be cut off.")
    if rest:
        raise DataError(f"{path}:{line}: the list has ended, and more follows: {rest!r}.")


# XML

CHUNK_BYTES = 2**16


class Event(NamedTuple):
    kind: str  # "start", "end" or "text"
    name: str  # of the element; the text itself
    attributes: dict[str, str]
    line: int


def parse_events(path: Path) -> Iterator[Event]:
    """The events of an XML file, which is read chunk by chunk. Entity declarations are refused, nothing is fetched."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, XMLParser

    limit, events, depth = current_limits.get(), list[Event](), 0

    def add_event(kind: str, name: str, attributes: dict[str, str] | None = None) -> None:
        nonlocal depth
        depth += (kind == "start") - (kind == "end")
        if depth > limit.max_xml_depth:
            raise DataError(
                f"{path}:{parser.parser.CurrentLineNumber}: more than {limit.max_xml_depth:,} elements are nested in "
                f"each other. {limit_remedy('max_xml_depth')}"
            )
        events.append(Event(kind, name, attributes or {}, parser.parser.CurrentLineNumber))

    target = SimpleNamespace(
        start=partial(add_event, "start"), end=partial(add_event, "end"), data=partial(add_event, "text")
    )
    parser = XMLParser(target=target, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    line, length = 1, 0
    try:
        with open_file(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                line += chunk.count(b"\n")
                last_break = chunk.rfind(b"\n")
                length = length + len(chunk) if last_break < 0 else len(chunk) - last_break - 1
                if length > limit.longest_line:
                    raise line_too_long_error(path, line, limit.longest_line)
                parser.feed(chunk)
                yield from events
                events.clear()
            parser.close()
        yield from events
    except ParseError as why:
        line, column = why.position
        raise DataError(
            f"{path}:{line}: this is not well-formed XML, column {column + 1}: {str(why).partition(':')[0]}."
        ) from None
    except DefusedXmlException:
        raise DataError(
            f"{path}:{parser.parser.CurrentLineNumber}: this XML declares entities or refers to other files. "
            "Such files are not read; remove the declarations."
        ) from None
    except DataError:
        raise
    except (ValueError, LookupError) as why:
        raise DataError(f"{path}: this XML cannot be decoded: {why}. Convert it to UTF-8.") from None


# Writing


# Whether standard output is written line by line, not when all of it is complete.
streams_stdout = ContextVar("streams_stdout", default=False)


def check_output_path(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raise if a file cannot be written there, or is one of the sources; called before long computations."""
    if path == STDIO:
        return
    check_output_is_not_input(path, sources)
    if path.is_dir():
        raise DataError(f"{path} is a directory, and a file is needed. Give the name of a file in it.")
    if path.exists() and not path.is_file():
        return  # a device or a pipe
    folder = real_path(path).parent
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
        if STDIO not in (source, path) and real_path(source) == real_path(path):
            raise InputError(f"{path} is the input. Write to another file.")


def write_error(path: Path, why: OSError) -> DataError:
    """The error for a file that cannot be written, with a remedy."""
    remedy = {
        errno.EACCES: "Choose another place, or get the right to write there",
        errno.ENOENT: "Choose another place: no folder can be made there",
        errno.ENOSPC: "Make room, or choose another place",
        **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "Choose another place: one of its folders is a file"),
    }.get(why.errno or 0, "Choose another place")
    meant = Path(*(part for part in path.parts if not (part[:1] == "." and part.endswith(TEMPORARY))))
    return DataError(f"{meant} cannot be written: {why.strerror or why}. {remedy}.")


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text file that gets its name when it is complete; gzip if the name ends in .gz; `-` is standard output."""
    if path == STDIO and streams_stdout.get():
        stdout = io.TextIOWrapper(sys.stdout.buffer, "utf-8", newline="\n", line_buffering=True)
        try:
            yield stdout
        finally:
            stdout.detach()
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
        raise DataError(f"{path} is a directory, and a file is needed. Give the name of a file in it.")
    with atomic_path(path) as temporary:
        if path.suffix == ".gz":
            with (
                open(temporary, "wb") as raw,
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as compressed,
                io.TextIOWrapper(compressed, encoding="utf-8", newline="\n") as file,
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
    path = real_path(path) if path.is_symlink() and not is_device else path
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
            raise DataError(f"{path} is a directory, and a file is needed. Give the name of a file in it.")
        os.replace(temporary, path)
    except OSError as why:
        raise write_error(path, why) from None
    except UnicodeEncodeError as why:
        raise DataError(f"{path} cannot be written: {why}. Correct this text in its source.") from None
    finally:
        with locking:
            locked_folders.discard(folder.resolve())
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


LOCK, TEMPORARY = ".lock", ".tmp"  # a file in a temporary folder, and the end of the folder's name
locked_folders: set[Path] = set()  # by this process, whose threads could lock a file twice
locking = threading.Lock()


def claim_temporary_folder(path: Path) -> tuple[Path, int | None]:
    """A new folder beside `path`, and the descriptor of its lock file, if it has one.

    A folder that a killed process left, whose lock is free, is emptied and used again. One that another process or
    thread has locked, that belongs to another user, or that has files and no lock file is left alone.
    """
    folder = path.with_name(f".{path.name[:40]}{TEMPORARY}")
    lock = None
    with locking:
        try:
            folder.mkdir(0o700, exist_ok=True)
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            is_used = folder.resolve() in locked_folders
            if is_ours and not is_used and ((folder / LOCK).exists() or not any(folder.iterdir())):
                lock, is_locked = open_locked(folder / LOCK, 0o600)
                # Otherwise another process has just removed the folder.
                if is_locked and os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
                    for file in folder.iterdir():
                        if file.is_dir() and not file.is_symlink():
                            shutil.rmtree(file)
                        elif file.name != LOCK:
                            file.unlink()
                    locked_folders.add(folder.resolve())
                    return folder, lock
        except (AttributeError, OSError):  # Windows has no geteuid
            pass
        if lock is not None:
            os.close(lock)
    return Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent)), None


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
