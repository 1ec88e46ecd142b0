"""The spaCy component "nestree": nested entities in `doc.spans`, on spaCy's own tokens.

    nlp.add_pipe("nestree", config={"model": "my-model"})

`span._.nestree_score` is the probability of an entity and `span._.nestree_head` its head, a Token. Both are read from
the attributes of the span group, which spaCy serialises with it. spaCy imports this module through an entry point when
the first pipeline is created, so torch and the model are loaded only when they are needed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestree import __version__
from nestree.config import check_threshold
from nestree.data.alignment import AnnotatedText, align
from nestree.data.formats.spacy import find_words, is_word, to_span_group
from nestree.data.io import optional_import

try:
    import srsly  # type: ignore[import-untyped]  # a part of spaCy
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.tokens import Doc, Span, SpanGroup, Token
except ModuleNotFoundError:
    optional_import("spacy", "the spaCy component", "spacy")  # raises an error that names the extra
    raise

if TYPE_CHECKING:
    from nestree.pipeline import Pipeline
    from nestree.types import Document

Threshold = float | dict[str, float] | None
KEY = "nestree"  # of the span group, and of the attribute that marks it as ours


class NestedEntities(Pipe):
    """Predicts nested entities; loads the model when it is first needed."""

    def __init__(self, name: str, model: str | None, device: str, spans_key: str, threshold: Threshold) -> None:
        self.name, self.source, self.device = name, model, device
        self.loaded: Pipeline | None = None
        self.spans_key, self.threshold = spans_key, threshold

    @property
    def threshold(self) -> Threshold:
        return self._threshold

    @threshold.setter
    def threshold(self, threshold: Threshold) -> None:
        check_threshold(threshold)
        if self.loaded is not None:
            self.loaded.predict_options(threshold)  # checks its labels, too
        self._threshold = threshold

    @property
    def ner(self) -> "Pipeline":
        """The pipeline, which is loaded when it is first needed."""
        if self.loaded is None:
            from nestree.pipeline import load

            self.loaded = load(self.source, self.device)
        return self.loaded

    @property
    def labels(self) -> tuple[str, ...]:
        """Empty until the model is loaded."""
        return self.loaded.model.labels if self.loaded else ()

    def __call__(self, doc: Doc) -> Doc:
        (doc,) = self.annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Yield documents in order; those that fail go to spaCy's error handler and are left out."""

        def handle_error(doc: Doc, error: Exception) -> None:
            self.get_error_handler()(self.name, self, [doc], error)

        return self.annotate(stream, on_error=handle_error, batch_size=batch_size)

    def annotate(self, docs: Iterable[Doc], **options: Any) -> Iterator[Doc]:
        from nestree.pipeline import Batcher

        ner = self.ner
        to_document = partial(as_document, sentence_rule=ner.model.text_rules.sentences)
        batcher = Batcher(ner, to_document, ner.predict_options(self.threshold, trees=False), **options)
        for doc, document in batcher.stream(docs):
            spans = to_span_group(document, doc, self.spans_key, [token.i for token in doc if is_word(token)])
            spans.attrs[KEY] = __version__
            doc.spans[self.spans_key] = spans
            yield doc

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the component with the whole model."""
        from nestree import checkpoint

        for name, content in checkpoint.to_bytes(self.ner.model).items():
            (Path(path) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(path) / name).write_bytes(content)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "NestedEntities":
        from nestree.pipeline import load

        self.loaded = load(path, self.device)
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        from nestree import checkpoint

        packed: bytes = srsly.msgpack_dumps(checkpoint.to_bytes(self.ner.model))
        return packed

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> "NestedEntities":
        from nestree import checkpoint
        from nestree.nn.devices import select_device
        from nestree.pipeline import Pipeline

        model = checkpoint.from_bytes(srsly.msgpack_loads(data), select_device(self.device))
        self.loaded = Pipeline(model)
        return self


@Language.factory(
    "nestree",
    assigns=["doc.spans", "span._.nestree_score", "span._.nestree_head"],
    default_config={"model": None, "device": "auto", "spans_key": KEY, "threshold": None},
)
def make_component(
    nlp: Language, name: str, model: str | None, device: str, spans_key: str, threshold: Threshold
) -> NestedEntities:
    """What `nlp.add_pipe("nestree")` adds. `model`: a directory or a hub name; None: the bundled model."""
    return NestedEntities(name, model, device, spans_key, threshold)


def as_document(doc: Doc, sentence_rule: str) -> "Document":
    """The words of the Doc, in its sentences or, if it has none, in those of our rule."""
    words, starts, _ = find_words(doc)
    annotated = AnnotatedText(doc.text, (), "a Doc of spaCy", words=words, starts=starts)
    return align(annotated, sentences=sentence_rule)


def attribute_getter(name: str) -> Callable[[Span], Any]:
    """A getter of the value that one of our span groups has for a span; None if there is none."""

    def get(span: Span) -> Any:
        for spans in span.doc.spans.values():
            values = spans.attrs.get(name)
            if KEY in spans.attrs and values is not None and len(values) == len(spans):
                index = find_span(span, spans)
                if index is not None:
                    return values[index]
        return None

    return get


def find_span(span: Span, spans: SpanGroup) -> int | None:
    """The index of the span in the group: by bisection, as our groups are sorted, else by a scan."""
    key = span.start, -span.end

    def key_at(k: int) -> tuple[int, int]:
        return spans[k].start, -spans[k].end

    first = bisect_left(range(len(spans)), key, key=key_at)
    near = takewhile(lambda k: key_at(k) == key, range(first, len(spans)))
    for k in chain(near, range(len(spans))):
        if key_at(k) == key and spans[k].label == span.label:
            return k
    return None


def get_head(span: Span) -> Token | None:
    head = attribute_getter("heads")(span)
    return None if head is None else span.doc[head]


Span.set_extension("nestree_score", getter=attribute_getter("scores"), force=True)
Span.set_extension("nestree_head", getter=get_head, force=True)
