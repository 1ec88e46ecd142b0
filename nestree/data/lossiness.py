"""Counts what a format has no place for when documents are written. docs/data.md shows the same as a table."""

from collections.abc import Collection, Iterable, Iterator

from nestree.data.io import ConversionReport
from nestree.types import Document, Sentence

WITHOUT_SENTENCES = (
    "further keys of sentences",
    "ids of sentences",
    "marks of incomplete sentences",
    "borders of sentences",
)
WITHOUT_WORDS = (*WITHOUT_SENTENCES, "borders of words")
WITHOUT_TEXT = (
    "heads",
    "scores",
    "further keys of entities",
    "further keys of sentences",
    "further keys of documents",
    "ids of sentences",
    "ids of documents",
    "marks of incomplete sentences",
    "texts",
    "borders of documents",
    "documents without sentences",
)
# The parts of documents that each format loses, besides "trees", which only jsonl holds.
LOST = {
    "brat": ("heads", "scores", "further keys of entities", "further keys of documents", *WITHOUT_WORDS),
    "bioc": ("heads", *WITHOUT_WORDS),
    "columns": WITHOUT_TEXT,
    "triplets": WITHOUT_TEXT,
    "datasets": (
        "further keys of entities",
        "further keys of sentences",
        "further keys of documents",
        "documents without sentences",
    ),
    "doccano": ("heads", "scores", "further keys of entities", *WITHOUT_WORDS),
    "jsonl by characters": (
        "further keys of sentences",
        "ids of sentences",
        "borders of words",
        "borders of sentences",
    ),
    "label-studio": ("heads", "further keys of entities", *WITHOUT_WORDS),
    "prodigy": ("heads", *WITHOUT_SENTENCES),
    "pubtator": ("heads", "scores", "further keys of entities", "further keys of documents", *WITHOUT_WORDS),
    "spacy": (
        "further keys of entities",
        "further keys of sentences",
        "further keys of documents",
        "marks of incomplete sentences",
    ),
}
# The keys of `extra` that a format does hold.
HELD_KEYS = {
    ("pubtator", "further keys of entities"): {"id", "mentions"},
    ("spacy", "further keys of entities"): {"kb_id", "id"},
    ("triplets", "further keys of sentences"): {"pos"},
}


def report_losses(
    documents: Iterable[Document], format: str, tally: ConversionReport, *more_parts: str
) -> Iterator[tuple[str, Document]]:
    """The documents, each with a name for messages; what `format` loses of them is counted in `tally`.

    more_parts: parts that are lost in this case only.

    >>> tally = ConversionReport()
    >>> for place, document in report_losses([Document([Sentence(["Rome"], id="s1")], id="d1")], "brat", tally):
    ...     print(place, dict(tally.counts))
    d1 {'ids of sentences not written: brat has no place for them': 1}
    """
    for number, document in enumerate(documents, 1):
        place = document.id or f"document {number}"
        for part in (*LOST[format], *more_parts, "trees"):
            if count := count_part(document, part, HELD_KEYS.get((format, part), ())):
                tally.note(f"{part} not written: {format} has no place for them", place, count)
        yield place, document


def count_part(document: Document, part: str, held_keys: Collection[str] = ()) -> int:
    """How often a document has this part. `held_keys` of `extra` do not count."""
    sentences = document.sentences
    entities = [entity for sentence in sentences for entity in sentence.entities]
    match part:
        case "heads":
            return sum(entity.head is not None or bool(entity.heads) for entity in entities)
        case "scores":
            return sum(entity.score is not None for entity in entities)
        case "further keys of entities":
            return sum(bool(entity.extra.keys() - held_keys) for entity in entities)
        case "further keys of sentences":  # `windows` is how a model read the sentence, not data
            return sum(bool(sentence.extra.keys() - {"windows", *held_keys}) for sentence in sentences)
        case "further keys of documents":
            return bool(document.extra)
        case "ids of sentences":
            return sum(sentence.id is not None for sentence in sentences)
        case "ids of documents":
            return document.id is not None
        case "marks of incomplete sentences":
            return sum(not sentence.complete for sentence in sentences)
        case "trees":
            return sum(sentence.tree is not None for sentence in sentences)
        case "texts":
            return sum(sentence.text is not None for sentence in sentences)
        case "borders of words":
            return sum(not splits_at_blanks(sentence) for sentence in sentences)
        case "borders of sentences":
            return count_sentences_within_lines(document)
        case "borders of documents":
            return len(sentences) > 1
        case "documents without sentences":
            return not sentences
    raise KeyError(part)


def splits_at_blanks(sentence: Sentence) -> bool:
    """Does splitting the sentence at blanks give its words?"""
    if sentence.text is None:
        return not any(character.isspace() for word in sentence.words for character in word)
    return tuple(sentence.text.split()) == sentence.words


def count_sentences_within_lines(document: Document) -> int:
    """The number of sentences that splitting the text into lines would not give."""
    count, after = 0, "\n"
    for k, sentence in enumerate(document.sentences):
        before = after
        if document.text is not None:
            end = sentence.start + len(sentence.text or "")
            is_last = k + 1 == len(document.sentences)
            after = "\n" if is_last else document.text[end : document.sentences[k + 1].start]
        count += "\n" in (sentence.text or "") or "\n" not in before or "\n" not in after
    return count
