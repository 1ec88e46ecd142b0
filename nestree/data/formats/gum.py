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
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.alignment import FRAGMENTS_JOINED
from nestree.data.formats import common
from nestree.data.io import ConversionReport, check_nesting, optional_import
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence

MASKED = "sentences whose words are underscores: the file withholds the text; restore it with the corpus's own script"
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


def read_gum(path: Path, report: ConversionReport) -> Iterator[Document]:
    """The documents of a `.conllu` file, or of a folder (and the folders in it) in the order of their names."""
    for file in common.find_files(path, "*.conllu", "GUM is one such file, or a folder of them."):
        with common.skip_bad(report):
            yield from parse_file(file, report)


def parse_file(path: Path, report: ConversionReport) -> Iterator[Document]:
    """The documents of a file: from one `# newdoc` to the next; without any, each sentence."""
    id: str | None = None
    has_newdoc = False
    fields = FIELDS.split("-")
    sentences: list[tuple[str | None, Sentence]] = []  # with the characters before each
    for lines in common.line_blocks(path, report):
        block = "\n".join(line for _, line in lines)
        newdoc = NEW_DOCUMENT.search(block)  # also of a sentence that cannot be read
        if newdoc or not has_newdoc:
            if sentences:
                yield common.join_sentences(sentences, id, {})
            id, sentences, has_newdoc = newdoc and newdoc[1], [], has_newdoc or bool(newdoc)
        with common.skip_bad(report, f"{path}:{lines[0][0]}"):
            metadata, words = parse_sentence(block, report)
            fields = metadata.get("global.Entity", "-".join(fields)).split("-")
            sentence = to_sentence(metadata, words, fields, report)
            if not "".join(sentence.words).strip("_"):
                report.note(MASKED)
            starts_paragraph = "newpar" in metadata or "newpar id" in metadata
            sentences.append(("" if not sentences else "\n\n" if starts_paragraph else " ", sentence))
    if sentences:
        yield common.join_sentences(sentences, id, {})


def parse_sentence(block: str, report: ConversionReport) -> tuple[dict[str, str], list[Word]]:
    """The comments and the words of a sentence; empty nodes are counted, and multi-word tokens are their words."""
    conllu = optional_import("conllu", "CoNLL-U", "formats")
    words: list[Word] = []
    try:
        (sentence,) = conllu.parse(block + "\n\n")
        for token in sentence:
            if not isinstance(token["id"], int):
                if token["id"][1] == ".":
                    report.note("empty nodes not read")
                continue
            if token["id"] != len(words) + 1:
                raise DataError(f"word {len(words) + 1} of this sentence has the number {token['id']}.")
            misc = token["misc"] if isinstance(token["misc"], dict) else {}
            head = -1 if token["head"] is None else token["head"] - 1
            upos, deprel = token["upos"] or "_", token["deprel"] or "_"
            words.append(Word(token["form"], upos, head, deprel, misc.get("Entity") or ""))
    except DataError:
        raise
    except (conllu.exceptions.ParseException, KeyError, TypeError, ValueError, IndexError) as why:
        raise DataError(f"this sentence is not CoNLL-U: {str(why)[:120] or type(why).__name__}.") from None
    if not words:
        raise DataError("this sentence has no words.")
    columns = ("lemma", "xpos", "feats", "deps")
    if any(token[column] not in (None, "_") for token in sentence for column in columns):
        report.note("lemmas, fine tags, features and enhanced trees not read")
    return {key: value or "" for key, value in sentence.metadata.items()}, words


def to_sentence(
    metadata: dict[str, str], words: list[Word], fields: list[str], report: ConversionReport
) -> Sentence:
    forms, upos, heads, deprels, _ = zip(*words, strict=True)
    text, offsets = metadata.get("text") or None, None
    if text:
        with suppress(DataError):
            offsets = common.locate_words(forms, text)
        if offsets is None or text[offsets[-1][1] :].strip():
            report.note(common.TEXT_NOT_KEPT)
            text = offsets = None
    entities = parse_entities(words, fields, report)
    trees = {"dep_heads": list(heads), "deprel": list(deprels), "upos": list(upos)}
    return Sentence(forms, tuple(entities), text, offsets, id=metadata.get("sent_id"), extra=trees)


def parse_entities(words: list[Word], fields: list[str], report: ConversionReport) -> list[Entity]:
    """The entities of a sentence, the outer first."""
    entities: list[Entity] = []
    open_entities: list[tuple[int, list[str]]] = []  # start, values; the first value is the group
    fragment_starts: dict[str, int] = {}
    for k, word in enumerate(words):
        if BRACKET.sub("", word.entity):
            raise DataError(f"word {k + 1} has brackets that cannot be read: Entity={word.entity:.60}.")
        for opened, is_closed, closed in BRACKET.findall(word.entity):
            if opened:
                open_entities.append((k, opened.split("-", len(fields) - 1)))
                check_nesting([(start, k + 1) for start, _ in open_entities], report.place)
            if not (is_closed or closed):
                continue
            group = closed or open_entities[-1][1][0]
            last = max((x for x, (_, values) in enumerate(open_entities) if values[0] == group), default=None)
            if last is None:
                raise DataError(f"word {k + 1} closes entity {group:.40}, which was not opened.")
            start, values = open_entities.pop(last)
            if fragment := FRAGMENT.fullmatch(group):
                name, number, count = fragment.groups()
                start = fragment_starts.setdefault(name, start)
                if number != count:
                    continue
                del fragment_starts[name]
                report.note(FRAGMENTS_JOINED)
            entities.append(to_entity(start, k + 1, dict(zip(fields, values, strict=False)), words))
    if entities and "GRP" in fields:
        report.note("coreference not read")
    if open_entities or fragment_starts:
        group = open_entities[0][1][0] if open_entities else next(iter(fragment_starts))
        raise DataError(f"entity {group:.40} is not closed in this sentence.")
    return sorted(entities, key=lambda entity: (entity.start, -entity.end))


def to_entity(start: int, end: int, values: dict[str, str], words: list[Word]) -> Entity:
    if not values.get("etype"):
        raise DataError(f"entity {start}-{end} has no type: {'-'.join(values.values()):.60}.")
    heads = [k for k in range(start, end) if words[k].upos != "PUNCT" and not start <= words[k].head < end]
    extra: dict[str, Any] = {"identity": values["identity"]} if "identity" in values else {}
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", values.get("minspan", "")):
        extra["min"] = [start + int(number) - 1 for number in values["minspan"].split(",")]
    if "infstat" in values:
        extra["infstat"] = values["infstat"]
    if "GRP" in values:
        extra["named"] = "identity" in values
    head, several = (heads[0], ()) if len(heads) == 1 else (None, tuple(heads))
    return Entity(start, end, values["etype"], head, None, several, extra)
