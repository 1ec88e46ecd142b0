"""spaCy's DocBin, usually called `.spacy`: documents with their words, and entities in `doc.spans` or `doc.ents`.

Spans may nest and cross, `doc.ents` may not: spans are what is written. Scores stand where spaCy's own span
categorizer puts them, in `doc.spans[key].attrs["scores"]`, heads beside them. Sentences are those of the document
or, if it says nothing of them, found by rule. Tokens of blanks are no words.

A file is read whole: a DocBin is packed as one. spaCy imports torch where it is installed.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from nestree.data.alignment import BLANK, Token, arranged, note_strays, tokens
from nestree.data.io import (
    STDIO,
    ConversionReport,
    atomic_path,
    check_nesting,
    current,
    optional_import,
    probability,
    remedy,
    whole,
)
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity

ENTS = "ents"
# Bytes of memory that a document or a word of the longest document takes, and one item of the lists in a DocBin.
OBJECT_BYTES = 512
LISTS = {"strings": 512, "cats": 64, "flags": 64, "span_groups": 64, "user_data": 64}
HEADS = ("parse", "none")
NOT_WRITTEN = ("further keys of sentences", "further keys of documents", "marks of incomplete sentences")


def read(
    path: Path, tally: ConversionReport, *, key: str = "", heads: str = "parse", sentences: str = "rules"
) -> Iterator[Document]:
    """The documents of a DocBin.

    key: which group of `doc.spans`, or "ents" for `doc.ents`; if it is not given, all groups or, in a document
    without any, `doc.ents`. heads: those that are written beside the spans, else from the dependency "parse" if
    there is one: the word, punctuation aside, whose own head lies outside; "none": not from there. sentences: the
    rule for documents without sentences (see nestree.text).
    """
    if heads not in HEADS:
        raise InputError(f"heads is one of {', '.join(HEADS)}, not {heads!r}.")
    spacy = optional_import("spacy", "a DocBin", "spacy")
    data, number = bytes(whole(path)), 0
    try:
        check_size(data, path)
        docs = spacy.tokens.DocBin().from_bytes(data).get_docs(spacy.blank("xx").vocab)
        while (doc := next(docs, None)) is not None:
            number += 1
            try:
                yield to_document(doc, key, heads, sentences, tally, f"{path}, document {number}")
            except DataError as error:
                tally.bad(error)
    except DataError as error:
        tally.bad(error)
    except InputError:
        raise
    except Exception as why:  # whatever spaCy, msgpack and numpy make of bytes that are no DocBin
        tally.bad(
            DataError(
                f"{path}: this is no DocBin of spaCy: {type(why).__name__}: {why!s:.80}. It may be cut off, or "
                f"another kind of file; {number} documents could be read."
            )
        )


def check_size(data: bytes, path: Path) -> None:
    """Raise if a DocBin expands to too much: its bytes, and the objects that its documents and strings become."""
    most = current.get().max_docbin_bytes
    size = unpacked_size(data, most)
    if size <= most:
        raw = zlib.decompress(data)
        msgpack = optional_import("srsly.msgpack", "a DocBin", "spacy")
        unpacker = msgpack.Unpacker(raw=False, max_buffer_size=max(size, 1))
        unpacker.feed(raw)
        for _ in range(unpacker.read_map_header()):
            name = unpacker.unpack()
            if name == "lengths":
                lengths = memoryview(unpacker.unpack()).cast("i")
                size += len(lengths) * OBJECT_BYTES
                size += max(lengths, default=0) * OBJECT_BYTES if size <= most else 0
            elif name in LISTS:
                count = unpacker.read_array_header()
                size += count * LISTS[name]
                for _ in range(count if size <= most else 0):
                    unpacker.skip()
            else:
                unpacker.skip()
            if size > most:
                break
    if size > most:
        raise DataError(
            f"{path}: this DocBin expands to more than {most:,} bytes. {remedy('max_docbin_bytes')}"
        )


def unpacked_size(data: bytes, most: int) -> int:
    """How many bytes are packed in these; counted until they are more than `most`, and not kept."""
    unpacker, size = zlib.decompressobj(), 0
    for at in range(0, len(data), 2**16):
        part = data[at : at + 2**16]
        while part and size <= most:
            size += len(unpacker.decompress(part, 2**20))
            part = unpacker.unconsumed_tail
    return size


def to_document(
    doc: Any, key: str, heads: str, sentences: str, tally: ConversionReport, place: str
) -> Document:
    """A document of the tokens that are no blanks."""
    word_of = list(
        accumulate((not token.is_space for token in doc), initial=0)
    )  # the first from this token on
    words = [(token.idx, token.idx + len(token)) for token in doc if not token.is_space]
    starts = None
    if doc.has_annotation("SENT_START"):
        starts = [word_of[token.i] for token in doc if token.is_sent_start]
    entities = []
    spans = list(found_spans(doc, key, tally, place))
    check_nesting([(span.start, span.end) for span, *_ in spans], place)
    for span, score, head, several in spans:
        if word_of[span.start] == word_of[span.end]:
            tally.note(BLANK, place)
            continue
        if head is None and not several and heads == "parse" and doc.has_annotation("DEP"):
            head, several = roots(span)
            tally.note("heads taken from the dependency parse", place)
        entities.append(entity(span, score, head, several, word_of, tally, place))
    kept = doc.user_data.get("doc_id"), doc.user_data.get("sent_ids")
    layers = len(doc) > 0 and any(doc.has_annotation(name) for name in ("TAG", "POS", "LEMMA", "MORPH"))
    if layers or doc.cats or doc.user_data.keys() - {"doc_id", "sent_ids"}:
        tally.note("tags, lemmas, categories and custom attributes not read", place)
    id = kept[0] if isinstance(kept[0], str) else None
    found = arranged(
        doc.text, words, entities, starts=starts, sentences=sentences, id=id, tally=tally, place=place
    )
    ids = kept[1] if isinstance(kept[1], list | tuple) and len(kept[1]) == len(found.sentences) else None
    if ids:
        named = zip(found.sentences, ids, strict=True)
        found = replace(found, sentences=tuple(replace(s, id=str(id) if id else None) for s, id in named))
    if doc.has_unknown_spaces:
        bare = (replace(s, text=None, offsets=None, start=0) for s in found.sentences)
        return replace(found, sentences=tuple(bare), text=None)
    return found


def found_spans(
    doc: Any, key: str, tally: ConversionReport, place: str
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Each span with its score, its head and all that may be its head, as tokens, where these are written."""
    if key == ENTS or (not key and not doc.spans):
        yield from ((span, None, None, None) for span in doc.ents)
        return
    if key and key not in doc.spans:
        raise DataError(
            f"{place}: there are no spans called {key!r}, only {', '.join(doc.spans) or 'none'}. "
            "Choose the option `key`."
        )
    groups = [doc.spans[key]] if key else list(doc.spans.values())
    if len(groups) > 1:
        tally.note("several groups of spans read together", place)
    if doc.ents and not key:
        tally.note("doc.ents not read: the document has spans", place, len(doc.ents))
    for group in groups:
        told = [[*group.attrs.get(name, ())] for name in ("scores", "heads", "all_heads")]
        nothing = [None] * len(group)
        columns = [values if len(values) == len(group) else nothing for values in told]
        yield from zip(group, *columns, strict=True)


def roots(span: Any) -> tuple[int | None, list[int]]:
    """The token, blanks and punctuation aside, whose own head lies outside; if several do, none and all of them."""
    own = [token for token in span if not token.is_space]
    own = [token for token in own if not token.is_punct] or own
    found = [t.i for t in own if t.head.i == t.i or not span.start <= t.head.i < span.end]
    return (found[0], []) if len(found) == 1 else (None, found)


def entity(
    span: Any, score: Any, head: Any, several: Any, word_of: list[int], tally: ConversionReport, place: str
) -> Entity:
    def words(tokens: Any) -> tuple[int, ...]:
        listed = tokens if isinstance(tokens, list | tuple) else ()
        return tuple(word_of[k] for k in listed if isinstance(k, int) and span.start <= k < span.end)

    extra = {"kb_id": span.kb_id_, "id": span.id_}
    try:
        return Entity(
            word_of[span.start],
            word_of[span.end],
            span.label_,
            next(iter(words([head])), None),
            probability(None if score is None else float(score), tally, place),
            words(several),
            {key: value for key, value in extra.items() if value},
        )
    except DataError as error:
        raise error.at(place) from None


def write(documents: Iterable[Document], path: Path, tally: ConversionReport, *, key: str = "sc") -> None:
    """A DocBin with the entities in `doc.spans[key]`."""
    spacy = optional_import("spacy", "a DocBin", "spacy")
    vocab, packed = spacy.blank("xx").vocab, spacy.tokens.DocBin(store_user_data=True)
    for number, document in enumerate(documents, 1):
        place = document.id or f"document {number}"
        report_losses(document, "spacy", NOT_WRITTEN, tally, place)
        more = sum(bool(e.extra.keys() - {"kb_id", "id"}) for s in document.sentences for e in s.entities)
        if more:
            tally.note("further keys of entities not written: spacy has no place for them", place, more)
        packed.add(to_doc(document, vocab, key, tally, place))
    data = packed.to_bytes()
    if path == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def to_doc(document: Document, vocab: Any, key: str, tally: ConversionReport, place: str) -> Any:
    spacy = optional_import("spacy", "a DocBin", "spacy")
    only_words = document.text is None and all(s.text is None for s in document.sentences)
    document = document.with_text()
    text = document.text or ""
    words = [(s.start + i, s.start + j) for s in document.sentences for i, j in s.offsets or ()]
    pieces = [Token(i, j, True, k) for k, (i, j) in enumerate(words)]
    pieces = pieces if only_words else tokens(text, words)
    note_strays(pieces, text, tally, place)
    number = [k for k, piece in enumerate(pieces) if piece.word is not None]  # of the token of each word
    before = accumulate((len(s.words) for s in document.sentences), initial=0)
    firsts = {number[k] for k in before if k < len(number)}
    doc = spacy.tokens.Doc(
        vocab,
        words=[text[piece.start : piece.end] for piece in pieces],
        spaces=None if only_words else [piece.blank for piece in pieces],
        sent_starts=[k in firsts for k in range(len(pieces))],
    )
    doc.spans[key] = group(document, doc, key, number)
    doc.user_data = {}
    if document.id is not None:
        doc.user_data["doc_id"] = document.id
    if any(sentence.id is not None for sentence in document.sentences):
        doc.user_data["sent_ids"] = [sentence.id for sentence in document.sentences]
    return doc


def group(document: Document, doc: Any, key: str, number: list[int]) -> Any:
    """All entities as spans; `number` is the token of each word."""
    kinds = optional_import("spacy.tokens", "a DocBin", "spacy")
    spans, before = [], 0
    told: dict[str, list[Any]] = {"scores": [], "heads": [], "all_heads": []}
    for sentence in document.sentences:
        for e in sentence.entities:
            first, last = number[before + e.start], number[before + e.end - 1]
            kb_id, span_id = (str(e.extra.get(name, "")) for name in ("kb_id", "id"))
            spans.append(kinds.Span(doc, first, last + 1, label=e.label, kb_id=kb_id, span_id=span_id))
            told["scores"].append(e.score)
            told["heads"].append(None if e.head is None else number[before + e.head])
            told["all_heads"].append([number[before + head] for head in e.heads] or None)
        before += len(sentence.words)
    attrs = {name: values for name, values in told.items() if any(value is not None for value in values)}
    return kinds.SpanGroup(doc, name=key, spans=spans, attrs=attrs)
