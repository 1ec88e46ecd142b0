"""`nestree.read`, `write`, `evaluate` and `export`: files, documents or sentences in one call."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nestree import evaluation
from nestree.data import formats
from nestree.data.convert import conversion_summary
from nestree.data.formats import select_test_part
from nestree.data.io import ConversionReport
from nestree.errors import InputError
from nestree.evaluation import Evaluation
from nestree.types import Document, Sentence

if TYPE_CHECKING:
    from nestree.pipeline import Pipeline

log = logging.getLogger(__name__)
EXPORT = "in PyTorch", "exported"  # the two models of an export, in its summary
Data = str | Path | Document | Sentence | Iterable[Document | Sentence]


def read(path: str | Path, format: str | None = None, **options: Any) -> list[Document]:
    """The documents of a file or folder; a format that is not named is detected.

    `options`: those of the format, see docs/data.md. `nestree.data.formats.read` is the same as a stream.
    """
    return list(formats.read(path, format, **options))


def write(
    documents: Document | Iterable[Document], path: str | Path, format: str | None = None, **options: Any
) -> None:
    """Write documents; a format that is not named is detected from the name of the file.

    Warns of what the format cannot hold.
    """
    if isinstance(documents, str | Path):
        raise InputError(f"write takes the documents first, then the path, and {str(documents)!r:.60} comes first.")
    if format is None and Path(path).suffix == ".html":
        raise InputError(f"{path}: pages are written by document.to_html(path), or by the command `nestree show`.")
    documents = [documents] if isinstance(documents, Document) else list(documents)
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InputError(f"documents[{number}] is {document!r:.60}; it must be a Document.")
    report = ConversionReport()
    formats.write(documents, path, format, report, **options)
    for line in conversion_summary(report):
        log.warning("%s: %s", path, " ".join(line.split()))


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

    `gold` and `predicted`: files, documents or sentences with the same words; of a folder with train, dev and test,
    test is read. `model`: a Pipeline, a Recognizer, or what `nestree.load` takes; `device` and `threshold` are for it.
    `options`: those of `nestree.evaluation.evaluate`.

    >>> from nestree import Entity, Sentence
    >>> gold, predicted = (Sentence(["Rome"], [Entity(0, 1, label)]) for label in ("GPE", "ORG"))
    >>> evaluate([gold], [predicted]).f1
    0.0
    """
    if not isinstance(gold, str | Path | Document | Sentence | Iterable):
        raise InputError(
            f"evaluate takes gold data first, and this is a {type(gold).__name__}: evaluate(data, model=ner)."
        )
    if model is None and not isinstance(predicted, str | Path | Sentence | Iterable):
        predicted, model = None, predicted
    if (predicted is None) == (model is None):
        raise InputError("evaluate needs either predicted entities or model=, to compare with the gold ones.")
    if predicted is not None:
        if threshold is not None:
            raise InputError(f"threshold={threshold} selects the entities of a model, and `predicted` has its own.")
        both = ([s for d in to_documents(data) for s in d.sentences] for data in (gold, predicted))
        return compare_with_gold(*both, **options)
    from nestree.pipeline import Pipeline, load

    if isinstance(model, str | Path):
        model = load(model, device)
    elif not isinstance(model, Pipeline):
        from nestree.model import Recognizer

        if not isinstance(model, Recognizer):
            raise InputError(f"model is {model!r:.60}; it must be a Pipeline, a Recognizer, a folder or a name.")
        model = Pipeline(model)
    return compare_with_gold(*predict_data(model, gold, threshold), **options)


def compare_with_gold(gold: list[Sentence], predicted: list[Sentence], **options: Any) -> Evaluation:
    """The scores; warns if no label stands on both sides."""
    found = evaluation.evaluate(gold, predicted, **options)
    evaluation.warn_disjoint_labels(found)
    return found


def predict_data(ner: "Pipeline", data: Data, threshold: float | None = None) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences of data, read as the model splits text, and the same with the entities that it predicts."""
    from nestree.pipeline import predict

    sentences = ner.model.sentences_with_context(to_documents(data, **ner.model.text_rules._asdict()))
    options = ner.predict_options(threshold, trees=False)
    return sentences, predict(ner.inference_model, sentences, options=options)


class CompressionScores(NamedTuple):
    """What it costs to quantize or export a model: F1 in percent before and after."""

    f1_before: float
    f1_after: float
    agreement: float  # F1 of one's entities against the other's

    def summary(self, before: str, after: str) -> str:
        """All of it in one sentence; `before` and `after` are words for the two models."""
        return (
            f"F1 {self.f1_before:.2f} {before}, {self.f1_after:.2f} {after}; "
            f"both agree on {self.agreement:.2f} % of entities (F1)."
        )


def score_compression(
    gold: Sequence[Sentence], before: Sequence[Sentence], after: Sequence[Sentence]
) -> CompressionScores:
    """The scores of the entities that two models predict; warns if they have no label in common with the gold ones."""
    pairs = (gold, before), (gold, after), (before, after)
    found = [evaluation.evaluate(*pair, resamples=0) for pair in pairs]
    evaluation.warn_disjoint_labels(found[0])
    return CompressionScores(*(100 * each.entities.f1 for each in found))


def export(
    model: str | Path | None, folder: str | Path, *, int8: bool = False, data: Data | None = None
) -> CompressionScores | None:
    """Write a model as ONNX graphs to a new folder, from which `nestree.load` runs it with ONNX Runtime.

    `model`: what `nestree.load` takes. `int8`: weights in 8 bits. `data`: annotated sentences, on which
    both models are scored. The folder is written whole or not at all.
    """
    from nestree import checkpoint, hub
    from nestree.data.io import atomic_path
    from nestree.pipeline import Pipeline

    folder = Path(folder)
    if folder.is_file():
        raise InputError(f"{folder} is a file, and the model becomes a folder. Give a new name.")
    source = hub.resolve(model)
    checkpoint.check_output_outside_model(folder, source)
    with atomic_path(folder) as temporary:
        recognizer = checkpoint.load(source)
        checkpoint.export(recognizer, temporary, int8)
        exported = checkpoint.load(temporary)
        if data is None:
            return None
        gold, before = predict_data(Pipeline(recognizer, precision="float32"), data)
        after = predict_data(Pipeline(exported), gold)[1]
        scores = score_compression(gold, before, after)
        checkpoint.add_to_card(temporary, scores.summary(*EXPORT))
        return scores


def to_documents(data: Data, **rules: str) -> list[Document]:
    """The documents of a file, of the test part of a folder, or of a list; `rules` split plain text."""
    if isinstance(data, str | Path):
        data = formats.read(select_test_part(Path(data)), text_rules=rules)
    items = [data] if isinstance(data, Document | Sentence) else data
    return [item if isinstance(item, Document) else Document((item,)) for item in items]
