"""ACE 2004 and 2005: per document a text, NAME.sgm, and its annotation, NAME.apf.xml.

    <entity ID="E1" TYPE="PER" SUBTYPE="Individual">
      <entity_mention ID="E1-2" TYPE="NOM">
        <extent><charseq START="30" END="44">the chairman of</charseq></extent>
        <head><charseq START="34" END="41">chairman</charseq></head>

Offsets count characters of the text after every tag is taken out. Line ends count, `&amp;` counts as the five
characters it is written with, and END is the last character itself: **inclusive**. The phrase in each charseq is
compared with the text at its offsets. In the document that is read, `&amp;` is `&`, and offsets have moved with it.
"""

import html
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from nestree.data.alignment import AnnotatedText, Mention, Passage
from nestree.data.formats.common import find_files, skip_bad
from nestree.data.io import ConversionReport, read_lines, read_text
from nestree.data.xml import parse_events
from nestree.errors import DataError, EmptySpanError, SpanRangeError
from nestree.types import Span

TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)[^>]*>|<[!?][^>]*>")
REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
# Folders of the annotation passes of ACE 2005, the final one first.
PASSES = ("timex2norm", "adj", "fp1", "fp2")
NOT_READ = {
    "relation": "relations not read",
    "event": "events not read",
    "value": "values not read",
    "timex2": "time expressions not read",
}
SUFFIX = ".apf.xml"
Annotation = tuple[str | None, list[tuple[Mention, str]]]


def read(
    path: Path, report: ConversionReport, *, ids: str = "", subtypes: bool = False
) -> Iterator[AnnotatedText]:
    """The documents of a folder (and the folders in it), or of one `.apf.xml` file, with the mentions of entities.

    ids: a file with the ids of the documents to read, one a line: a split. subtypes: labels such as
    "ORG:Commercial" instead of "ORG".
    """
    missing = read_ids(Path(ids)) if ids else {}
    for annotation in find_annotations(path, report):
        name = annotation.name.removesuffix(SUFFIX)
        if ids and name not in missing:
            continue
        missing.pop(name, None)
        with skip_bad(report):
            yield read_document(annotation, subtypes, report)
    for name, place in missing.items():
        report.bad(DataError(f"{place}: {path} holds no document {name}."))


def read_ids(path: Path) -> dict[str, str]:
    """The ids in a list, each with its place; folders before an id and a suffix after it are removed."""
    ids = {}
    for number, line in read_lines(path):
        if name := re.split(r"[/\\]", line.strip())[-1]:
            ids[re.sub(r"(\.apf)?(\.xml|\.sgm)$", "", name)] = f"{path}:{number}"
    if not ids:
        raise DataError(f"{path} is empty, and should list the ids of documents, one a line.")
    return ids


def find_annotations(path: Path, report: ConversionReport) -> list[Path]:
    """The annotation of each document; where there are several, the one of the final pass."""
    if not path.is_dir():
        if not path.name.endswith((SUFFIX, ".sgm")):
            raise DataError(f"{path} is neither a folder of ACE documents nor an {SUFFIX} or .sgm file.")
        return [path.with_name(re.sub(r"(\.apf\.xml|\.sgm)$", "", path.name) + SUFFIX)]
    by_name: dict[str, list[Path]] = {}
    for file in find_files(path, f"*{SUFFIX}", f"ACE is a folder of .sgm files and {SUFFIX} files."):
        by_name.setdefault(file.name, []).append(file)
    annotations = []
    for _, files in sorted(by_name.items()):
        if len(files) > 1:
            files.sort(key=lambda file: PASSES.index(file.parent.name) if file.parent.name in PASSES else -1)
            if files[0].parent.name not in PASSES:
                raise DataError(f"{files[0]} and {files[1]} are the same document. Read one of the folders.")
            report.note("earlier passes of a document's annotation not read", str(files[1]), len(files) - 1)
        annotations.append(files[0])
    return annotations


def read_document(annotation: Path, subtypes: bool, report: ConversionReport) -> AnnotatedText:
    """A document whose passages end at tags, so that no sentence crosses one, unless an entity does."""
    source = annotation.with_name(annotation.name.removesuffix(SUFFIX) + ".sgm")
    for file, other in ((annotation, source), (source, annotation)):
        if not file.exists():
            raise DataError(f"{file} does not exist, and {other} needs it.")
    id, raw_mentions = parse_annotation(annotation, subtypes, report)
    raw_text, tag_offsets, raw_body = remove_tags(read_text(source))
    text, convert = unescape(raw_text)
    mentions = []
    for mention, head_phrase in raw_mentions:
        with skip_bad(report):
            if mention.end > len(raw_text):
                raise SpanRangeError(
                    f"{mention.place}: extent {mention.start}-{mention.end - 1} of a mention ends after the text: "
                    f"{source} has {len(raw_text)} characters without its tags."
                )
            head = mention.head and (convert(mention.head[0]), convert(mention.head[1]))
            if head and text[slice(*head)].split() != head_phrase.split():
                raise DataError(
                    f"{mention.place}: the head of this mention should be {head_phrase!r:.60}, but in {source} without "
                    f"its tags it is {text[slice(*head)]!r:.60}."
                )
            start, end = convert(mention.start), convert(mention.end)
            mentions.append(mention._replace(start=start, end=end, head=head))
    boundaries = sorted({0, len(text), *(convert(offset) for offset in tag_offsets)})
    return AnnotatedText(
        text,
        mentions,
        str(annotation),
        id or annotation.name.removesuffix(SUFFIX),
        source=f"{source} without its tags",
        passages=[Passage(i, text[i:j]) for i, j in itertools.pairwise(boundaries) if text[i:j].strip()],
        body=[(convert(i), convert(j)) for i, j in raw_body],
    )


def remove_tags(source: str) -> tuple[str, list[int], list[Span]]:
    """The text without tags, the offsets at which they were, and the spans of the text inside `<TEXT>`.

    >>> remove_tags("<DOC><TEXT>AT&amp;T</TEXT></DOC>")
    ('AT&amp;T', [0, 0, 8, 8], [(0, 8)])
    """
    parts, length, last_end = [], 0, 0
    tag_offsets, body, body_start = [], [], 0
    for tag in TAG.finditer(source):
        parts.append(source[last_end : tag.start()])
        length += len(parts[-1])
        last_end = tag.end()
        tag_offsets.append(length)
        if tag[2] and tag[2].upper() == "TEXT":
            if tag[1]:
                body.append((body_start, length))
            else:
                body_start = length
    text = "".join([*parts, source[last_end:]])
    return text, tag_offsets, body or [(0, len(text))]


def unescape(text: str) -> tuple[str, Callable[[int], int]]:
    """The text with `&amp;` and the like replaced by their characters, and a function that moves offsets with it.

    >>> text, convert = unescape("AT&amp;T")
    >>> text, convert(2), convert(7)
    ('AT&T', 2, 3)
    """
    parts, last_end, ends, shifts = [], 0, [0], [0]
    for reference in REFERENCE.finditer(text):
        character = html.unescape(reference[0])
        parts += [text[last_end : reference.start()], character]
        last_end = reference.end()
        ends.append(last_end)
        shifts.append(shifts[-1] + len(reference[0]) - len(character))
    return "".join([*parts, text[last_end:]]), lambda offset: offset - shifts[bisect_right(ends, offset) - 1]


def parse_annotation(path: Path, subtypes: bool, report: ConversionReport) -> Annotation:
    """The id of the document and the mentions of its entities, in characters of the text before `unescape`.

    With each mention comes the phrase of its head.
    """
    id, mentions = None, []
    entity: dict[str, str] = {}
    mention: dict[str, str] | None = None
    charseqs: dict[str, tuple[Span, str]] = {}
    mention_place = role = phrase = ""
    span = (0, 0)
    for kind, name, attributes, line in parse_events(path):
        place = f"{path}:{line}"
        if kind == "text":
            phrase += name
        elif kind == "start":
            phrase = ""
            if name == "document":
                id = attributes.get("DOCID")
            elif name in NOT_READ:
                report.note(NOT_READ[name], place)
            elif name == "entity":
                entity = attributes
            elif name == "entity_mention":
                mention, mention_place, charseqs = attributes, place, {}
            elif name in ("extent", "head"):
                role = name
            elif name == "charseq" and mention is not None:
                span = parse_offset(attributes, "START", place), parse_offset(attributes, "END", place) + 1
                if span[1] <= span[0]:
                    raise EmptySpanError(
                        f"{place}: {role} {span[0]}-{span[1] - 1} of a mention ends before it begins."
                    )
        elif name == "charseq" and mention is not None:
            charseqs[role] = span, html.unescape(phrase)
        elif name == "entity_mention" and mention is not None:
            if not (label := entity.get("TYPE")):
                raise DataError(f"{mention_place}: this mention is of an entity without TYPE.")
            if "extent" not in charseqs:
                raise DataError(f"{mention_place}: this mention has no extent.")
            if subtypes and entity.get("SUBTYPE"):
                label += ":" + entity["SUBTYPE"]
            values = {"mention": mention.get("TYPE"), "id": mention.get("ID"), "entity": entity.get("ID")}
            extra = {key: value for key, value in values.items() if value}
            (start, end), phrase = charseqs["extent"]
            head, head_phrase = charseqs.get("head", (None, ""))
            found = Mention(start, end, label, head, None, extra, mention_place, phrase)
            mentions.append((found, head_phrase))
            mention = None
        elif name == "entity":
            entity = {}
    return id, mentions


def parse_offset(attributes: dict[str, str], name: str, place: str) -> int:
    value = attributes.get(name, "")
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise DataError(f"{place}: {name} of this charseq is {value!r:.40}, and should be a number.")
    return int(value)
