"""Two or three lines for each sentence, and a blank line:

    Mount Rainier is in Washington
    NNP NNP VBZ IN NNP
    0,2 LOC|4,5 GPE

The words, their part-of-speech tags (which may be missing) and the entities; their line is there even if it is empty.
In most files the end is exclusive, in some (NNE, early ACE systems) it is inclusive. Nothing in a file says which.

NNE: nested entities for the Penn Treebank, as stand-off files, and the trees that hold the words.

    0 1 2 3                          ( (S (NP-SBJ (NNP Pierre) (NNP Vinken))
    NNP NNP VBZ NN                        (VP (VBZ is) (NP-PRD (NN chairman)))
    0,1 PER|0,0 FIRST|1,1 NAME

Both kinds of file are called `wsj_0001.mrg`; they stand in two folders with the same names in them. Ends of entities
are **inclusive**. The words of a sentence are the leaves of its tree, those under -NONE- left out.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nestree.data.formats import common
from nestree.data.io import ConversionReport, read_text
from nestree.errors import DataError, EmptySpanError, InputError, SpanRangeError, plural
from nestree.types import Document, Entity, Sentence

ENTITY = re.compile(r"\s*(\d{1,18})\s*,\s*(\d{1,18}) (.+)", re.DOTALL)
# Such as 0 2 PER or 0-1 PER, which are no tags.
ALMOST_ENTITY = re.compile(r"\s*\d+(\s*,\s*\d|(\s*-\s*|\s+)\d+\s+[^\d\s])")


class Record(NamedTuple):
    words: list[str]
    tags: list[str] | None
    entities: str
    line: int  # of the entities


def read_triplets(
    path: Path, report: ConversionReport, *, ends: common.Ends = "exclusive", strip: str = ""
) -> Iterator[Document]:
    """The sentences of a file, each a document. Part-of-speech tags are kept in `extra`, as "pos".

    ends: "exclusive" or "inclusive". strip: what labels begin with and should not, such as "G#".
    """
    for record in parse_records(path, report):
        with common.skip_bad(report, f"{path}:{record.line}"):
            sentence = to_sentence(record, ends, strip)
            report.bare_sentences += 1
            yield Document((sentence,))


def to_sentence(record: Record, ends: str, strip: str = "") -> Sentence:
    entities = []
    for item in record.entities.split("|") if record.entities.strip() else ():
        match = ENTITY.fullmatch(item)
        assert match is not None  # else `parse_block` takes the line for something else
        start, end = int(match[1]), int(match[2]) + (ends == "inclusive")
        other = "inclusive" if ends == "exclusive" else "exclusive"
        advice = f" If ends are {other} in this file, read it with --read ends={other}."
        if end <= start:
            advice = advice if end == start else ""
            raise EmptySpanError(f"entity {item!r:.40} is empty with {ends} ends.{advice}")
        if end > len(record.words):
            advice = advice if ends == "inclusive" else ""
            words = len(record.words)
            raise SpanRangeError(
                f"entity {item!r:.40} ends after the sentence, which has {plural(words, 'word')}.{advice}"
            )
        entities.append(Entity(start, end, match[3].removeprefix(strip) or match[3]))
    extra = {} if record.tags is None else {"pos": record.tags}
    return Sentence(tuple(record.words), tuple(entities), extra=extra)


def parse_records(path: Path, report: ConversionReport) -> Iterator[Record]:
    """The sentences of a file. A line of entities that is empty ends its sentence like the blank line after it."""
    for lines in common.line_blocks(path, report):
        with common.skip_bad(report):
            yield parse_block([line for _, line in lines], path, lines[0][0], report)


def parse_block(block: list[str], path: Path, first: int, report: ConversionReport) -> Record:
    has_entities = len(block) > 1 and all(ENTITY.fullmatch(item) for item in block[-1].split("|"))
    rest = block[: len(block) - has_entities]
    columns = [re.split(r"[ \t]+", line.strip(" \t")) for line in rest[:2]]
    words, tags = columns[0], columns[1] if len(rest) > 1 else None
    if len(rest) > 2:
        what = "is not a list of entities such as 0,3 PER|4,5 GPE" if len(block) == 3 else "is one too many"
        raise DataError(
            f"{path}:{first + len(rest) - 1}: this line {what}: {rest[-1]!r:.60}. A sentence has its words, "
            "their tags, its entities and a blank line."
        )
    place = f"{path}:{first + 1}"
    if tags is not None and ALMOST_ENTITY.match(rest[1]):
        raise DataError(f"{place}: {rest[1]!r:.60} is not a list of entities such as 0,3 PER|4,5 GPE.")
    if tags is not None and len(tags) != len(words):
        report.note("part-of-speech tags not kept: there is not one for each word", place)
        tags = None
    return Record(words, tags, block[-1] if has_entities else "", first + len(rest))


def write_triplets(
    documents: Iterable[Document], path: Path, report: ConversionReport, *, ends: common.Ends = "exclusive"
) -> None:
    """The words, the part-of-speech tags if `extra` has them as "pos", the entities, a blank line.

    ends: "exclusive" or "inclusive".
    """
    documents = common.report_dropped(documents, "triplets", report)
    sentences = (sentence for document in documents for sentence in document.sentences)
    common.write_rows((row for s in sentences for row in format_sentence(s, ends, report)), path)


def format_sentence(sentence: Sentence, ends: str, report: ConversionReport) -> Iterator[str]:
    def clean(text: str, pattern: str, kind: str) -> str:
        change = f"{kind} changed: triplets has no place for spaces, | and line ends in them"
        return common.replace_characters(text, pattern, change, report)

    yield " ".join(clean(word, r"[ \t\r\n]", "words") for word in sentence.words)
    tags = sentence.extra.get("pos")
    if isinstance(tags, list) and len(tags) == len(sentence.words):
        yield " ".join(clean(str(tag) or "_", r"[ \t\r\n]", "tags") for tag in tags)
    labels = [clean(entity.label, r"[|\r\n]", "labels") for entity in sentence.entities]
    yield "|".join(
        f"{entity.start},{entity.end - (ends == 'inclusive')} {label}"
        for entity, label in zip(sentence.entities, labels, strict=True)
    )
    yield ""


# NNE

DEV, TEST = {"02"}, {"23", "24"}  # sections; the others are for training
TOKEN = re.compile(r"[()]|[^()\s]+")


def read_nne(path: Path, report: ConversionReport, *, trees: str = "", part: common.Part = "all") -> Iterator[Document]:
    """The documents of a folder of stand-off files (and the folders in it), or of one such file.

    trees: the folder of the Penn Treebank's `.mrg` files, in which names are as in the stand-off folder; for one
    stand-off file, one file of trees. Without it, words are their numbers. part: "train", "dev" (section 02),
    "test" (sections 23 and 24) or "all".
    """
    layout = "NNE is a folder of sections, 00 to 24, with wsj_0001.mrg in them."
    if trees and not Path(trees).exists():
        raise InputError(f"{trees} does not exist. `trees` is the folder of the Penn Treebank's .mrg files.")
    without_trees, has_trees = [], False
    for file in common.find_files(path, "*.mrg", layout):
        digits = re.search(r"wsj_(\d\d)\d\d", file.name)
        section = digits[1] if digits else file.parent.name
        if part not in ("all", "dev" if section in DEV else "test" if section in TEST else "train"):
            continue
        tree_file = None
        if not trees:
            report.note("words not known without the trees: their numbers instead", str(file))
        elif (tree_file := find_nne_trees(file, path, Path(trees), section)) is None:
            without_trees.append(file)
            continue
        with common.skip_bad(report):
            has_trees = True
            yield read_nne_document(file, tree_file, report)
    for file in without_trees:
        if not has_trees:
            raise DataError(f"{Path(trees) / file.name} does not exist: {file} has no trees, and no other file has.")
        report.note("documents without trees left out", str(file))


def find_nne_trees(file: Path, path: Path, trees: Path, section: str) -> Path | None:
    """The trees of a stand-off file: the same name in the folder of trees, in the same section or in none."""
    if not trees.is_dir():
        return trees
    same_place = trees / file.relative_to(path if path.is_dir() else path.parent)
    candidates = (same_place, trees / section / file.name, trees / file.name)
    return next((candidate for candidate in candidates if candidate.exists()), None)


def read_nne_document(file: Path, trees: Path | None, report: ConversionReport) -> Document:
    if read_text(file)[:200].lstrip().startswith("("):
        raise DataError(f"{file}:1: this file holds trees. Give the stand-off folder first, and this one as `trees`.")
    records = list(parse_records(file, report))
    leaves = [(0, record.words, record.tags or []) for record in records]
    if trees:
        leaves = list(parse_nne_leaves(trees))
    if len(leaves) != len(records):
        raise DataError(f"{file} has {len(records)} sentences, and {trees} has {len(leaves)} trees.")
    sentences = []
    for record, (tree_line, words, tags) in zip(records, leaves, strict=True):
        with common.skip_bad(report, f"{file}:{record.line}"):
            if record.words != [str(k) for k in range(len(record.words))]:
                raise DataError("the first line of an NNE sentence numbers its words: 0 1 2 ...")
            if len(words) != len(record.words):
                raise DataError(
                    f"this sentence has {len(record.words)} words, and its tree at {trees}:{tree_line} has "
                    f"{len(words)}."
                )
            if record.tags is not None and record.tags != tags:
                report.note("part-of-speech tags differ from those of the tree: the latter kept")
            sentences.append(to_sentence(record._replace(words=words, tags=tags or None), "inclusive"))
    return Document(tuple(sentences), None, file.stem)


def parse_nne_leaves(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """The first line, the words and the tags of each tree of a file, without those under -NONE-."""
    depth, first_line = 0, 0
    words: list[str] = []
    tags: list[str] = []
    previous = ["", ""]  # the last two tokens
    text = read_text(path)
    line, at = 1, 0
    for match in TOKEN.finditer(text):
        token = match[0]
        line, at = line + text.count("\n", at, match.start()), match.start()
        if token == "(":
            if depth == 0:
                first_line, words, tags = line, [], []
            depth += 1
        elif token == ")":
            depth -= 1
            if depth < 0:
                raise DataError(f"{path}:{line}: there is one closing bracket too many.")
            if depth == 0:
                yield first_line, words, tags
        elif depth == 0:
            raise DataError(f"{path}:{line}: {token!r:.40} is outside of any tree. Expected: ( (S (NP ...) ...) ).")
        elif previous[0] == "(" and previous[1] not in ("(", ")", "-NONE-"):
            words.append(token)
            tags.append(previous[1])
        previous = [previous[1], token]
    if depth:
        raise DataError(f"{path}:{first_line}: this tree is not closed.")
