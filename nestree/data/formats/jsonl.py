"""The trees of sentences as JSON objects, checked when they are read.

{"spans": [[0, 2, 1], [0, 1, 0], [1, 2, 1]], "arcs": [[1, 0]], "root": 1, "probabilities": [1.0, 1.0, 1.0]}
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nestree.data.alignment import CharacterSpan, align_spans
from nestree.data.io import ConversionReport, atomic_writer, lines_or_errors, parse_json
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence, Tree, char_span, shift_sentence

TREE_KEYS = {"spans", "arcs", "root", "probabilities"}


def from_tree(given: Any, n: int, place: str) -> Tree | None:
    """The tree of a sentence of n words."""
    if given is None:
        return None
    if not isinstance(given, dict) or "spans" not in given or not given.keys() <= TREE_KEYS:
        raise DataError(
            f"{place}: `tree` must be an object with spans, arcs, root and probabilities, and is {given!r:.60}. "
            "If it is something else, give it another name."
        )
    chances = given.get("probabilities", [])
    if not isinstance(chances, list) or not all(type(p) in (int, float) and 0 <= p <= 1 for p in chances):
        raise DataError(
            f"{place}: `probabilities` of `tree` must be numbers from 0 to 1, and are {chances!r:.60}."
        )
    tree = Tree(
        tuple((i, j, h) for i, j, h in lists(given["spans"], 3, "spans", place)),
        tuple((h, m) for h, m in lists(given.get("arcs", []), 2, "arcs", place)),
        given.get("root"),
        tuple(chances),
    )
    check_tree(tree, n, place)
    return tree


def check_tree(tree: Tree, n: int, place: str) -> None:
    for i, j, head in tree.spans:
        if not (are_words(n, i) and type(j) is int and i < j <= n):
            raise DataError(
                f"{place}: {[i, j, head]} of `tree` is no span of the sentence, which has {n} words."
            )
        if head is not None and not (type(head) is int and i <= head < j):
            raise DataError(
                f"{place}: the head of {[i, j, head]} of `tree` must be one of its words, or null."
            )
    for head, modifier in tree.arcs:
        if not are_words(n, head, modifier):
            raise DataError(f"{place}: {[head, modifier]} of `tree` is no arc between words 0 to {n - 1}.")
    if tree.root is not None and not are_words(n, tree.root):
        raise DataError(f"{place}: `root` of `tree` must be a word, 0 to {n - 1}, and is {tree.root!r:.40}.")
    if tree.probabilities and len(tree.probabilities) != len(tree.spans):
        raise DataError(
            f"{place}: `tree` has {len(tree.spans)} spans and {len(tree.probabilities)} probabilities. Give one for "
            "each span, or none."
        )


def lists(given: Any, length: int, name: str, place: str) -> list[list[Any]]:
    if not isinstance(given, list) or not all(isinstance(x, list) and len(x) == length for x in given):
        raise DataError(
            f"{place}: `{name}` of `tree` must be lists of {length} words, and are {given!r:.60}."
        )
    return given


def are_words(n: int, *given: Any) -> bool:
    return all(type(word) is int and 0 <= word < n for word in given)


def to_tree(tree: Tree) -> dict[str, Any]:
    record: dict[str, Any] = {"spans": [list(span) for span in tree.spans]}
    if tree.arcs:
        record["arcs"] = [list(arc) for arc in tree.arcs]
    if tree.root is not None:
        record["root"] = tree.root
    if tree.probabilities:
        record["probabilities"] = list(tree.probabilities)
    return record


ENTITY_KEYS = {"start", "end", "label", "head", "heads", "score"}
DOCUMENT_KEYS = {
    "text",
    "label",
    "labels",
    "score",
    "depth",
    "parent",
}  # of Document.to_dict, which follow from others
SENTENCE_KEYS = {
    "tokens", "words", "entities", "doc_id", "sent_id", "text", "offsets", "complete", "before", "after",
    "continues", "document", "tree",
}  # fmt: skip

NOT_BY_CHARACTERS = (
    "ids of sentences",
    "further keys of sentences",
    "borders of words",
    "borders of sentences",
)

ENTITIES_ELSEWHERE = {
    "label": "doccano",
    "labels": "doccano",
    "spans": "prodigy",
    "ner": "research-json",
    "ners": "research-json",
    "entity_mentions": "research-json",
}


def read(
    path: Path, tally: ConversionReport, *, words: str = "treebank", sentences: str = "rules"
) -> Iterator[Document]:
    """The documents of a file of JSON lines.

    words, sentences: how lines that have a text and no words are split (see nestree.text).
    """
    group: list[tuple[Sentence, dict[str, Any]]] = []
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            tally.bad(line)
            continue
        if not line or line.isspace():
            continue
        place = f"{path}:{number}"
        try:
            record = parse_json(line, place)
            if not isinstance(record, dict):
                raise DataError(f"{place}: a line must be a JSON object {{...}}, and is {line[:40]!r}.")
            check_keys(record, place)
            if "tokens" not in record and "words" not in record:
                if group:
                    yield gathered(group)
                    group = []
                document = from_text(record, place, words, sentences, tally)
                tally.texts += 1
                yield document
                continue
            sentence = from_record(record, place)
        except DataError as error:
            tally.bad(error)
            continue
        if sentence.text is None and "offsets" in record:
            tally.note("offsets not kept: the line has no text", place)
        if group and not continues(record, group[-1][1]):
            yield gathered(group)
            group = []
        group.append((sentence, record))
    if group:
        yield gathered(group)


def check_keys(record: dict[str, Any], place: str) -> None:
    """Entities under the key of another format would be lost in silence."""
    if "entities" in record:
        return
    lists = [key for key, value in record.items() if isinstance(value, list) and key not in SENTENCE_KEYS]
    near = difflib.get_close_matches("entities", lists, 1, 0.7)
    if near:
        raise DataError(
            f"{place}: this line has no `entities`, but `{near[0]}`. If that is meant, write `entities`."
        )
    found = [key for key in ENTITIES_ELSEWHERE if key in lists]
    if found:
        raise DataError(
            f"{place}: this line has no `entities`, but `{found[0]}`, as {ENTITIES_ELSEWHERE[found[0]]} has. Name "
            "the format of the file, and do not mix formats in it."
        )


def continues(record: dict[str, Any], last: dict[str, Any]) -> bool:
    """Does this line belong to the document of the last one?"""
    told = record.get("continues")
    if told is not None:
        return bool(told)
    return record.get("doc_id") is not None and record["doc_id"] == last.get("doc_id")


def gathered(group: list[tuple[Sentence, dict[str, Any]]]) -> Document:
    """The document that these lines make; its text is known if each says what stands before it."""
    first, last = group[0][1], group[-1][1]
    id, extra = name(first.get("doc_id")), first.get("document")
    extra = extra if isinstance(extra, dict) else {}
    sentences = [sentence for sentence, _ in group]
    if not all(sentence.text is not None and isinstance(r.get("before"), str) for sentence, r in group):
        return Document(tuple(sentences), None, id, extra)
    text, placed = "", []
    for sentence, record in group:
        text += record["before"]
        placed.append(shift_sentence(sentence, len(text)))
        text += sentence.text or ""
    after = last.get("after")
    return Document(tuple(placed), text + (after if isinstance(after, str) else ""), id, extra)


def from_record(record: dict[str, Any], place: str) -> Sentence:
    """The sentence of a line that has words."""
    words = record.get("tokens", record.get("words"))
    if not isinstance(words, list):
        raise DataError(f"{place}: `tokens` must be a list of words, and is {words!r:.40}.")
    text = record.get("text")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: `text` must be a string, and is {text!r:.40}.")
    entities = [from_object(entity, place) for entity in objects(record, place)]
    complete = is_complete(record, place)
    places = None if text is None else offsets(record.get("offsets"), words, text, place)
    tree = from_tree(record.get("tree"), len(words), place)
    try:
        return Sentence(
            tuple(words),
            tuple(entities),
            text,
            places,
            0,
            name(record.get("sent_id")),
            complete,
            {key: value for key, value in record.items() if key not in SENTENCE_KEYS},
            tree,
        )
    except DataError as error:
        raise error.at(place) from None


def is_complete(record: dict[str, Any], place: str) -> bool:
    complete = record.get("complete", True)
    if not isinstance(complete, bool):
        raise DataError(f"{place}: `complete` must be true or false, and is {complete!r:.40}.")
    return complete


def objects(record: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """The objects of the entities of a line."""
    found = record.get("entities", [])
    if not isinstance(found, list) or not all(isinstance(entity, dict) for entity in found):
        raise DataError(
            f"{place}: `entities` must be a list of objects with start, end and label, and is {found!r:.60}."
        )
    for entity in found:
        for key in ("start", "end", "label"):
            if key not in entity:
                raise DataError(f"{place}: an entity has no `{key}`: {entity!r:.60}.")
    return found


def from_object(entity: dict[str, Any], place: str) -> Entity:
    heads = entity.get("heads") or ()
    if not isinstance(heads, list | tuple):
        raise DataError(f"{place}: `heads` must be a list of words, and is {heads!r:.40}.")
    extra = {} if entity.keys() <= ENTITY_KEYS else {k: v for k, v in entity.items() if k not in ENTITY_KEYS}
    try:
        return Entity(
            entity["start"],
            entity["end"],
            entity["label"],
            entity.get("head"),
            entity.get("score"),
            tuple(heads),
            extra,
        )
    except DataError as error:
        raise error.at(place) from None


def offsets(given: Any, words: list[str], text: str, place: str) -> tuple[tuple[int, int], ...]:
    """Where the words stand in the text: as the line says, or, if it does not, one after the other."""
    if given is not None:
        if not isinstance(given, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(type(at) is int for at in pair)
            for pair in given
        ):
            raise DataError(f"{place}: `offsets` must be a list of [start, end], and is {given!r:.60}.")
        return tuple((i, j) for i, j in given)
    found, at = [], 0
    for word in words:
        start = text.find(word, at) if isinstance(word, str) else -1
        if start < 0 or (not text[at:start].isspace() and start > at):
            raise DataError(
                f"{place}: word {word!r:.40} does not come next in `text`: {text[at : at + 40]!r}. Give the "
                "`offsets` of the words, or leave out `text`."
            )
        at = start + len(word)
        found.append((start, at))
    return tuple(found)


def from_text(
    record: dict[str, Any], place: str, words: str, sentences: str, tally: ConversionReport
) -> Document:
    """The document of a line that has a text and no words: its entities count characters."""
    text = record.get("text")
    if "text" not in record:
        raise DataError(
            f"{place}: a line needs `tokens` or a `text`, and has {', '.join(record) or 'nothing'}."
        )
    if not isinstance(text, str):
        raise DataError(f"{place}: `text` must be a string, and is {text!r:.60}.")
    known = {"text", "entities", "doc_id", "complete"}
    complete = is_complete(record, place)
    spans = [span for entity in objects(record, place) for span in character_spans(entity, place)]
    if lists := sum("heads" in entity for entity in record.get("entities", [])):
        tally.note("lists of heads not read: in a text, `head` is [start, end]", place, lists)
    document = align_spans(
        text,
        spans,
        id=name(record.get("doc_id")),
        words=words,
        sentences=sentences,
        tally=tally,
        place=place,
        extra={key: value for key, value in record.items() if key not in known},
    )
    if complete:
        return document
    return replace(document, sentences=tuple(replace(s, complete=False) for s in document.sentences))


def character_spans(entity: dict[str, Any], place: str) -> list[CharacterSpan]:
    """One span for each label of an entity."""
    labels = entity.get("labels")
    if not (
        isinstance(labels, list) and labels and all(isinstance(x, dict) and "label" in x for x in labels)
    ):
        return [character_span(entity, place)]
    shared = {key: value for key, value in entity.items() if key not in DOCUMENT_KEYS}
    return [character_span({**shared, **label}, place) for label in labels]


def character_span(entity: dict[str, Any], place: str) -> CharacterSpan:
    start, end, label, head = entity["start"], entity["end"], entity["label"], entity.get("head")
    if isinstance(head, dict):
        head = [head.get("start"), head.get("end")]
    if head is not None and not (isinstance(head, list) and [type(at) for at in head] == [int, int]):
        raise DataError(
            f"{place}: `head` of an entity of a text must be an object with start and end or [start, end], and is "
            f"{entity['head']!r:.40}."
        )
    if type(start) is not int or type(end) is not int:
        raise DataError(
            f"{place}: `start` and `end` must be numbers of characters, and are {start!r:.20}, {end!r:.20}."
        )
    try:
        Entity(0, 1, label, None, entity.get("score"))  # the label and the score are as they should be
    except DataError as error:
        raise error.at(place) from None
    extra = {key: value for key, value in entity.items() if key not in ENTITY_KEYS}
    return CharacterSpan(start, end, label, (head[0], head[1]) if head else None, entity.get("score"), extra)


def name(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def write(documents: Iterable[Document], path: Path, tally: ConversionReport, *, by: str = "words") -> None:
    """One sentence a line; what `read` reads back is equal.

    by: what entities count, "words" or "characters". By characters, a line is a whole document with its text.
    """
    if by not in ("words", "characters"):
        raise InputError(f"entities count words or characters, not {by!r}.")
    noted = losing_words(documents, tally) if by == "characters" else documents
    write_each(((document, by) for document in noted), path, tally)


def losing_words(documents: Iterable[Document], tally: ConversionReport) -> Iterator[Document]:
    """The same; what a line by characters has no place for is counted."""
    for number, document in enumerate(documents, 1):
        place = document.id or f"document {number}"
        report_losses(document, "jsonl by characters", NOT_BY_CHARACTERS, tally, place)
        yield document


def write_each(documents: Iterable[tuple[Document, str]], path: Path, tally: ConversionReport) -> None:
    """Each document by words or by characters, as is said beside it."""
    last: dict[str, Any] = {}
    with atomic_writer(path) as file:
        for count, (document, by) in enumerate(documents, 1):
            place = document.id or f"document {count}"
            if by == "characters":
                file.write(dumped(text_record(document), f"{path}, {place}") + "\n")
                last = {}
                continue
            if not document.sentences:
                tally.note("documents without sentences not written: jsonl has no line for them", place)
            for number, (sentence, record) in enumerate(records(document)):
                if continues(record, last) != (number > 0):
                    record["continues"] = number > 0
                file.write(dumped(record, f"{path}, sentence {sentence}") + "\n")
                last = record


def text_record(document: Document) -> dict[str, Any]:
    """The line of a document by its text: `Document.to_dict`, with unrounded scores and all further keys."""
    document = document.with_text()
    record = document.to_dict()
    by_span: dict[tuple[int, int], list[tuple[Sentence, Entity]]] = {}
    for sentence in document.sentences:
        for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0.0)):
            by_span.setdefault(sentence.characters(entity), []).append((sentence, entity))
    for found in record["entities"]:
        annotations = by_span[found["start"], found["end"]]
        heads = [head_object(*annotation) for annotation in annotations]
        found["labels"], found["head"] = [], next(filter(None, heads), None)
        for (_, entity), head in zip(annotations, heads, strict=True):
            label: dict[str, Any] = {"label": entity.label, "score": entity.score}
            if head != found["head"]:
                label["head"] = head
            label.update((key, value) for key, value in entity.extra.items() if key not in ENTITY_KEYS)
            found["labels"].append(label)
        found["score"] = found["labels"][0]["score"]
    if not all(sentence.complete for sentence in document.sentences):
        record["complete"] = False
    record.update((key, value) for key, value in document.extra.items() if key not in record)
    return record


def head_object(sentence: Sentence, entity: Entity) -> dict[str, Any] | None:
    """The head in characters, from the first to the last word if several may be it."""
    heads = entity.heads or (() if entity.head is None else (entity.head,))
    return char_span(sentence, min(heads), max(heads) + 1)._asdict() if heads else None


def records(document: Document) -> Iterator[tuple[Sentence, dict[str, Any]]]:
    """The lines of a document, as objects."""
    at = 0
    for number, sentence in enumerate(document.sentences):
        record: dict[str, Any] = {"tokens": list(sentence.words)}
        record["entities"] = [to_object(entity) for entity in sentence.entities]
        if document.id is not None:
            record["doc_id"] = document.id
        if sentence.id is not None:
            record["sent_id"] = sentence.id
        if not sentence.complete:
            record["complete"] = False
        if sentence.text is not None:
            record["text"] = sentence.text
            record["offsets"] = [list(pair) for pair in sentence.offsets or ()]
        if document.text is not None and sentence.text is not None:
            record["before"] = document.text[at : sentence.start]
            at = sentence.start + len(sentence.text)
            if sentence is document.sentences[-1] and at < len(document.text):
                record["after"] = document.text[at:]
        if sentence.tree is not None:
            record["tree"] = to_tree(sentence.tree)
        if document.extra and number == 0:
            record["document"] = dict(document.extra)
        record.update((key, value) for key, value in sentence.extra.items() if key not in SENTENCE_KEYS)
        yield sentence, record


def to_object(entity: Entity) -> dict[str, Any]:
    record: dict[str, Any] = {"start": entity.start, "end": entity.end, "label": entity.label}
    if entity.head is not None:
        record["head"] = entity.head
    elif entity.heads:
        record["head"] = None
    if entity.heads:
        record["heads"] = list(entity.heads)
    if entity.score is not None:
        record["score"] = entity.score
    record.update((key, value) for key, value in entity.extra.items() if key not in ENTITY_KEYS)
    return record


def dumped(record: Mapping[str, Any], place: str) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as why:
        raise DataError(f"{place}: `extra` holds what JSON cannot: {why}.") from None
