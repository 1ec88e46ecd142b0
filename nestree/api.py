"""`nestree.read`, `write` and `evaluate`: files, documents or sentences in one call."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nestree import evaluation
from nestree.data import formats
from nestree.errors import InputError
from nestree.evaluation import Evaluation
from nestree.types import Document, Sentence

Data = str | Path | Iterable[Document | Sentence]


def read(path: str | Path, format: str | None = None, **options: Any) -> list[Document]:
    """The documents of a file or folder; a format that is not named is detected.

    `options`: those of the format, see docs/data.md. `nestree.data.formats.read` is the same as a stream.
    """
    return list(formats.read(path, format, **options))


def write(
    documents: Document | Iterable[Document], path: str | Path, format: str | None = None, **options: Any
) -> None:
    """Write documents; a format that is not named is detected from the name of the file."""
    documents = [documents] if isinstance(documents, Document) else list(documents)
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InputError(f"documents[{number}] is {document!r:.60}; it must be a Document.")
    formats.write(documents, path, format, **options)


def evaluate(
    gold: Data,
    predicted: Data | None = None,
    *,
    model: Any = None,
    device: str = "auto",
    threshold: float | None = None,
    **options: Any,
) -> Evaluation:
    """Score predicted entities, or those that a model predicts, against gold ones.

    `gold` and `predicted`: files, documents or sentences with the same words. `model`: a Pipeline, a Recognizer, or
    what `nestree.load` takes; `device` and `threshold` are for it. `options`: those of `nestree.evaluation.evaluate`.

    >>> from nestree import Entity, Sentence
    >>> gold, predicted = (Sentence(["Rome"], [Entity(0, 1, label)]) for label in ("GPE", "ORG"))
    >>> evaluate([gold], [predicted]).entities.f1
    0.0
    """
    if (predicted is None) == (model is None):
        raise InputError("evaluate needs either predicted entities or model=, to compare with the gold ones.")
    if predicted is not None:
        return evaluation.evaluate(to_sentences(gold), to_sentences(predicted), **options)
    from nestree.pipeline import Pipeline, load, predict

    if isinstance(model, str | Path):
        model = load(model, device)
    elif not isinstance(model, Pipeline):
        from nestree.model import Recognizer

        if not isinstance(model, Recognizer):
            raise InputError(
                f"model is {model!r:.60}; it must be a Pipeline, a Recognizer, a folder or a name."
            )
        model = Pipeline(model)
    ner: Pipeline = model
    rules = ner.model.text_rules._asdict()
    if isinstance(gold, str | Path):
        known = formats.options(formats.detect_format(Path(gold)))
        gold = read(gold, **{name: rule for name, rule in rules.items() if name in known})
    documents = [item if isinstance(item, Document) else Document((item,)) for item in gold]
    sentences = ner.model.sentences_with_context(documents)
    found = predict(ner.inference_model, sentences, options=ner.predict_options(threshold, trees=False))
    return evaluation.evaluate(sentences, found, **options)


def to_sentences(data: Data) -> list[Sentence]:
    """The sentences of a file, of documents, or of a list of them."""
    items: Iterable[Document | Sentence] = read(data) if isinstance(data, str | Path) else data
    return [s for item in items for s in (item.sentences if isinstance(item, Document) else (item,))]
