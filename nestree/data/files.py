"""Opening files: lines with their numbers, gzip, standard input; writing them whole or not at all; locks.

Whatever can be wrong with a file becomes a DataError that says where and what to do.
"""

import errno
import gzip
import io
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

from nestree.data.limits import current, remedy
from nestree.errors import DataError, InputError

log = logging.getLogger(__name__)
STDIO = Path("-")
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
            yield unpacked(sys.stdin.buffer, path)
            return
        if path.is_dir():
            raise DataError(f"{path} is a directory, and a file is meant. Name one of the files in it.")
        with io.BufferedReader(Watched(path), 2**17) as file:
            yield unpacked(file, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the name and the directory.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as why:
        raise DataError(
            f"{path} cannot be unpacked: {why}. It may be cut off; fetch or make it again."
        ) from None
    except OSError as why:
        raise DataError(f"{path} cannot be read: {why.strerror or why}.") from None


def unpacked(file: BinaryIO, path: Path) -> BinaryIO:
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
    number, longest = 0, current.get().longest_line
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
    data = whole(path)
    longest = current.get().longest_line
    if len(data) > longest:
        for number, line in enumerate(data.split(b"\n"), 1):
            if len(line) > longest:
                raise too_long(path, number, longest)
    return decoded(data, path, 1)


def whole(path: Path) -> bytearray:
    """All bytes of a file, unpacked if it is gzip."""
    data = bytearray()
    with opened(path) as file:
        while part := file.read(2**20):
            data += part
            check_bytes(len(data), path)
    return data


def too_long(path: Path, line: int, longest: int) -> DataError:
    return DataError(f"{path}:{line}: this line is longer than {longest:,} bytes. {remedy('longest_line')}")


def decoded(data: bytes | bytearray, path: Path, line: int) -> str:
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
        folder, lock = claim_folder(path)
    except OSError as why:
        raise not_written(path, why) from None
    try:
        temporary = folder / (path.name if path.name != LOCK else "file")
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
        lock = locked_folder(folder)
        if lock is not None and claimed is None:
            claimed = folder, lock
        elif lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    return claimed or (Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent)), None)


def locked_folder(folder: Path) -> int | None:
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
