"""GUM, and other CoNLL-U with `Entity=` in its last column:

    # global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
    1  Emperor  ...  Entity=(1-person-new-sssss-cf1-1,2-coref-Emperor_Norton
    2  Norton   ...  Entity=1)

The head of an entity comes from the tree: the word of its span, punctuation aside, whose own head lies outside. Where
several words are such, `head` is None and `heads` has them all. Sentences keep their tree in `extra` (`dep_heads` with
-1 for the root, `deprel`, `upos`), entities `min`, `infstat`, `named` and `identity`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.io import ConversionReport, check_nesting, lines_or_errors, optional_import
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence, Span, shift_sentence

FIELDS = "GRP-etype-infstat-salience-centering-minspan-link-identity"
NEW_DOCUMENT = re.compile(r"^#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*$", re.M)
BRACKET = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
FRAGMENT = re.compile(r"(.*)\[(\d+)/(\d+)\]")


class Word(NamedTuple):
    form: str
    upos: str
    head: int  # a word of the sentence, from 0; -1: the root
    deprel: str
    entity: str


def read(path: Path, tally: ConversionReport) -> Iterator[Document]:
    """The documents of a `.conllu` file, or of a folder (and the folders in it) in the order of their names."""
    files = sorted(path.rglob("*.conllu")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no .conllu file.")
    for file in files:
        try:
            yield from documents(file, tally)
        except DataError as error:
            tally.bad(error)


def documents(path: Path, tally: ConversionReport) -> Iterator[Document]:
    """The documents of a file: from one `# newdoc` to the next; without any, each sentence."""
    id: str | None = None
    told = False  # where documents begin
    fields = FIELDS.split("-")
    group: list[tuple[Sentence, bool]] = []  # and whether a paragraph begins
    for line, block in blocks(path, tally):
        newdoc = NEW_DOCUMENT.search(block)  # also of a sentence that cannot be read
        if newdoc or not told:
            if group:
                yield gathered(group, id)
            id, group, told = newdoc and newdoc[1], [], told or bool(newdoc)
        try:
            metadata, words = parsed(block, f"{path}:{line}", tally)
            fields = metadata.get("global.Entity", "-".join(fields)).split("-")
            sentence = with_entities(metadata, words, fields, f"{path}:{line}", tally)
            group.append((sentence, "newpar" in metadata or "newpar id" in metadata))
        except DataError as error:
            tally.bad(error)
    if group:
        yield gathered(group, id)


def blocks(path: Path, tally: ConversionReport) -> Iterator[tuple[int, str]]:
    """The lines of each sentence, and the number of the first; of one with a line that cannot be read, none."""
    block: list[str] = []
    good, number = True, 0
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            tally.bad(line)
            good = False
        elif line.strip():
            block.append(line)
        else:
            if block and good:
                yield number - len(block), "\n".join(block)
            block, good = [], True
    if block and good:
        yield number + 1 - len(block), "\n".join(block)


def parsed(block: str, place: str, tally: ConversionReport) -> tuple[dict[str, str], list[Word]]:
    """The comments and the words of a sentence; empty nodes are counted, and multi-word tokens are their words."""
    conllu = optional_import("conllu", "CoNLL-U", "formats")
    try:
        (sentence,) = conllu.parse(block + "\n\n")
        words: list[Word] = []
        for token in sentence:
            if not isinstance(token["id"], int):
                if token["id"][1] == ".":
                    tally.note("empty nodes not read", place)
                continue
            if token["id"] != len(words) + 1:
                raise DataError(
                    f"{place}: word {len(words) + 1} of this sentence has the number {token['id']}."
                )
            misc = token["misc"] if isinstance(token["misc"], dict) else {}
            head = -1 if token["head"] is None else token["head"] - 1
            words.append(
                Word(
                    token["form"],
                    token["upos"] or "_",
                    head,
                    token["deprel"] or "_",
                    misc.get("Entity") or "",
                )
            )
    except (conllu.exceptions.ParseException, KeyError, TypeError, ValueError, IndexError) as why:
        if isinstance(why, DataError):
            raise
        raise DataError(
            f"{place}: this sentence is not CoNLL-U: {str(why)[:120] or type(why).__name__}."
        ) from None
    if not words:
        raise DataError(f"{place}: this sentence has no words.")
    if any(
        token[name] not in (None, "_") for token in sentence for name in ("lemma", "xpos", "feats", "deps")
    ):
        tally.note("lemmas, fine tags, features and enhanced trees not read", place)
    return {key: value or "" for key, value in sentence.metadata.items()}, words


def with_entities(
    metadata: dict[str, str], words: list[Word], fields: list[str], place: str, tally: ConversionReport
) -> Sentence:
    text = metadata.get("text")
    offsets = found_in([word.form for word in words], text) if text else None
    if text and offsets is None:
        tally.note("texts not kept: the words do not follow each other in them", place)
    try:
        return Sentence(
            tuple(word.form for word in words),
            tuple(entities(words, fields, place, tally)),
            text if offsets else None,
            offsets,
            id=metadata.get("sent_id"),
            extra={
                "dep_heads": [word.head for word in words],
                "deprel": [word.deprel for word in words],
                "upos": [word.upos for word in words],
            },
        )
    except DataError as error:
        raise error if str(error).startswith(place) else error.at(place) from None


def entities(words: list[Word], fields: list[str], place: str, tally: ConversionReport) -> list[Entity]:
    """The entities of a sentence, the outer first."""
    found: list[Entity] = []
    running: list[tuple[str, int, list[str]]] = []  # group, start, values
    parts: dict[str, int] = {}  # where entities in fragments begin
    for k, word in enumerate(words):
        if BRACKET.sub("", word.entity):
            raise DataError(
                f"{place}: word {k + 1} has brackets that cannot be read: Entity={word.entity:.60}."
            )
        for opened, closed, closing in BRACKET.findall(word.entity):
            if opened:
                values = opened.split("-", len(fields) - 1)
                running.append((values[0], k, values))
                check_nesting([(start, k + 1) for _, start, _ in running], place)
            if not (closed or closing):
                continue
            name = closing or running[-1][0]
            which = next((x for x in reversed(range(len(running))) if running[x][0] == name), None)
            if which is None:
                raise DataError(f"{place}: word {k + 1} closes entity {name:.40}, which was not opened.")
            _, start, values = running.pop(which)
            if fragment := FRAGMENT.fullmatch(name):
                start = parts.setdefault(fragment[1], start)
                if fragment[2] != fragment[3]:
                    continue
                del parts[fragment[1]]
                tally.note("fragments joined: the entity holds what is between them, too", place)
            found.append(entity(start, k + 1, dict(zip(fields, values, strict=False)), words, place))
    if found and "GRP" in fields:
        tally.note("coreference not read", place)
    if running or parts:
        name = running[0][0] if running else next(iter(parts))
        raise DataError(f"{place}: entity {name:.40} is not closed in this sentence.")
    return sorted(found, key=lambda entity: (entity.start, -entity.end))


def entity(start: int, end: int, values: dict[str, str], words: list[Word], place: str) -> Entity:
    if not values.get("etype"):
        raise DataError(f"{place}: entity {start}-{end} has no type: {'-'.join(values.values()):.60}.")
    heads = [k for k in range(start, end) if words[k].upos != "PUNCT" and not start <= words[k].head < end]
    extra: dict[str, Any] = {"identity": values["identity"]} if "identity" in values else {}
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", values.get("minspan", "")):
        extra["min"] = [start + int(number) - 1 for number in values["minspan"].split(",")]
    if "infstat" in values:
        extra["infstat"] = values["infstat"]
    if "GRP" in values:
        extra["named"] = "identity" in values
    return Entity(
        start,
        end,
        values["etype"],
        heads[0] if len(heads) == 1 else None,
        heads=tuple(heads) if len(heads) > 1 else (),
        extra=extra,
    )


def found_in(words: list[str], text: str) -> tuple[Span, ...] | None:
    """Where the words stand in the text, one after the other with at most blanks between them."""
    found, at = [], 0
    for word in words:
        start = text.find(word, at)
        if start < 0 or text[at:start].strip():
            return None
        at = start + len(word)
        found.append((start, at))
    return None if text[at:].strip() else tuple(found)


def gathered(group: list[tuple[Sentence, bool]], id: str | None) -> Document:
    """One document; its text is that of its sentences, an empty line before each paragraph."""
    sentences = tuple(sentence for sentence, _ in group)
    if any(sentence.text is None for sentence in sentences):
        return Document(sentences, None, id)
    text, placed = "", []
    for sentence, begins in group:
        text += "" if not text else "\n\n" if begins else " "
        placed.append(shift_sentence(sentence, len(text)))
        text += sentence.text or ""
    return Document(tuple(placed), text, id)
