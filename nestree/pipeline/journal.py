"""The journal of a folder of predictions: how they were made, and which files are done.

One JSON object a line. The first says which model and which options; each other one, written after a file took its
name, says what was read and what was written. So a run that was killed goes on where it was, with what it was begun
with, and never takes half a file for a whole one.
"""

import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nestree import __version__
from nestree.checkpoint import CARD, MANIFEST, files_of
from nestree.data.files import lock_owner, locked, not_written, placed
from nestree.errors import DataError, InputError
from nestree.pipeline.jobs import Jobs

NAME = ".nestree.jsonl"
LOCK = ".nestree.lock"
Values = Mapping[str, Any]


class Journal:
    """Which files of a folder are done."""

    def __init__(self, folder: Path, lock: int, how: Values, done: Mapping[str, Values]) -> None:
        self.folder, self.lock, self.done = folder, lock, dict(done)
        lines = [{"nestree": __version__, "how": how}, *self.done.values()]
        with placed(folder / NAME) as temporary:
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            temporary.write_text(text, encoding="utf-8")
        weakref.finalize(self, os.close, lock)

    def is_done(self, name: str, source: Path) -> bool:
        """Is all that was written of this file still there, and the file what it was?"""
        return self.is_written(name) and self.done[name]["source"] == signature(source)

    def is_written(self, name: str) -> bool:
        entry = self.done.get(name)
        return entry is not None and all((self.folder / written).exists() for written in entry["written"])

    def check_folder(self) -> None:
        """Raise if the folder is not the one that was locked."""
        try:
            there = os.path.samestat(os.fstat(self.lock), os.stat(self.folder / LOCK))
        except OSError:
            there = False
        if not there:
            raise DataError(
                f"{self.folder} was deleted while predictions were being written to it. Predict again, and leave it "
                "there until that ends."
            )

    def check_written(self, names: Sequence[str]) -> None:
        """Raise unless everything that was written is still there."""
        self.check_folder()
        gone = [name for name in names if not self.is_written(name)]
        if gone:
            raise DataError(
                f"{self.folder}: {len(gone):,} of {len(names):,} files were deleted after they had been written, such "
                f"as {gone[0]}. Write them again with --resume."
            )

    def add(self, name: str, entry: Values) -> None:
        self.check_folder()
        self.done[name] = {"file": name, **entry}
        with open(self.folder / NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.done[name], allow_nan=False) + "\n")


def begun(jobs: Jobs, how: Values, resume: bool) -> Journal:
    """The journal of a new folder or, to resume, of one that was begun with the same model and options."""
    assert jobs.folder is not None
    path = jobs.folder / NAME
    if not path.exists() and jobs.folder.is_dir() and {each.name for each in jobs.folder.iterdir()} - {LOCK}:
        raise InputError(
            f"{jobs.folder} is a directory that is not empty, and no predictions were begun in it. Give a new name."
        )
    lock = claimed(jobs.folder)
    try:
        done: dict[str, Values] = {}
        if path.exists():
            if not resume:
                raise InputError(
                    f"{jobs.folder} holds predictions that were begun before. Go on with them by --resume, or give a "
                    "new name."
                )
            before, done = read(path)
            check_same(jobs.folder, before, how)
            sweep([job.target for job in jobs.jobs])
        return Journal(jobs.folder, lock, how, done)
    except BaseException:
        os.close(lock)
        raise


def claimed(folder: Path) -> int:
    """The descriptor of its lock: until that is closed, no other process predicts into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return locked(folder / LOCK)
    except BlockingIOError:
        raise InputError(
            f"another process{lock_owner(folder / LOCK)} is writing predictions to {folder}. Wait until it ends, or "
            "give a new name."
        ) from None
    except OSError as why:
        raise not_written(folder, why) from None


def sweep(targets: Iterable[Path]) -> None:
    """Remove what whoever was killed had begun to write: hidden folders beside these, named like them."""
    begun_here: dict[Path, set[str]] = {}
    for target in targets:
        begun_here.setdefault(target.parent, set()).add(f".{target.name[:40]}.")
    for folder, names in begun_here.items():
        for rest in folder.iterdir() if folder.is_dir() else ():
            if rest.name[:-8] in names:
                shutil.rmtree(rest, ignore_errors=True)


def read(path: Path) -> tuple[Values, dict[str, Values]]:
    """How the predictions were begun, and what is done. A last line that is cut off does not count."""
    entries: list[Any] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            entries.append(json.loads(line) if line.endswith("\n") else None)
        except ValueError:
            entries.append(None)
    try:
        return entries[0]["how"], {entry["file"]: entry for entry in entries[1:] if entry}
    except (IndexError, KeyError, TypeError):
        raise InputError(f"{path} is no journal of predictions. Give a new name for the folder.") from None


def check_same(folder: Path, before: Values, now: Values) -> None:
    """Files of one folder are made by one model in one way."""
    for key in sorted({*before, *now}):
        was, is_now = before.get(key), now.get(key)
        if was != is_now:
            raise InputError(
                f"{folder} was begun with {key} {shown(was)}, and now {key} is {shown(is_now)}. To go on, use what it "
                "was begun with; or give a new name."
            )


def shown(value: Any) -> str:
    return "as usual" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)


def signature(path: Path) -> list[int]:
    """What changes if somebody changes a file."""
    try:
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
        states = [file.stat() for file in files]
    except OSError:  # it is gone; whoever reads it will say so
        return [0, 0, 0]
    return [sum(s.st_size for s in states), max((s.st_mtime_ns for s in states), default=0), len(files)]


def fingerprint(folder: Path) -> str:
    """The same for two model directories if they predict the same: of all files but the card."""
    digest = hashlib.sha256()
    for path in files_of(folder):
        if path.name not in (CARD, MANIFEST):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]
