"""Dividing a data set into parts, such as train, dev and test.

`units` makes the pieces that stay together: sentences, or documents. One of `in_order`, `shuffled`, `stratified` and
`listed` names a part for each of them. `assembled` makes the parts, each in the order of the data.

>>> from nestree.types import Document, Sentence
>>> documents = [Document((Sentence(("Yes",)), Sentence(("No",))), id=name) for name in "abcde"]
>>> sizes({"train": 81, "dev": 9, "test": 10}, 18546)
{'train': 15022, 'dev': 1669, 'test': 1855}
>>> pieces = units(documents, by="document")
>>> parts = assemble_parts(pieces, split_in_order(pieces, {"train": 4, "dev": 1}))
>>> [document.id for document in parts["dev"]]
['e']
"""

import difflib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.formats import write
from nestree.data.io import ConversionReport, atomic_path
from nestree.errors import InputError
from nestree.types import Document

BY = ("sentence", "document")
ENDINGS = {
    "jsonl": ".jsonl",
    "columns": ".iob2",
    "triplets": ".data",
    "label-studio": ".json",
    "doccano": ".jsonl",
    "prodigy": ".jsonl",
    "spacy": ".spacy",
    "pubtator": ".pubtator",
    "bioc": ".xml",
}  # of folders: none
TRIES_PER_UNIT = 20  # to let units change places; after that, little is gained
FEWEST_TRIES = 10_000


class Unit(NamedTuple):
    """What stays together: a document, or a document of a single sentence."""

    id: str | None
    documents: tuple[Document, ...]  # several if a document turns up in several places


def units(documents: Iterable[Document], by: str, tally: ConversionReport | None = None) -> list[Unit]:
    """The pieces of these documents, in their order."""
    if by not in BY:
        raise InputError(f"a split is by sentence or by document, not by {by!r}.")
    if by == "sentence":
        documents = list(documents)
        for document in documents:
            if tally and document.text is not None:
                tally.note("texts of documents taken apart into their sentences", f"{document.id}")
        return [
            Unit(sentence.id, (Document((replace(sentence, start=0),), None, document.id, document.extra),))
            for document in documents
            for sentence in document.sentences
        ]
    found: dict[str, list[Document]] = {}
    for document in documents:
        if document.id is None:
            raise InputError(
                "this data names no documents, so it cannot be split by document; split by sentence."
            )
        found.setdefault(document.id, []).append(document)
    return [Unit(name, tuple(pieces)) for name, pieces in found.items()]


def sizes(ratios: Mapping[str, float], total: int) -> dict[str, int]:
    """How many of `total` units each part gets: the nearest whole numbers that add up."""
    for name, ratio in ratios.items():
        if not (math.isfinite(ratio) and ratio > 0):
            raise InputError(f"part {name} has the share {ratio}: give a number greater than 0.")
    whole = sum(ratios.values())
    if not math.isfinite(whole):
        raise InputError(
            f"the shares {', '.join(map(str, ratios.values()))} are too large to be added. Give smaller ones."
        )
    exact = {name: total * ratio / whole for name, ratio in ratios.items()}
    found = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[: total - sum(found.values())]:
        found[name] += 1
    empty = [name for name, size in found.items() if not size]
    if empty:
        raise InputError(
            f"part {empty[0]} would get nothing: there are only {total} units to divide. Choose fewer parts or other "
            "shares or, if these are documents, split by sentence."
        )
    return found


def split_in_order(pieces: Sequence[Unit], ratios: Mapping[str, float]) -> list[str]:
    """The first part gets the first units, and so on."""
    return [name for name, size in sizes(ratios, len(pieces)).items() for _ in range(size)]


def split_shuffled(pieces: Sequence[Unit], ratios: Mapping[str, float], seed: int = 0) -> list[str]:
    """Each part gets units at random; the same seed, the same ones."""
    names = split_in_order(pieces, ratios)
    random.Random(seed).shuffle(names)
    return names


def split_stratified(pieces: Sequence[Unit], ratios: Mapping[str, float], seed: int = 0) -> list[str]:
    """At random, such that each part gets its share of the sentences and of the entities of each label.

    Starts from `shuffled`, and lets pairs of units change places where that brings the shares nearer.
    """
    names = split_shuffled(pieces, ratios, seed)
    contents = [content(unit) for unit in pieces]
    room = sizes(ratios, len(pieces))
    totals = sum(contents, Counter[str | None]())
    due = {name: {key: n * size / len(pieces) for key, n in totals.items()} for name, size in room.items()}
    excess = {name: {key: -n for key, n in shares.items()} for name, shares in due.items()}
    for name, counts in zip(names, contents, strict=True):
        for key, n in counts.items():
            excess[name][key] += n

    chance = random.Random(seed)
    for _ in range(max(TRIES_PER_UNIT * len(pieces), FEWEST_TRIES)):
        a, b = int(chance.random() * len(pieces)), int(chance.random() * len(pieces))
        one, other = names[a], names[b]
        if one == other:
            continue
        change = {
            key: contents[b][key] - contents[a][key]
            for key in contents[a] | contents[b]
            if contents[a][key] != contents[b][key]
        }  # what `one` gains and `other` loses
        worse = sum(
            n * (n + 2 * excess[one][key]) / (due[one][key] * totals[key])
            + n * (n - 2 * excess[other][key]) / (due[other][key] * totals[key])
            for key, n in change.items()
        )
        if worse < 0:
            names[a], names[b] = other, one
            for key, n in change.items():
                excess[one][key] += n
                excess[other][key] -= n
    return names


def content(unit: Unit) -> Counter[str | None]:
    """How many entities of each label, and how many sentences (None), are in a unit."""
    counts: Counter[str | None] = Counter()
    for document in unit.documents:
        counts[None] += len(document.sentences)
        for sentence in document.sentences:
            counts.update(entity.label for entity in sentence.entities)
    return counts


def split_by_lists(
    pieces: Sequence[Unit], lists: Mapping[str, Iterable[str]], rest: str | None = None
) -> list[str]:
    """Each part gets the units whose ids are in its list, and `rest` whatever is in none."""
    part_of: dict[str, str] = {}
    for name, ids in lists.items():
        ids = list(ids)
        if not ids:
            raise InputError(f"the list of {name} is empty. Name the units that are to be in it.")
        for each in ids:
            if part_of.setdefault(each, name) != name:
                raise InputError(f"{each!r} is in the list of {part_of[each]} and in that of {name}.")
    known = ids_of(pieces)
    for each, name in part_of.items():
        check_listed(each, known, f"the list of {name}")
    left = [unit.id for unit in pieces if unit.id not in part_of]
    if left and rest is None:
        raise InputError(
            f"{len(left)} units are in no list, {left[0]!r} first. Say which part gets the rest."
        )
    return [part_of.get(unit.id or "", rest or "") for unit in pieces]


def ids_of(pieces: Iterable[Unit]) -> set[str]:
    return {unit.id for unit in pieces if unit.id is not None}


def check_listed(id: str, known: Set[str], place: str) -> None:
    """What is in a list is in the data."""
    if id not in known:
        near = difflib.get_close_matches(id, sorted(known), n=1)
        hint = f"Is {near[0]!r} meant?" if near else "Take it out, or say with --by what the ids name."
        raise InputError(f"{place}: {id!r} is not in the data. {hint}")


def assemble_parts(
    pieces: Sequence[Unit], names: Sequence[str], first: Iterable[str] = ()
) -> dict[str, list[Document]]:
    """The parts: their units in the order of the data, sentences of one document together where they meet.

    The parts named in `first` come first.
    """
    parts: dict[str, list[Document]] = {name: [] for name in (*first, *names)}
    for unit, name in zip(pieces, names, strict=True):
        for document in unit.documents:
            last = parts[name][-1] if parts[name] else None
            if (
                last
                and document.id is not None
                and document.id == last.id
                and document.text is last.text is None
            ):
                parts[name][-1] = replace(last, sentences=last.sentences + document.sentences)
            else:
                parts[name].append(document)
    return parts


def ending(format: str, source: Path) -> str:
    """What the names of files in a format end with: packed if the source is so.

    >>> ending("jsonl", Path("a.jsonl.gz")), ending("columns", Path("a.jsonl.gz")), ending("brat", Path("a"))
    ('.jsonl.gz', '.iob2', '')
    """
    usual = ENDINGS.get(format, "")
    return usual + ".gz" if usual and source.name.endswith(usual + ".gz") else usual


def write_parts(
    parts: Mapping[str, Iterable[Document]],
    folder: Path,
    format: str,
    tally: ConversionReport,
    ending: str = "",
    **options: Any,
) -> None:
    """A file or folder for each part, named after it, in a new folder: all of them, or none."""
    for name in parts:
        if Path(name).name != name or name in (".", ".."):
            raise InputError(f"{name!r} cannot be the name of a part: it names a file. Choose a plain word.")
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for name, documents in parts.items():
            write(documents, temporary / (name + ending), format, tally, **options)
