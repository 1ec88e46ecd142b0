"""Checks of annotated data: spans, labels, crossing entities, contradictory annotations, leaks between files, encoding.

>>> list(encoding_problems("the cafÃ© at the lake"))
[('mojibake', 'cafÃ© (should be café)')]
>>> list(encoding_problems("caf\\ufffd"))
[('replacement', "'caf\\\\ufffd' has U+FFFD")]
>>> is_composed("café"), is_composed("cafe\\u0301"), is_composed("cafe")
(True, False, None)
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.alignment import BLANK, NO_WORD, WIDENED
from nestree.data.formats import AllSkippedError, data_files, read
from nestree.data.io import ConversionReport
from nestree.data.statistics import labels_by_span
from nestree.errors import DataError, EmptySpanError, SpanRangeError, escape_newlines, plural
from nestree.types import Document, Entity, Sentence, Span, crossing_pairs

ERROR, WARNING = "error", "warning"
LONG_SENTENCE = 200  # words
LEAK_WORDS = 5  # shorter sentences are the same by chance
SHOWN = 5  # findings of a kind


class Kind(NamedTuple):
    level: str
    title: str
    remedy: str


KINDS = {
    "unreadable": Kind(ERROR, "files that cannot be read", "Their content was not checked: correct them first."),
    "out-of-range": Kind(ERROR, "spans outside their text", "Correct the offsets, which count from 0."),
    "empty": Kind(ERROR, "spans of nothing", "Correct their ends, which are exclusive, or remove them."),
    "bad-record": Kind(ERROR, "records that cannot be read", "Correct them, or convert with --skip-bad."),
    "crossing": Kind(ERROR, "entities that cross", "A tree cannot hold both: correct the span of one, or drop it."),
    "contradiction": Kind(ERROR, "annotations of a sentence that contradict each other",
        "Correct one of them: training joins what several partial annotations of a document know."),
    "label-spelling": Kind(ERROR, "labels spelt in several ways", "Spell each label in one way."),
    "duplicate": Kind(WARNING, "entities given twice", "Remove one. Scores count each once."),
    "cuts-word": Kind(WARNING, "spans that cut words",
        "They are widened to whole words. Choose other words with --words, or correct the spans."),
    "changed": Kind(WARNING, "things left out or changed in reading", "Check that this is intended."),
    "label-similar": Kind(WARNING, "rare labels that look like others", "If it is a typo, correct it."),
    "label-once": Kind(WARNING, "labels seen once", "A model cannot learn a label from one example. Is it a typo?"),
    "label-unseen": Kind(WARNING, "labels that the training data lacks", "No model can find them."),
    "long-sentence": Kind(WARNING, "very long sentences",
        "They cost much time and memory. Was a sentence boundary missed?"),
    "leaked-sentence": Kind(WARNING, "sentences in two files", "Keep each in one file: otherwise scores are too high."),
    "leaked-document": Kind(WARNING, "documents in two files", "Keep each in one file: nestree split --by document."),
    "mojibake": Kind(WARNING, "words decoded wrongly",
        "They are UTF-8, read as Windows-1252. Read the source again, as UTF-8."),
    "replacement": Kind(WARNING, "replacement characters",
        "The original characters are lost: use the original source."),
    "control": Kind(WARNING, "control or invisible characters", "Remove them, or replace them with spaces."),
    "normal-forms": Kind(WARNING, "words not in normal form C, as others are",
        "Bring all text into one form, such as NFC."),
}  # fmt: skip
KIND_OF_ERROR = {SpanRangeError: "out-of-range", EmptySpanError: "empty"}  # all others: bad-record
KIND_OF_CHANGE = {WIDENED: "cuts-word", BLANK: "empty", NO_WORD: "empty"}  # all others: changed


class Finding(NamedTuple):
    kind: str
    place: str
    message: str


@dataclass
class Report:
    """The findings, and the size of the data."""

    files: int = 0
    sentences: int = 0
    entities: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count(self, level: str) -> int:
        """The number of errors or warnings."""
        return sum(KINDS[finding.kind].level == level for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        return any(finding.kind == "unreadable" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """A summary in one line."""
        counts = [plural(self.count(level), level) for level in (ERROR, WARNING) if self.count(level)]
        sizes = [(self.files, "file"), (self.sentences, "sentence"), (self.entities, "entity")]
        return f"{' and '.join(counts) or 'No problems'} in {', '.join(plural(*size) for size in sizes)}."

    def as_text(self, shown: int | None = SHOWN) -> str:
        """The findings by kind, errors first, at most `shown` of each; the last line is the verdict."""
        parts = []
        for name, kind in KINDS.items():
            findings = [finding for finding in self.findings if finding.kind == name]
            if not findings:
                continue
            lines = [f"{kind.level}: {kind.title}: {len(findings):,}"]
            lines += [escape_newlines(f"  {place}: {message}") for _, place, message in findings[:shown]]
            if shown is not None and len(findings) > shown:
                lines.append(f"  and {len(findings) - shown:,} more")
            parts.append("\n".join([*lines, f"  -> {kind.remedy}", ""]))
        return "\n".join([*parts, self.verdict])

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "errors": self.count(ERROR),
            "warnings": self.count(WARNING),
            "files": self.files,
            "sentences": self.sentences,
            "entities": self.entities,
            "findings": [
                {**f._asdict(), "level": KINDS[f.kind].level, "remedy": KINDS[f.kind].remedy} for f in self.findings
            ],
        }


def check(
    paths: Iterable[Path],
    format: str | None = None,
    *,
    long_sentence: int = LONG_SENTENCE,
    options: Mapping[str, Any] | None = None,
) -> Report:
    """Check these files, each by itself and all together. A file that cannot be read is a finding, too."""
    report = Report()
    checker = Checker(report, long_sentence)
    for path in (file for folder in paths for file in data_files(folder)):
        report.files += 1
        reading, number = CheckedReading(), 0
        try:
            for document in read(path, format, reading, **(options or {})):
                for sentence, key in zip(document.sentences, sentence_keys(document), strict=True):
                    number += 1
                    id = sentence.id or document.id
                    place = f"{path}, sentence {number}" + (f" ({id})" if id is not None else "")
                    checker.add(document, sentence, path, place)
                    if document.id is not None:
                        checker.compare(document.id, hash(key), sentence, place)
        except AllSkippedError:
            pass  # the findings are those of its records
        except DataError as error:
            report.findings.append(error_finding(error, "unreadable", path))
        report.findings += reading.findings(path)
        report.sentences += reading.sentences
        report.entities += reading.entities
    report.findings += [f for id, f in checker.contradictions if id in checker.incomplete]
    report.findings += [*checker.label_findings(), *checker.leaks]
    report.findings += checker.decomposed if checker.has_composed else []
    return report


@dataclass
class CheckedReading(ConversionReport):
    """A ConversionReport that skips invalid records, and keeps all errors and all places of changes."""

    skip_bad: bool = True
    changes: list[tuple[str, str]] = field(default_factory=list)
    errors: list[DataError] = field(default_factory=list)

    def note(self, what: str, place: str = "", times: int = 1) -> None:
        super().note(what, place, times)
        if what in KIND_OF_CHANGE:
            self.changes += [(what, place or self.place)] * times

    def bad(self, error: DataError) -> None:
        super().bad(error)
        self.errors.append(error)

    def findings(self, path: Path) -> Iterator[Finding]:
        for error in self.errors:
            yield error_finding(error, KIND_OF_ERROR.get(type(error), "bad-record"), path)
        for what, place in self.changes:
            yield Finding(KIND_OF_CHANGE[what], place, what)
        for what, times in self.counts.items():
            if what not in KIND_OF_CHANGE:
                yield Finding("changed", self.places[what][0], f"{what}, {plural(times, 'time')}")


def error_finding(error: DataError, kind: str, path: Path) -> Finding:
    """The finding of an error; the message of the error begins with the place, if that is known."""
    name = re.escape(str(path))
    match = re.match(rf"({name}\S*?(?:, [^:]+)?(?=: )|{name}):? (.*)", str(error), re.DOTALL)
    place, message = match.groups() if match else (str(path), str(error))
    return Finding(kind, place, message)


class Checker:
    """Checks each sentence by itself, and remembers what is compared between sentences and files."""

    def __init__(self, report: Report, long_sentence: int) -> None:
        self.report, self.long_sentence = report, long_sentence
        self.label_counts: Counter[str] = Counter()
        self.first_places: dict[str, str] = {}  # of each label
        self.first_in_split: dict[str | None, dict[str, str]] = {"train": {}, "dev": {}, "test": {}, None: {}}
        self.sentences: dict[int, tuple[Path, str]] = {}  # by the hash of the words
        self.documents: dict[str, Path] = {}
        self.leaks: dict[Finding, None] = {}  # in their order, each once
        self.decomposed: list[Finding] = []  # words that are not in NFC: a problem if others are
        self.has_composed = False
        self.annotations: dict[int, dict[Annotation, str]] = {}  # by the hash of the key: places of different ones
        self.contradictions: list[tuple[str, Finding]] = []  # with the ids of documents
        self.incomplete: set[str] = set()  # ids of documents: annotations of all others are not joined

    def add(self, document: Document, sentence: Sentence, path: Path, place: str) -> None:
        findings = self.report.findings
        for a, b in crossing_pairs(sentence.entities):
            message = f"{a} {quote(sentence.phrase(a))} and {b} {quote(sentence.phrase(b))}"
            findings.append(Finding("crossing", place, message))
        seen: set[tuple[int, int, str]] = set()
        for entity in sentence.entities:
            key = entity.start, entity.end, entity.label
            if key in seen:
                findings.append(Finding("duplicate", place, f"{entity} {quote(sentence.phrase(entity))}"))
            seen.add(key)
            self.label_counts[entity.label] += 1
            self.first_places.setdefault(entity.label, place)
            self.first_in_split[split_name(path)].setdefault(entity.label, place)
        if len(sentence.words) > self.long_sentence:
            findings.append(Finding("long-sentence", place, f"{len(sentence.words):,} words: {sentence}"))
        text = sentence.text if sentence.text is not None else " ".join(sentence.words)
        findings += [Finding(kind, place, message) for kind, message in encoding_problems(text)]
        for word in sentence.words:
            composed = is_composed(word)
            self.has_composed |= composed is True
            if composed is False:
                shown = re.sub(r"[\u0300-\u036f]", lambda mark: ascii(mark[0])[1:-1], word)
                self.decomposed.append(Finding("normal-forms", place, f"{word} ({shown})"))
        if not sentence.complete and split_name(path) is None:
            return  # answers of several rounds, which training joins
        # Sentences and documents that are in two files of different splits
        if document.id is not None:
            first = self.documents.setdefault(document.id, path)
            if are_disjoint(first, path):
                self.leaks[Finding("leaked-document", str(path), f"{document.id!r}, in {first} too")] = None
        if len(sentence.words) >= LEAK_WORDS:
            other, other_place = self.sentences.setdefault(hash(sentence.words), (path, place))
            if are_disjoint(other, path):
                message = f"also {other_place}: {quote(str(sentence))}"
                self.leaks[Finding("leaked-sentence", place, message)] = None

    def compare(self, id: str, key: int, sentence: Sentence, place: str) -> None:
        """Compare a sentence with earlier annotations of the same key."""
        if not sentence.complete:
            self.incomplete.add(id)
        entities = frozenset((e.start, e.end, e.label) for e in sentence.entities)
        annotation = entities, sentence.complete, sentence.forbidden
        earlier = self.annotations.setdefault(key, {})
        if annotation in earlier:
            return
        for (known, complete, forbidden), other_place in earlier.items():
            other = Sentence(sentence.words, tuple(Entity(*e) for e in known), complete=complete, forbidden=forbidden)
            if found := find_contradiction(sentence, other):
                phrase = f"{found.entity} {quote(sentence.phrase(found.entity))}"
                message = f"{phrase} {found.why} in {other_place}"
                if found.known is other:
                    message = f"{phrase} of {other_place} {found.why} here"
                self.contradictions.append((id, Finding("contradiction", place, message)))
        earlier[annotation] = place

    def label_findings(self) -> Iterator[Finding]:
        counts, first = self.label_counts, self.first_places
        usage = {label: f"{label!r} {plural(times, 'time')}" for label, times in counts.items()}
        spellings: dict[str, list[str]] = {}
        for label in counts:
            spellings.setdefault(normalize(label), []).append(label)
        reported = set()
        for label in counts:
            usual = max(spellings[normalize(label)], key=lambda x: (counts[x], x == x.strip()))
            if label != usual or label != " ".join(label.split()):
                reported.add(label)
                better = f"mostly {usual!r}" if label != usual else "with extra white space"
                yield Finding("label-spelling", first[label], f"{usage[label]}; {better}")
        for label in [label for label in counts if label not in reported]:
            frequent = (x for x, times in counts.items() if times >= 20 * counts[label])
            if similar := next((x for x in frequent if is_typo(label, x)), None):
                reported.add(label)
                yield Finding("label-similar", first[label], f"{usage[label]}; {usage[similar]}")
            elif counts[label] == 1:
                yield Finding("label-once", first[label], repr(label))
        if train := self.first_in_split["train"]:
            for label, place in (self.first_in_split["test"] | self.first_in_split["dev"]).items():
                if label not in train and label not in reported:
                    yield Finding("label-unseen", place, usage[label])


SentenceKey = tuple[object, ...]
Annotation = tuple[frozenset[tuple[int, int, str]], bool, tuple[Span, ...]]  # entities, complete, forbidden


def sentence_keys(document: Document) -> list[SentenceKey]:
    """What identifies each sentence of a document: its id, or else its words, and how often they occurred before."""
    occurrences: Counter[SentenceKey] = Counter()
    keys: list[SentenceKey] = []
    for sentence in document.sentences:
        key = document.id, sentence.id, sentence.start, sentence.words
        keys.append((*key, occurrences[key]))
        occurrences[key] += sentence.id is None
    return keys


class Contradiction(NamedTuple):
    entity: Entity
    known: Sentence  # that has the entity
    why: str  # what the other annotation says of it: "is no entity"


def find_contradiction(first: Sentence, second: Sentence) -> Contradiction | None:
    """The first contradiction of two annotations of the same words, of which each may be incomplete."""
    for known, other in ((first, second), (second, first)):
        labels = labels_by_span(other.entities)
        for entity in known.entities:
            if entity.span in other.forbidden or (other.complete and entity.span not in labels):
                return Contradiction(entity, known, "is no entity")
            if entity.label not in labels.get(entity.span, {entity.label}):
                return Contradiction(entity, known, f"is {' and '.join(sorted(labels[entity.span]))}")
            crossing = crossing_pairs([entity, *(e for e in other.entities if e.span != entity.span)])
            if any(entity in pair for pair in crossing):
                return Contradiction(entity, known, "crosses an entity")
    return None


def quote(phrase: str) -> str:
    return f'"{phrase if len(phrase) <= 40 else phrase[:37] + "..."}"'


WORD = re.compile(r"[^ \t\r\n]+")
# Control characters except tab, line ends and NEL; soft hyphen, zero-width space, word joiner, byte order mark.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
# The characters that UTF-8 continuation bytes become in Windows-1252 and in Latin-1.
CONTINUATION_BYTES = {bytes([k]).decode("cp1252", errors="ignore"): k for k in range(0x80, 0xC0)} | {
    chr(k): k for k in range(0x80, 0xC0)
}
CONTINUATION = f"[{''.join(CONTINUATION_BYTES)}]"
MOJIBAKE = re.compile(f"[ÂÃ]{CONTINUATION}|â{CONTINUATION}{{2}}")  # UTF-8 of 2 or 3 bytes, decoded wrongly
CLOSING_QUOTES = "’”…–—›»"


def encoding_problems(text: str) -> Iterator[tuple[str, str]]:
    """The kind of each problem with the characters of a text, and a message with the word."""
    if text.isascii() and text.isprintable():
        return
    for match in WORD.finditer(text):
        word = match[0]
        shown = repr(word[:40]).replace("\ufffd", "\\ufffd") + "..." * (len(word) > 40)
        if "\ufffd" in word:
            yield "replacement", f"{shown} has U+FFFD"
        if invisible := INVISIBLE.search(word):
            yield "control", f"{shown} has U+{ord(invisible[0]):04X}"
        if (repaired := MOJIBAKE.sub(repair_mojibake, word)) != word:
            yield "mojibake", f"{word} (should be {repaired})"


def repair_mojibake(match: re.Match[str]) -> str:
    """The character whose UTF-8 bytes were decoded wrongly; IRMÃ” is a capitalized word before a quotation mark."""
    after_capital = match.string[: match.start()][-1:].isupper()
    if after_capital and match[0][-1] in CLOSING_QUOTES and match.end() == len(match.string):
        return match[0]
    data = bytes(CONTINUATION_BYTES.get(character, ord(character)) for character in match[0])
    return data.decode("utf-8", errors="replace")


def is_composed(word: str) -> bool | None:
    """Whether the word is in Unicode normal form C; None if NFC and NFD are the same."""
    if word.isascii():
        return None
    if unicodedata.normalize("NFC", word) != word:
        return False
    return True if unicodedata.normalize("NFD", word) != word else None


@lru_cache
def split_name(path: Path) -> str | None:
    """The split that a file belongs to, judged by its name or that of its directory.

    >>> split_name(Path("genia/train.jsonl.gz")), split_name(Path("dev_a.txt")), split_name(Path("eval/testimony.txt"))
    ('train', 'dev', 'test')
    """
    patterns = {"train": "train|training", "dev": "dev|devel|development|val|valid|validation", "test": "test|eval"}
    for name, pattern in patterns.items():
        if re.search(rf"(?<![a-z])({pattern})(?![a-z])", path.name.lower()):
            return name
    directory = path.parent.name.lower()
    return next((name for name, pattern in patterns.items() if directory in pattern.split("|")), None)


def normalize(label: str) -> str:
    """The label without case, white space, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", label).casefold()


def is_typo(typed: str, meant: str) -> bool:
    """Whether one letter too many, one too few or two exchanged letters make `typed` of `meant`.

    >>> is_typo("protien", "protein"), is_typo("protin", "protein"), is_typo("RNA_domain", "DNA_domain")
    (True, True, False)
    """
    if abs(len(typed) - len(meant)) == 1:
        shorter, longer = sorted([typed, meant], key=len)
        return len(shorter) > 3 and any(longer[:k] + longer[k + 1 :] == shorter for k in range(len(longer)))
    return len(typed) == len(meant) > 2 and any(
        typed[:k] + typed[k + 1 : k + 2] + typed[k : k + 1] + typed[k + 2 :] == meant != typed
        for k in range(len(typed) - 1)
    )


def are_disjoint(a: Path, b: Path) -> bool:
    """Whether these are two files that should have nothing in common."""
    return a != b and (split_name(a) is None or split_name(a) != split_name(b))
