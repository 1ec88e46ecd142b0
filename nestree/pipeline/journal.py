"""The journal of a folder of predictions: how they were made, and which files are done.

One JSON object a line. The first says which model and which options; each other one, written after a file took its
name, says what was read and what was written. So a run that was killed goes on where it was, with what it was begun
with, and never takes half a file for a whole one.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nestree import __version__
from nestree.checkpoint import CARD, MANIFEST, files_of
from nestree.data.files import placed
from nestree.errors import InputError
from nestree.pipeline.jobs import Jobs

NAME = ".nestree.jsonl"
Values = Mapping[str, Any]


class Journal:
    """Which files of a folder are done."""

    def __init__(self, folder: Path, how: Values, done: Mapping[str, Values]) -> None:
        self.folder, self.done = folder, dict(done)
        lines = [{"nestree": __version__, "how": how}, *self.done.values()]
        folder.mkdir(parents=True, exist_ok=True)
        with placed(folder / NAME) as temporary:
            temporary.write_text(
                "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines), encoding="utf-8"
            )

    def is_done(self, name: str, source: Path) -> bool:
        """Is all that was written of this file still there, and the file what it was?"""
        entry = self.done.get(name)
        if entry is None or entry["source"] != signature(source):
            return False
        return all((self.folder / written).exists() for written in entry["written"])

    def add(self, name: str, entry: Values) -> None:
        self.done[name] = {"file": name, **entry}
        with open(self.folder / NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.done[name], allow_nan=False) + "\n")


def begun(jobs: Jobs, how: Values, resume: bool) -> Journal:
    """The journal of a new folder or, to resume, of one that was begun with the same model and options."""
    assert jobs.folder is not None
    path = jobs.folder / NAME
    if not path.exists():
        if jobs.folder.is_dir() and any(jobs.folder.iterdir()):
            raise InputError(
                f"{jobs.folder} is a directory that is not empty, and no predictions were begun in it. Give a new name."
            )
        return Journal(jobs.folder, how, {})
    if not resume:
        raise InputError(
            f"{jobs.folder} holds predictions that were begun before. Go on with them by --resume, or give a new name."
        )
    before, done = read(path)
    check_same(jobs.folder, before, how)
    sweep([job.target for job in jobs.jobs])
    return Journal(jobs.folder, how, done)


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
