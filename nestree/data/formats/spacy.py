"""spaCy's DocBin, usually called `.spacy`: documents with their words, and entities in `doc.spans` or `doc.ents`.

Spans may nest and cross, `doc.ents` may not: spans are what is written. Scores stand where spaCy's own span
categorizer puts them, in `doc.spans[key].attrs["scores"]`, heads beside them. Sentences are those of the document
or, if it has none, found by rule. Tokens that are empty or white space are not words.

A file is read at once: a DocBin is one compressed block. spaCy imports torch where it is installed.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from nestree.data.alignment import BLANK, AnnotatedText, Token, tokens
from nestree.data.formats import common
from nestree.data.io import (
    STDIO,
    ConversionReport,
    atomic_path,
    check_nesting,
    current_limits,
    limit_remedy,
    optional_import,
    read_bytes,
)
from nestree.errors import DataError
from nestree.types import Document, Entity, Span

OBJECT_BYTES = 512  # of memory that a document takes, and a word of the longest document
PART_BYTES = 2**18  # that are decompressed at once to count them
# Bytes of memory that an item of a list in a DocBin takes.
LIST_ITEM_BYTES = {"strings": 512, "cats": 64, "flags": 64, "span_groups": 64, "user_data": 64}


def read_spacy(
    path: Path, report: ConversionReport, *, key: str = "", heads: Literal["parse", "none"] = "parse"
) -> Iterator[AnnotatedText]:
    """The documents of a DocBin; those without sentences are split by the rule `sentences`.

    key: which group of `doc.spans`, or "ents" for `doc.ents`; if it is not given, all groups or, in a document
    without any, `doc.ents`. heads: those that are written beside the spans, else from the dependency "parse" if
    there is one: the word, punctuation aside, whose own head lies outside; "none": only the former.
    """
    spacy = optional_import("spacy", "a DocBin", "spacy")
    data, number = read_bytes(path), 0
    try:
        check_size(data, path)
        docs = spacy.tokens.DocBin().from_bytes(data).get_docs(spacy.blank("xx").vocab)
        for number, doc in enumerate(docs, 1):
            with common.skip_bad(report, f"{path}, document {number}"):
                yield to_annotated(doc, key, heads, report)
    except DataError as error:
        report.bad(error)
    except Exception as why:  # whatever spaCy, msgpack and numpy make of bytes that are no DocBin
        report.bad(
            DataError(
                f"{path}: this is not a spaCy DocBin: {type(why).__name__}: {why!s:.80}. It may be cut off, or "
                f"another kind of file; {number} documents could be read."
            )
        )


def zlib_parts(data: bytes | bytearray) -> Iterator[bytes]:
    """The bytes of a zlib stream in parts, none of them empty."""
    decompressor = zlib.decompressobj()
    for start in range(0, len(data), PART_BYTES):
        rest: bytes | bytearray = data[start : start + PART_BYTES]
        while rest and not decompressor.eof:
            if part := decompressor.decompress(rest, PART_BYTES):
                yield part
            rest = decompressor.unconsumed_tail
    if part := decompressor.flush():
        yield part


def check_size(data: bytes | bytearray, path: Path) -> None:
    """Raise if a DocBin expands to too much: its bytes, and the objects that its documents and strings become."""
    limit = current_limits.get().max_docbin_bytes
    too_large = DataError(
        f"{path}: this DocBin expands to more than {limit:,} bytes. {limit_remedy('max_docbin_bytes')}"
    )
    size = 0
    for part in zlib_parts(data):
        size += len(part)
        if size > limit:
            raise too_large
    msgpack = optional_import("srsly.msgpack", "a DocBin", "spacy")
    parts = zlib_parts(data)
    file = SimpleNamespace(read=lambda _: next(parts, b""))
    unpacker = msgpack.Unpacker(file, read_size=PART_BYTES, raw=False, max_buffer_size=size + PART_BYTES)
    for _ in range(unpacker.read_map_header()):
        name = unpacker.unpack()
        count = 0
        if name == "lengths":
            lengths = memoryview(unpacker.unpack()).cast("i")
            size += len(lengths) * OBJECT_BYTES
            size += max(lengths, default=0) * OBJECT_BYTES if size <= limit else 0
        elif name in LIST_ITEM_BYTES:
            count = unpacker.read_array_header()
            size += count * LIST_ITEM_BYTES[name]
        else:
            unpacker.skip()
        if size > limit:
            raise too_large
        for _ in range(count):
            unpacker.skip()


def is_word(token: Any) -> bool:
    return len(token) > 0 and not token.is_space


def find_words(doc: Any) -> tuple[list[Span], list[int] | None, list[int]]:
    """The offsets of words; the first word of each sentence, if known; for each token, the first word from it on."""
    word_of = list(accumulate((is_word(token) for token in doc), initial=0))
    words = [(token.idx, token.idx + len(token)) for token in doc if is_word(token)]
    starts = None
    if doc.has_annotation("SENT_START"):
        starts = [word_of[token.i] for token in doc if token.is_sent_start]
    return words, starts, word_of


def to_annotated(doc: Any, key: str, heads: str, report: ConversionReport) -> AnnotatedText:
    """A document whose words are the tokens that are not white space."""
    words, starts, word_of = find_words(doc)
    entities = []
    spans = list(select_spans(doc, key, report))
    check_nesting([(span.start, span.end) for span, *_ in spans], report.place)
    for span, score, head, all_heads in spans:
        if word_of[span.start] == word_of[span.end]:
            report.note(BLANK)
            continue
        if head is None and not all_heads and heads == "parse" and doc.has_annotation("DEP"):
            head, all_heads = find_roots(span)
            report.note("heads taken from the dependency parse")
        entities.append(to_entity(span, score, head, all_heads, word_of, report))
    layers = len(doc) > 0 and any(doc.has_annotation(name) for name in ("TAG", "POS", "LEMMA", "MORPH"))
    if layers or doc.cats or doc.user_data.keys() - {"doc_id", "sent_ids"}:
        report.note("tags, lemmas, categories and custom attributes not read")
    id, sentence_ids = doc.user_data.get("doc_id"), doc.user_data.get("sent_ids")
    id = id if isinstance(id, str) else None
    annotated = AnnotatedText(doc.text, (), report.place, id, words=words, starts=starts, entities=entities)
    annotated.sentence_ids = sentence_ids if isinstance(sentence_ids, list | tuple) else ()
    annotated.only_words = doc.has_unknown_spaces
    return annotated


def select_spans(doc: Any, key: str, report: ConversionReport) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Each span with its score, its head and all possible heads, as tokens, where these are written."""
    if key == "ents" or (not key and not doc.spans):
        yield from ((span, None, None, None) for span in doc.ents)
        return
    if key and key not in doc.spans:
        raise DataError(
            f"there is no span group called {key!r}, only {', '.join(doc.spans) or 'none'}. Choose the option `key`."
        )
    groups = [doc.spans[key]] if key else list(doc.spans.values())
    if len(groups) > 1:
        report.note("several groups of spans read together")
    if doc.ents and not key:
        report.note("doc.ents not read: the document has spans", times=len(doc.ents))
    for group in groups:
        attributes = [[*group.attrs.get(name, ())] for name in ("scores", "heads", "all_heads")]
        columns = [values if len(values) == len(group) else [None] * len(group) for values in attributes]
        yield from zip(group, *columns, strict=True)


def find_roots(span: Any) -> tuple[int | None, list[int]]:
    """The word of the span, punctuation aside, whose own head lies outside; if several do, None and all of them."""
    candidates = [token for token in span if is_word(token)]
    candidates = [token for token in candidates if not token.is_punct] or candidates
    roots = [t.i for t in candidates if t.head.i == t.i or not span.start <= t.head.i < span.end]
    return (roots[0], []) if len(roots) == 1 else (None, roots)


def to_entity(span: Any, score: Any, head: Any, all_heads: Any, word_of: list[int], report: ConversionReport) -> Entity:
    def words(tokens: Any) -> tuple[int, ...]:
        numbers = tokens if isinstance(tokens, list | tuple) else ()
        return tuple(word_of[k] for k in numbers if isinstance(k, int) and span.start <= k < span.end)

    extra = {key: value for key, value in (("kb_id", span.kb_id_), ("id", span.id_)) if value}
    score = common.parse_probability(None if score is None else float(score), report)
    start, end, one = word_of[span.start], word_of[span.end], next(iter(words([head])), None)
    return Entity(start, end, span.label_, one, score, words(all_heads), extra)


def write_spacy(documents: Iterable[Document], path: Path, report: ConversionReport, *, key: str = "sc") -> None:
    """A DocBin with the entities in `doc.spans[key]`."""
    spacy = optional_import("spacy", "a DocBin", "spacy")
    vocab, docbin = spacy.blank("xx").vocab, spacy.tokens.DocBin(store_user_data=True)
    for document in common.report_dropped(documents, "spacy", report):
        docbin.add(to_doc(document, vocab, key, report))
    data = docbin.to_bytes()
    if path == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def to_doc(document: Document, vocab: Any, key: str, report: ConversionReport) -> Any:
    spacy = optional_import("spacy", "a DocBin", "spacy")
    only_words = document.text is None and all(s.text is None for s in document.sentences)
    document = document.with_text()
    text, words = document.text or "", common.word_offsets(document)
    pieces = [Token(i, j, True, k) for k, (i, j) in enumerate(words)]
    if not only_words:
        pieces = tokens(text, words, report)
    token_of = [k for k, piece in enumerate(pieces) if piece.word is not None]  # of each word
    first_words = accumulate((len(s.words) for s in document.sentences), initial=0)
    first_tokens = {token_of[k] for k in first_words if k < len(token_of)}
    doc = spacy.tokens.Doc(
        vocab,
        words=[text[piece.start : piece.end] for piece in pieces],
        spaces=None if only_words else [piece.space for piece in pieces],
        sent_starts=[k in first_tokens for k in range(len(pieces))],
    )
    doc.spans[key] = to_span_group(document, doc, key, token_of)
    doc.user_data = {}
    if document.id is not None:
        doc.user_data["doc_id"] = document.id
    if any(sentence.id is not None for sentence in document.sentences):
        doc.user_data["sent_ids"] = [sentence.id for sentence in document.sentences]
    return doc


def to_span_group(document: Document, doc: Any, key: str, token_of: list[int]) -> Any:
    """The entities of a document as a SpanGroup of `doc`; `token_of` is the token of each word."""
    spacy_tokens = optional_import("spacy.tokens", "a DocBin", "spacy")
    spans, before = [], 0
    attributes: dict[str, list[Any]] = {"scores": [], "heads": [], "all_heads": []}
    for sentence in document.sentences:
        for e in sentence.entities:
            first, last = token_of[before + e.start], token_of[before + e.end - 1]
            kb_id, span_id = (str(e.extra.get(name, "")) for name in ("kb_id", "id"))
            spans.append(spacy_tokens.Span(doc, first, last + 1, label=e.label, kb_id=kb_id, span_id=span_id))
            attributes["scores"].append(e.score)
            attributes["heads"].append(None if e.head is None else token_of[before + e.head])
            attributes["all_heads"].append([token_of[before + head] for head in e.heads] or None)
        before += len(sentence.words)
    attrs = {name: values for name, values in attributes.items() if any(v is not None for v in values)}
    return spacy_tokens.SpanGroup(doc, name=key, spans=spans, attrs=attrs)
