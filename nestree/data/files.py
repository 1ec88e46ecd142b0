"""Opening files: lines with their numbers, gzip, standard input; writing them whole or not at all; locks.

Whatever can be wrong with a file becomes a DataError that says where and what to do.
"""

import errno
import gzip
import io
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from nestree.errors import DataError, InputError

log = logging.getLogger(__name__)
LONGEST_LINE = 64 * 2**20  # bytes
STDIO = Path("-")
longest_line = ContextVar("longest_line", default=LONGEST_LINE)


@contextmanager
def allowing(longest: int) -> Iterator[None]:
    """Within this, lines of up to so many bytes are read."""
    before = longest_line.set(longest)
    try:
        yield
    finally:
        longest_line.reset(before)


watcher: ContextVar[Callable[[int], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(tell: Callable[[int], None]) -> Iterator[None]:
    """Within this, `tell` hears of the bytes that are read from files, packed as they are."""
    before = watcher.set(tell)
    try:
        yield
    finally:
        watcher.reset(before)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is gzip; `-` is standard input."""
    try:
        if path == STDIO:
            if sys.stdin is None:
                raise DataError("there is no standard input: it is closed. Name a file.")
            yield unpacked(sys.stdin.buffer)
            return
        if path.is_dir():
            raise DataError(f"{path} is a directory, and a file is meant. Name one of the files in it.")
        with io.BufferedReader(Watched(path), 2**17) as file:
            yield unpacked(file)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name and the directory.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as why:
        raise DataError(
            f"{path} cannot be unpacked: {why}. It may be cut off; fetch or make it again."
        ) from None
    except OSError as why:
        raise DataError(f"{path} cannot be read: {why.strerror or why}.") from None


def unpacked(file: BinaryIO) -> BinaryIO:
    """The file itself or, if it is gzip, what is packed in it."""
    ahead = file if isinstance(file, io.BufferedReader) else io.BytesIO(file.read())
    start = ahead.peek(2) if isinstance(ahead, io.BufferedReader) else ahead.getvalue()
    return gzip.GzipFile(fileobj=ahead) if start[:2] == b"\x1f\x8b" else ahead  # type: ignore[return-value]


class Watched(io.FileIO):
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
    number, longest = 0, longest_line.get()
    try:
        with opened(path) as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    yield number, too_long(path, number, longest)
                    while line and not line.endswith(b"\n"):
                        line = file.readline(longest + 1)
                    continue
                try:
                    text = decoded(line.removesuffix(b"\n").removesuffix(b"\r"), path, number)
                except DataError as error:
                    yield number, error
                    continue
                yield number, text
    except DataError as error:
        if not number:
            raise  # there is no such file, or nothing of it can be read
        yield number + 1, error


def content(path: Path) -> str:
    """The whole text of a UTF-8 file, its line ends as they are, without a byte order mark."""
    with opened(path) as file:
        data = file.read()
    longest = longest_line.get()
    if len(data) > longest:
        for number, line in enumerate(data.split(b"\n"), 1):
            if len(line) > longest:
                raise too_long(path, number, longest)
    return decoded(data, path, 1)


def too_long(path: Path, line: int, longest: int) -> DataError:
    return DataError(
        f"{path}:{line}: this line is longer than {longest:,} bytes. If that is meant, allow more with "
        "--longest-line."
    )


def decoded(data: bytes, path: Path, line: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as why:
        line += data.count(b"\n", 0, why.start)
        raise DataError(
            f"{path}:{line}: byte {data[why.start]:#04x} is not UTF-8. Convert the file to UTF-8, for example "
            "with iconv."
        ) from None
    return text.removeprefix("\ufeff") if line == 1 else text


def json_value(text: str, place: str) -> Any:
    """What a piece of JSON says: no NaN, no infinity, nothing that cannot be written again as UTF-8."""
    try:
        value = STRICT.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
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
    raise ValueError(f"{constant} is not a number")


STRICT = json.JSONDecoder(parse_constant=refused)


def around(text: str, at: int) -> str:
    return repr(text[max(0, at - 20) : at + 20])


def kept_mark(text: str) -> str:
    """What a file must begin with so that this text, its first, keeps a byte order mark of its own."""
    return "\ufeff" if text.startswith("\ufeff") else ""


at_once = ContextVar("at_once", default=False)


@contextmanager
def straight() -> Iterator[None]:
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


def check_place(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raise if a file cannot be written there, or is what is read: before long work, not after it."""
    if path == STDIO:
        return
    check_not_read(path, sources)
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
        raise not_written(path, why) from None


def check_not_read(path: Path, sources: Iterable[Path]) -> None:
    """Raise if what is to be written is one of those that are read."""
    for source in sources:
        if STDIO not in (source, path) and source.resolve() == path.resolve():
            raise InputError(f"{path} is what is read. Write to somewhere else.")


def not_written(path: Path, why: OSError) -> DataError:
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
def written(path: Path) -> Iterator[TextIO]:
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
    with placed(path) as temporary:
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
def placed(path: Path) -> Iterator[Path]:
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
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent))
    except OSError as why:
        raise not_written(path, why) from None
    try:
        temporary = folder / path.name
        yield temporary
        if path.is_dir() and temporary.is_dir():
            path.rmdir()
        elif path.is_dir():
            raise DataError(f"{path} is a directory, and a file is meant. Give the name of a file in it.")
        os.replace(temporary, path)
    except OSError as why:
        raise not_written(path, why) from None
    except UnicodeEncodeError as why:
        raise DataError(f"{path} cannot be written: {why}. Mend this text where it comes from.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def locked(path: Path) -> int:
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
