"""Prediction of many files, which can be resumed: `plan_jobs` decides what is read, in which format, and written where.

A folder of predictions has a log of the files that are done (`ResumeLog`) and a lock, so that a run that was killed can
be resumed and two runs never write to the same folder. The folder may be in an object store (`ObjectStoreLog`).
`predict_files` does the work; a batch never crosses files, and one thread computes it, so that on a CPU the bytes of an
output depend on its input alone.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

from nestree import __version__
from nestree.checkpoint import CARD, MANIFEST, model_files, sha256
from nestree.data import formats
from nestree.data.formats import jsonl
from nestree.data.formats.text import TEXT_SUFFIXES, is_text_name, strip_suffix
from nestree.data.io import (
    MAX_PLACES,
    STDIO,
    ConversionReport,
    atomic_path,
    check_output_is_not_input,
    list_files,
    lock_file,
    lock_owner,
    real_path,
    report_progress,
    set_within,
    streams_stdout,
    write_error,
)
from nestree.data.object_store import ObjectStore, as_url, open_store
from nestree.errors import DataError, InputError, NestreeError
from nestree.pipeline import (
    MAX_BATCH_WORDS_CPU,
    Batcher,
    Pipeline,
    PredictOptions,
    count_words,
    default_batch_words,
    predict,
)
from nestree.types import Document, round_probability

BUFFERED_BATCHES = 5
ENDINGS = {name: format.ending for name, format in formats.FORMATS.items() if format.writable}
ENDINGS |= {"brat": ".ann", "datasets": ".parquet"}  # of one document, or of one file
MAX_NAME_BYTES = 255  # of a file, on most systems
LOG_FILE = ".nestree.jsonl"
LOCK_FILE = ".nestree.lock"
LOG_FOLDER = ".nestree"  # in an object store, where nothing can be appended to a file
LOG_SECONDS = 5.0  # between two files of that log
BEGUN_BEFORE = "{} holds predictions that were begun before. Continue them with --resume, or give a new name."
Choices = Mapping[str, Any]  # the model and the options, which a resumed run must share
LogEntry = Mapping[str, Any]  # of a file that is done: its source, what was written, and what was skipped


class Job(NamedTuple):
    """A file or folder to read, and where its predictions go."""

    source: Path
    format: str
    name: str  # of the output, relative to its folder, without an ending
    target: Path


class JobPlan(NamedTuple):
    jobs: tuple[Job, ...]
    folder: Path | None  # each job has a file of its own in this folder; None: all share one target
    format: str  # of the output
    left_out: tuple[Path, ...] = ()  # files in folders whose format is not known from their names


def plan_jobs(
    sources: Sequence[Path], source_format: str | None, out: Path, target_format: str | None, skip_bad: bool = False
) -> JobPlan:
    """One file is written to `out`; several, or those of a folder, to files of the same names in the folder `out`.

    With `out` = "-", all are written to standard output, one after the other. If no format is named, the files of a
    folder that are read are texts (.txt) and those whose names tell their format. `skip_bad`: a file that cannot be
    read has a job, too.
    """
    if not sources:
        raise InputError("name files to read, or - for standard input.")
    if list(sources).count(STDIO) > 1:
        raise InputError("standard input can be read once: name - once.")
    if source_format is not None:
        formats.check_name(source_format, "read")
    names: dict[Path, str] = {}
    files: list[Path] = []
    for source in sources:
        if source != STDIO and not source.exists():
            raise DataError(f"{source} does not exist. Check the name and the directory.")
        check_output_is_not_input(out, [source])
        found, all_files = find_inputs(source, source_format, out, skip_bad)
        if twice := names.keys() & found.keys():
            raise InputError(f"{twice.pop()} is named twice. Name each file once.")
        names |= found
        files += all_files
    left_out = () if source_format else tuple(path for path in files if path not in names)
    inputs = {path: source_format or detect_input_format(path, skip_bad) for path in names}
    several = len(names) > 1 or any(source not in names for source in sources)
    if out == STDIO or not several:
        format = target_format or ("jsonl" if out == STDIO else formats.detect_output_format(out))
        counts = Counter(names.values())
        names |= {path: strip_suffix(path.as_posix()) for path, name in names.items() if counts[name] > 1}
        jobs = tuple(Job(path, inputs[path], name, out) for path, name in names.items())
        return JobPlan(jobs, None, format, left_out)
    format = target_format or "jsonl"
    if not out.is_dir() and out.name.endswith(tuple(ENDINGS.values())):
        raise InputError(
            f"--out {out} is the name of a file, and several inputs are written to a folder, one file each. Give the "
            "name of a folder, or omit --out to write all of them to standard output."
        )
    formats.check_name(format, "write")
    if STDIO in sources:
        raise InputError("standard input has no name for its output. Predict it by itself.")
    if out.exists() and not out.is_dir():
        raise DataError(
            f"{out} is a file, and several inputs are written to a folder, one file each. Give another name."
        )
    sources_read = {real_path(path) for path in names}
    targets: dict[Path, Job] = {}
    for path, name in names.items():
        ending = "" if format == "brat" and inputs[path] != "text" else ENDINGS[format]
        job = Job(path, inputs[path], name, out / (name + ending))
        if job.target in targets:
            raise InputError(
                f"{targets[job.target].source} and {path} would both become {job.target}. Rename one, or predict them "
                "into two folders."
            )
        if (size := len(os.fsencode(job.target.name))) > MAX_NAME_BYTES:
            raise InputError(
                f"{path}: the name of its output would have {size} bytes, and at most {MAX_NAME_BYTES} are possible. "
                "Rename it."
            )
        if as_url(out) and not job.name.isprintable():  # half surrogates stand for bytes that are not UTF-8
            raise InputError(f"{path}: an object store needs names in UTF-8 without control characters. Rename it.")
        if real_path(job.target) in sources_read:
            raise InputError(f"{job.target} is one of the files that are read. Write to another folder.")
        targets[job.target] = job
    return JobPlan(tuple(targets.values()), out, format, left_out)


def find_inputs(source: Path, format: str | None, out: Path, skip_bad: bool) -> tuple[dict[Path, str], list[Path]]:
    """The files that a path stands for, each with the name of its output; and all files of a folder."""
    if source == STDIO or not source.is_dir():
        return {source: "standard-input" if source == STDIO else strip_suffix(source.name)}, []
    try:
        if (format or formats.detect_folder(source)) in formats.FOLDER_FORMATS:
            return {source: source.resolve().name}, []
    except DataError:  # a file whose content tells the format cannot be read
        if not skip_bad:
            raise
    files = [path for path in list_files(source) if out == STDIO or not real_path(path).is_relative_to(real_path(out))]
    chosen = texts = [path for path in files if is_text_name(path)]
    if format is None:
        known = (*TEXT_SUFFIXES, *formats.SUFFIXES, *(f"{suffix}.gz" for suffix in formats.SUFFIXES))
        chosen = [path for path in files if path.name.lower().endswith(known)]
    elif format != "text" or not texts:
        chosen = files
    if not chosen:
        what = "no file" if not files else "no text (.txt), and no other file whose name tells its format"
        raise DataError(f"{source} holds {what}. Name another folder{', or --from FORMAT' * bool(files)}.")
    return {path: strip_suffix(path.relative_to(source).as_posix()) for path in chosen}, files


def detect_input_format(path: Path, skip_bad: bool) -> str:
    """The format of a file. A .txt file is plain text, whatever its lines look like.

    `skip_bad`: a file that cannot be read counts as JSON lines; reading it then fails, and the error is recorded.
    """
    if path == STDIO:
        return formats.detect_stdin()
    try:
        return "text" if is_text_name(path) and not path.is_dir() else formats.detect_format(path)
    except DataError:
        if skip_bad and path.is_file():
            return "jsonl"
        raise


class ResumeLog:
    """The log of a folder of predictions: the model and the options, and the files that are done."""

    def __init__(self, folder: Path, lock: int, choices: Choices, done: Mapping[str, LogEntry]) -> None:
        self.folder, self.lock, self.done = folder, lock, dict(done)
        with atomic_path(folder / LOG_FILE) as temporary:
            temporary.write_text(format_log(choices, self.done.values()), encoding="utf-8")
        weakref.finalize(self, os.close, lock)

    def is_done(self, name: str, source: Path) -> bool:
        """Whether all that was written for this file is still there, and the file is unchanged."""
        return self.is_written(name) and self.done[name]["source"] == signature(source)

    def is_written(self, name: str) -> bool:
        entry = self.done.get(name)
        return entry is not None and all(self.exists(path) for path in entry["written"])

    def exists(self, path: str) -> bool:
        return (self.folder / path).exists()

    def check_folder(self) -> None:
        """Raise if the folder was deleted, or replaced by another one."""
        try:
            same = os.path.samestat(os.fstat(self.lock), os.stat(self.folder / LOCK_FILE))
        except OSError:
            same = False
        if not same:
            raise DataError(
                f"{self.folder} was deleted while predictions were being written to it. Predict again, and leave it "
                "there until that ends."
            )

    def check_written(self, names: Sequence[str]) -> None:
        """Raise unless everything that was written is still there."""
        self.check_folder()
        missing = [name for name in names if not self.is_written(name)]
        if missing:
            raise DataError(
                f"{as_url(self.folder) or self.folder}: {len(missing):,} of {len(names):,} files were deleted after "
                f"they had been written, such as {missing[0]}. Write them again with --resume."
            )

    def add(self, name: str, entry: LogEntry) -> None:
        self.check_folder()
        self.done[name] = {"file": name, **entry}
        with open(self.folder / LOG_FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.done[name], allow_nan=False) + "\n")

    def flush(self) -> None:
        """Write the entries that are not yet in a file."""


class ObjectStoreLog(ResumeLog):
    """The same in an object store, as a folder of small logs, since objects cannot be appended to.

    Each has the entries of a few seconds. What a killed run had not logged is predicted again, with the same bytes as
    the result. There is no lock: a second run with other options is refused, and one with the same writes the same.
    """

    def __init__(self, folder: Path, store: ObjectStore, choices: Choices, resume: bool) -> None:
        self.folder, self.store, self.choices, self.names = folder, store, choices, store.names()
        logs = sorted(name for name in self.names if re.fullmatch(rf"{LOG_FOLDER}/\d+-\w+\.jsonl", name))
        if self.names and not logs:
            raise InputError(f"{store.url} is not empty, and no predictions were begun in it. Give a new name.")
        if logs and not resume:
            raise InputError(BEGUN_BEFORE.format(store.url))
        self.done = {}
        for name in logs:
            text = store.read(name).decode("utf-8", "replace")
            self.done |= parse_resume_log(text, f"{store.url}/{name}", store.url, choices)
        self.logs, self.run = len(logs), uuid.uuid4().hex[:8]
        self.new: list[LogEntry] = []
        self.write_log()

    def write_log(self) -> None:
        name = f"{LOG_FOLDER}/{self.logs:06}-{self.run}.jsonl"
        self.store.write(name, format_log(self.choices, self.new).encode())
        self.logs, self.new, self.written_at = self.logs + 1, [], monotonic()

    def exists(self, path: str) -> bool:
        return path in self.names

    def check_folder(self) -> None:
        pass

    def check_written(self, names: Sequence[str]) -> None:
        self.names = self.store.names()
        super().check_written(names)

    def add(self, name: str, entry: LogEntry) -> None:
        self.done[name] = {"file": name, **entry}
        self.names.update(entry["written"])
        self.new.append(self.done[name])
        if monotonic() - self.written_at > LOG_SECONDS:
            self.write_log()

    def flush(self) -> None:
        if self.new:
            self.write_log()


def format_log(choices: Choices, entries: Iterable[LogEntry]) -> str:
    lines = [{"nestree": __version__, "how": choices}, *entries]
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def open_resume_log(jobs: JobPlan, choices: Choices, resume: bool) -> ResumeLog:
    """The log of a new folder or, to resume, of one that was begun with the same model and options.

    Until it is closed, no other process predicts into the folder.
    """
    folder = jobs.folder
    assert folder is not None
    if url := as_url(folder):
        return ObjectStoreLog(folder, open_store(url), choices, resume)
    path = folder / LOG_FILE
    if not path.exists() and folder.is_dir() and {file.name for file in folder.iterdir()} - {LOCK_FILE}:
        raise InputError(
            f"{folder} is a directory that is not empty, and no predictions were begun in it. Give a new name."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(folder / LOCK_FILE)
    except BlockingIOError:
        raise InputError(
            f"another process{lock_owner(folder / LOCK_FILE)} is writing predictions to {folder}. "
            "Wait until it ends, or give a new name."
        ) from None
    except OSError as why:
        raise write_error(folder, why) from None
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if not resume and text.count("\n") < 2:  # no file was done
            text = ""
        if not resume and text:
            raise InputError(BEGUN_BEFORE.format(folder))
        done = parse_resume_log(text, path, folder, choices) if text else {}
        # Temporary folders of a killed process.
        unfinished = {f".{job.target.name[:40]}" for job in jobs.jobs}
        for hidden in folder.rglob(".*"):
            if hidden.name.rpartition(".")[0] in unfinished:
                shutil.rmtree(hidden, ignore_errors=True)
        return ResumeLog(folder, lock, choices, done)
    except BaseException:
        os.close(lock)
        raise


def parse_resume_log(text: str, path: Path | str, folder: Path | str, choices: Choices) -> dict[str, LogEntry]:
    """The entries of the files that are done; raise if they were predicted with other `choices`.

    A last line that is cut off is ignored. `path` of the log and `folder` are for messages.
    """
    lines: list[Any] = []
    for line in text.splitlines():
        with suppress(ValueError):  # it is cut off
            lines.append(json.loads(line))
    try:
        before, done = lines[0]["how"], {entry["file"]: entry for entry in lines[1:]}
    except (IndexError, KeyError, TypeError):
        raise InputError(f"{path} is not a log of predictions. Give a new name for the folder.") from None

    def show(key: str, value: Any) -> str:
        return f"without {key}" if value is None else f"with {key} {json.dumps(value, ensure_ascii=False)}"

    for key in sorted({*before, *choices}):
        if before.get(key) != choices.get(key):
            raise InputError(
                f"{folder} was begun {show(key, before.get(key))}, and is continued {show(key, choices.get(key))}. "
                "Use the same as before, or give a new name."
            )
    return done


def signature(path: Path) -> list[int]:
    """Size, modification time and number of files: what changes with a file or folder; zeros if it is gone."""
    try:
        files = list_files(path) if path.is_dir() else [path]
        states = [file.stat() for file in files if file.exists()]  # not of links to nothing
    except OSError:
        return [0, 0, 0]
    return [sum(s.st_size for s in states), max((s.st_mtime_ns for s in states), default=0), len(states)]


def fingerprint(folder: Path) -> str:
    """A hash of all files of a model directory except the card and the manifest, which do not change predictions."""
    files = [path for path in model_files(folder) if path.name not in (CARD, MANIFEST)]
    lines = "".join(f"{path.relative_to(folder).as_posix()} {sha256(path)}\n" for path in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FilePredictOptions:
    """How files are read, predicted and written."""

    predict_options: PredictOptions = PredictOptions(scored=True)  # noqa: RUF009 (immutable)
    batch_words: int | None = None  # None: the default of the device
    read_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options, by format
    write_options: Mapping[str, Any] = field(default_factory=dict)
    skip_bad: bool = False


class Progress(NamedTuple):
    files: int  # that are done
    words: int  # that are predicted
    share: float | None  # of everything; None: unknown


@dataclass
class Summary:
    """What was predicted, and what was skipped."""

    files: int = 0
    done_before: int = 0
    documents: int = 0
    sentences: int = 0
    words: int = 0
    entities: int = 0
    windowed_sentences: int = 0  # sentences that were cut into windows
    read_report: ConversionReport = field(default_factory=ConversionReport)
    write_report: ConversionReport = field(default_factory=ConversionReport)

    @property
    def skipped(self) -> list[str]:
        return self.read_report.skipped

    def add(self, other: "Summary") -> None:
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        add_report(self.read_report, other.read_report)
        add_report(self.write_report, other.write_report)


def add_report(total: ConversionReport, report: ConversionReport) -> None:
    for what, more in report.places.items():
        places = total.places.setdefault(what, [])
        places += [place for place in more if place not in places][: MAX_PLACES - len(places)]
    for name, value in vars(report).items():
        if name not in ("skip_bad", "places"):  # numbers, counters and lists
            setattr(total, name, getattr(total, name) + value)


class ReadDocument(NamedTuple):
    """A document of a file, as it was read."""

    job: Job
    number: int  # in its file
    document: Document
    is_text: bool  # without words


Result = tuple[ReadDocument, Document]  # with entities


class Cluster(Protocol):
    """Machines that predict with the same model: see `nestree.integrations.ray`."""

    device: str

    def predict_whole_files(self, predictor: "FilePredictor", jobs: Sequence[Job], resume_log: ResumeLog) -> list[Job]:
        """Predict and write some of the files; returns the others."""

    def stream(self, predictor: "FilePredictor", items: Iterable[ReadDocument]) -> Iterator[Result]:
        """Yield each item and its document with entities, in order."""


def predict_files(
    pipeline: Pipeline,
    jobs: JobPlan,
    options: FilePredictOptions,
    log: ResumeLog | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cluster: Cluster | None = None,
) -> Summary:
    """Predict the entities of all documents of these files; `log`: that of the folder of their outputs.

    With `cluster`, `pipeline` only reads. An error names its document; with `options.skip_bad`, the document is skipped
    and the error is in the summary.
    """
    return FilePredictor(pipeline, jobs, options, on_progress, cluster).run(log)


class FilePredictor:
    """The state of one call of `predict_files`."""

    def __init__(
        self,
        pipeline: Pipeline,
        plan: JobPlan,
        options: FilePredictOptions,
        on_progress: Callable[[Progress], None] | None,
        cluster: Cluster | None = None,
    ) -> None:
        self.pipeline, self.plan, self.options, self.on_progress = pipeline, plan, options, on_progress
        self.cluster = cluster
        url = as_url(plan.folder or plan.jobs[0].target)
        self.store = open_store(url) if url else None
        self.summary = Summary()
        self.reports: dict[Job, ConversionReport] = {}  # of files that are being read
        self.signatures = {job: signature(job.source) for job in plan.jobs if job.source != STDIO}
        self.total_bytes = sum(size for size, *_ in self.signatures.values())
        self.read_bytes = self.read_words = 0
        on_cpu = (cluster.device if cluster else pipeline.device.type) == "cpu"
        batch_words = options.batch_words or default_batch_words(pipeline.device)
        group_words = BUFFERED_BATCHES * (min(batch_words, MAX_BATCH_WORDS_CPU) if on_cpu else batch_words)
        # A batch never crosses files, so that the bits of a file's results do not depend on the others.
        self.batcher = Batcher[ReadDocument](
            pipeline,
            lambda item: item.document,
            options.predict_options,
            self.handle_error,
            max_words=group_words if cluster else BUFFERED_BATCHES * batch_words,
            batch_words=batch_words,
            on_progress=self.report,
            group_by=lambda item: item.job,
            group_words=group_words,
        )

    def run(self, log: ResumeLog | None) -> Summary:
        with report_progress(self.count_bytes), set_within(streams_stdout, True):
            if log is None:
                self.predict_to_one_file()
            else:
                self.predict_to_folder(log)
        return self.summary

    def predict(self, jobs: Iterable[Job]) -> Iterator[Result]:
        items = chain.from_iterable(map(self.read, jobs))
        return self.cluster.stream(self, items) if self.cluster else self.batcher.stream(items)

    def predict_to_one_file(self) -> None:
        """One file, or several one after the other, into one file or standard output."""
        jobs = self.plan.jobs
        results = self.predict(jobs)
        first = next(results, None)
        if first is not None or not any(report.skipped for report in self.reports.values()):
            target, results = jobs[0].target, chain([first] if first else [], results)
            if self.store is None:
                self.write(results, target)
            else:
                with tempfile.TemporaryDirectory(prefix="nestree-") as staging:
                    self.write(results, Path(staging, target.name))
                    self.store.upload(Path(staging, target.name))
        for job in jobs:
            self.finish(job)

    def predict_to_folder(self, log: ResumeLog) -> None:
        """Each file that is not done yet into a file of its own."""
        todo: deque[Job] = deque()
        for job in self.plan.jobs:
            if log.is_done(job.name, job.source):
                self.summary.done_before += 1
                self.summary.skipped.extend(log.done[job.name]["skipped"])
                self.total_bytes -= self.signatures[job][0]
            else:
                todo.append(job)

        def finish_next(results: Iterable[Result]) -> None:
            job = todo.popleft()
            log.check_folder()
            log.add(job.name, self.write_job(job, results))

        try:
            if self.cluster:
                todo = deque(self.cluster.predict_whole_files(self, todo, log))
            for job, results in groupby(self.predict([*todo]), key=lambda result: result[0].job):
                while todo[0] != job:  # files without documents
                    finish_next(())
                finish_next(results)
            while todo:
                finish_next(())
        finally:
            log.flush()
        log.check_written([job.name for job in self.plan.jobs])

    def read(self, job: Job) -> Iterator[ReadDocument]:
        """The documents of a file."""
        self.signatures[job] = signature(job.source)
        report = self.reports[job] = ConversionReport(self.options.skip_bad)
        # Text is split into words and sentences like the training data, unless the options name other rules.
        rules = self.pipeline.model.text_rules._asdict()
        options, texts = self.options.read_options.get(job.format, {}), 0
        # In one output, texts are named after their folders, too, as `nestree convert FOLDER --from text` names them.
        folder = os.path.dirname(job.name) if self.plan.folder is None and job.format == "text" else ""
        prefix = os.fsencode(folder and f"{folder}/").decode("utf-8", "backslashreplace")
        try:
            documents = formats.read(job.source, job.format, report, rules, **options)
            for number, document in enumerate(documents, 1):
                document = replace(document, id=f"{prefix}{document.id}") if prefix else document
                self.read_words += count_words(document)
                is_text, texts = report.texts > texts, report.texts
                yield ReadDocument(job, number, document, is_text)
        except DataError as error:
            report.bad(error)

    def handle_error(self, item: ReadDocument, error: Exception) -> None:
        """Raise or record an error that names the document and, if one is to blame, its sentence."""
        self.report_failure(item, describe_failure(self.pipeline, self.options, item.document, error))

    def report_failure(self, item: ReadDocument, description: str) -> None:
        """Raise or record that a document failed; `description` follows its place."""
        id = f" ({item.document.id})" if item.document.id else ""
        place = f"{item.job.source}, document {item.number}{id}"
        self.reports[item.job].bad(DataError(f"{place}{description}"))

    def write_job(self, job: Job, results: Iterable[Result]) -> LogEntry:
        """Write the output of a job in the folder; returns its entry for the log."""
        assert self.plan.folder is not None
        report, written = self.reports[job], []
        if not results and report.skipped:
            pass  # a file of which everything was skipped has no output, and is done until it changes
        elif self.store is None:
            written = self.write_files(job, results, self.plan.folder)
        else:
            with tempfile.TemporaryDirectory(prefix="nestree-") as staging:
                self.write_files(job, results, Path(staging))
                written = self.store.upload(Path(staging))
        self.finish(job)
        return {"source": self.signatures[job], "written": written, "skipped": report.skipped}

    def write_files(self, job: Job, results: Iterable[Result], folder: Path) -> list[str]:
        """The names of the files that were written."""
        assert self.plan.folder is not None
        target = folder / job.target.relative_to(self.plan.folder)
        if not (self.plan.format == "brat" and job.format == "text"):
            self.write(results, target)
            return [target.relative_to(folder).as_posix()]
        # .txt and .ann files side by side, the texts first
        pairs = target.with_name(f".{hashlib.sha1(os.fsencode(target.name)).hexdigest()}.pairs")
        shutil.rmtree(pairs, ignore_errors=True)  # of a worker that was killed
        self.write(results, pairs)
        files = sorted(pairs.iterdir(), key=lambda path: (path.suffix == ".ann", path.name))
        for path in files:
            os.replace(path, target.parent / path.name)
        pairs.rmdir()
        return [(target.parent / path.name).relative_to(folder).as_posix() for path in files]

    def write(self, results: Iterable[Result], target: Path) -> None:
        """Write documents. In JSON lines, the entities of texts count characters; with trees, they count words."""
        report, options, format = self.summary.write_report, self.options.write_options, self.plan.format
        documents = ((self.count_and_round(document), item.is_text) for item, document in results)
        if format == "jsonl" and not options and not self.options.predict_options.trees:
            by_unit = ((document, "characters" if is_text else "words") for document, is_text in documents)
            with formats.encoding_errors(target):
                jsonl.write_mixed(by_unit, target)
        else:
            formats.write((document for document, _ in documents), target, format, report, **options)

    def count_and_round(self, document: Document) -> Document:
        """The document with rounded probabilities, added to the summary."""
        self.summary.documents += 1
        sentences = []
        for sentence in document.sentences:
            self.summary.sentences += 1
            self.summary.words += len(sentence.words)
            self.summary.entities += len(sentence.entities)
            self.summary.windowed_sentences += "windows" in sentence.extra
            tree = sentence.tree
            tree = tree and tree._replace(probabilities=tuple(round(p, 6) for p in tree.probabilities))
            entities = tuple(replace(e, score=round_probability(e.score)) for e in sentence.entities)
            sentences.append(replace(sentence, entities=entities, tree=tree))
        return replace(document, sentences=tuple(sentences))

    def finish(self, job: Job) -> None:
        """Add what was read of a file to the summary."""
        add_report(self.summary.read_report, self.reports.pop(job))
        self.summary.files += 1
        self.report(self.batcher.done_words)

    def predict_job(self, job: Job) -> LogEntry:
        """Predict and write one file; returns its entry for the log."""
        results = self.predict([job])
        first = next(results, None)
        return self.write_job(job, chain([first], results) if first else ())

    def add_summary(self, job: Job, summary: Summary) -> None:
        """Add that of a file that was predicted elsewhere."""
        self.summary.add(summary)
        self.read_bytes += self.signatures[job][0]
        self.read_words += summary.words
        self.batcher.done_words += summary.words
        self.report(self.batcher.done_words)

    def count_bytes(self, count: int) -> None:
        self.read_bytes += count

    def report(self, words: int) -> None:
        if self.on_progress:
            known = self.total_bytes > 0 and self.read_bytes > 0 and self.read_words > 0
            share = self.read_bytes / self.total_bytes * words / self.read_words if known else None
            self.on_progress(Progress(self.summary.files, words, None if share is None else min(1.0, share)))


def describe_failure(pipeline: Pipeline, options: FilePredictOptions, document: Document, error: Exception) -> str:
    """Why a document failed; names the sentence, if one is to blame."""
    place, model = "", pipeline.inference_model
    for number, sentence in enumerate(document.sentences, 1):
        try:
            predict(model, [sentence], options.batch_words, options=options.predict_options)
        except Exception as cause:
            place, error = f", sentence {number} ({str(sentence)[:60]})", cause
            break
    reason = str(error) if isinstance(error, NestreeError) else f"{type(error).__name__}: {error}"
    return f"{place}: no entities could be found: {reason}"
