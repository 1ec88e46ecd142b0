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

from nestree.data.formats.common import check_choice, find_files, skip_bad
from nestree.data.formats.triplets import parse_records, to_sentence
from nestree.data.io import ConversionReport, read_text
from nestree.errors import DataError, InputError
from nestree.types import Document

DEV, TEST = {"02"}, {"23", "24"}  # sections; the others are for training
TOKEN = re.compile(r"[()]|[^()\s]+")


def read(path: Path, report: ConversionReport, *, trees: str = "", part: str = "all") -> Iterator[Document]:
    """The documents of a folder of stand-off files (and the folders in it), or of one such file.

    trees: the folder of the Penn Treebank's `.mrg` files, in which names are as in the stand-off folder; for one
    stand-off file, one file of trees. Without it, words are their numbers. part: "train", "dev" (section 02),
    "test" (sections 23 and 24) or "all".
    """
    check_choice("part", part, ("all", "train", "dev", "test"))
    layout = "NNE is a folder of sections, 00 to 24, with wsj_0001.mrg in them."
    if trees and not Path(trees).exists():
        raise InputError(f"{trees} does not exist. `trees` is the folder of the Penn Treebank's .mrg files.")
    without_trees, has_trees = [], False
    for file in find_files(path, "*.mrg", layout):
        digits = re.search(r"wsj_(\d\d)\d\d", file.name)
        section = digits[1] if digits else file.parent.name
        if part not in ("all", "dev" if section in DEV else "test" if section in TEST else "train"):
            continue
        tree_file = None
        if not trees:
            report.note("words not known without the trees: their numbers instead", str(file))
        elif (tree_file := find_trees(file, path, Path(trees), section)) is None:
            without_trees.append(file)
            continue
        with skip_bad(report):
            has_trees = True
            yield read_document(file, tree_file, report)
    for file in without_trees:
        if not has_trees:
            raise DataError(
                f"{Path(trees) / file.name} does not exist: {file} has no trees, and no other file has."
            )
        report.note("documents without trees left out", str(file))


def find_trees(file: Path, path: Path, trees: Path, section: str) -> Path | None:
    """The trees of a stand-off file: the same name in the folder of trees, in the same section or in none."""
    if not trees.is_dir():
        return trees
    same_place = trees / file.relative_to(path if path.is_dir() else path.parent)
    candidates = (same_place, trees / section / file.name, trees / file.name)
    return next((candidate for candidate in candidates if candidate.exists()), None)


def read_document(file: Path, trees: Path | None, report: ConversionReport) -> Document:
    if read_text(file)[:200].lstrip().startswith("("):
        raise DataError(
            f"{file}:1: this file holds trees. Give the stand-off folder first, and this one as `trees`."
        )
    records = list(parse_records(file, report))
    leaves = [(0, record.words, record.tags or []) for record in records]
    if trees:
        leaves = list(parse_leaves(trees))
    if len(leaves) != len(records):
        raise DataError(f"{file} has {len(records)} sentences, and {trees} has {len(leaves)} trees.")
    sentences = []
    for record, (tree_line, words, tags) in zip(records, leaves, strict=True):
        with skip_bad(report, f"{file}:{record.line}"):
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


def parse_leaves(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
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
            raise DataError(
                f"{path}:{line}: {token!r:.40} is outside of any tree. Expected: ( (S (NP ...) ...) )."
            )
        elif previous[0] == "(" and previous[1] not in ("(", ")", "-NONE-"):
            words.append(token)
            tags.append(previous[1])
        previous = [previous[1], token]
    if depth:
        raise DataError(f"{path}:{first_line}: this tree is not closed.")
