"""Text that programs choke on, at full size, through everything: how long, how much memory, and is all of it right?

    python -m benchmarks.hostile [--model DIR] [--texts 100000] [--megabytes 10] [--words 100000] [--data FILE]

Streams: short texts made on the fly, some of which cannot be read. Sizes: millions of characters without a blank, and a
sentence of very many words. Characters: halves of surrogate pairs, NULs, both directions, emoji, marks, HTML, in every
picture. Of each document is checked that no character is lost, that offsets select what they claim, that nothing
crosses, and that JSON gives the same back. Memory is that of the whole process. Of annotated data, sentences are joined
to some of 600 words each, and read through windows of several sizes. Ends with one line of JSON.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import nestree
from benchmarks.timing import MIB, _status, one_line, provenance, write_whole
from nestree.data import formats
from nestree.errors import InputError
from nestree.evaluation import evaluate
from nestree.pipeline import Pipeline, windows
from nestree.sentence import Document, Entity, Sentence

Row = dict[str, Any]
SAID = (
    "Ann met the mayor of Oslo and Bob from the University of Toronto in May while two old friends ate a pie"
)
WORDS = SAID.split()
EVERY = 20_000  # texts of a stream, of which one cannot be read
LOOKS = 40  # at the memory, during a stream
CHARACTERS = {
    "nothing": "",
    "a blank": " \n\t\u00a0\u2003",
    "NULs": "\x00Ann\x00 met\x00 the mayor of Oslo\x00",
    "lone surrogates": "\ud800 Ann met \udfff the mayor\ud83d of Oslo \udc00",
    "right to left": "שלום עולם, Ann met مرحبا بالعالم in Oslo \u202eof mayor the\u202c",
    "emoji": "👩‍👩‍👧‍👦 Ann 🇳🇴 met 👍🏽 the ❤️ mayor of Oslo 🏳️‍🌈",
    "marks": "A\u0301n\u0303n\u0327\u0308 met e\u0301 the mayor\u0301 of O\u0338slo" + "\u0301" * 200,
    "HTML": "<script>alert('Ann & Bob')</script> the <mayor onclick=\"x\">mayor</mayor> of Oslo &amp; <!-- ]]>",
    "steering": "\x1b[31mAnn\x1b[0m met\x07 the\x08 mayor\r of\x9b1m Oslo\x7f",
    "no blanks between words": "東京都知事は大阪市長と会った。กรุงเทพมหานคร",
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = parsed(arguments)
    torch.set_num_threads(given.threads)
    ner = nestree.load(given.model, given.device)
    ner("Ann met Bob.")
    result: Row = {
        "benchmark": "hostile",
        "model": Path(given.model).name if given.model else "box",
        **provenance(ner.device.type, given.commit),
        "loaded_mib": _status("VmRSS") / MIB,
        "rows": [],
    }
    for row in rows(ner, given):
        result["rows"].append(row)
        said = ", ".join(
            f"{key} {short(value)}" for key, value in row.items() if key not in ("case", "over_time")
        )
        print(f"{row['case']}: {said}", file=sys.stderr, flush=True)
        if given.out:
            write_whole(given.out, one_line(result) + "\n")
    print(one_line(result))
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a directory; default: the model in the box")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--texts", type=int, default=100_000, help="of the stream")
    parser.add_argument("--minutes", type=float, default=20, help="after which the stream ends, whole or not")
    parser.add_argument("--megabytes", type=float, default=10, help="of text without a blank")
    parser.add_argument("--words", type=int, default=100_000, help="of one sentence")
    parser.add_argument("--data", type=Path, metavar="FILE", help="annotated, to compare sizes of windows on")
    parser.add_argument("--windows", default="200,128,96,64,48,32", help="these sizes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the JSON line that is also printed")
    parser.add_argument("--commit", help="where there is no git")
    return parser.parse_args(arguments)


def rows(ner: Pipeline, given: argparse.Namespace) -> Iterator[Row]:
    for name, text in CHARACTERS.items():
        yield {"case": f"characters: {name}", **pictured(read(ner, text))}
    size = int(given.megabytes * 1e6)
    chance = random.Random(0)
    coded = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for name, text in {
        "one letter": "a" * size,
        "one letter beyond ASCII": "é" * (size // 2),
        "periods": "." * size,
        "NULs": "\x00" * size,
        "marks": "\u0301" * (size // 2),
        "base64": "".join(chance.choices(coded, k=size)),
        "JSON, a hundredth of it": json.dumps({"Ann": [1, {"Bob": "Oslo"}]}, separators=(",", ":"))
        * (size // 2_600),
        "Japanese, a hundredth of it": "".join(chance.choices("東京都知事は大阪市長と会った", k=size // 300)),
    }.items():
        yield {"case": f"without a blank: {name}", **measured(lambda t=text: read(ner, t))}
    long = " ".join(chance.choices(WORDS, k=given.words))
    yield {"case": "one sentence", **measured(lambda: read(ner, long))}
    yield {"case": "stream", **streamed(ner, given.texts, 60 * given.minutes)}
    for size in map(int, given.windows.split(",") if given.data else ()):
        yield {"case": f"windows of {size} words", **through_windows(ner, joined(given.data), size)}


# One text


def read(ner: Pipeline, text: str) -> Document:
    document = ner(text)
    check(document, text)
    return document


def measured(call: Callable[[], Document]) -> Row:
    """What a document has, and what reading it took."""
    forget_the_peak()
    start, started, worked = _status("VmRSS"), time.perf_counter(), time.process_time()
    document = call()
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    words = sum(len(sentence.words) for sentence in document.sentences)
    return {
        "characters": len(document.text or ""),
        "words": words,
        "sentences": len(document.sentences),
        "windowed": len(document.windowed),
        "entities": len(document.entities),
        "seconds": seconds,
        "processor_seconds": work,
        "words_per_second": words / seconds,
        "mib_before": start / MIB,
        "mib_at_most": _status("VmHWM") / MIB,
    }


def check(document: Document, text: str) -> None:
    """Nothing is lost, and everything is where it says."""
    assert document.text == text
    at = 0
    for sentence in document.sentences:
        assert sentence.offsets is not None
        for word, (i, j) in zip(sentence.words, sentence.offsets, strict=True):
            start, end = sentence.start + i, sentence.start + j
            assert text[start:end] == word
            assert not text[at:start].strip()  # between words there is nothing but white space
            at = end
    assert not text[at:].strip()
    spans = []
    for entity in document.entities:
        assert text[entity.start : entity.end] == entity.text
        assert entity.head is None or text[entity.head.start : entity.head.end] == entity.head.text
        assert entity.parent is None or entity.parent.start <= entity.start < entity.end <= entity.parent.end
        spans.append((entity.start, entity.end))
    check_nesting(spans)
    again = json.loads(document.to_json())
    assert again["text"] == text
    assert [(e["start"], e["end"]) for e in again["entities"]] == spans


def check_nesting(spans: Sequence[tuple[int, int]]) -> None:
    assert list(spans) == sorted(set(spans), key=lambda span: (span[0], -span[1]))
    around: list[int] = []  # the ends of those that are open
    for start, end in spans:
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1]
        around.append(end)


# Pictures


class Reader(HTMLParser):
    """What a browser would see: tags, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def pictured(document: Document) -> Row:
    """Every picture of a document; nothing of its text becomes a tag, or steers a terminal."""
    page = nestree.show.page([document])
    for html in (nestree.show.boxes(document), page):
        html.encode()
        seen = Reader()
        seen.feed(html)
        assert not {"script", "mayor"} & seen.tags
        assert not {"onclick", "onerror"} & seen.attributes
    show = nestree.show
    trees = [show.draw_sentence(sentence, 80) for sentence in document.sentences]
    for drawn in (show.draw_document(document, 80), *trees):
        drawn.plain.encode()
        assert not any(character in drawn.plain for character in "\x00\x07\x08\x1b\x7f\x9b\r\u202e")
    return {
        "words": sum(len(sentence.words) for sentence in document.sentences),
        "entities": len(document.entities),
        "page_characters": len(page),
    }


# Streams


def texts(count: int, bad: bool) -> Iterator[Any]:
    """Short ones, each with its number; now and then something that is none."""
    chance = random.Random(1)
    for number in range(count):
        if bad and number % EVERY == EVERY // 2:
            yield number
        else:
            yield f"{number} {' '.join(chance.choices(WORDS, k=chance.randrange(1, 5)))}"


def streamed(ner: Pipeline, count: int, seconds: float) -> Row:
    """All texts in their order, in bounded memory; those that cannot be read are skipped, and named."""
    named = error_of(ner)
    forget_the_peak()
    started, worked = time.perf_counter(), time.process_time()
    looks: list[tuple[int, float, float]] = []
    number = skipped = entities = 0
    for number, document in enumerate(ner.pipe(texts(count, bad=True), on_error="skip"), 1):
        if "error" in document.extra:
            assert f"text {number - 1} " in document.extra["error"]
            skipped += 1
        else:
            assert document.text is not None
            assert int(document.text.split()[0]) == number - 1
            entities += len(document.entities)
        if number % max(1, count // LOOKS) == 0:
            looks.append((number, time.perf_counter() - started, _status("VmRSS") / MIB))
        if time.perf_counter() - started > seconds:
            break
    spent = time.perf_counter() - started
    return {
        "asked": count,
        "texts": number,
        "skipped": skipped,
        "entities": entities,
        "seconds": spent,
        "processor_seconds": time.process_time() - worked,
        "texts_per_second": number / spent,
        "mib_at_most": _status("VmHWM") / MIB,
        "mib_after_a_tenth": looks[len(looks) // 10][2] if looks else None,
        "mib_at_the_end": looks[-1][2] if looks else None,
        "error": named,
        "over_time": looks,
    }


def error_of(ner: Pipeline) -> str:
    """What is said of a text that cannot be read."""
    try:
        for _ in ner.pipe(["Ann", "Bob", None, "Oslo"]):  # type: ignore[list-item]
            pass
    except InputError as error:
        return str(error)
    raise AssertionError("a text that is None was read")


# Windows


def joined(data: Path, words: int = 600, count: int = 5) -> list[Sentence]:
    """Long sentences, each made of those that follow each other in annotated data."""
    made: list[Sentence] = []
    held: list[str] = []
    entities: list[Entity] = []
    for sentence in (s for document in formats.read(data) for s in document.sentences):
        entities += [Entity(e.start + len(held), e.end + len(held), e.label) for e in sentence.entities]
        held += sentence.words
        if len(held) >= words:
            made.append(Sentence(tuple(held), tuple(entities)))
            held, entities = [], []
        if len(made) == count:
            break
    return made


def through_windows(ner: Pipeline, sentences: Sequence[Sentence], size: int) -> Row:
    """What is found in long sentences if windows have this size."""
    usual, windows.WINDOW = windows.WINDOW, size
    started = time.process_time()
    try:
        found = ner.words(sentences)
    finally:
        windows.WINDOW = usual
    spent = time.process_time() - started
    score = evaluate(sentences, found).entities
    words = sum(len(sentence.words) for sentence in sentences)
    return {
        "words": words,
        "precision": score.precision,
        "recall": score.recall,
        "f1": score.f1,
        "processor_seconds": spent,
    }


def forget_the_peak() -> None:
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5")


def short(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else repr(value)
    )


if __name__ == "__main__":
    sys.exit(main())
