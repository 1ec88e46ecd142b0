"""Which files are read, as what, and which file each of them becomes."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from nestree import __version__
from nestree.checkpoint import CARD, MANIFEST, files_of
from nestree.data import formats
from nestree.data.formats import FORMATS, detect_format, jsonl
from nestree.data.formats.detect import SUFFIXES, detect_folder, detect_stdin
from nestree.data.formats.text import ENDINGS as TEXT_ENDINGS
from nestree.data.formats.text import stem
from nestree.data.io import (
    PLACES,
    STDIO,
    ConversionReport,
    atomic_path,
    check_output_is_not_input,
    lock_file,
    lock_owner,
    report_progress,
    stream_stdout,
    write_error,
)
from nestree.errors import DataError, InputError, NestreeError
from nestree.model import TextRules
from nestree.pipeline import Pipeline, PredictOptions, default_batch_words, predict
from nestree.types import Document, Sentence, rounded

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
    inputs = [each for source in sources for each in input_files(source, source_format, out)]
    paths = [path for path, _ in inputs]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(f"{twice} is named twice. Name each file once.")
    left_out: tuple[Path, ...] = ()
    if source_format is None:
        left_out = tuple(path for source in sources for path in left_out_of(source, out, paths))
    several = len(inputs) > 1 or any(source.is_dir() and source != inputs[0][0] for source in sources)
    if out == STDIO or not several:
        format = target_format or ("jsonl" if out == STDIO else detect_format(out, to_write=True))
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
        check_output_is_not_input(out, [source])


def input_files(source: Path, format: str | None, out: Path) -> list[tuple[Path, str]]:
    """The files that a path stands for, each with the name that its output gets."""
    if source == STDIO or not source.is_dir():
        return [(source, "standard-input" if source == STDIO else stem(source.name))]
    if (format or detect_folder(source)) in READ_AS_FOLDERS:
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
        return detect_stdin()
    if path.name.endswith(TEXT_ENDINGS) and not path.is_dir():
        return "text"
    return detect_format(path)


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


NAME = ".nestree.jsonl"
LOCK = ".nestree.lock"
Values = Mapping[str, Any]


class ResumeLog:
    """Which files of a folder are done."""

    def __init__(self, folder: Path, lock: int, how: Values, done: Mapping[str, Values]) -> None:
        self.folder, self.lock, self.done = folder, lock, dict(done)
        lines = [{"nestree": __version__, "how": how}, *self.done.values()]
        with atomic_path(folder / NAME) as temporary:
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


def open_resume_log(jobs: Jobs, how: Values, resume: bool) -> ResumeLog:
    """The journal of a new folder or, to resume, of one that was begun with the same model and options."""
    assert jobs.folder is not None
    path = jobs.folder / NAME
    if not path.exists() and jobs.folder.is_dir() and {each.name for each in jobs.folder.iterdir()} - {LOCK}:
        raise InputError(
            f"{jobs.folder} is a directory that is not empty, and no predictions were begun in it. Give a new name."
        )
    lock = claim_output_folder(jobs.folder)
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
            remove_partial_files([job.target for job in jobs.jobs])
        return ResumeLog(jobs.folder, lock, how, done)
    except BaseException:
        os.close(lock)
        raise


def claim_output_folder(folder: Path) -> int:
    """The descriptor of its lock: until that is closed, no other process predicts into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / LOCK)
    except BlockingIOError:
        raise InputError(
            f"another process{lock_owner(folder / LOCK)} is writing predictions to {folder}. Wait until it ends, or "
            "give a new name."
        ) from None
    except OSError as why:
        raise write_error(folder, why) from None


def remove_partial_files(targets: Iterable[Path]) -> None:
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


log = logging.getLogger(__name__)
BATCHES_AT_ONCE = 5
BYTES_PER_WORD = 5  # of text, about
MOST_FILES = 256  # of a group


@dataclass(frozen=True)
class FilePredictOptions:
    """How files are read, recognised and written."""

    asked: PredictOptions = PredictOptions(scored=True)  # noqa: RUF009 (it cannot change)
    batch_words: int | None = None  # None: what suits the device
    reading: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options, by format
    writing: Mapping[str, Any] = field(default_factory=dict)
    skip_bad: bool = False


class Progress(NamedTuple):
    """How far it is."""

    files: int  # that are done
    words: int
    share: float | None  # of everything; None: nobody knows how much there is


@dataclass
class Summary:
    """What was done, and what was not."""

    files: int = 0
    done_before: int = 0
    documents: int = 0
    sentences: int = 0
    words: int = 0
    entities: int = 0
    windowed: int = 0
    reading: ConversionReport = field(default_factory=ConversionReport)
    writing: ConversionReport = field(default_factory=ConversionReport)

    @property
    def skipped(self) -> list[str]:
        return self.reading.skipped

    def add(self, document: Document) -> None:
        self.documents += 1
        self.sentences += len(document.sentences)
        self.words += words_of(document)
        self.entities += sum(len(sentence.entities) for sentence in document.sentences)
        self.windowed += sum("windows" in sentence.extra for sentence in document.sentences)


class ReadDocument(NamedTuple):
    """A document of a file."""

    job: Job
    number: int
    document: Document
    is_text: bool  # it came without words


def predict_files(
    pipeline: Pipeline,
    jobs: Jobs,
    how: FilePredictOptions,
    journal: ResumeLog | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> Summary:
    """Find the entities of all documents of these files; `journal`: of the folder that they are written to.

    What goes wrong with one document is an error that names it or, with `how.skip_bad`, noted in the account.
    """
    work = FilePredictor(pipeline, jobs, how, tell)
    with report_progress(work.hear), stream_stdout():
        if journal is None:
            work.all_into_one()
        else:
            work.each_into_its_own(journal)
    return work.account


class FilePredictor:
    def __init__(
        self, pipeline: Pipeline, jobs: Jobs, how: FilePredictOptions, tell: Callable[[Progress], None] | None
    ) -> None:
        self.pipeline, self.jobs, self.how, self.tell = pipeline, jobs, how, tell
        self.account = Summary()
        self.tallies: dict[Job, ConversionReport] = {}
        self.total = sum(size_of(job) for job in jobs.jobs)
        self.bytes = self.read_words = self.found_words = 0
        self.at_once = BATCHES_AT_ONCE * (how.batch_words or default_batch_words(pipeline.device))

    def all_into_one(self) -> None:
        """One file, or several one after the other, into one file or standard output."""
        jobs = self.jobs.jobs
        found = self.recognised(chain.from_iterable(map(self.documents, jobs)))
        first = next(found, None)
        if first is not None or not self.skipped():
            self.write(chain([first] if first else [], found), jobs[0].target)
        for job in jobs:
            self.finish(job)

    def each_into_its_own(self, journal: ResumeLog) -> None:
        """Every file that is not done yet, in groups."""
        for group in groups(self.jobs.jobs, BYTES_PER_WORD * self.at_once):
            todo = [job for job in group if not journal.is_done(job.name, job.source)]
            for job in group:
                if job not in todo:
                    self.note_done(journal.done[job.name])
                    self.total -= size_of(job)
            before = {job: signature(job.source) for job in todo}
            left = set(todo)
            found = self.recognised(chain.from_iterable(map(self.documents, todo)))
            for job, documents in groupby(found, key=lambda each: each.job):
                journal.check_folder()
                self.note(journal, job, before[job], self.written(job, documents))
                left.remove(job)
            for job in todo:
                if job in left:  # nothing is in it, or all was skipped: done, too, until somebody changes it
                    names = [] if self.tallies[job].skipped else self.written(job, ())
                    self.note(journal, job, before[job], names)
                self.finish(job)
        journal.check_written([job.name for job in self.jobs.jobs])

    def note(self, journal: ResumeLog, job: Job, source: list[int], names: list[str]) -> None:
        journal.add(job.name, {"source": source, "written": names, "skipped": self.tallies[job].skipped})

    def documents(self, job: Job) -> Iterator[ReadDocument]:
        """The documents of a file, as they are."""
        tally = self.tallies[job] = ConversionReport(self.how.skip_bad)
        options = with_rules(self.how.reading.get(job.format, {}), job.format, self.pipeline.model.text_rules)
        texts = 0
        try:
            for number, document in enumerate(formats.read(job.source, job.format, tally, **options), 1):
                self.read_words += words_of(document)
                is_text, texts = tally.texts > texts, tally.texts
                yield ReadDocument(job, number, document, is_text)
        except DataError as error:
            tally.bad(error)

    def recognised(self, documents: Iterable[ReadDocument]) -> Iterator[ReadDocument]:
        """The same with entities; never more are held than a few batches have words, unless one document has more."""
        held: list[ReadDocument] = []
        words = 0
        for each in documents:
            held.append(each)
            words += words_of(each.document)
            if words >= self.at_once:
                yield from self.found(held)
                held, words = [], 0
        yield from self.found(held)

    def found(self, held: Sequence[ReadDocument]) -> list[ReadDocument]:
        before = self.found_words
        try:
            return self.predicted(held)
        except Exception:
            log.info("these documents failed together; they are tried one by one", exc_info=True)
        self.found_words = before
        done = []
        for each in held:
            try:
                done += self.predicted([each])
            except Exception as why:
                self.tallies[each.job].bad(self.blamed(each, why))
        return done

    def predicted(self, held: Sequence[ReadDocument]) -> list[ReadDocument]:
        sentences = self.pipeline.model.sentences_of(each.document for each in held)
        words = sum(len(sentence.words) for sentence in sentences)
        before, done = self.found_words, 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            self.found_words = before + words * done // len(sentences)
            self.say()

        found = iter(predict(self.pipeline.reader, sentences, self.how.batch_words, told, self.how.asked))
        self.found_words = before + words
        return [
            each._replace(
                document=replace(each.document, sentences=tuple(next(found) for _ in each.document.sentences))
            )
            for each in held
        ]

    def blamed(self, each: ReadDocument, why: Exception) -> DataError:
        """An error that names the document and, if one is to blame, its sentence."""
        called = f" ({each.document.id})" if each.document.id else ""
        place = f"{each.job.source}, document {each.number}{called}"
        for number, sentence in enumerate(each.document.sentences, 1):
            try:
                predict(self.pipeline.reader, [sentence], self.how.batch_words, None, self.how.asked)
            except Exception as cause:
                place, why = f"{place}, sentence {number} ({str(sentence)[:60]})", cause
                break
        what = str(why) if isinstance(why, NestreeError) else f"{type(why).__name__}: {why}"
        return DataError(f"{place}: no entities could be found: {what}")

    def written(self, job: Job, found: Iterable[ReadDocument]) -> list[str]:
        """Write a file of the folder; the names of what was written there."""
        assert self.jobs.folder is not None
        if self.jobs.format == "brat" and job.format == "text":
            documents = (self.counted(each.document) for each in found)
            return write_pairs(documents, job.target, self.jobs.folder, self.account.writing)
        self.write(found, job.target)
        return [job.target.relative_to(self.jobs.folder).as_posix()]

    def write(self, found: Iterable[ReadDocument], target: Path) -> None:
        """In JSON lines, what was a text is written by characters, unless trees are to be kept, which count words."""
        counted = ((self.counted(each.document), each.is_text) for each in found)
        if self.jobs.format == "jsonl" and not self.how.writing and not self.how.asked.trees:
            each_in_its_way = ((document, "characters" if text else "words") for document, text in counted)
            with formats.encoding(target):
                jsonl.write_each(each_in_its_way, target, self.account.writing)
        else:
            documents = (document for document, _ in counted)
            formats.write(documents, target, self.jobs.format, self.account.writing, **self.how.writing)

    def counted(self, document: Document) -> Document:
        self.account.add(document)
        return replace(document, sentences=tuple(map(with_short_numbers, document.sentences)))

    def finish(self, job: Job) -> None:
        tally = self.tallies.pop(job)
        self.account.files += 1
        add_tally(self.account.reading, tally)
        self.say()

    def note_done(self, entry: Mapping[str, Any]) -> None:
        self.account.done_before += 1
        self.account.skipped.extend(entry["skipped"])

    def skipped(self) -> bool:
        return any(tally.skipped for tally in self.tallies.values())

    def hear(self, count: int) -> None:
        self.bytes += count

    def say(self) -> None:
        if self.tell:
            known = self.total > 0 and self.bytes > 0 and self.read_words > 0
            share = min(1.0, self.bytes / self.total * self.found_words / self.read_words) if known else None
            self.tell(Progress(self.account.files, self.found_words, share))


def with_rules(options: Mapping[str, Any], format: str, rules: TextRules) -> dict[str, Any]:
    """These options for reading, and words and sentences as a model knows them, if nothing else was said."""
    known = formats.options(format)
    return {**{name: rule for name, rule in rules._asdict().items() if name in known}, **options}


def groups(jobs: Sequence[Job], most: int) -> Iterator[list[Job]]:
    """Files that follow each other and are recognised together: of about so many bytes, or one that has more."""
    held: list[Job] = []
    size = 0
    for job in jobs:
        if held and (size + size_of(job) > most or len(held) == MOST_FILES):
            yield held
            held, size = [], 0
        held.append(job)
        size += size_of(job)
    if held:
        yield held


def size_of(job: Job) -> int:
    return 0 if job.source == STDIO else signature(job.source)[0]


def write_pairs(
    documents: Iterable[Document], target: Path, folder: Path, tally: ConversionReport
) -> list[str]:
    """The .txt and .ann files of a text, side by side in the folder of the target; texts take their names first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as place:
        formats.write(documents, Path(place) / "pairs", "brat", tally)
        made = sorted(Path(place, "pairs").iterdir(), key=lambda path: (path.suffix == ".ann", path.name))
        for path in made:
            os.replace(path, target.parent / path.name)
    return [(target.parent / path.name).relative_to(folder).as_posix() for path in made]


def with_short_numbers(sentence: Sentence) -> Sentence:
    """The same; probabilities have as many digits as whoever reads the file wants to see."""
    tree = sentence.tree
    if tree is not None:
        tree = tree._replace(probabilities=tuple(round(chance, 6) for chance in tree.probabilities))
    entities = tuple(replace(entity, score=rounded(entity.score)) for entity in sentence.entities)
    return replace(sentence, entities=entities, tree=tree)


def words_of(document: Document) -> int:
    return sum(len(sentence.words) for sentence in document.sentences)


def add_tally(total: ConversionReport, tally: ConversionReport) -> None:
    """What happened to one file, counted with all others."""
    for what, times in tally.counts.items():
        total.counts[what] += times
        places = total.places.setdefault(what, [])
        places += [place for place in tally.places[what] if place not in places][: PLACES - len(places)]
    total.documents += tally.documents
    total.texts += tally.texts
    total.sentences += tally.sentences
    total.entities += tally.entities
    total.skipped += tally.skipped
