"""nestree's own format: JSON lines, one sentence a line with its words, or one text a line, .gz too.

    {"tokens": ["in", "Rome"], "entities": [{"start": 1, "end": 2, "label": "GPE"}], "doc_id": "a", "text": "in Rome"}
    {"text": "in Rome", "entities": [{"start": 3, "end": 7, "label": "GPE"}]}

Entities count words, ends exclusive; in a line without words they count characters. A sentence may have a tree:

    {"spans": [[0, 2, 1], [0, 1, 0], [1, 2, 1]], "arcs": [[1, 0]], "root": 1, "probabilities": [1.0, 1.0, 1.0]}

`"complete": false` marks what is annotated in part. There, `"forbidden": [[0, 2]]` lists spans that are no entities,
and `questions` of `nestree select --partial` become entities and forbidden spans by their `answer`: true, false or a
label.
"""

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from nestree.data.alignment import AnnotatedText, Mention, align
from nestree.data.formats import common
from nestree.data.formats.common import Item, Record, continues, group_sentences
from nestree.data.io import ConversionReport, atomic_writer, parse_json, read_lines
from nestree.errors import DataError
from nestree.text import split, split_at_boundaries
from nestree.types import Document, Entity, Sentence, Span, Tree, char_span, round_probability

NOT_LABELS = {"", "true", "false", "yes", "no", "null", "none"}  # strings that are answers, but no labels
Unit = Literal["words", "characters"]
TREE_KEYS = {"spans", "arcs", "root", "probabilities"}
ENTITY_KEYS = {"start", "end", "label", "head", "heads", "score"}
DERIVED_KEYS = {"text", "label", "labels", "score", "depth", "parent"}  # of Document.to_dict
SENTENCE_KEYS = {
    "tokens", "words", "entities", "doc_id", "sent_id", "text", "offsets", "complete", "before", "after",
    "continues", "document", "tree", "forbidden",
}  # fmt: skip
KEYS_OF_OTHER_FORMATS = {"label": "doccano", "labels": "doccano", "spans": "prodigy", "ner_tags": "datasets"}
KEYS_OF_OTHER_FORMATS |= dict.fromkeys(("ner", "ners", "entity_mentions"), "research-json")


def read_jsonl(path: Path, report: ConversionReport) -> Iterator[Document | AnnotatedText]:
    """The documents of a file of JSON lines."""
    yield from group_sentences(parse_lines(path, report), report)


def parse_lines(path: Path, report: ConversionReport) -> Iterator[Item]:
    for number, line in read_lines(path, report):
        if not line or line.isspace():
            continue
        with common.skip_bad(report, place := f"{path}:{number}"):
            record = parse_json(line, place)
            if not isinstance(record, dict):
                raise DataError(f"a line must be a JSON object {{...}}, and is {line[:40]!r}.")
            check_keys(record)
            if "tokens" in record or "words" in record:
                sentence = parse_sentence(record)
                if sentence.text is None and "offsets" in record:
                    report.note("offsets not kept: the line has no text")
                yield sentence, record
            else:
                yield parse_text(record, report)


def check_keys(record: Record) -> None:
    """Raise if the entities are under another key: they would be lost in silence."""
    if "entities" in record:
        return
    lists = [key for key, value in record.items() if isinstance(value, list) and key not in SENTENCE_KEYS]
    for key in difflib.get_close_matches("entities", lists, 1, 0.7):
        raise DataError(f"this line has no `entities`, but `{key}`. If these are the entities, write `entities`.")
    if "tags" in lists and any(isinstance(tag, str) and tag[:2] in ("B-", "I-") for tag in record["tags"]):
        raise DataError(
            "this line has no `entities`, but `tags` of words. Read it as datasets, with the option tags=tags."
        )
    for key, format in KEYS_OF_OTHER_FORMATS.items():
        if key in lists:
            raise DataError(
                f"this line has no `entities`, but `{key}`, as {format} has. Name the format of the file, and "
                "do not mix formats in it."
            )


def parse_sentence(record: Record) -> Sentence:
    """The sentence of a line that has words."""
    words, text = record.get("tokens", record.get("words")), record.get("text")
    if not isinstance(words, list):
        raise DataError(f"`tokens` must be a list of words, and is {words!r:.40}.")
    if text is not None and not isinstance(text, str):
        raise DataError(f"`text` must be a string, and is {text!r:.40}.")
    entities = [parse_entity(entity) for entity in entity_records(record)]
    complete = common.require(record, "complete", bool, True)
    extra, forbidden = common.without_keys(record, SENTENCE_KEYS), parse_pairs(record, "forbidden")
    if record.get("questions") is not None:
        answered, absent, unanswered = parse_answers(record)
        entities, forbidden = [*entities, *answered], [*forbidden, *absent]
        complete = complete and "complete" in record
        extra = common.without_keys(extra, ["questions"]) | ({"questions": unanswered} if unanswered else {})
    offsets = None
    if text is not None:
        has_offsets = record.get("offsets") is not None
        offsets = parse_pairs(record, "offsets") if has_offsets else common.locate_words(words, text)
    id, tree = common.optional_str(record.get("sent_id")), parse_tree(record.get("tree"), len(words))
    return Sentence(words, entities, text, offsets, 0, id, complete, extra, tree, forbidden=forbidden)


def parse_pairs(record: Record, key: str) -> list[Span]:
    """The spans under this key; none if it is missing."""
    value = record.get(key, [])
    if not is_list_of_pairs(value) or not all(type(place) is int for pair in value for place in pair):
        raise DataError(f"`{key}` must be a list of [start, end], and is {value!r:.60}.")
    return [(start, end) for start, end in value]


def is_list_of_pairs(value: Any) -> bool:
    return common.is_list_of(value, list) and all(len(item) == 2 for item in value)


def parse_answers(record: Record) -> tuple[list[Entity], list[Span], list[Record]]:
    """The entities and the forbidden spans that answers give, and the questions without an answer."""
    entities: list[Entity] = []
    forbidden: list[Span] = []
    unanswered: list[Record] = []
    questions: Any = common.json_objects(record, "questions")
    for question in questions:
        start, end, label, answer = (question.get(key) for key in ("start", "end", "label", "answer"))
        if answer is None:
            unanswered.append(question)
        elif answer is False:
            forbidden.append((start, end))
        elif answer is True or (isinstance(answer, str) and answer.casefold() not in NOT_LABELS):
            entities.append(Entity(start, end, label if answer is True else answer))
        else:
            raise DataError(f"the answer to a question must be true, false, a label or null, and is {answer!r:.40}.")
    return entities, forbidden, unanswered


def entity_records(record: Record) -> list[Record]:
    """The entities of a line; each has a start, an end and a label."""
    entities: list[Record] = record.get("entities", [])
    if not common.is_list_of(entities, dict):
        raise DataError(f"`entities` must be a list of objects with start, end and label, and is {entities!r:.60}.")
    for entity in entities:
        for key in ("start", "end", "label"):
            if key not in entity:
                raise DataError(f"an entity has no `{key}`: {entity!r:.60}.")
    return entities


def parse_entity(entity: Record) -> Entity:
    start, end, label = entity["start"], entity["end"], entity["label"]
    heads, extra = common.require(entity, "heads", list, []), common.without_keys(entity, ENTITY_KEYS)
    return Entity(start, end, label, entity.get("head"), entity.get("score"), tuple(heads), extra)


def parse_tree(tree: Any, n: int) -> Tree | None:
    """The tree of a sentence of n words."""
    if tree is None:
        return None
    if not isinstance(tree, dict) or "spans" not in tree or not tree.keys() <= TREE_KEYS:
        raise DataError(
            f"`tree` must be an object with spans, arcs, root and probabilities, and is {tree!r:.60}. "
            "If it is something else, give it another name."
        )
    spans, arcs, probabilities = (tree.get(key, []) for key in ("spans", "arcs", "probabilities"))
    root, within = tree.get("root"), f"within words 0 to {n - 1}"

    def is_word(item: Any, start: int = 0, end: int = n) -> bool:
        return type(item) is int and start <= item < end

    are_spans = common.is_list_of(spans, list) and all(
        len(s) == 3 and is_word(s[0]) and is_word(s[1], s[0] + 1, n + 1) and (s[2] is None or is_word(s[2], *s[:2]))
        for s in spans
    )
    are_arcs = is_list_of_pairs(arcs) and all(is_word(word) for arc in arcs for word in arc)
    count = len(spans) if are_spans else 0
    are_probabilities = isinstance(probabilities, list) and len(probabilities) in (0, count)
    are_probabilities = are_probabilities and all(type(p) in (int, float) and 0 <= p <= 1 for p in probabilities)
    for key, is_valid, meaning in (
        ("spans", are_spans, f"[start, end, head or null] {within}"),
        ("arcs", are_arcs, f"[head, modifier] {within}"),
        ("root", root is None or is_word(root), f"null or a word {within}"),
        ("probabilities", are_probabilities, f"numbers from 0 to 1, one for each of its {count} spans, or none"),
    ):
        if not is_valid:
            raise DataError(f"`{key}` of `tree` must be {meaning}, and is {tree[key]!r:.60}.")
    return Tree(tuple(map(tuple, spans)), tuple(map(tuple, arcs)), root, tuple(probabilities))


def parse_text(record: Record, report: ConversionReport) -> AnnotatedText:
    """The document of a line that has a text and no words: its entities count characters."""
    text = record.get("text")
    if "text" not in record:
        raise DataError(f"a line needs `tokens` or a `text`, and has {', '.join(record) or 'nothing'}.")
    if not isinstance(text, str):
        raise DataError(f"`text` must be a string, and is {text!r:.60}.")
    complete = common.require(record, "complete", bool, True)
    mentions = [mention for entity in entity_records(record) for mention in parse_mentions(entity)]
    forbidden = parse_pairs(record, "forbidden")
    extra = common.without_keys(record, ("text", "entities", "doc_id", "complete", "forbidden"))
    id = common.optional_str(record.get("doc_id"))
    return AnnotatedText(text, mentions, report.place, id, extra, complete, forbidden=forbidden)


def from_text_record(record: Record, words: str, sentences: str) -> Document:
    """The inverse of `Document.to_dict`: text is split such that all entities and heads begin and end with words."""
    with common.locate_errors(place := "this document"):
        annotated = parse_text(record, ConversionReport(place=place))
    mentions = annotated.mentions = list(annotated.mentions)
    heads = [head for mention in mentions for head in (mention.head, *mention.heads) if head]
    keep = [*heads, *((mention.start, mention.end) for mention in mentions)]
    inside = {place for i, j in heads if not any(map(str.isspace, annotated.text[i:j])) for place in range(i + 1, j)}
    spans: list[Span] = []
    annotated.starts = starts = []
    for sentence in split(annotated.text, words, sentences, keep):
        starts.append(len(spans))
        for i, j in split_at_boundaries(sentence.words, keep):
            if i in inside:  # a head is one word
                i = spans.pop()[0]
            spans.append((i, j))
    annotated.words = spans
    return align(annotated)


def parse_mentions(entity: Record) -> Iterator[Mention]:
    """A mention for each label of an entity."""
    labels, each = entity.get("labels"), [entity]
    if isinstance(labels, list) and labels and all(isinstance(x, dict) and "label" in x for x in labels):
        each = [common.without_keys(entity, DERIVED_KEYS) | label for label in labels]
    for values in each:
        head, *heads = map(parse_head, (values.get("head"), *common.require(values, "heads", list, [])))
        start, end, label, score = values["start"], values["end"], values["label"], values.get("score")
        if type(start) is not int or type(end) is not int:
            raise DataError(f"`start` and `end` must be numbers of characters, and are {start!r:.20}, {end!r:.20}.")
        Entity(0, 1, label, None, score)  # raises if the label or the score is wrong
        extra = common.without_keys(values, ENTITY_KEYS)
        phrase = entity.get("text") if isinstance(entity.get("text"), str) else None
        yield Mention(start, end, label, head, score, extra, phrase=phrase, heads=list(filter(None, heads)))


def parse_head(value: Any) -> Span | None:
    """The head of an entity of a text, in characters."""
    head = [value.get("start"), value.get("end")] if isinstance(value, dict) else value
    if head is None:
        return None
    if not (isinstance(head, list) and [type(at) for at in head] == [int, int]):
        raise DataError(
            f"a head of an entity of a text must be an object with start and end or [start, end], and is {value!r:.40}."
        )
    return head[0], head[1]


def write_jsonl(documents: Iterable[Document], path: Path, report: ConversionReport, *, by: Unit = "words") -> None:
    """One sentence a line; what `read` reads back is equal.

    by: what entities count, "words" or "characters". By characters, a line is a whole document with its text.
    """
    if by == "characters":
        documents = common.report_dropped(documents, "jsonl by characters", report)
    write_mixed(((document, by) for document in documents), path)


def write_mixed(documents: Iterable[tuple[Document, str]], path: Path) -> None:
    """Write documents, each by "words" or by "characters"; those without sentences are written by "characters"."""
    last: Record = {}
    with atomic_writer(path) as file:
        for count, (document, by) in enumerate(documents, 1):
            place = document.id or f"document {count}"
            if by == "characters" or not document.sentences:
                file.write(common.dump_json(to_text_record(document), f"{path}, {place}") + "\n")
                last = {}
                continue
            for number, (sentence, record) in enumerate(sentence_records(document)):
                if continues(record, last) != (number > 0):
                    record["continues"] = number > 0
                file.write(common.dump_json(record, f"{path}, sentence {sentence}") + "\n")
                last = record


def to_text_record(document: Document, rounded: bool = False) -> Record:
    """The line of a document by its text; `rounded`: probabilities have six decimals."""
    document = document.with_text()
    record: Record = {} if document.id is None else {"doc_id": document.id}
    index = {id(entity): k for k, entity in enumerate(document.entities)}
    record["text"] = document.text
    record["entities"] = [
        {**e.to_dict(), "parent": None if e.parent is None else index[id(e.parent)]} for e in document.entities
    ]
    by_span: dict[Span, list[tuple[Sentence, Entity]]] = {}
    for sentence in document.sentences:
        for entity in sorted(sentence.entities, key=lambda entity: -(entity.score or 0.0)):
            by_span.setdefault(sentence.characters(entity), []).append((sentence, entity))
    for item in record["entities"]:
        annotations = by_span[item["start"], item["end"]]
        marks = [head_records(*annotation) for annotation in annotations]
        item |= {key: next(filter(None, (mark[key] for mark in marks)), None) for key in ("head", "heads")}
        item["labels"] = [
            {"label": entity.label, "score": round_probability(entity.score) if rounded else entity.score}
            | {key: value for key, value in mark.items() if value != item[key]}
            | common.without_keys(entity.extra, ENTITY_KEYS)
            for (_, entity), mark in zip(annotations, marks, strict=True)
        ]
        item["score"] = item["labels"][0]["score"]
        if item["heads"] is None:
            del item["heads"]
    is_unread = not document.sentences and bool((document.text or "").strip())  # a model has failed on it
    if is_unread or not all(sentence.complete for sentence in document.sentences):
        record["complete"] = False
    if forbidden := common.forbidden_offsets(document):
        record["forbidden"] = [list(span) for span in forbidden]
    return record | common.without_keys(document.extra, record)


def head_records(sentence: Sentence, entity: Entity) -> Record:
    """The head and, if several words may be it, all of these, in characters; None if there are none."""
    head, *heads = (
        None if word is None else char_span(sentence, word, word + 1)._asdict() for word in (entity.head, *entity.heads)
    )
    return {"head": head, "heads": heads or None}


def sentence_records(document: Document) -> Iterator[tuple[Sentence, Record]]:
    """The sentences of a document, each with its line."""
    end = 0  # of the last sentence
    for number, sentence in enumerate(document.sentences):
        before = after = tree = None
        if document.text is not None and sentence.text is not None:
            before, end = document.text[end : sentence.start], sentence.start + len(sentence.text)
            after = document.text[end:] if sentence is document.sentences[-1] else None
        if sentence.tree:
            items = sentence.tree._asdict().items()
            tree = {key: value for key, value in items if key == "spans" or value not in (None, ())}
        record = {
            "tokens": sentence.words,
            "entities": [entity_record(entity) for entity in sentence.entities],
            "doc_id": document.id,
            "sent_id": sentence.id,
            "complete": None if sentence.complete else False,
            "forbidden": sentence.forbidden or None,
            "text": sentence.text,
            "offsets": sentence.offsets,
            "before": before,
            "after": after or None,
            "tree": tree,
            "document": dict(document.extra) or None if number == 0 else None,
        }
        known = {key: value for key, value in record.items() if value is not None}
        yield sentence, known | common.without_keys(sentence.extra, SENTENCE_KEYS)


def entity_record(entity: Entity) -> Record:
    record: Record = {"start": entity.start, "end": entity.end, "label": entity.label}
    if entity.head is not None or entity.heads:
        record["head"] = entity.head
    if entity.heads:
        record["heads"] = list(entity.heads)
    if entity.score is not None:
        record["score"] = entity.score
    return record | common.without_keys(entity.extra, ENTITY_KEYS)
