"""The component "nestree" for spaCy: nested entities in `doc.spans`, on spaCy's own words.

    nlp.add_pipe("nestree", config={"model": "my-model"})

`span._.nestree_score` is the probability of an entity and `span._.nestree_head` its head, a Token. Both are read from
the attributes of the span group, which spaCy stores wherever it stores span groups. spaCy finds this module by an
entry point when the first pipeline is made, so nothing heavy is imported before a model is needed.
"""

import shutil
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import srsly  # type: ignore[import-untyped]  # a part of spaCy
from spacy.language import Language
from spacy.pipeline import Pipe
from spacy.tokens import Doc, Span, SpanGroup, Token

from nestree import __version__
from nestree.data.alignment import arranged
from nestree.data.formats.spacy import group
from nestree.data.io import ConversionReport
from nestree.errors import ModelError

if TYPE_CHECKING:
    from nestree.pipeline import Pipeline
    from nestree.types import Document

KEY = "nestree"  # of spans, and of the attribute that says whose they are
WORDS_AT_ONCE = 20_000  # of the documents that are read together


class NestedEntities(Pipe):
    """Finds nested entities; the model is loaded when it is needed for the first time."""

    def __init__(
        self, name: str, model: str | None, device: str, spans_key: str, threshold: float | None
    ) -> None:
        self.name, self.source, self.device = name, model, device
        self.spans_key, self.threshold = spans_key, threshold
        self.ner: Pipeline | None = None
        self.folder: Path | None = None  # where its files are

    @property
    def labels(self) -> tuple[str, ...]:
        """Known once the model is loaded."""
        return self.ner.labels if self.ner else ()

    def __call__(self, doc: Doc) -> Doc:
        self.annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Documents in their order; sentences of like length are read together, whichever documents they are of."""
        held: list[Doc] = []
        words = 0
        for doc in stream:
            held.append(doc)
            words += len(doc)
            if len(held) >= batch_size or words >= WORDS_AT_ONCE:
                yield from self.annotated(held)
                held, words = [], 0
        yield from self.annotated(held)

    def annotated(self, docs: list[Doc]) -> Iterator[Doc]:
        """These documents; if they fail, one by one, and spaCy's error handler decides about those that do."""
        try:
            self.annotate(docs)
            yield from docs
        except Exception:
            for doc in docs:
                try:
                    yield self(doc)
                except Exception as why:
                    self.get_error_handler()(self.name, self, [doc], why)

    def annotate(self, docs: list[Doc]) -> None:
        from nestree.pipeline import predict

        ner = self.loaded()
        documents = [as_document(doc, ner.model.text_rules.sentences) for doc in docs]
        sentences = ner.model.sentences_of(documents)
        found = iter(predict(ner.reader, sentences, asked=ner.asked(self.threshold, trees=False)))
        for doc, document in zip(docs, documents, strict=True):
            read = replace(document, sentences=tuple(next(found) for _ in document.sentences))
            spans = group(read, doc, self.spans_key, [token.i for token in doc if is_word(token)])
            spans.attrs[KEY] = __version__
            doc.spans[self.spans_key] = spans

    def loaded(self) -> "Pipeline":
        if self.ner is None:
            from nestree import hub

            self.use(hub.resolve(self.source))
        assert self.ner is not None
        return self.ner

    def use(self, folder: Path) -> None:
        from nestree.pipeline import load

        self.ner, self.folder = load(folder, self.device), folder

    # To files and bytes, and back

    def files(self) -> tuple[Path, list[Path]]:
        """The folder of the model, and the files in it."""
        from nestree import checkpoint

        self.loaded()
        assert self.folder is not None
        if not (self.folder / checkpoint.WEIGHTS).is_file():
            raise ModelError(
                f"{self.folder}, where the model came from, is gone, so it cannot be saved again."
            )
        return self.folder, list(checkpoint.files_of(self.folder))

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """The whole model goes with the pipeline."""
        from nestree import checkpoint

        folder, files = self.files()
        if Path(path).resolve() != folder.resolve():
            checkpoint.copy(files, folder, Path(path))

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "NestedEntities":
        self.use(Path(path))
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        folder, files = self.files()
        packed: bytes = srsly.msgpack_dumps(
            {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        )
        return packed

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> "NestedEntities":
        folder = Path(tempfile.mkdtemp(prefix="nestree-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, content in srsly.msgpack_loads(data).items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ModelError(f"these bytes are no model of nestree: they name the file {name!r:.60}.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.use(folder)
        return self


@Language.factory(
    "nestree",
    assigns=["doc.spans", "span._.nestree_score", "span._.nestree_head"],
    default_config={"model": None, "device": "auto", "spans_key": KEY, "threshold": None},
)
def make_component(
    nlp: Language, name: str, model: str | None, device: str, spans_key: str, threshold: float | None
) -> NestedEntities:
    """What `nlp.add_pipe("nestree")` adds. `model`: a directory or a hub name; None: the bundled model."""
    return NestedEntities(name, model, device, spans_key, threshold)


def is_word(token: Token) -> bool:
    return len(token) > 0 and not token.is_space


def as_document(doc: Doc, rule: str) -> "Document":
    """Its words; its sentences if it has any, else those of our rule."""
    words = [(token.idx, token.idx + len(token)) for token in doc if is_word(token)]
    starts = None
    if doc.has_annotation("SENT_START"):
        before = list(accumulate((is_word(token) for token in doc), initial=0))  # words before each token
        starts = [before[token.i] for token in doc if token.is_sent_start]
    return arranged(
        doc.text, words, (), starts=starts, sentences=rule, tally=ConversionReport(), place="a Doc of spaCy"
    )


# What spans say


def said(name: str) -> Callable[[Span], Any]:
    """A function that gives what a span group of ours says of a span; None: nothing."""

    def of(span: Span) -> Any:
        for spans in span.doc.spans.values():
            values = spans.attrs.get(name)
            if KEY not in spans.attrs or values is None or len(values) != len(spans):
                continue
            number = number_of(span, spans)
            if number is not None:
                return values[number]
        return None

    return of


def number_of(span: Span, spans: SpanGroup) -> int | None:
    """Which of the spans it is. They are in order, unless somebody has changed that."""

    def place(k: int) -> tuple[int, int]:
        return spans[k].start, -spans[k].end

    def same(k: int) -> bool:
        return place(k) == (span.start, -span.end) and spans[k].label == span.label

    first = bisect_left(range(len(spans)), (span.start, -span.end), key=place)
    for k in range(first, len(spans)):
        if same(k):
            return k
        if place(k) != (span.start, -span.end):
            break
    return next(filter(same, range(len(spans))), None)


def head_of(span: Span) -> Token | None:
    head = said("heads")(span)
    return None if head is None else span.doc[head]


Span.set_extension("nestree_score", getter=said("scores"), force=True)
Span.set_extension("nestree_head", getter=head_of, force=True)
