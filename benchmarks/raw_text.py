"""What raw text costs: F1 by characters from text alone, against F1 with the gold words and sentences.

    python -m benchmarks.raw_text [--model DIR] [--shared ../shared] [--out FILE]

GUM: the documents of dev and test that are here as CoNLL-U; their text is the `# text` of their sentences, joined by a
blank, a newline where a paragraph begins. LitBank: its test sentences, whose words are known only between blanks, put
back together by a rule: no blank before . , ; : ! ? ) ] ' '' ’ ” n't 's and the like, none after ( [ `` “ ‘; sentences
of one document are joined by a blank. An entity is right if its characters and its label are those of a gold entity.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nestree
from benchmarks.text import word_places
from benchmarks.timing import one_line, provenance, write_whole
from nestree.data.formats import read
from nestree.evaluation.metrics import Score
from nestree.pipeline import Pipeline
from nestree.types import Document, Sentence

NO_BLANK_BEFORE = {".", ",", ";", ":", "!", "?", ")", "]", "'", "''", "’", "”", "%", "n't", "n’t"}
NO_BLANK_AFTER = {"(", "[", "``", "“", "‘", "$"}
Key = tuple[int, int, str]


class Gold(NamedTuple):
    """A text, and its sentences with words at their places."""

    name: str
    document: Document


def gum(shared: Path, part: str) -> Iterator[Gold]:
    """The documents of a part of GUM-open that are here in their original form."""
    names = {document.id for document in read(shared / f"data/gum_open/{part}.jsonl.gz")}
    for path in sorted((shared / "data/raw/gum_conllu").glob("*.conllu")):
        if path.stem in names:
            sentences = [s for document in read(path, "gum") for s in document.sentences]
            yield Gold(path.stem, with_text(sentences, texts_of(path)))


def texts_of(path: Path) -> list[tuple[str, str]]:
    """Each sentence of a CoNLL-U file, and what stands before it."""
    found = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.split("\n")
        text = next(line for line in lines if line.startswith("# text = ")).removeprefix("# text = ")
        paragraph = any(line.startswith("# newpar") for line in lines)
        found.append(("" if not found else "\n" if paragraph else " ", text))
    return found


def with_text(sentences: Sequence[Sentence], texts: Sequence[tuple[str, str]]) -> Document:
    """A document of these sentences in these texts."""
    made, whole = [], ""
    for sentence, (before, text) in zip(sentences, texts, strict=True):
        whole += before
        places = list(word_places(text, 0, [["1", word] for word in sentence.words]))
        made.append(Sentence(sentence.words, sentence.entities, text, tuple(places), len(whole)))
        whole += text
    return Document(tuple(made), whole)


def litbank(shared: Path, part: str) -> Iterator[Gold]:
    """Documents of LitBank, their text put back together."""
    by_name: dict[str, list[Sentence]] = {}
    for document in read(shared / f"data/litbank/{part}.jsonl.gz"):
        by_name.setdefault(document.id or "", []).extend(document.sentences)
    for name, sentences in by_name.items():
        texts = [("" if k == 0 else " ", detokenised(s.words)) for k, s in enumerate(sentences)]
        yield Gold(name, with_text(sentences, texts))


def detokenised(words: Sequence[str]) -> str:
    """
    >>> detokenised(["He", "said", ":", "``", "I", "do", "n't", "(", "know", ")", "Ann", "'s", "."])
    "He said: ``I don't (know) Ann's."
    """
    text, last = "", None
    for word in words:
        close = word in NO_BLANK_BEFORE or (len(word) < 4 and word[0] in "'’" and word[1:].isalpha())
        if text and not close and last not in NO_BLANK_AFTER:
            text += " "
        text, last = text + word, word
    return text


def keys(document: Document) -> set[Key]:
    return {(*s.characters(e), e.label) for s in document.sentences for e in s.entities}


def scored(golds: Sequence[Gold], found: Iterable[Document]) -> Score:
    """All documents together."""
    gold = predicted = right = 0
    for one, document in zip(golds, found, strict=True):
        truth, said = keys(one.document), keys(document)
        gold, predicted, right = gold + len(truth), predicted + len(said), right + len(truth & said)
    return Score(right, predicted, right, gold)


def measured(ner: Pipeline, golds: Sequence[Gold]) -> dict[str, Any]:
    """F1 from text alone, and with gold words."""
    texts = [one.document.text or "" for one in golds]
    alone = scored(golds, ner.pipe(texts, trees=False))
    words = scored(golds, (given_words(ner, one.document) for one in golds))
    return {
        "documents": len(golds),
        "entities": words.gold,
        "text": {"precision": alone.precision, "recall": alone.recall, "f1": alone.f1},
        "gold words": {"precision": words.precision, "recall": words.recall, "f1": words.f1},
        "difference": alone.f1 - words.f1,
    }


def given_words(ner: Pipeline, document: Document) -> Document:
    return Document(tuple(ner.words(ner.model.sentences_of([document]))), document.text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a directory; default: the bundled model")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--sets", nargs="*", default=["gum dev", "gum test"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ner = nestree.load(given.model, given.device)
    sources = {"gum": gum, "litbank": litbank}
    rows = {}
    for name in given.sets:
        source, part = name.split()
        rows[name] = measured(ner, list(sources[source](given.shared, part)))
        alone, words = rows[name]["text"]["f1"], rows[name]["gold words"]["f1"]
        print(
            f"{name:13s} {rows[name]['documents']:3d} documents {rows[name]['entities']:5d} entities   "
            f"text {100 * alone:.2f}   gold words {100 * words:.2f}   difference {100 * (alone - words):+.2f}",
            flush=True,
        )
    result = {
        "benchmark": "raw_text",
        "model": Path(given.model).name if given.model else "box",
        "words": ner.model.text_rules.words,
        **provenance(ner.device.type, given.commit),
        "rows": rows,
    }
    print(one_line(result))
    if given.out:
        write_whole(given.out, one_line(result) + "\n")


if __name__ == "__main__":
    main()
