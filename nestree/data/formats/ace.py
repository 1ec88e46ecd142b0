"""ACE 2004 and 2005: per document a text, NAME.sgm, and its annotation, NAME.apf.xml.

    <entity ID="E1" TYPE="PER" SUBTYPE="Individual">
      <entity_mention ID="E1-2" TYPE="NOM">
        <extent><charseq START="30" END="44">the chairman of</charseq></extent>
        <head><charseq START="34" END="41">chairman</charseq></head>

Offsets count characters of the text after every tag is taken out. Line ends count, `&amp;` counts as the five
characters it is written with, and END is the last character itself: **inclusive**. The phrase in each charseq is
compared with the text at its offsets. In the document that is read, `&amp;` is `&`, and offsets have moved with it.
"""

import dataclasses
import html
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.alignment import CharacterSpan, Passage, align_to_passages
from nestree.data.io import ConversionReport, lines, read_text
from nestree.data.xml import Event, events
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Document, Span

TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)[^>]*>|<[!?][^>]*>")
BLANKS = re.compile(r"\s+")
REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
PASSES = (
    "timex2norm",
    "adj",
    "fp1",
    "fp2",
)  # folders of one document's annotations in ACE 2005, the last word first
NOT_READ = {
    "relation": "relations not read",
    "event": "events not read",
    "value": "values not read",
    "timex2": "time expressions not read",
}
ENDING = ".apf.xml"


class Mention(NamedTuple):
    label: str
    extent: tuple[int, int, str]  # first and last character, phrase
    head: tuple[int, int, str] | None
    extra: dict[str, str]
    place: str


def read(
    path: Path,
    tally: ConversionReport,
    *,
    ids: str = "",
    subtypes: bool = False,
    words: str = "treebank",
    sentences: str = "rules",
) -> Iterator[Document]:
    """The documents of a folder (and the folders in it), or of one `.apf.xml` file, with the mentions of entities.

    ids: a file with the ids of the documents to read, one a line: a split. subtypes: labels such as
    "ORG:Commercial" instead of "ORG". words, sentences: how the text is split (see nestree.text).
    """
    wanted = wanted_ids(Path(ids)) if ids else None
    for annotation in annotations(path, tally):
        name = annotation.name.removesuffix(ENDING)
        if wanted is not None and name not in wanted:
            continue
        try:
            yield document(annotation, subtypes, words, sentences, tally)
        except DataError as error:
            tally.bad(error)
        if wanted is not None:
            wanted.pop(name)
    for name, place in (wanted or {}).items():
        tally.bad(DataError(f"{place}: {path} holds no document {name}."))


def wanted_ids(path: Path) -> dict[str, str]:
    """The ids in a list, each with its place. Folders before an id and an ending after it are taken off."""
    found = {}
    for number, line in lines(path):
        if name := line.strip():
            name = re.split(r"[/\\]", name)[-1]
            found[re.sub(r"(\.apf)?(\.xml|\.sgm)$", "", name)] = f"{path}:{number}"
    if not found:
        raise DataError(f"{path} is empty, and should list the ids of documents, one a line.")
    return found


def annotations(path: Path, tally: ConversionReport) -> list[Path]:
    """The annotation of each document; where there are several, the one of the last pass."""
    if not path.is_dir():
        if not path.name.endswith((ENDING, ".sgm")):
            raise DataError(f"{path} is no folder of ACE documents, and no {ENDING} or .sgm file.")
        return [path.with_name(re.sub(r"(\.apf\.xml|\.sgm)$", "", path.name) + ENDING)]
    by_name: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*" + ENDING)):
        by_name.setdefault(file.name, []).append(file)
    if not by_name:
        raise DataError(f"{path} holds no {ENDING} file. ACE is a folder of .sgm files and {ENDING} files.")
    found = []
    for name, files in sorted(by_name.items()):
        if len(files) > 1:
            files.sort(key=lambda file: PASSES.index(file.parent.name) if file.parent.name in PASSES else -1)
            if files[0].parent.name not in PASSES:
                raise DataError(f"{files[0]} and {files[1]} are the same document. Read one of the folders.")
            tally.note("earlier passes of a document's annotation not read", str(files[1]), len(files) - 1)
        found.append(files[0].with_name(name))
    return found


def document(
    annotation: Path, subtypes: bool, words: str, sentences: str, tally: ConversionReport
) -> Document:
    source = annotation.with_name(annotation.name.removesuffix(ENDING) + ".sgm")
    if not annotation.exists() or not source.exists():
        there, missing = (annotation, source) if annotation.exists() else (source, annotation)
        raise DataError(f"{missing} does not exist, and {there} needs it.")
    id, mentions = read_mentions(annotation, subtypes, tally)
    text, cuts, body = without_tags(read_text(source))
    spans = []
    for mention in mentions:
        try:
            spans.append(span(mention, text, source))
        except DataError as error:
            tally.bad(error)
    text, place = read_out(text)
    spans = [
        s._replace(
            start=place(s.start), end=place(s.end), head=s.head and (place(s.head[0]), place(s.head[1]))
        )
        for s in spans
    ]
    body = [(place(i), place(j)) for i, j in body]
    parts = [Passage(start, text[start:end]) for start, end in stretches(text, [place(cut) for cut in cuts])]
    found = align_to_passages(
        text,
        parts,
        spans,
        words=words,
        sentences=sentences,
        id=id or annotation.name.removesuffix(ENDING),
        tally=tally,
        place=str(annotation),
    )
    kept = [s for s in found.sentences if s.entities or any(i <= s.start < j for i, j in body)]
    if len(kept) < len(found.sentences):
        what = "sentences outside of <TEXT> without entities left out"
        tally.note(what, str(source), len(found.sentences) - len(kept))
    return dataclasses.replace(found, sentences=tuple(kept))


def without_tags(source: str) -> tuple[str, list[int], list[Span]]:
    """The text, where tags were in it, and from where to where it is that of `<TEXT>`.

    >>> without_tags("<DOC><TEXT>AT&amp;T</TEXT></DOC>")
    ('AT&amp;T', [0, 0, 8, 8], [(0, 8)])
    """
    text, at = [], 0
    length, cuts, body, begin = 0, [], [], 0
    for tag in TAG.finditer(source):
        text.append(source[at : tag.start()])
        length += tag.start() - at
        at = tag.end()
        cuts.append(length)
        if tag[2] and tag[2].upper() == "TEXT":
            if tag[1]:
                body.append((begin, length))
            else:
                begin = length
    text.append(source[at:])
    return "".join(text), cuts, body or [(0, length + len(source) - at)]


def read_out(text: str) -> tuple[str, Callable[[int], int]]:
    """The text with `&amp;` and its like as what they stand for, and where a place in it has moved to.

    >>> text, place = read_out("AT&amp;T")
    >>> text, place(2), place(7)
    ('AT&T', 2, 3)
    """
    pieces, at, ends, shifts, shift = [], 0, [0], [0], 0
    for reference in REFERENCE.finditer(text):
        char = html.unescape(reference[0])
        pieces += [text[at : reference.start()], char]
        at = reference.end()
        shift += len(reference[0]) - len(char)
        ends.append(at)
        shifts.append(shift)
    return "".join([*pieces, text[at:]]), lambda old: old - shifts[bisect_right(ends, old) - 1]


def stretches(text: str, cuts: list[int]) -> Iterator[Span]:
    """The text between tags: no sentence runs across one, except where an entity does."""
    for start, end in itertools.pairwise(sorted({0, len(text), *cuts})):
        if text[start:end].strip():
            yield start, end


def read_mentions(path: Path, subtypes: bool, tally: ConversionReport) -> tuple[str | None, list[Mention]]:
    """The id of the document and the mentions of its entities."""
    id, found = None, []
    entity: dict[str, str] = {}
    mention: Event | None = None
    charseqs: dict[str, tuple[int, int, str]] = {}
    where, numbers, phrase = "", (0, 0), ""
    for event in events(path):
        kind, name, attributes, line = event
        place = f"{path}:{line}"
        if kind == "text":
            phrase += name
        elif kind == "start":
            phrase = ""
            if name == "document":
                id = attributes.get("DOCID")
            elif name in NOT_READ:
                tally.note(NOT_READ[name], place)
            elif name == "entity":
                entity = attributes
            elif name == "entity_mention":
                mention, charseqs = event, {}
            elif name in ("extent", "head"):
                where = name
            elif name == "charseq" and mention:
                numbers = offset(attributes, "START", place), offset(attributes, "END", place)
        elif name == "charseq" and mention:
            charseqs[where] = (*numbers, phrase)
        elif name == "entity_mention" and mention:
            found.append(made(entity, mention, charseqs, subtypes, f"{path}:{mention.line}"))
            mention = None
        elif name == "entity":
            entity = {}
    return id, found


def offset(attributes: dict[str, str], name: str, place: str) -> int:
    value = attributes.get(name, "")
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise DataError(f"{place}: {name} of this charseq is {value!r:.40}, and should be a number.")
    return int(value)


def made(
    entity: dict[str, str],
    mention: Event,
    charseqs: dict[str, tuple[int, int, str]],
    subtypes: bool,
    place: str,
) -> Mention:
    label = entity.get("TYPE")
    if not label:
        raise DataError(f"{place}: this mention is of an entity without TYPE.")
    if "extent" not in charseqs:
        raise DataError(f"{place}: this mention has no extent.")
    if subtypes and entity.get("SUBTYPE"):
        label += ":" + entity["SUBTYPE"]
    values = {
        "mention": mention.attributes.get("TYPE"),
        "id": mention.attributes.get("ID"),
        "entity": entity.get("ID"),
    }
    extra = {key: value for key, value in values.items() if value}
    return Mention(label, charseqs["extent"], charseqs.get("head"), extra, place)


def span(mention: Mention, text: str, source: Path) -> CharacterSpan:
    """The mention with exclusive ends, its phrases compared with the text."""
    for what, found in (("extent", mention.extent), ("head", mention.head)):
        if found is not None:
            check(found, what, mention, text, source)
    first, last, _ = mention.extent
    head = None
    if mention.head is not None:
        head = mention.head[0], mention.head[1] + 1
        if not first <= mention.head[0] <= mention.head[1] <= last:
            raise DataError(
                f"{mention.place}: head {head[0]}-{head[1]} is not inside its extent {first}-{last + 1}."
            )
    return CharacterSpan(first, last + 1, mention.label, head, None, mention.extra, mention.place)


def check(found: tuple[int, int, str], what: str, mention: Mention, text: str, source: Path) -> None:
    first, last, phrase = found
    if last < first:
        raise EmptySpanError(f"{mention.place}: {what} {first}-{last} of a mention ends before it begins.")
    if last >= len(text):
        raise SpanRangeError(
            f"{mention.place}: {what} {first}-{last} of a mention ends after the text: {source} has {len(text)} "
            "characters without its tags."
        )
    there = text[first : last + 1]
    if BLANKS.sub(" ", html.unescape(there)) != BLANKS.sub(" ", html.unescape(phrase)):
        raise DataError(
            f"{mention.place}: {what} {first}-{last} should be {phrase!r:.60}, but in {source} without its tags it "
            f"is {there!r:.60}."
        )
