"""GENIA 3.02, GPML: XML of articles in which `<cons sem="G#protein_molecule">` marks entities, one in the other.

    <sentence><cons lex="IL-2_gene" sem="G#DNA_domain_or_region"><cons lex="IL-2" sem="G#protein_molecule">IL-2</cons>
    gene</cons> expression</sentence>

A coordination, `<cons sem="(AND G#cell_type G#cell_type)">T and B cells</cons>`, is one span for several entities;
the `cons` in it have no type of their own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.alignment import CharacterSpan, align_spans
from nestree.data.io import STDIO, ConversionReport
from nestree.data.xml import events
from nestree.errors import DataError, InputError
from nestree.types import Document

FIVE = ("DNA", "RNA", "protein", "cell_line", "cell_type")
TYPES = ("five", "all")
PARTS = ("all", "train", "dev", "test")
BLANKS = str.maketrans("\t\r\n", "   ")


Mark = tuple[int, int, str, int]  # start, end, sem, line


class Marked(NamedTuple):
    """A sentence, and what is marked in it."""

    text: str
    marks: list[Mark]


class Article(NamedTuple):
    id: str | None
    path: Path
    line: int
    sentences: list[Marked]


def read(
    path: Path,
    tally: ConversionReport,
    *,
    types: str = "five",
    coordinations: bool = True,
    part: str = "all",
    words: str = "split-hyphens",
) -> Iterator[Document]:
    """The articles of an XML file, or of a folder of them in the order of their names.

    types: "five" (DNA, RNA, protein, cell_line, cell_type, by prefix; entities of other types are left out) or
    "all" (each type as it is, without G#). coordinations: keep them as one span, or leave them out.
    part: "train", "dev" or "test" of the usual split of all sentences in their order, 81 / 9 / 10 hundredths;
    "all" for everything. words: how sentences are split into words (see nestree.text).
    """
    check_choice("types", types, TYPES)
    check_choice("part", part, PARTS)
    first, last = borders(path, part)
    seen = 0
    for id, file, line, sentences in articles(path, tally):
        chosen = [s for k, s in enumerate(sentences, seen) if first <= k and (last is None or k < last)]
        seen += len(sentences)
        if chosen:
            place = f"{file}:{line}"
            spans: list[CharacterSpan] = []
            text = ""
            for sentence in chosen:
                spans.extend(entities(sentence, len(text), types, coordinations, file, tally))
                text += sentence.text + "\n"
            yield align_spans(
                text[:-1], spans, id=id, words=words, sentences="lines", tally=tally, place=place
            )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is one of {', '.join(choices)}, not {value!r}.")


def borders(path: Path, part: str) -> tuple[int, int | None]:
    """The first sentence of a part, and the first after it."""
    if part == "all":
        return 0, None
    if path == STDIO:
        raise InputError(
            "a part of GENIA is found by reading it twice, and standard input is read once. Name a file."
        )
    count = sum(len(article.sentences) for article in articles(path, ConversionReport()))
    train, dev = count * 81 // 100, count * 90 // 100
    return {"train": (0, train), "dev": (train, dev), "test": (dev, count)}[part]


def articles(path: Path, tally: ConversionReport) -> Iterator[Article]:
    """The articles of a file, or of all files of a folder."""
    files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no .xml file. GENIA is one XML file, or a folder of them.")
    for file in files:
        try:
            yield from articles_of(file, tally)
        except DataError as error:
            tally.bad(error)


def articles_of(path: Path, tally: ConversionReport) -> Iterator[Article]:
    id, text, begin, sentence_depth = "", "", 0, 0
    within: list[str] = []
    sentences: list[Marked] = []
    marks: list[Mark] = []
    running: list[tuple[int, str, int]] = []
    for kind, name, attributes, line in events(path):
        if kind == "text":
            if sentence_depth:
                text += name.translate(BLANKS)
            elif within[-1:] == ["bibliomisc"]:
                id += name
            elif name.strip() and within[-1:] != ["articleinfo"]:
                tally.note("text outside of sentences not read", f"{path}:{line}")
        elif kind == "start":
            if not within and name not in ("set", "article"):
                raise DataError(f"{path}:{line}: GENIA begins with <set>, and this with <{name}>.")
            within.append(name)
            if name == "article":
                id, begin, sentences = "", line, []
            elif name == "sentence":
                sentence_depth += 1
                text, marks, running = "", [], []
            elif name == "cons":
                running.append((len(text), attributes.get("sem", ""), line))
        else:
            within.pop()
            sentence_depth -= name == "sentence"
            if name == "cons" and running:
                start, sem, first = running.pop()
                marks.append((start, len(text), sem, first))
            elif name == "sentence" and text.strip():
                sentences.append(Marked(text, sorted(marks, key=lambda mark: (mark[0], -mark[1]))))
            elif name == "article":
                yield Article(id.strip() or None, path, begin, sentences)


def entities(
    sentence: Marked, offset: int, types: str, coordinations: bool, path: Path, tally: ConversionReport
) -> Iterator[CharacterSpan]:
    """The entities of a sentence, in characters of its document."""
    seen = set()
    for start, end, sem, line in sentence.marks:
        place = f"{path}:{line}"
        sems = re.sub(r"\(\S*|\)", " ", sem).split()  # without (AND, (OR and ), which may nest
        if sem.startswith("(") and not coordinations:
            tally.note("coordinations left out", place)
            continue
        if not sems:
            tally.note("cons without a type (parts of coordinations) left out", place)
        for label in dict.fromkeys(labelled(sem, types) for sem in sems):
            if label is None:
                tally.note("entities of other types left out", place)
            elif (start, end, label) in seen:
                tally.note("the same span twice with one label: one left out", place)
            else:
                seen.add((start, end, label))
                yield CharacterSpan(offset + start, offset + end, label, place=place)


def labelled(sem: str, types: str) -> str | None:
    name = sem.removeprefix("G#")
    if types == "all":
        return name
    return next((label for label in FIVE if name == label or name.startswith(label + "_")), None)
