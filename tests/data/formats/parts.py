"""The parts of a document that a format may lose: for each, documents that have it, and what to compare."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nestree.types import Document, Entity, Sentence, Tree


class Part(NamedTuple):
    given: list[Document]
    value: Callable[[list[Document]], Any]  # this part of documents


WORDS = ["Duke", "of", "York", "saw", "Ann", "."]


def one(*entities: Entity, **more: Any) -> list[Document]:
    """A document of one sentence, its words between spaces; csv needs an entity."""
    entities = entities or (Entity(2, 3, "PER"),)
    offsets = [(0, 4), (5, 7), (8, 12), (13, 16), (17, 20), (21, 22)]
    sentence = Sentence(WORDS, entities, " ".join(WORDS), offsets, **more)
    return [Document([sentence], sentence.text, "d")]


def key(extra: Mapping[str, Any]) -> Any:
    """What was in `extra`; a format may have put more there."""
    return extra.get("k")


def entities(documents: list[Document], *names: str) -> list[list[tuple[Any, ...]]]:
    """The entities of each sentence, in any order, with some of their values."""
    return [
        sorted(((e.start, e.end, e.label, *(getattr(e, name) for name in names)) for e in s.entities), key=str)
        for document in documents
        for s in document.sentences
    ]


def sentences(name: str) -> Callable[[list[Document]], list[Any]]:
    return lambda documents: [getattr(s, name) for document in documents for s in document.sentences]


def spaced(text: str, *words: list[tuple[int, int]]) -> list[Document]:
    """A document of this text; each list is a sentence of words, in characters of the text."""
    found = []
    for offsets in words:
        start, end = offsets[0][0], offsets[-1][1]
        moved = [(i - start, j - start) for i, j in offsets]
        entities = (Entity(0, 1, "X"),)
        found.append(Sentence([text[i:j] for i, j in offsets], entities, text[start:end], moved, start))
    return [Document(found, text, "d")]


PARTS = {
    "nested entities": Part(one(Entity(0, 3, "PER"), Entity(2, 3, "GPE"), Entity(0, 3, "TITLE")), entities),
    "crossing entities": Part(one(Entity(0, 3, "A"), Entity(2, 5, "A")), entities),
    "duplicate entities": Part(one(Entity(0, 3, "A"), Entity(0, 3, "A")), entities),
    "heads": Part(one(Entity(0, 3, "PER", head=0)), lambda found: entities(found, "head")),
    "several heads": Part(one(Entity(0, 5, "PER", heads=(0, 4))), lambda found: entities(found, "heads")),
    "scores": Part(one(Entity(0, 3, "PER", score=0.25)), lambda found: entities(found, "score")),
    "extra keys of entities": Part(
        one(Entity(0, 3, "PER", extra={"k": "v"})),
        lambda found: [sorted((str(e), key(e.extra) or "") for e in s.entities) for d in found for s in d.sentences],
    ),
    "extra keys of sentences": Part(
        one(extra={"k": "v"}), lambda found: [key(s.extra) for document in found for s in document.sentences]
    ),
    "extra keys of documents": Part(
        [Document(one()[0].sentences, one()[0].text, "d", {"k": "v"})],
        lambda found: [key(document.extra) for document in found],
    ),
    "ids of sentences": Part(one(id="s7"), sentences("id")),
    "ids of documents": Part(one(), lambda found: [document.id for document in found]),
    "marks of incomplete sentences": Part(one(complete=False), sentences("complete")),
    "forbidden spans": Part(one(complete=False, forbidden=[(4, 5), (0, 2)]), sentences("forbidden")),
    "trees": Part(one(tree=Tree(((0, 6, 3), (0, 3, None)), ((3, 0), (0, 2)), 3, (1.0, 0.25))), sentences("tree")),
    "texts": Part(
        spaced("Hi  Ann ,\n\n Joe\t!\n", [(0, 2), (4, 7), (8, 9)], [(12, 15), (16, 17)]),
        lambda found: [document.text for document in found],
    ),
    "word boundaries": Part(spaced("an IL-2 gene", [(0, 2), (3, 5), (5, 6), (6, 7), (8, 12)]), sentences("words")),
    "sentence boundaries": Part(spaced("He sat He ate", [(0, 2), (3, 6)], [(7, 9), (10, 13)]), sentences("words")),
    "document boundaries": Part(
        [Document([Sentence([a], [Entity(0, 1, "X")]), Sentence([b])], id=a) for a, b in ("ab", "cd", "ef")],
        lambda found: [len(document.sentences) for document in found],
    ),
}
