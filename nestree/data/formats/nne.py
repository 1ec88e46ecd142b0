"""NNE: nested entities for the Penn Treebank, as stand-off files, and the trees that hold the words.

    0 1 2 3                          ( (S (NP-SBJ (NNP Pierre) (NNP Vinken))
    NNP NNP VBZ NN                        (VP (VBZ is) (NP-PRD (NN chairman)))
    0,1 PER|0,0 FIRST|1,1 NAME

Both kinds of file are called `wsj_0001.mrg`; they stand in two folders with the same names in them. Ends of entities
are **inclusive**. The words of a sentence are the leaves of its tree, those under -NONE- left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from nestree.data.formats.triplets import Record, records, sentence
from nestree.data.io import ConversionReport, read_text
from nestree.errors import DataError, InputError
from nestree.types import Document

PARTS = ("all", "train", "dev", "test")
DEV, TEST = {"02"}, {"23", "24"}  # sections; the others are for training
PIECE = re.compile(r"[()]|[^()\s]+")


def read(path: Path, tally: ConversionReport, *, trees: str = "", part: str = "all") -> Iterator[Document]:
    """The documents of a folder of stand-off files (and the folders in it), or of one such file.

    trees: the folder of the Penn Treebank's `.mrg` files, in which names are as in the stand-off folder; for one
    stand-off file, one file of trees. Without it, words are their numbers. part: "train", "dev" (section 02),
    "test" (sections 23 and 24) or "all".
    """
    if part not in PARTS:
        raise InputError(f"part is one of {', '.join(PARTS)}, not {part!r}.")
    for file in files(path):
        section = section_of(file)
        if part != "all" and part != ("dev" if section in DEV else "test" if section in TEST else "train"):
            continue
        if not trees:
            tally.note("words not known without the trees: their numbers instead", str(file))
        try:
            yield document(file, beside(file, path, Path(trees)) if trees else None, tally)
        except DataError as error:
            tally.bad(error)


def files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.mrg"))
    if not found:
        raise DataError(
            f"{path} holds no .mrg file. NNE is a folder of sections, 00 to 24, with wsj_0001.mrg in them."
        )
    return found


def section_of(path: Path) -> str:
    """The section of a file: the digits in its name, or the folder it is in."""
    digits = re.search(r"wsj_(\d\d)\d\d", path.name)
    return digits[1] if digits else path.parent.name


def beside(file: Path, path: Path, trees: Path) -> Path:
    """The trees of a stand-off file: the same name in the folder of trees."""
    if not trees.exists():
        raise InputError(f"{trees} does not exist. `trees` is the folder of the Penn Treebank's .mrg files.")
    if not trees.is_dir():
        return trees
    places = [
        trees / file.relative_to(path if path.is_dir() else path.parent),
        trees / section_of(file) / file.name,
    ]
    for place in places:
        if place.exists():
            return place
    raise DataError(f"{places[0]} does not exist: {file} has no trees.")


def document(file: Path, trees: Path | None, tally: ConversionReport) -> Document:
    if read_text(file)[:200].lstrip().startswith("("):
        raise DataError(
            f"{file}:1: this file holds trees. Give the stand-off folder first, and this one as `trees`."
        )
    found = list(records(file, tally))
    sentences = list(leaves(trees)) if trees else [(0, record.words, record.tags or []) for record in found]
    if len(sentences) != len(found):
        raise DataError(f"{file} has {len(found)} sentences, and {trees} has {len(sentences)} trees.")
    made = []
    for record, (line, words, tags) in zip(found, sentences, strict=True):
        try:
            check(record, words, f"{file}:{record.line}", f"{trees}:{line}")
            if record.tags is not None and record.tags != tags:
                tally.note(
                    "part-of-speech tags differ from those of the tree: the latter kept",
                    f"{file}:{record.line}",
                )
            whole = Record(words, tags or None, record.entities, record.line)
            made.append(sentence(whole, file, "inclusive", ""))
        except DataError as error:
            tally.bad(error)
    return Document(tuple(made), None, file.stem)


def check(record: Record, words: list[str], place: str, tree: str) -> None:
    if record.words != [str(k) for k in range(len(record.words))]:
        raise DataError(f"{place}: the first line of an NNE sentence numbers its words: 0 1 2 ...")
    if len(words) != len(record.words):
        raise DataError(
            f"{place}: this sentence has {len(record.words)} words, and its tree at {tree} has {len(words)}."
        )


def leaves(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """The line, the words and the tags of each tree of a file; what is under -NONE- is left out."""
    depth, begin = 0, 0
    words: list[str] = []
    tags: list[str] = []
    before = ["", ""]  # the last two pieces
    text = read_text(path)
    line, at = 1, 0
    for match in PIECE.finditer(text):
        piece = match[0]
        line, at = line + text.count("\n", at, match.start()), match.start()
        if piece == "(":
            if depth == 0:
                begin, words, tags = line, [], []
            depth += 1
        elif piece == ")":
            depth -= 1
            if depth < 0:
                raise DataError(f"{path}:{line}: there is one closing bracket too many.")
            if depth == 0:
                yield begin, words, tags
        elif depth == 0:
            raise DataError(
                f"{path}:{line}: {piece!r:.40} is outside of any tree. Expected: ( (S (NP ...) ...) )."
            )
        elif before[0] == "(" and before[1] not in ("(", ")", "-NONE-"):
            words.append(piece)
            tags.append(before[1])
        before = [before[1], piece]
    if depth:
        raise DataError(f"{path}:{begin}: this tree is not closed.")
