"""Files in, files with entities out: in bounded memory, each whole or not at all, and again after any interruption.

Documents are read until there are enough words for a few batches, recognised together, and written. Small files that
follow each other make one group, so that batches are full; which files make a group depends on nothing but their sizes
and their order. So whoever goes on after an interruption makes the same batches, and the same bits, of every group of
which nothing was done; of one that was begun, only what is left is read, in other batches, and the last bits differ.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data import formats
from nestree.data.files import STDIO, straight, watching
from nestree.data.formats import jsonl
from nestree.data.tally import PLACES, Tally
from nestree.errors import DataError, NestreeError
from nestree.model import TextRules
from nestree.pipeline.jobs import Job, Jobs
from nestree.pipeline.journal import Journal, signature
from nestree.pipeline.sentences import Asked, predict, words_for
from nestree.pipeline.texts import Pipeline
from nestree.sentence import Document, Sentence, rounded

log = logging.getLogger(__name__)
BATCHES_AT_ONCE = 5
BYTES_PER_WORD = 5  # of text, about
MOST_FILES = 256  # of a group


@dataclass(frozen=True)
class How:
    """How files are read, recognised and written."""

    asked: Asked = Asked(scored=True)  # noqa: RUF009 (it cannot change)
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
class Account:
    """What was done, and what was not."""

    files: int = 0
    done_before: int = 0
    documents: int = 0
    sentences: int = 0
    words: int = 0
    entities: int = 0
    windowed: int = 0
    reading: Tally = field(default_factory=Tally)
    writing: Tally = field(default_factory=Tally)

    @property
    def skipped(self) -> list[str]:
        return self.reading.skipped

    def add(self, document: Document) -> None:
        self.documents += 1
        self.sentences += len(document.sentences)
        self.words += words_of(document)
        self.entities += sum(len(sentence.entities) for sentence in document.sentences)
        self.windowed += sum("windows" in sentence.extra for sentence in document.sentences)


class Read(NamedTuple):
    """A document of a file."""

    job: Job
    number: int
    document: Document
    is_text: bool  # it came without words


def predict_files(
    pipeline: Pipeline,
    jobs: Jobs,
    how: How,
    journal: Journal | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> Account:
    """Find the entities of all documents of these files; `journal`: of the folder that they are written to.

    What goes wrong with one document is an error that names it or, with `how.skip_bad`, noted in the account.
    """
    work = Work(pipeline, jobs, how, tell)
    with watching(work.hear), straight():
        if journal is None:
            work.all_into_one()
        else:
            work.each_into_its_own(journal)
    return work.account


class Work:
    def __init__(
        self, pipeline: Pipeline, jobs: Jobs, how: How, tell: Callable[[Progress], None] | None
    ) -> None:
        self.pipeline, self.jobs, self.how, self.tell = pipeline, jobs, how, tell
        self.account = Account()
        self.tallies: dict[Job, Tally] = {}
        self.total = sum(size_of(job) for job in jobs.jobs)
        self.bytes = self.read_words = self.found_words = 0
        self.at_once = BATCHES_AT_ONCE * (how.batch_words or words_for(pipeline.device))

    def all_into_one(self) -> None:
        """One file, or several one after the other, into one file or standard output."""
        jobs = self.jobs.jobs
        found = self.recognised(chain.from_iterable(map(self.documents, jobs)))
        first = next(found, None)
        if first is not None or not self.skipped():
            self.write(chain([first] if first else [], found), jobs[0].target)
        for job in jobs:
            self.finish(job)

    def each_into_its_own(self, journal: Journal) -> None:
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

    def note(self, journal: Journal, job: Job, source: list[int], names: list[str]) -> None:
        journal.add(job.name, {"source": source, "written": names, "skipped": self.tallies[job].skipped})

    def documents(self, job: Job) -> Iterator[Read]:
        """The documents of a file, as they are."""
        tally = self.tallies[job] = Tally(self.how.skip_bad)
        options = with_rules(self.how.reading.get(job.format, {}), job.format, self.pipeline.model.text_rules)
        texts = 0
        try:
            for number, document in enumerate(formats.read(job.source, job.format, tally, **options), 1):
                self.read_words += words_of(document)
                is_text, texts = tally.texts > texts, tally.texts
                yield Read(job, number, document, is_text)
        except DataError as error:
            tally.bad(error)

    def recognised(self, documents: Iterable[Read]) -> Iterator[Read]:
        """The same with entities; never more are held than a few batches have words, unless one document has more."""
        held: list[Read] = []
        words = 0
        for each in documents:
            held.append(each)
            words += words_of(each.document)
            if words >= self.at_once:
                yield from self.found(held)
                held, words = [], 0
        yield from self.found(held)

    def found(self, held: Sequence[Read]) -> list[Read]:
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

    def predicted(self, held: Sequence[Read]) -> list[Read]:
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

    def blamed(self, each: Read, why: Exception) -> DataError:
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

    def written(self, job: Job, found: Iterable[Read]) -> list[str]:
        """Write a file of the folder; the names of what was written there."""
        assert self.jobs.folder is not None
        if self.jobs.format == "brat" and job.format == "text":
            documents = (self.counted(each.document) for each in found)
            return write_pairs(documents, job.target, self.jobs.folder, self.account.writing)
        self.write(found, job.target)
        return [job.target.relative_to(self.jobs.folder).as_posix()]

    def write(self, found: Iterable[Read], target: Path) -> None:
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


def write_pairs(documents: Iterable[Document], target: Path, folder: Path, tally: Tally) -> list[str]:
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


def add_tally(total: Tally, tally: Tally) -> None:
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
