"""What happened to the data on its way: nothing is changed, dropped or skipped without being counted here."""

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
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Span

PLACES = 5  # of each kind are kept, to be shown


@dataclass
class ConversionReport:
    """Counts of what was read, and of each thing that was done to it, with the first places of each.

    >>> tally = ConversionReport()
    >>> tally.note("widened to word borders", "a.ann:3")
    >>> tally.counts["widened to word borders"], tally.places["widened to word borders"]
    (1, ['a.ann:3'])
    """

    skip_bad: bool = False
    documents: int = 0
    texts: int = 0  # documents that came as a text, without words
    sentences: int = 0
    entities: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # the sentence of each error that was passed over

    def note(self, what: str, place: str, times: int = 1) -> None:
        """Something was done to the data: a short phrase, always the same for the same thing, and where."""
        self.counts[what] += times
        places = self.places.setdefault(what, [])
        if len(places) < PLACES and place not in places:
            places.append(place)

    def bad(self, error: DataError) -> None:
        """Stop with this error or, if so wished, write it down and go on with what comes next."""
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))

    def counted(self, documents: Iterator[Document]) -> Iterator[Document]:
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


LIMITS = tuple(field.name for field in fields(Limits))
current: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 (it is frozen)


@contextmanager
def limits(**changed: int) -> Iterator[None]:
    """Within this, files are read with these limits.

    >>> with limits(max_nesting=7):
    ...     current.get().max_nesting
    7
    """
    token = current.set(replace(current.get(), **changed))
    try:
        yield
    finally:
        current.reset(token)


def remedy(name: str) -> str:
    """The sentence that tells how to raise a limit, on the command line and in Python."""
    return f"If that is meant, allow more with --{name.replace('_', '-')} (in Python, {name})."


def check_nesting(entities: Iterable[Entity | Span], place: str) -> None:
    """Raise if more entities than `max_nesting` share a word."""
    most = current.get().max_nesting
    spans = [entity.span if isinstance(entity, Entity) else entity for entity in entities]
    if len(spans) <= most:
        return
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    deepest = max(accumulate(step for _, step in edges))
    if deepest > most:
        raise DataError(
            f"{place}: {deepest:,} entities share a word, and at most {most:,} may. {remedy('max_nesting')}"
        )


log = logging.getLogger(__name__)
STDIO = Path("-")
watcher: ContextVar[Callable[[int], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def report_progress(tell: Callable[[int], None]) -> Iterator[None]:
    """Within this, `tell` hears of the bytes that are read from files, packed as they are."""
    before = watcher.set(tell)
    try:
        yield
    finally:
        watcher.reset(before)


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
    """The file itself or, if it is gzip, what is packed in it."""
    ahead = file if isinstance(file, io.BufferedReader) else io.BytesIO(file.read())
    start = ahead.peek(2) if isinstance(ahead, io.BufferedReader) else ahead.getvalue()
    return io.BufferedReader(Unpacked(ahead, path), 2**17) if start[:2] == b"\x1f\x8b" else ahead


class Unpacked(io.RawIOBase):
    """The bytes that a gzip file expands to; an error where they are more than `max_bytes`."""

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


def check_bytes(size: int, path: Path) -> None:
    """Raise if so many bytes of a file are more than `max_bytes`."""
    if size > (most := current.get().max_bytes):
        raise DataError(f"{path} holds more than {most:,} bytes, unpacked. {remedy('max_bytes')}")


class ProgressReader(io.FileIO):
    """A file that tells whoever is `watching` how much of it was read."""

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if tell := watcher.get():
            tell(count or 0)
        return count

    def readall(self) -> bytes:
        data = super().readall()
        if tell := watcher.get():
            tell(len(data))
        return data


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file with its number, from 1, without its end (LF or CRLF) and any byte order mark."""
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            raise line
        yield number, line


def lines_or_errors(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """The same; for a line that cannot be read, and for the rest of a file that is cut off, the error."""
    number, longest = 0, current.get().longest_line
    try:
        with open_file(path) as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    yield number, too_long(path, number, longest)
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
            raise  # there is no such file, or nothing of it can be read
        yield number + 1, error


def read_text(path: Path) -> str:
    """The whole text of a UTF-8 file, its line ends as they are, without a byte order mark."""
    data = whole(path)
    longest = current.get().longest_line
    if len(data) > longest:
        for number, line in enumerate(data.split(b"\n"), 1):
            if len(line) > longest:
                raise too_long(path, number, longest)
    return decode_text(data, path, 1)


def whole(path: Path) -> bytearray:
    """All bytes of a file, unpacked if it is gzip."""
    data = bytearray()
    with open_file(path) as file:
        while part := file.read(2**20):
            data += part
            check_bytes(len(data), path)
    return data


def too_long(path: Path, line: int, longest: int) -> DataError:
    return DataError(f"{path}:{line}: this line is longer than {longest:,} bytes. {remedy('longest_line')}")


def decode_text(data: bytes | bytearray, path: Path, line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as why:
        line += data.count(b"\n", 0, why.start)
        raise DataError(
            f"{path}:{line}: byte {data[why.start]:#04x} is not UTF-8. Convert the file to UTF-8, for example "
            "with iconv."
        ) from None
    return text.removeprefix("\ufeff") if line == 1 else text


def parse_json(text: str, place: str) -> Any:
    """What a piece of JSON says: no NaN, no infinity, nothing that cannot be written again as UTF-8."""
    try:
        value = STRICT.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: one half of a surrogate pair stands alone. Mend this character.") from None
    except json.JSONDecodeError as why:
        line = f"line {why.lineno}, " if "\n" in text.strip() else ""
        raise DataError(
            f"{place}: this is not JSON: {why.msg} at {line}character {why.colno}: {around(text, why.pos)}."
        ) from None
    except (ValueError, RecursionError) as why:
        raise DataError(f"{place}: this is not JSON that can be read: {why}.") from None
    return value


def refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number. Write null instead")


def finite(digits: str) -> float:
    """A number with a fraction or an exponent; beyond the range of floats it would become infinite."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits} is too large for a number. Write a smaller one, or null")
    return value


STRICT = json.JSONDecoder(parse_float=finite, parse_constant=refused)


def around(text: str, at: int) -> str:
    return repr(text[max(0, at - 20) : at + 20])


def kept_mark(text: str) -> str:
    """What a file must begin with so that this text, its first, keeps a byte order mark of its own."""
    return "\ufeff" if text.startswith("\ufeff") else ""


at_once = ContextVar("at_once", default=False)


@contextmanager
def stream_stdout() -> Iterator[None]:
    """Within this, what goes to standard output goes there as it comes, not when all of it is there."""
    before = at_once.set(True)
    try:
        yield
    finally:
        at_once.reset(before)


class StandardOutput(io.TextIOBase):
    """Standard output for data: UTF-8, whatever the terminal speaks, and nothing is held back."""

    def write(self, text: str) -> int:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return len(text)


def check_output_path(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raise if a file cannot be written there, or is what is read: before long work, not after it."""
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
    """Raise if what is to be written is one of those that are read."""
    for source in sources:
        if STDIO not in (source, path) and source.resolve() == path.resolve():
            raise InputError(f"{path} is what is read. Write to somewhere else.")


def write_error(path: Path, why: OSError) -> DataError:
    """What to say where a file cannot be written, and what to do about it."""
    remedy = {
        errno.EACCES: "Choose another place, or get the right to write there",
        errno.EROFS: "Choose another place",
        errno.ENOENT: "Choose another place: no folder can be made there",
        errno.EEXIST: "Choose another place: what would be a folder there is a file",
        errno.ENOTDIR: "Choose another place: what would be a folder there is a file",
        errno.ENOSPC: "Make room, or choose another place",
    }.get(why.errno or 0, "Choose another place")
    return DataError(f"{path} cannot be written: {why.strerror or why}. {remedy}.")


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text file (gzip if its name ends so) that takes its name only when all of it is there; `-`: standard output."""
    if path == STDIO and at_once.get():
        yield StandardOutput()  # type: ignore[misc]
        return
    if path == STDIO:
        with tempfile.SpooledTemporaryFile(2**24, "w+", encoding="utf-8", newline="\n") as held:
            yield held  # type: ignore[misc]
            held.seek(0)
            while part := held.read(2**20):
                sys.stdout.buffer.write(part.encode())  # data is UTF-8, whatever the terminal speaks
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
    """A name beside `path` to write to: a file or a folder, which becomes `path` if nothing goes wrong.

    A folder must not be there yet, or be empty. A device or a pipe is written to as it is.
    """
    if path == STDIO:
        raise DataError("this format cannot go to standard output. Give the name of a file or folder.")
    if path.is_dir() and any(path.iterdir()):
        raise DataError(f"{path} is a directory that is not empty. Give a new name.")
    special = path.exists() and not (path.is_file() or path.is_dir())
    path = path.resolve() if path.is_symlink() and not special else path
    try:
        if special:
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        folder, lock = claim_folder(path)
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
        raise DataError(f"{path} cannot be written: {why}. Mend this text where it comes from.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


SLOTS = 8  # programs that may write the same output at once and clean up after each other
LOCK = ".lock"


def claim_folder(path: Path) -> tuple[Path, int | None]:
    """A new folder beside `path`, and the descriptor of the lock that tells other programs that it is in use.

    Folders that killed programs left for the same output are removed: nobody holds their locks any more.
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
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    return claimed or (Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent)), None)


def lock_folder(folder: Path) -> int | None:
    """The lock of a folder, which is made or, if its program was killed, emptied; None: it cannot be had.

    A folder of somebody else, or with files and no lock in it, was not made here: it is left alone.
    """
    try:
        import fcntl

        folder.mkdir(0o700, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return None
        if not (folder / LOCK).exists() and any(folder.iterdir()):
            return None
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(
            os.fstat(lock), os.stat(folder / LOCK)
        ):  # else another program has just removed it
            for file in folder.iterdir():
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file)
                elif file.name != LOCK:
                    file.unlink()
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def lock_file(path: Path) -> int:
    """A descriptor of the file, locked until it is closed; BlockingIOError: another process has locked it.

    Where a file system or a machine knows no locks, it is only opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(file)
        raise BlockingIOError from None
    except (ImportError, OSError):
        log.info("%s: no locks here; nothing keeps two processes from writing to one directory", path)
    os.truncate(file, os.write(file, f"{os.getpid()} on {platform.node()}".encode()))
    return file


def lock_owner(path: Path) -> str:
    """Who has locked this file, in brackets; "" if it does not say."""
    try:
        owner = path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return f" ({owner})" if owner else ""


BLANK = " \t\n\r"
Numbered = tuple[int, str | DataError]  # a line, or why it cannot be read


def json_records(path: Path, tally: ConversionReport) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a file with its place. What is no object goes through `tally.bad`."""
    numbered = lines_or_errors(path)
    found: Iterator[tuple[str, Any]] = iter(())
    for number, line in numbered:
        if isinstance(line, DataError):
            tally.bad(line)
        elif line and not line.isspace():
            rest = itertools.chain([(number, line)], numbered)
            several_lines = line.lstrip()[0] == "[" or line.rstrip()[-1] in "{[,:"
            found = spread(path, number, rest, tally) if several_lines else lines_of_json(path, rest, tally)
            break
    for place, value in found:
        if isinstance(value, dict):
            yield place, value
        else:
            tally.bad(DataError(f"{place}: an object {{...}} is meant here, and this is {value!r:.40}."))


def lines_of_json(path: Path, rest: Iterator[Numbered], tally: ConversionReport) -> Iterator[tuple[str, Any]]:
    for number, line in rest:
        if isinstance(line, DataError):
            tally.bad(line)
            continue
        if not line or line.isspace():
            continue
        place = f"{path}:{number}"
        try:
            value = parse_json(line, place)
        except DataError as error:
            tally.bad(error)
            continue
        yield place, value


def spread(
    path: Path, first: int, rest: Iterator[Numbered], tally: ConversionReport
) -> Iterator[tuple[str, Any]]:
    """The objects of a list, or those that follow each other, each on several lines.

    Once something is wrong, nobody knows where the next object begins: the rest is not read.
    """
    text = Window(path, first, rest)
    try:
        listed = text.take("[")
        for count in itertools.count(1):
            if text.next() is None or (listed and count == 1 and text.next() == "]"):
                break
            place = f"{text.place()}, record {count}"
            yield place, text.value()
            if listed and not text.take(","):
                break
        if listed and not text.take("]"):
            raise DataError(
                f"{text.place()}: a comma or ] is missing{text.ahead()}. The file may be cut off."
            )
        if text.next() is not None:
            raise DataError(f"{text.place()}: the list has ended, and more follows{text.ahead()}.")
    except DataError as error:
        tally.bad(error)


class Window:
    """The part of a JSON file that is looked at: whole lines."""

    def __init__(self, path: Path, first: int, rest: Iterator[Numbered]):
        self.path, self.rest = path, rest
        self.text, self.at = "", 0
        self.line, self.counted = first, 0  # the line of `counted`, a place in `text`
        self.last = first  # the last line that was read

    def more(self, characters: int = 1) -> bool:
        """Further lines, with at least so many characters if there are; what was read before is let go."""
        self.place()
        parts, size = [self.text[self.at :]], 0
        while size < characters and (following := next(self.rest, None)):
            self.last, line = following
            if isinstance(line, DataError):
                raise line
            parts.append(line + "\n")
            size += len(parts[-1])
        self.text, self.at, self.counted = "".join(parts), 0, 0
        return size > 0

    def next(self) -> str | None:
        """The next character that is not blank."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in BLANK:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return None

    def take(self, character: str) -> bool:
        """Go past this character, if it comes next."""
        found = self.next() == character
        self.at += found
        return found

    def value(self) -> Any:
        """The JSON value that comes next."""
        self.next()
        while True:
            try:
                value, end = STRICT.raw_decode(self.text, self.at)
                break
            except json.JSONDecodeError as why:
                held, longest = len(self.text) - self.at, current.get().longest_line
                cut = why.pos >= len(self.text.rstrip())  # no word of JSON goes on in the next line
                if cut and held <= longest and self.more(held):
                    continue  # with twice as much each time
                if cut and held > longest:
                    raise DataError(
                        f"{self.place()}: this object is longer than {longest:,} characters. "
                        + remedy("longest_line")
                    ) from None
                line = self.line_of(why.pos)
                raise DataError(
                    f"{self.path}:{line}: this is not JSON: {why.msg}: {around(self.text, why.pos)}."
                ) from None
            except (ValueError, RecursionError) as why:
                raise DataError(f"{self.place()}: this is not JSON that can be read: {why}.") from None
        if self.text.find("\\u", self.at, end) >= 0:
            parse_json(self.text[self.at : end], self.place())  # no half of a pair of surrogates
        self.at = end
        return value

    def line_of(self, at: int) -> int:
        self.place()
        return min(self.last, self.line + self.text.count("\n", self.counted, at))

    def place(self) -> str:
        """The file and the line that was come to."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return f"{self.path}:{min(self.last, self.line)}"

    def ahead(self) -> str:
        return f" before {self.text[self.at : self.at + 30]!r}" if self.at < len(self.text) else ""


def json_objects(record: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    """The list of objects under this key; none, if there is no such key."""
    found = record.get(key) or []
    if not isinstance(found, list) or not all(isinstance(value, dict) for value in found):
        raise DataError(f"{place}: `{key}` must be a list of objects, and is {found!r:.60}.")
    return found


def short_regions(record: dict[str, Any]) -> list[str]:
    """The keys of the short export of Label Studio that hold regions: named after the controls.

    >>> short_regions({"text": "Rome", "ner": [{"start": 0, "end": 4, "labels": ["GPE"]}]})
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


def probability(score: Any, tally: ConversionReport, place: str) -> float | None:
    """A score, if it is one; any other is counted."""
    if score is None:
        return None
    if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1:
        return float(score)
    tally.note("scores left out: no probability", place)
    return None
