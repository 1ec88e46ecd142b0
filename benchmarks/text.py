"""Quality and speed of splitting text: F1 of words and sentences against gold ones, and megabytes a second.

    python -m benchmarks.text --shared ../shared

Words: `ud` on the GUM documents, whose text is restored with spaces between sentences and blank lines between
paragraphs; `split-hyphens` on the sentences of GENIA's articles whose words are known; `treebank` on LitBank, whose
words stand between spaces and must be found unchanged. Sentences: `rules` on the same GUM documents, and on GENIA
articles and LitBank novels with only spaces between sentences.
"""

import argparse
import gzip
import json
import re
import time
from collections.abc import Iterable, Iterator, Set
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from defusedxml import ElementTree

from nestree.evaluation import Score
from nestree.text import WORD_STYLES, split
from nestree.types import Span


class GoldText(NamedTuple):
    """A text with the character spans of its sentences and words."""

    name: str
    text: str
    sentences: list[Span]
    words: list[Span]


def gum(shared: Path) -> Iterator[GoldText]:
    """The GUM documents with their text restored."""
    for path in sorted((shared / "data/raw/gum_conllu").glob("*.conllu")):
        text, sentences, words = "", [], []
        for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
            lines = block.split("\n")
            if text:
                text += "\n\n" if any(line.startswith("# newpar") for line in lines) else " "
            start = len(text)
            text += next(line for line in lines if line.startswith("# text = ")).removeprefix("# text = ")
            sentences.append((start, len(text)))
            words += word_places(text, start, [line.split("\t") for line in lines if line[0] != "#"])
        yield GoldText(path.stem, text, sentences, words)


def word_places(text: str, at: int, rows: list[list[str]]) -> Iterator[Span]:
    """Character spans of the words of a CoNLL-U sentence; those of a contraction are parts of it."""
    for row in rows:
        if not row[0].isdigit():
            continue
        at = text.index(row[1][0], at)
        if not text.startswith(row[1], at):
            raise ValueError(f"word {row[1]!r} is not at character {at}: {text[at : at + 30]!r}")
        yield at, at + len(row[1])
        at += len(row[1])


def genia(shared: Path) -> Iterator[GoldText]:
    """The sentences of GENIA's articles whose words are in the converted data set."""
    known = {}
    for path in sorted((shared / "data/genia").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                words = json.loads(line)["tokens"]
                known["".join(words)] = words
    for path in sorted((shared / "data/raw/genia_gpml").glob("*.xml")):
        for element in ElementTree.parse(path, forbid_dtd=False).iter("sentence"):
            text = "".join(element.itertext())
            words = known.get("".join(text.split()))
            if words:
                rows = [["1", word] for word in words]
                yield GoldText(path.stem, text, [(0, len(text))], list(word_places(text, 0, rows)))


def articles(shared: Path) -> Iterator[GoldText]:
    """GENIA's articles with spaces between their sentences, without words."""
    for path in sorted((shared / "data/raw/genia_gpml").glob("*.xml")):
        for article in ElementTree.parse(path, forbid_dtd=False).iter("article"):
            texts = ["".join(sentence.itertext()).strip() for sentence in article.iter("sentence")]
            yield joined(path.stem, texts)


def joined(name: str, sentences: list[str]) -> GoldText:
    """A document on one line, because line breaks reveal sentences, and without words."""
    ends = list(accumulate(len(sentence) + 1 for sentence in sentences))
    spans = [(end - 1 - len(sentence), end - 1) for end, sentence in zip(ends, sentences, strict=True)]
    return GoldText(name, " ".join(sentences), spans, [])


def litbank(shared: Path) -> Iterator[GoldText]:
    """LitBank's documents: one sentence a line, spaces between the words."""
    for path in sorted((shared / "data/raw/litbank_brat").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        lines = [match.span() for match in re.finditer(r"\S[^\n]*(?<=\S)", text)]
        yield GoldText(path.stem, text, lines, [match.span() for match in re.finditer(r"\S+", text)])


def words_found(documents: Iterable[GoldText], style: str) -> Score:
    return count_equal(
        ({word for sentence in split(document.text, style) for word in sentence.words}, set(document.words))
        for document in documents
    )


def sentences_found(documents: Iterable[GoldText]) -> tuple[Score, Score]:
    """Scores of whole sentences, and of their ends alone."""
    pairs = [
        ({(sentence.start, sentence.end) for sentence in split(document.text)}, set(document.sentences))
        for document in documents
    ]
    ends = (({end for _, end in found}, {end for _, end in gold}) for found, gold in pairs)
    return count_equal(pairs), count_equal(ends)


def count_equal(documents: Iterable[tuple[Set[Any], Set[Any]]]) -> Score:
    """The score of found against gold spans."""
    counts = [(len(found & gold), len(found), len(gold)) for found, gold in documents]
    return Score(*map(sum, zip(*counts, strict=True)))


def megabytes_a_second(text: str, style: str, seconds: float) -> float:
    """Of UTF-8 text, in CPU time; the best of repeated runs, after one that fills the caches."""
    split(text, style)
    times, until = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        start = time.process_time()
        split(text, style)
        times.append(time.process_time() - start)
    return len(text.encode()) / min(times) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Words and sentences against gold ones, and speed.")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), metavar="DIR", help="real data")
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure each speed for")
    options = parser.parse_args()
    documents, novels = list(gum(options.shared)), list(litbank(options.shared))
    results = {
        "ud             GUM words": words_found(documents, "ud"),
        "split-hyphens  GENIA words": words_found(genia(options.shared), "split-hyphens"),
        "treebank       LitBank words": words_found(novels, "treebank"),
    }
    for name, texts in {
        "GUM": documents,
        "GENIA": list(articles(options.shared)),
        "LitBank": [joined(novel.name, [novel.text[i:j] for i, j in novel.sentences]) for novel in novels],
    }.items():
        whole, boundaries = sentences_found(texts)
        results |= {f"rules          {name} sentences": whole, f"rules          {name} boundaries": boundaries}
    for name, score in results.items():
        counts = f"{score.correct} right, {score.predicted} found, {score.gold} gold"
        print(f"{name:<35} F1 {100 * score.f1:6.2f} %  ({counts})")
    text = "\n\n".join(document.text for document in documents)
    for style in WORD_STYLES:
        print(f"{style:<14} speed {megabytes_a_second(text, style, options.seconds):21.1f} MB/s")


if __name__ == "__main__":
    main()
