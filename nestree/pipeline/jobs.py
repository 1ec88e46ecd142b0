"""Which files are read, as what, and which file each of them becomes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nestree.data.files import STDIO, check_not_read
from nestree.data.formats import FORMATS, guess
from nestree.data.formats.guessing import SUFFIXES, guess_folder, guess_standard_input
from nestree.data.formats.text import ENDINGS as TEXT_ENDINGS
from nestree.data.formats.text import stem
from nestree.errors import DataError, InputError

READ_AS_FOLDERS = ("brat", "ace", "nne", "genia", "gum", "datasets")
ENDINGS = {
    "jsonl": ".jsonl",
    "brat": ".ann",
    "columns": ".iob2",
    "triplets": ".data",
    "label-studio": ".json",
    "doccano": ".jsonl",
    "prodigy": ".jsonl",
    "spacy": ".spacy",
    "pubtator": ".pubtator",
    "bioc": ".xml",
    "datasets": ".parquet",
}


class Job(NamedTuple):
    """A file, and what becomes of it."""

    source: Path
    format: str
    name: str  # of what is written, in its folder, without an ending
    target: Path


class Jobs(NamedTuple):
    """All files to read; `folder`: each is written to a file of its own in there."""

    jobs: tuple[Job, ...]
    folder: Path | None
    format: str  # to write
    left_out: tuple[Path, ...] = ()  # files of folders whose names do not tell their format


def jobs(sources: Sequence[Path], source_format: str | None, out: Path, target_format: str | None) -> Jobs:
    """One file is written to `out`; several, or those of a folder, to files of like names in the folder `out`.

    With `out` = "-", all are written to standard output, one after the other. Of a folder whose format is not named,
    texts (.txt) and files whose names tell their format are taken.
    """
    check_sources(sources, out)
    inputs = [each for source in sources for each in files_of(source, source_format, out)]
    paths = [path for path, _ in inputs]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(f"{twice} is named twice. Name each file once.")
    left_out: tuple[Path, ...] = ()
    if source_format is None:
        left_out = tuple(path for source in sources for path in left_out_of(source, out, paths))
    several = len(inputs) > 1 or any(source.is_dir() and source != inputs[0][0] for source in sources)
    if out == STDIO or not several:
        format = target_format or ("jsonl" if out == STDIO else guess(out, to_write=True))
        found = [Job(path, format_of(path, source_format), name, out) for path, name in inputs]
        return Jobs(tuple(found), None, format, left_out)
    format = target_format or "jsonl"
    check_folder(sources, out, format)
    found = []
    for path, name in inputs:
        kind = format_of(path, source_format)
        ending = "" if format == "brat" and kind != "text" else ENDINGS[format]
        found.append(Job(path, kind, name, out / (name + ending)))
    check_names(found)
    return Jobs(tuple(found), out, format, left_out)


def check_sources(sources: Sequence[Path], out: Path) -> None:
    if not sources:
        raise InputError("name files to read, or - for standard input.")
    if list(sources).count(STDIO) > 1:
        raise InputError("standard input can be read once: name - once.")
    for source in sources:
        if source != STDIO and not source.exists():
            raise DataError(f"{source} does not exist. Check the name and the directory.")
        check_not_read(out, [source])


def files_of(source: Path, format: str | None, out: Path) -> list[tuple[Path, str]]:
    """The files that a path stands for, each with the name that its output gets."""
    if source == STDIO or not source.is_dir():
        return [(source, "standard-input" if source == STDIO else stem(source.name))]
    if (format or guess_folder(source)) in READ_AS_FOLDERS:
        return [(source, source.resolve().name)]
    found = files_in(source, out)
    texts = [path for path in found if path.name.endswith(TEXT_ENDINGS)]
    if format is None:
        taken = [path for path in found if path.name.endswith(TEXT_ENDINGS) or known_ending(path)]
    else:
        taken = texts if format == "text" and texts else found
    if not taken:
        what = "no file" if not found else "no text (.txt), and no other file whose name tells its format"
        raise DataError(f"{source} holds {what}. Name another folder{', or --from FORMAT' * bool(found)}.")
    return [(path, stem(path.relative_to(source).as_posix())) for path in taken]


def files_in(folder: Path, out: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and visible(path, folder, out)]


def left_out_of(source: Path, out: Path, taken: Sequence[Path]) -> list[Path]:
    """The files of a folder that are not read."""
    if source == STDIO or not source.is_dir() or source in taken:
        return []
    known = set(taken)
    return [path for path in files_in(source, out) if path not in known]


def visible(path: Path, folder: Path, out: Path) -> bool:
    """Neither hidden nor written by ourselves."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and (out == STDIO or not path.resolve().is_relative_to(out.resolve()))


def known_ending(path: Path) -> bool:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower() in SUFFIXES


def format_of(path: Path, named: str | None) -> str:
    """What a file is read as. What is called .txt is a text, whatever its lines look like."""
    if named is not None:
        if named not in FORMATS:
            raise InputError(f"there is no format {named!r}. Choose one of {', '.join(FORMATS)}.")
        return named
    if path == STDIO:
        return guess_standard_input()
    if path.name.endswith(TEXT_ENDINGS) and not path.is_dir():
        return "text"
    return guess(path)


def check_folder(sources: Sequence[Path], out: Path, format: str) -> None:
    known = [each for each in ENDINGS.values() if each and out.name.endswith(each)]
    if known and not out.is_dir():
        raise InputError(
            f"--out {out} is called like a file, and several files become a folder of files. Give the name of a "
            "folder, or let all of them go to standard output."
        )
    if format not in ENDINGS:
        able = ", ".join(ENDINGS)
        raise InputError(f"{format} can be read, not written. Choose one of {able}.")
    if STDIO in sources:
        raise InputError("standard input has no name that its output could get. Predict it by itself.")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file, and several files become a folder of files. Give another name.")


def check_names(found: Sequence[Job]) -> None:
    sources = {job.source.resolve() for job in found if job.source != STDIO}
    taken: dict[Path, Job] = {}
    for job in found:
        if (other := taken.setdefault(job.target, job)) is not job:
            raise InputError(
                f"{other.source} and {job.source} would both become {job.target}. Rename one, or predict them into two "
                "folders."
            )
        if job.target.resolve() in sources:
            raise InputError(f"{job.target} is one of the files that are read. Write to another folder.")
