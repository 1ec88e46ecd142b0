"""GENIA 3.02, GPML: XML of articles in which `<cons sem="G#protein_molecule">` marks entities, one in the other.

    <sentence><cons lex="IL-2_gene" sem="G#DNA_domain_or_region"><cons lex="IL-2" sem="G#protein_molecule">IL-2</cons>
    gene</cons> expression</sentence>

A coordination, `<cons sem="(AND G#cell_type G#cell_type)">T and B cells</cons>`, is one span for several entities;
the `cons` in it have no type of their own.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from nestree.data.alignment import AnnotatedText, Mention, Passage
from nestree.data.formats.common import check_choice, skip_bad
from nestree.data.io import STDIO, ConversionReport
from nestree.data.xml import parse_events
from nestree.errors import DataError, InputError

FIVE_TYPES = ("DNA", "RNA", "protein", "cell_line", "cell_type")
BLANKS = str.maketrans("\t\r\n", "   ")


def read(
    path: Path,
    report: ConversionReport,
    *,
    types: str = "five",
    coordinations: bool = True,
    part: str = "all",
) -> Iterator[AnnotatedText]:
    """The articles of an XML file, or of a folder of them in the order of their names.

    types: "five" (DNA, RNA, protein, cell_line, cell_type, by prefix; entities of other types are left out) or
    "all" (each type as it is, without G#). coordinations: keep them as one span, or leave them out.
    part: "train", "dev" or "test" of the usual split of all sentences in their order, 81 / 9 / 10 hundredths;
    "all" for everything.
    """
    check_choice("types", types, ("five", "all"))
    check_choice("part", part, ("all", "train", "dev", "test"))
    chosen = sentence_range(path, part) if part != "all" else None
    count = 0
    for article in parse_articles(path, report):
        mentions: list[Mention] = []
        passages: list[Passage] = []
        start = 0
        for sentence, constituents in article.extra.pop("sentences"):
            if chosen is None or count in chosen:
                for mention in choose_mentions(constituents, types, coordinations, report):
                    mentions.append(mention._replace(start=start + mention.start, end=start + mention.end))
                passages.append(Passage(start, sentence, True))
                start += len(sentence) + 1
            count += 1
        if passages:
            article.text = "\n".join(passage.text for passage in passages)
            article.mentions, article.passages = mentions, passages
            yield article


def sentence_range(path: Path, part: str) -> range:
    """The numbers of the sentences of a part."""
    if path == STDIO:
        raise InputError(
            "a part of GENIA is found by reading it twice, and standard input is read once. Name a file."
        )
    count = sum(len(article.extra["sentences"]) for article in parse_articles(path, ConversionReport()))
    train, dev = count * 81 // 100, count * 90 // 100
    return {"train": range(train), "dev": range(train, dev), "test": range(dev, count)}[part]


def parse_articles(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    """The articles of a file, or of all files of a folder: extra["sentences"] has texts with all their `cons`."""
    files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no .xml file. GENIA is one XML file, or a folder of them.")
    for file in files:
        with skip_bad(report):
            yield from parse_file(file, report)


def parse_file(path: Path, report: ConversionReport) -> Iterator[AnnotatedText]:
    id, text, first_line, sentence_depth = "", "", 0, 0
    open_elements: list[str] = []
    open_constituents: list[tuple[int, str, str]] = []  # start, sem, place
    sentences: list[tuple[str, list[Mention]]] = []
    constituents: list[Mention] = []
    for kind, name, attributes, line in parse_events(path):
        if kind == "text":
            if sentence_depth:
                text += name.translate(BLANKS)
            elif open_elements[-1:] == ["bibliomisc"]:
                id += name
            elif name.strip() and open_elements[-1:] != ["articleinfo"]:
                report.note("text outside of sentences not read", f"{path}:{line}")
        elif kind == "start":
            if not open_elements and name not in ("set", "article"):
                raise DataError(f"{path}:{line}: GENIA begins with <set>, and this with <{name}>.")
            open_elements.append(name)
            if name == "article":
                id, first_line, sentences = "", line, []
            elif name == "sentence":
                sentence_depth += 1
                text, constituents, open_constituents = "", [], []
            elif name == "cons":
                open_constituents.append((len(text), attributes.get("sem", ""), f"{path}:{line}"))
        else:
            open_elements.pop()
            sentence_depth -= name == "sentence"
            if name == "cons" and open_constituents:
                start, sem, place = open_constituents.pop()
                constituents.append(Mention(start, len(text), sem, place=place))
            elif name == "sentence" and text.strip():
                sentences.append((text, sorted(constituents, key=lambda cons: (cons.start, -cons.end))))
            elif name == "article":
                place, extra = f"{path}:{first_line}", {"sentences": sentences}
                yield AnnotatedText("", (), place, id.strip() or None, extra)


def choose_mentions(
    constituents: list[Mention], types: str, coordinations: bool, report: ConversionReport
) -> Iterator[Mention]:
    """The entities of a sentence; the label of each constituent is its `sem`."""
    seen = set()
    for constituent in constituents:
        sem, place = constituent.label, constituent.place or ""
        if sem.startswith("(") and not coordinations:
            report.note("coordinations left out", place)
            continue
        sems = re.sub(r"\(\S*|\)", " ", sem).split()  # without (AND, (OR and ), which may nest
        if not sems:
            report.note("cons without a type (parts of coordinations) left out", place)
        for label in dict.fromkeys(choose_label(sem, types) for sem in sems):
            mention = constituent._replace(label=label or "")
            if label is None:
                report.note("entities of other types left out", place)
            elif mention[:3] in seen:
                report.note("the same span twice with one label: one left out", place)
            else:
                seen.add(mention[:3])
                yield mention


def choose_label(sem: str, types: str) -> str | None:
    """The label of a type such as G#DNA_domain; None if it is none of the five."""
    name = sem.removeprefix("G#")
    if types == "all":
        return name
    return next((label for label in FIVE_TYPES if f"{name}_".startswith(f"{label}_")), None)
