"""Trouble with characters: text decoded wrongly, characters that were lost, that cannot be seen, or that mix forms.

>>> list(encoding_problem("the cafÃ© at the lake"))
[('mojibake', 'cafÃ© (should be café)')]
>>> list(encoding_problem("caf\\ufffd"))
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

from nestree.data.formats import read
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Sentence, crossing_pairs

WORD = re.compile(r"[^ \t\r\n]+")
# Controls but for tab, line ends and NEL; soft hyphen, zero-width space, word joiner, byte order mark.
UNSEEN = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
# What bytes 0x80 to 0xBF are read as: the same numbers in Latin-1, other characters in Windows-1252.
BYTES = {bytes([k]).decode("cp1252", errors="ignore"): k for k in range(0x80, 0xC0)} | {
    chr(k): k for k in range(0x80, 0xC0)
}
FOLLOWING = "".join(BYTES)
# UTF-8 in two or three bytes, read as one of these.
MOJIBAKE = re.compile(f"[ÂÃ][{FOLLOWING}]|â[{FOLLOWING}]{{2}}")
CLOSING = "’”…–—›»"


def encoding_problem(text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the characters of a text: the kind, and the word that shows it."""
    if text.isascii() and text.isprintable():
        return
    for match in WORD.finditer(text):
        word = match[0]
        if "\ufffd" in word:
            yield "replacement", f"{shown(word)} has U+FFFD"
        if unseen := UNSEEN.search(word):
            yield "control", f"{shown(word)} has U+{ord(unseen[0]):04X}"
        if (mended := MOJIBAKE.sub(repair_mojibake, word)) != word:
            yield "mojibake", f"{word} (should be {mended})"


def shown(word: str) -> str:
    return ascii(word) if len(word) <= 40 else ascii(word[:37]) + "..."


def repair_mojibake(match: re.Match[str]) -> str:
    """What was UTF-8 and read as something else, as it was; a word in capitals before a quotation mark stays."""
    found, before = match[0], match.string[: match.start()]
    if before[-1:].isupper() and found[-1] in CLOSING and match.end() == len(match.string):
        return found
    data = bytes(BYTES.get(character, ord(character)) for character in found)
    return data.decode("utf-8", errors="replace")


def is_composed(word: str) -> bool | None:
    """Is it in Unicode's normal form C? None: it is the same in every form."""
    if word.isascii():
        return None
    if unicodedata.normalize("NFC", word) != word:
        return False
    return True if unicodedata.normalize("NFD", word) != word else None


ERROR, WARNING = "error", "warning"
LONG_SENTENCE = 200  # words
LEAKED_WORDS = 5  # shorter sentences are the same by chance
SHOWN = 5  # findings of a kind


class Kind(NamedTuple):
    level: str
    title: str
    remedy: str


KINDS = {
    "unreadable": Kind(ERROR, "files that cannot be read", "What they hold was not checked: mend them first."),
    "out-of-range": Kind(ERROR, "spans outside their text", "Correct the offsets. Do they count what is meant?"),
    "empty": Kind(ERROR, "spans of nothing", "Give their true ends, which are exclusive, or leave them out."),
    "bad-record": Kind(ERROR, "records that cannot be read", "Correct them, or convert with --skip-bad."),
    "crossing": Kind(ERROR, "entities that cross", "A tree cannot hold both: correct a border, or drop one."),
    "label-spelling": Kind(ERROR, "labels spelt in several ways", "Write each label in one way."),
    "duplicate": Kind(WARNING, "entities given twice", "Leave one out. Scores count each once."),
    "cuts-word": Kind(WARNING, "spans that cut words",
        "They are widened to whole words. Choose other words with --words, or correct the spans."),
    "changed": Kind(WARNING, "things left out or changed in reading", "See that this is what you expect."),
    "label-similar": Kind(WARNING, "rare labels that look like others", "If it is a typing error, correct it."),
    "label-once": Kind(WARNING, "labels seen once", "No model can learn them. Are they meant?"),
    "label-unseen": Kind(WARNING, "labels that the training data lacks", "No model can find them."),
    "long-sentence": Kind(WARNING, "very long sentences",
        "They cost much time and memory. Was a sentence border missed?"),
    "leaked-sentence": Kind(WARNING, "sentences in two files", "Keep each in one: scores on it are too good."),
    "leaked-document": Kind(WARNING, "documents in two files", "Keep each in one: nestree split --by document."),
    "mojibake": Kind(WARNING, "words decoded wrongly",
        "They are UTF-8, read as Windows-1252. Read the source again, as UTF-8."),
    "replacement": Kind(WARNING, "replacement characters",
        "What stood there is lost. Go back to a source that has it."),
    "control": Kind(WARNING, "control or invisible characters", "Take them out of the text, or make them blanks."),
    "normal-forms": Kind(WARNING, "words not in normal form C, as others are",
        "Bring all text into one form, such as NFC."),
}  # fmt: skip


# How readers say that a span is wrong.
TOLD_BY = {
    "out-of-range": re.compile("ends after the|begins before the|is not within its sentence"),
    "empty": re.compile("entity .* is empty|ends before it begins"),
}

# How they note what is more than a change.
NOTED_AS = {
    "widened to word borders": "cuts-word",
    "dropped: an entity of blanks only": "empty",
    "dropped: an entity that holds no word": "empty",
}


class Finding(NamedTuple):
    kind: str
    place: str
    message: str


class Place(NamedTuple):
    """A sentence of a file."""

    path: Path
    number: int  # from 1
    id: str | None

    def __str__(self) -> str:
        return f"{self.path}, sentence {self.number}" + (f" ({self.id})" if self.id is not None else "")


@dataclass
class Report:
    """What was found, and in how much data."""

    files: int = 0
    sentences: int = 0
    entities: int = 0
    findings: list[Finding] = field(default_factory=list)

    def of(self, level: str) -> int:
        """How many errors or warnings there are."""
        return sum(KINDS[finding.kind].level == level for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        return any(finding.kind == "unreadable" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        found = [number(self.of(level), level) for level in (ERROR, WARNING) if self.of(level)]
        sizes = [(self.files, "file"), (self.sentences, "sentence"), (self.entities, "entity")]
        looked_at = ", ".join(number(n, what) for n, what in sizes)
        return f"{' and '.join(found) or 'Nothing odd'} in {looked_at}."

    def as_text(self, shown: int | None = SHOWN) -> str:
        """Kind by kind, errors first, with up to so many places of each; the last line is the verdict."""
        parts = []
        for name, kind in KINDS.items():
            found = [finding for finding in self.findings if finding.kind == name]
            if not found:
                continue
            lines = [f"{kind.level}: {kind.title}: {len(found):,}"]
            lines += [f"  {finding.place}: {finding.message}" for finding in found[:shown]]
            if shown is not None and len(found) > shown:
                lines.append(f"  and {len(found) - shown:,} more")
            parts.append("\n".join([*lines, f"  -> {kind.remedy}", ""]))
        return "\n".join([*parts, self.verdict])

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "verdict": self.verdict,
            "errors": self.of(ERROR),
            "warnings": self.of(WARNING),
            "files": self.files,
            "sentences": self.sentences,
            "entities": self.entities,
            "findings": [
                {
                    "kind": finding.kind,
                    "level": KINDS[finding.kind].level,
                    "place": finding.place,
                    "message": finding.message,
                    "remedy": KINDS[finding.kind].remedy,
                }
                for finding in self.findings
            ],
        }


def number(n: int, what: str) -> str:
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{n:,} {what if n == 1 else plural}"


def check(
    paths: Iterable[Path],
    format: str | None = None,
    *,
    long_sentence: int = LONG_SENTENCE,
    options: Mapping[str, Any] | None = None,
) -> Report:
    """Look at these files, one by one and together. A file that cannot be read is a finding, too."""
    report, labels, files, forms = Report(), Labels(), Files(), Forms()
    for path in paths:
        report.files += 1
        tally = EveryPlace()
        try:
            for place, document, sentence in placed(read(path, format, tally, **(options or {})), path):
                report.findings += look(sentence, place, long_sentence)
                labels.add(sentence, place)
                files.add(document, sentence, place)
                forms.add(sentence, place)
        except DataError as error:
            report.findings.append(finding_of(error, "unreadable", path))
        report.findings += tally.findings(path)
        report.sentences += tally.sentences
        report.entities += tally.entities
    report.findings += [*labels.findings(), *files.findings, *forms.findings()]
    return report


@dataclass
class EveryPlace(ConversionReport):
    """A tally that passes over what is bad, and keeps all of it."""

    skip_bad: bool = True
    noted: list[tuple[str, str]] = field(default_factory=list)
    errors: list[DataError] = field(default_factory=list)

    def note(self, what: str, place: str, times: int = 1) -> None:
        super().note(what, place, times)
        if what in NOTED_AS:
            self.noted += [(what, place)] * times

    def bad(self, error: DataError) -> None:
        super().bad(error)
        self.errors.append(error)

    def findings(self, path: Path) -> Iterator[Finding]:
        for error in self.errors:
            kind = next((kind for kind, words in TOLD_BY.items() if words.search(str(error))), "bad-record")
            yield finding_of(error, kind, path)
        for what, place in self.noted:
            yield Finding(NOTED_AS[what], place, what)
        for what, times in self.counts.items():
            if what not in NOTED_AS:
                yield Finding("changed", self.places[what][0], f"{what}, {number(times, 'time')}")


def finding_of(error: DataError, kind: str, path: Path) -> Finding:
    """The finding that an error is; its sentence begins with the place, if it is known."""
    match = re.match(rf"({re.escape(str(path))}\S*?): (.*)", str(error), re.DOTALL)
    place, message = match.groups() if match else (str(path), str(error))
    return Finding(kind, place, message)


def placed(documents: Iterator[Document], path: Path) -> Iterator[tuple[Place, Document, Sentence]]:
    """Every sentence with its place."""
    count = 0
    for document in documents:
        for sentence in document.sentences:
            count += 1
            yield Place(path, count, sentence.id or document.id), document, sentence


def look(sentence: Sentence, place: Place, long_sentence: int) -> Iterator[Finding]:
    """What can be seen in one sentence alone."""
    for a, b in crossing_pairs(sentence.entities):
        said = f"{a} {quoted(sentence.phrase(a))} and {b} {quoted(sentence.phrase(b))}"
        yield Finding("crossing", str(place), said)
    given: set[tuple[int, int, str]] = set()
    for entity in sentence.entities:
        key = entity.start, entity.end, entity.label
        if key in given:
            yield Finding("duplicate", str(place), f"{entity} {quoted(sentence.phrase(entity))}")
        given.add(key)
    if len(sentence.words) > long_sentence:
        yield Finding("long-sentence", str(place), f"{len(sentence.words):,} words: {sentence}")
    for kind, said in encoding_problem(
        sentence.text if sentence.text is not None else " ".join(sentence.words)
    ):
        yield Finding(kind, str(place), said)


def quoted(phrase: str) -> str:
    return f'"{phrase if len(phrase) <= 40 else phrase[:37] + "..."}"'


@lru_cache
def role(path: Path) -> str | None:
    """What a file is for, as far as its name or that of its folder tells.

    >>> role(Path("genia/train.jsonl.gz")), role(Path("dev_a.txt")), role(Path("eval/testimony.txt"))
    ('train', 'dev', 'test')
    """
    words = {
        "train": "train|training",
        "dev": "dev|devel|development|val|valid|validation",
        "test": "test|eval",
    }
    for kind, pattern in words.items():
        if re.search(rf"(?<![a-z])({pattern})(?![a-z])", path.name.lower()):
            return kind
    folder = path.parent.name.lower()
    return next((kind for kind, pattern in words.items() if folder in pattern.split("|")), None)


class Labels:
    """How often each label is used, and where first."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.first: dict[str, Place] = {}
        self.first_of: dict[str | None, dict[str, Place]] = {"train": {}, "dev": {}, "test": {}, None: {}}

    def add(self, sentence: Sentence, place: Place) -> None:
        for entity in sentence.entities:
            self.count[entity.label] += 1
            self.first.setdefault(entity.label, place)
            self.first_of[role(place.path)].setdefault(entity.label, place)

    def findings(self) -> Iterator[Finding]:
        spellings: dict[str, list[str]] = {}
        for label in self.count:
            spellings.setdefault(plain(label), []).append(label)
        told = set()
        for label in self.count:
            usual = max(spellings[plain(label)], key=lambda x: (self.count[x], x == x.strip()))
            if label != usual or label != " ".join(label.split()):
                told.add(label)
                better = f"mostly {usual!r}" if label != usual else "with blanks that do not belong there"
                yield Finding("label-spelling", str(self.first[label]), f"{self.used(label)}; {better}")
        for label in [label for label in self.count if label not in told]:
            often = (x for x, times in self.count.items() if times >= 20 * self.count[label])
            if like := next((x for x in often if one_slip(label, x)), None):
                told.add(label)
                said = f"{self.used(label)}; {self.used(like)}"
                yield Finding("label-similar", str(self.first[label]), said)
            elif self.count[label] == 1:
                yield Finding("label-once", str(self.first[label]), repr(label))
        if train := self.first_of["train"]:
            for label, place in (self.first_of["test"] | self.first_of["dev"]).items():
                if label not in train and label not in told:
                    yield Finding("label-unseen", str(place), self.used(label))

    def used(self, label: str) -> str:
        return f"{label!r} {number(self.count[label], 'time')}"


def plain(label: str) -> str:
    """What is the same however a label is spelt."""
    return re.sub(r"[\s_-]+", "", label).casefold()


def one_slip(typed: str, meant: str) -> bool:
    """Does one letter too many, one too few or two exchanged make the first of the second?

    >>> one_slip("protien", "protein"), one_slip("protin", "protein"), one_slip("RNA_domain", "DNA_domain")
    (True, True, False)
    """
    if abs(len(typed) - len(meant)) == 1:
        shorter, longer = sorted([typed, meant], key=len)
        return len(shorter) > 3 and any(longer[:k] + longer[k + 1 :] == shorter for k in range(len(longer)))
    return len(typed) == len(meant) > 2 and any(
        typed[:k] + typed[k + 1 : k + 2] + typed[k : k + 1] + typed[k + 2 :] == meant != typed
        for k in range(len(typed) - 1)
    )


class Files:
    """Sentences and documents that are in two files, one of which may be for training and one for testing."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.sentences: dict[int, Place] = {}  # by a hash of the words
        self.documents: dict[str, Path] = {}
        self.told: set[tuple[str, Path]] = set()

    def add(self, document: Document, sentence: Sentence, place: Place) -> None:
        if document.id is not None:
            first = self.documents.setdefault(document.id, place.path)
            if self.apart(first, place.path) and (document.id, place.path) not in self.told:
                self.told.add((document.id, place.path))
                self.findings.append(
                    Finding("leaked-document", str(place.path), f"{document.id!r}, in {first} too")
                )
        if len(sentence.words) >= LEAKED_WORDS:
            before = self.sentences.setdefault(hash(sentence.words), place)
            if self.apart(before.path, place.path):
                said = f"also {before}: {quoted(str(sentence))}"
                self.findings.append(Finding("leaked-sentence", str(place), said))

    def apart(self, one: Path, other: Path) -> bool:
        """Are these two files that should have nothing in common?"""
        return one != other and (role(one) is None or role(one) != role(other))


class Forms:
    """Words in Unicode's normal form C, and words that are not."""

    def __init__(self) -> None:
        self.composed = False
        self.others: list[Finding] = []

    def add(self, sentence: Sentence, place: Place) -> None:
        for word in sentence.words:
            if not word.isascii():
                composed = is_composed(word)
                self.composed |= composed is True
                if composed is False:
                    self.others.append(Finding("normal-forms", str(place), f"{word} ({ascii(word)[1:-1]})"))

    def findings(self) -> list[Finding]:
        return self.others if self.composed else []
