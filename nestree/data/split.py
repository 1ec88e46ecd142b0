"""Splits of a data set, such as train, dev and test.

`units` makes the units that stay together: sentences, or documents. `split_in_order`, `split_shuffled`,
`split_stratified` or `split_by_lists` names a part for each unit, and `assemble_parts` makes the parts.

>>> from nestree.types import Document, Sentence
>>> documents = [Document((Sentence(("Yes",)), Sentence(("No",))), id=name) for name in "abcde"]
>>> sizes({"train": 81, "dev": 9, "test": 10}, 18546)
{'train': 15022, 'dev': 1669, 'test': 1855}
>>> documents_by_id = make_units(documents, by="document")
>>> parts = assemble_parts(documents_by_id, split_in_order(documents_by_id, {"train": 4, "dev": 1}))
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

from nestree.data.formats import FORMATS, write
from nestree.data.io import ConversionReport, atomic_path
from nestree.errors import InputError, plural
from nestree.types import Document

BY = ("sentence", "document")
SWAPS_PER_UNIT = 20  # tried by split_stratified; after that, little is gained
MIN_SWAPS = 10_000


class Unit(NamedTuple):
    """A document, or a document of a single sentence, that stays in one part."""

    id: str | None
    documents: tuple[Document, ...]  # several if an id occurs several times


def make_units(documents: Iterable[Document], by: str, report: ConversionReport | None = None) -> list[Unit]:
    """The units of these documents, in their order."""
    if by not in BY:
        raise InputError(f"a split is by sentence or by document, not by {by!r}.")
    if by == "sentence":
        documents = list(documents)
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            if report and document.text is not None:
                report.note("texts of documents taken apart into their sentences", place)
            if report and not document.sentences:
                report.note("documents without sentences left out", place)
        return [
            Unit(sentence.id, (Document((replace(sentence, start=0),), None, document.id, document.extra),))
            for document in documents
            for sentence in document.sentences
        ]
    by_id: dict[str | int, list[Document]] = {}
    for number, document in enumerate(documents):
        if document.id is document.text is None:
            raise InputError("this data names no documents, so it cannot be split by document; split by sentence.")
        by_id.setdefault(number if document.id is None else document.id, []).append(document)
    return [Unit(same_id[0].id, tuple(same_id)) for same_id in by_id.values()]


def sizes(ratios: Mapping[str, float], total: int) -> dict[str, int]:
    """The number of units of each part: the nearest integers to the shares that add up to `total`."""
    whole = sum(ratios.values())
    for name, ratio in ratios.items():
        if not (math.isfinite(ratio) and ratio > 0):
            raise InputError(f"part {name} has the share {ratio}: give a number greater than 0.")
    if not math.isfinite(whole):
        raise InputError(
            f"the shares {', '.join(map(str, ratios.values()))} are too large to be added. Give smaller ones."
        )
    exact = {name: total * ratio / whole for name, ratio in ratios.items()}
    rounded = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: rounded[name] - exact[name])[: total - sum(rounded.values())]:
        rounded[name] += 1
    empty = [name for name, size in rounded.items() if not size]
    if empty:
        raise InputError(
            f"part {empty[0]} would get nothing of {plural(total, 'unit')}. Choose fewer parts or other shares or, if "
            "these are documents, split by sentence."
        )
    return rounded


def split_in_order(units: Sequence[Unit], ratios: Mapping[str, float]) -> list[str]:
    """The first part gets the first units, and so on."""
    return [name for name, size in sizes(ratios, len(units)).items() for _ in range(size)]


def split_shuffled(units: Sequence[Unit], ratios: Mapping[str, float], seed: int = 0) -> list[str]:
    """Each part gets random units, which depend on the seed."""
    names = split_in_order(units, ratios)
    random.Random(seed).shuffle(names)
    return names


def split_stratified(units: Sequence[Unit], ratios: Mapping[str, float], seed: int = 0) -> list[str]:
    """At random, such that each part gets its share of the sentences and of the entities of each label.

    Starts from `split_shuffled`, and swaps pairs of units where that brings the parts nearer to their shares.
    """
    names = split_shuffled(units, ratios, seed)
    unit_counts = [count_labels(unit) for unit in units]
    totals = sum(unit_counts, Counter[str | None]())
    target = {
        name: {key: n * size / len(units) for key, n in totals.items()}
        for name, size in sizes(ratios, len(units)).items()
    }
    excess = {name: {key: -n for key, n in shares.items()} for name, shares in target.items()}
    for name, counts in zip(names, unit_counts, strict=True):
        for key, n in counts.items():
            excess[name][key] += n

    rng = random.Random(seed)
    for _ in range(max(SWAPS_PER_UNIT * len(units), MIN_SWAPS)):
        a, b = int(rng.random() * len(units)), int(rng.random() * len(units))
        part_a, part_b = names[a], names[b]
        if part_a == part_b:
            continue
        change = {
            key: unit_counts[b][key] - unit_counts[a][key]
            for key in unit_counts[a] | unit_counts[b]
            if unit_counts[a][key] != unit_counts[b][key]
        }  # what part_a gains and part_b loses
        cost = sum(
            n * (n + 2 * excess[part_a][key]) / (target[part_a][key] * totals[key])
            + n * (n - 2 * excess[part_b][key]) / (target[part_b][key] * totals[key])
            for key, n in change.items()
        )
        if cost < 0:
            names[a], names[b] = part_b, part_a
            for key, n in change.items():
                excess[part_a][key] += n
                excess[part_b][key] -= n
    return names


def count_labels(unit: Unit) -> Counter[str | None]:
    """The number of entities of each label and, under None, of sentences."""
    counts: Counter[str | None] = Counter()
    for document in unit.documents:
        counts[None] += len(document.sentences)
        for sentence in document.sentences:
            counts.update(entity.label for entity in sentence.entities)
    return counts


def split_by_lists(units: Sequence[Unit], lists: Mapping[str, Iterable[str]], rest: str | None = None) -> list[str]:
    """Each part gets the units whose ids are in its list, and the part `rest` all others."""
    part_of: dict[str, str] = {}
    for name, ids in lists.items():
        ids = list(ids)
        if not ids:
            raise InputError(f"the list of {name} is empty. Name the units that are to be in it.")
        for id in ids:
            if part_of.setdefault(id, name) != name:
                raise InputError(
                    f"{id!r} is in the list of {part_of[id]} and in that of {name}. Take it out of one of them."
                )
    known = {unit.id for unit in units}
    for id, name in part_of.items():
        check_listed(id, known, f"the list of {name}")
    unlisted = [unit.id for unit in units if unit.id not in part_of]
    if unlisted and rest is None:
        raise InputError(f"{len(unlisted)} units are in no list, {unlisted[0]!r} first. Say which part gets the rest.")
    return [part_of.get(unit.id or "", rest or "") for unit in units]


def check_listed(id: str, known: Set[str | None], place: str) -> None:
    """Raise if an id of a list is not in the data."""
    if id not in known:
        similar = difflib.get_close_matches(id, sorted(filter(None, known)), n=1)
        hint = f"Is {similar[0]!r} meant?" if similar else "Take it out, or say with --by what the ids name."
        raise InputError(f"{place}: {id!r} is not in the data. {hint}")


def assemble_parts(units: Sequence[Unit], names: Sequence[str], first: Iterable[str] = ()) -> dict[str, list[Document]]:
    """The documents of each part, in the order of the data; the parts named in `first` come first.

    Adjacent sentences of one document become one document again.
    """
    parts: dict[str, list[Document]] = {name: [] for name in (*first, *names)}
    for unit, name in zip(units, names, strict=True):
        for document in unit.documents:
            part = parts[name]
            same_id = part and document.id is not None and part[-1].id == document.id
            if same_id and document.text is part[-1].text is None:
                part[-1] = replace(part[-1], sentences=part[-1].sentences + document.sentences)
            else:
                part.append(document)
    return parts


def ending(format: str, source: Path) -> str:
    """The ending of file names in a format, with .gz if the source has it.

    >>> ending("jsonl", Path("a.jsonl.gz")), ending("columns", Path("a.jsonl.gz")), ending("brat", Path("a"))
    ('.jsonl.gz', '.iob2', '')
    """
    usual = FORMATS[format].ending
    return usual + ".gz" if usual and source.name.endswith(usual + ".gz") else usual


def write_parts(
    parts: Mapping[str, Iterable[Document]],
    folder: Path,
    format: str,
    report: ConversionReport,
    ending: str = "",
    **options: Any,
) -> None:
    """Write each part to a file or folder named after it, in a new folder: all of them, or none."""
    for name in parts:
        if Path(name).name != name or name in (".", ".."):
            raise InputError(f"{name!r} cannot be the name of a part: it names a file. Choose a plain word.")
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for name, documents in parts.items():
            write(documents, temporary / (name + ending), format, report, **options)
