"""Pipeline: text or words in, documents with entities out.

`predict` finds the entities of sentences: it cuts long sentences into overlapping windows, groups sentences of similar
length into batches, runs them on several CPU threads or processes or on two CUDA streams, and merges the windows. A
batch that does not fit into memory is split in half. `Batcher` predicts streams of documents in bounded memory and
isolates those that fail; it serves `Pipeline.pipe`, `nestree.predict_files`, the spaCy component and `nestree serve`.
"""

import functools
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack, overload

import torch

from nestree import checkpoint, hub
from nestree.config import Settings, check_threshold
from nestree.decoding import Prediction, predictions
from nestree.decoding.constraints import (
    Constraints,
    SentenceConstraints,
    align_constraints,
    as_int,
    check_constraints,
    describe,
    parse_char_spans,
)
from nestree.decoding.uncertainty import smallest_margins, uncertainty
from nestree.errors import ChartMemoryError, DataError, InputError, NestreeError
from nestree.model import OnnxRecognizer, Recognizer, autocast, eval_mode
from nestree.model_card import label_descriptions
from nestree.nn.batch import BATCH_WORDS, MAX_SENTENCE_WORDS, Batch, batches_by_length
from nestree.nn.devices import select_device
from nestree.nn.int8 import selected_kernel, unavailable_reason
from nestree.nn.scorers import Scores
from nestree.text import split, split_at_boundaries
from nestree.treecrf import LexicalPotentials, head_marginals, ignore_out_of_memory
from nestree.types import Document, Entity, Sentence, Span, crossing_pairs, missing_attribute, with_entities

BATCH_WORDS_GPU = 16_000  # replaces BATCH_WORDS on a CUDA device
MAX_THREADS = 8  # more wait for the GIL: 16 x86 cores read 28,000 words/s with 8 threads, 14,000 with 16
MAX_BATCH_WORDS_CPU = 1_200  # larger batches are slower on a CPU
MIN_BATCH_WORDS_CPU = 100  # smaller batches are not worth another thread
BATCHES_PER_THREAD = 4  # if there are enough words: so that all threads end at about the same time
MAX_SUBWORDS_PER_WORD = 8  # in a batch, padding included; natural language stays far below
WINDOW_WORDS = 64
BATCH_TEXTS = 64  # buffered by Pipeline.pipe
MAX_BUFFERED_WORDS = 40_000  # by Batcher

Precision = Literal["auto", "float32", "int8"]
Threshold = float | Mapping[str, float] | None
log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


class PredictOptions(NamedTuple):
    """What `predict` returns besides entities, and how it decodes."""

    scored: bool = False  # with probabilities
    trees: bool = False  # with trees
    settings: Settings | None = None  # decoding settings; None: the model's
    max_sentence_words: int = MAX_SENTENCE_WORDS
    label_thresholds: Mapping[str, float] | None = None  # lowest probability; other labels are left out
    uncertainty: str | None = None  # a criterion of decoding.uncertainty, instead of entities
    margins: int = 0  # this many spans with the smallest margins, instead of entities
    means: bool = False  # with the mean of the vectors of the words


class DecodeOptions(TypedDict, total=False):
    """Options of `Pipeline.__call__` and `pipe`, which document them."""

    labels: Collection[str] | None
    threshold: Threshold
    trees: bool


class CallOptions(DecodeOptions, total=False):
    known: Iterable[Sequence[Any]] | None
    forbidden: Iterable[Sequence[Any]] | None


class PipeOptions(DecodeOptions, total=False):
    batch_size: int
    batch_words: int | None
    on_error: Literal["raise", "skip"]


def load(
    model: str | Path | None = None,
    device: str = "auto",
    max_sentence_words: int = MAX_SENTENCE_WORDS,
    precision: Precision = "auto",
    verify: bool = True,
    workers: int = 0,
) -> "Pipeline":
    """The bundled model, or that of a directory or of a name on the Hugging Face hub, as a Pipeline.

    `device`: auto, cpu, cuda, cuda:1, mps. `max_sentence_words`: longer sentences are cut into overlapping windows.
    `precision` on a CPU: "int8" is several times as fast as "float32" on processors with the instructions for it;
    "auto" is "int8" there if the weights of the model are stored in 8 bits, as those of the bundled model are. Without
    `verify`, the files of the model are not compared with manifest.json. `workers`: processes that predict on a CPU,
    one thread each; 0: threads of this process, which are as fast on up to four cores.
    """
    folder = hub.resolve(model)
    target = "cpu" if device == "auto" and checkpoint.is_exported(folder) else select_device(device)
    collecting = gc.isenabled()
    gc.disable()  # as in nestree/__init__.py: numba and others are imported here
    try:
        pipeline = Pipeline(checkpoint.load(folder, target, verify=verify), max_sentence_words, precision, workers)
    finally:
        if collecting:
            gc.enable()
    log.info("loaded %s: %r", folder, pipeline)
    return pipeline


class Pipeline:
    """Finds nested entities in text."""

    def __init__(
        self,
        model: Recognizer,
        max_sentence_words: int = MAX_SENTENCE_WORDS,
        precision: Precision = "auto",
        workers: int = 0,
    ) -> None:
        if not isinstance(model, Recognizer):
            raise InputError(f"model is {model!r:.60}; it must be a Recognizer. `nestree.load` takes names.")
        max_words = check_int("max_sentence_words", max_sentence_words, 4)
        check_int("workers", workers, 0)
        if precision not in ("auto", "float32", "int8"):
            raise InputError(f'precision is {precision!r}; it must be "auto", "float32" or "int8".')
        self.model, self.max_sentence_words, self.precision = model, max_words, precision
        self.int8_model: Recognizer | None = None
        self.workers, self.worker_pool = workers, None if workers == 0 else WorkerPool(self, workers)
        self.to(model.device)

    @classmethod
    def from_pretrained(cls, model: str | Path | None = None, **options: Any) -> "Pipeline":
        """The same as `nestree.load`, with its options."""
        return load(model, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model to a new directory, which `load` reads."""
        self.model.save_pretrained(folder)

    def to(self, device: str | torch.device) -> "Pipeline":
        """This pipeline, moved to another device, such as "cpu" or "cuda:1"."""
        target = select_device(str(device))
        if isinstance(self.model, OnnxRecognizer):
            if self.precision not in ("auto", self.model.network.precision):
                raise InputError(
                    f"this model runs in ONNX Runtime in {self.model.network.precision}, not in {self.precision}. "
                    'Leave precision at "auto", or export the model again.'
                )
            self.model.to(target)
            return self
        unavailable = unavailable_reason() if target.type == "cpu" else "it is for a CPU"
        if self.precision == "int8" and unavailable:
            raise InputError(f'precision="int8" is not available: {unavailable}. Leave it at "auto".')
        self.model.to(target)
        wanted = self.precision == "int8" or (self.precision == "auto" and self.model.is_quantized)
        self.int8_model = self.model.to_int8() if wanted and not unavailable else None
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith(("predict", "extract", "annotate", "process", "recognize")):
                raise AttributeError(f"Pipeline has no {name}; call it with a text or a list of texts: ner(text)")
            raise missing_attribute(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the files of its model, which are a quarter of its size in memory if it is stored in 8 bits."""
        files = checkpoint.to_bytes(self.model)
        return unpickle, (files, str(self.device), self.max_sentence_words, self.precision, self.workers)

    def warm_up(self) -> None:
        """Compile all kernels, or load them from the cache on disk; else the first text that needs one waits for it."""
        self("Ann lives in Lisbon.", known=[(0, 3)])
        if self.device.type == "cpu":  # scores too far apart for float32, as one sentence of thousands has them
            arc = torch.tensor([[[0.0, 500.0], [-500.0, 0.0]]])
            head_marginals(LexicalPotentials(torch.zeros(1, 3, 3), arc, torch.zeros(1, 2), torch.zeros(1, 3, 3)), [2])

    def close(self) -> None:
        """End the worker processes after the calls that use them; the next call starts new ones."""
        if self.worker_pool:
            self.worker_pool.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        precision = self.inference_precision
        if self.inference_model is self.int8_model:
            precision = f"int8, {selected_kernel().name}"
        return f"Pipeline({self.model!r}, device={str(self.device)!r}, precision={precision!r})"

    @property
    def inference_model(self) -> Recognizer:
        """The model that predicts: on a CPU the int8 copy, if there is one, which does not follow later training."""
        return self.int8_model if self.int8_model is not None and self.device.type == "cpu" else self.model

    @property
    def inference_precision(self) -> str:
        """int8, bfloat16 or float32; of an export, also that ONNX Runtime computes it."""
        if self.inference_model is self.int8_model:
            return "int8"
        if isinstance(self.model, OnnxRecognizer):
            return self.model.network.precision
        return "bfloat16" if self.device.type == "cuda" else "float32"

    @property
    def labels(self) -> dict[str, str]:
        """The labels; each with its description in the model card, or an empty string."""
        return label_descriptions(self.model.card, self.model.labels)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @overload
    def __call__(self, texts: str, **options: Unpack[CallOptions]) -> Document: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[str], **options: Unpack[CallOptions]) -> list[Document]: ...

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        known: Iterable[Sequence[Any]] | None = None,
        forbidden: Iterable[Sequence[Any]] | None = None,
        labels: Collection[str] | None = None,
        threshold: Threshold = None,
        trees: bool = True,
    ) -> Document | list[Document]:
        """The document of a text, with its entities; a list of documents for several texts.

        `known`: spans that are entities, each (start, end), (start, end, label) or (start, end, label, head), in
        characters; a head is a position in the text or (start, end). White space at either end of a span is ignored.
        A span that is known with labels gets these and no other.
        `forbidden`: spans that are no entities, (start, end), or not with this label, (start, end, label). All other
        entities are predicted given these constraints. `labels`: only entities with these labels. `threshold`: the
        minimum probability of an entity, a number or one for each label, such as {"person": 0.7}; a higher one gives
        fewer entities with higher precision. `trees`: keep the trees too, as `document.tree`.
        """
        if isinstance(texts, str):
            document, constraints = self.prepare(texts, known, forbidden)
            options = self.predict_options(threshold, trees, labels)
            return self.predict_documents([document], options, constraints)[0]
        if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable) or hasattr(texts, "text"):
            raise not_a_text(texts)
        if any(tuple(spans) for spans in (known, forbidden) if spans is not None):
            raise InputError("known and forbidden are offsets in one text; pass the texts one by one.")
        return list(self.pipe(texts, labels=labels, threshold=threshold, trees=trees))

    def words(
        self,
        sentences: Iterable[Sequence[str] | Sentence],
        *,
        labels: Collection[str] | None = None,
        threshold: Threshold = None,
    ) -> list[Sentence]:
        """The same for sentences that are lists of words; entities are counted in words."""
        if isinstance(sentences, str | bytes | Sentence) or not isinstance(sentences, Iterable):
            raise InputError(
                f"sentences must be lists of words, and this is {sentences!r:.60}. Give a list of such lists."
            )
        sentences = list(sentences)
        if any(isinstance(words, str) for words in sentences):
            raise InputError(f"each sentence must be a list of words, and one is a string: {sentences!r:.60}.")
        checked = []
        for number, words in enumerate(sentences):
            try:
                checked.append(words if isinstance(words, Sentence) else Sentence(words))
            except DataError as error:
                raise InputError(
                    f"sentences[{number}] is {words!r:.60}: {error}. Correct it, or leave it out."
                ) from None
        options = self.predict_options(threshold, labels=labels)
        return predict(self.inference_model, checked, options=options, workers=self.worker_pool)

    @overload
    def pipe(
        self, texts: Iterable[str], *, as_tuples: Literal[False] = False, **options: Unpack[PipeOptions]
    ) -> Iterator[Document]: ...
    @overload
    def pipe(
        self, texts: Iterable[tuple[str, Item]], *, as_tuples: Literal[True], **options: Unpack[PipeOptions]
    ) -> Iterator[tuple[Document, Item]]: ...

    def pipe(
        self,
        texts: Iterable[Any],
        *,
        as_tuples: bool = False,
        batch_size: int = BATCH_TEXTS,
        batch_words: int | None = None,
        labels: Collection[str] | None = None,
        threshold: Threshold = None,
        trees: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Iterator[Any]:
        """Yield the documents of a stream of texts, in order; at most `batch_size` texts are buffered.

        Sentences of similar length share a batch of about `batch_words` words, whichever texts they belong to. With
        `as_tuples`, the stream has pairs (text, anything), and yields pairs (document, anything). With on_error="skip"
        a text that fails gives a document without sentences whose extra["error"] says why.
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            kind = type(texts).__name__
            raise InputError(f"pipe takes several texts, and this is one {kind}. Give a list of texts.")
        check_int("batch_size", batch_size, 1)
        if batch_words is not None:
            check_int("batch_words", batch_words, 1)
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error is {on_error!r}; it must be "raise" or "skip".')

        def number_pairs() -> Iterator[tuple[int, Any, Any]]:
            for number, item in enumerate(texts):
                if not as_tuples:
                    yield number, item, None
                elif isinstance(item, tuple | list) and len(item) == 2:
                    yield number, *item
                else:
                    raise InputError(f"as_tuples: item {number} must be (text, anything), not {item!r:.60}.")

        def handle_error(item: tuple[int, Any, Any], error: Exception) -> Document:
            number, text, _ = item
            reason = error if isinstance(error, NestreeError) else f"{type(error).__name__}: {error}"
            message = f"text {number} ({text!r:.40}) failed: {reason}"
            if on_error == "raise":
                raise InputError(message) from error
            return Document((), text if isinstance(text, str) else None, extra={"error": message})

        options = self.predict_options(threshold, trees, labels)
        batcher = Batcher(
            self, lambda item: self.split(item[1]), options, handle_error, batch_size, batch_words=batch_words
        )
        results = batcher.stream(number_pairs())
        return ((document, pair[2]) if as_tuples else document for pair, document in results)

    def split(self, text: str, keep: Sequence[Span] = ()) -> Document:
        """The document of a text, without entities; the model knows how its training data was split.

        Known spans to `keep` lie within one sentence each, and begin and end with a word.
        """
        if not isinstance(text, str):
            raise not_a_text(text)
        rules = self.model.text_rules
        sentences = []
        for start, end, words in split(text, rules.words, rules.sentences, keep):
            if keep:
                words = split_at_boundaries(words, keep)
            offsets = tuple((i - start, j - start) for i, j in words)
            sentences.append(Sentence(tuple(text[i:j] for i, j in words), (), text[start:end], offsets, start))
        return Document(tuple(sentences), text)

    def prepare(
        self, text: str, known: Iterable[Sequence[Any]] | None = None, forbidden: Iterable[Sequence[Any]] | None = None
    ) -> tuple[Document, dict[int, SentenceConstraints]]:
        """The document of a text, without entities, and the constraints of its sentences by their indices."""
        known_spans = parse_char_spans(known, "known", text, self.model.labels)
        forbidden_spans = parse_char_spans(forbidden, "forbidden", text, self.model.labels)
        document = self.split(text, [(span.start, span.end) for span in known_spans])
        return document, align_constraints(document, known_spans, forbidden_spans)

    def predict_documents(
        self,
        documents: Sequence[Document],
        options: PredictOptions,
        constraints: Mapping[int, SentenceConstraints] | None = None,
        batch_words: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        group_sizes: Sequence[int] | None = None,
    ) -> list[Document]:
        """These documents with entities; `constraints` by the index of the sentence in all documents together.

        `group_sizes`: numbers of documents that may share batches, as in `predict`.
        """
        sentences = self.model.sentences_with_context(documents)
        if group_sizes is not None:
            remaining = iter(documents)
            group_sizes = [sum(len(d.sentences) for d in islice(remaining, size)) for size in group_sizes]
        model, workers = self.inference_model, self.worker_pool
        predicted = iter(
            predict(model, sentences, batch_words, on_progress, options, constraints, workers, group_sizes)
        )
        return [replace(d, sentences=tuple(islice(predicted, len(d.sentences)))) for d in documents]

    def predict_options(
        self, threshold: Threshold = None, trees: bool = True, labels: Collection[str] | None = None
    ) -> PredictOptions:
        """Options for `predict`; a threshold of None is the model's own."""
        own, own_labels = self.model.settings, self.model.labels
        check_threshold(threshold)
        if not isinstance(labels, Iterable | None):
            raise InputError(f"labels is {labels!r:.60}; it must be a list of labels.")
        by_label, settings = threshold if isinstance(threshold, Mapping) else {}, None
        if not (threshold is None or isinstance(threshold, Mapping)):
            settings = with_decoding(own, threshold=float(threshold))
        default = (settings or own).decoding.threshold
        wanted = own_labels if labels is None else (labels,) if isinstance(labels, str) else tuple(labels)
        for label in (*by_label, *wanted):
            if label not in own_labels:
                raise InputError(f"the model has no label {label!r}. Its labels are {', '.join(own_labels)}.")
        thresholds = {label: float(by_label.get(label, default)) for label in wanted}
        return PredictOptions(
            scored=True,
            trees=trees,
            settings=settings,
            max_sentence_words=self.max_sentence_words,
            label_thresholds=thresholds if by_label or labels is not None else None,
        )


def unpickle(
    files: Mapping[str, bytes], device: str, max_sentence_words: int, precision: Any, workers: int
) -> Pipeline:
    """A pipeline from what `Pipeline.__reduce__` stores."""
    model = checkpoint.from_bytes(files, select_device(device))
    return Pipeline(model, max_sentence_words, precision, workers)


def check_int(name: str, value: Any, least: int) -> int:
    """The value as an int; an error if it is none, or less than `least`."""
    number = as_int(value)
    if number is None or number < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    return number


def not_a_text(value: Any) -> InputError:
    """The error for something that is not a string, such as a document of spaCy."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    remedy = "`words` takes lists of words."
    if hasattr(value, "text"):
        spacy = ', or add the component to your pipeline: nlp.add_pipe("nestree")' * kind.startswith("spacy.")
        remedy = f"Give its .text{spacy}."
    shown = repr(value).partition("\n")[0]
    return InputError(f"a text must be a string, and this is of type {kind}: {shown:.60}. {remedy}")


def raise_error(item: object, error: Exception) -> NoReturn:
    raise error


Group = list[tuple[Item, Document]]  # items that may share batches, with their documents


@dataclass
class Batcher(Generic[Item]):
    """Predicts the entities of a stream of items that can be turned into documents.

    Items are buffered, up to `batch_size` of them and until they have `max_words` words, and predicted together. If
    that fails, each half is predicted by itself, and so on. For an item that fails, `on_error(item, exception)` returns
    the document in its place, or None to leave it out, or raises. `on_progress` is called with the number of words done
    so far. `get_constraints` gives the constraints of an item, by the index of the sentence.

    With `group_by`, only consecutive items for which it returns the same value share batches, and at most about
    `group_words` words of them. On a CPU, the results of an item then depend on its group alone, to the last bit.
    """

    pipeline: Pipeline
    to_document: Callable[[Item], Document]
    options: PredictOptions
    on_error: Callable[[Item, Exception], Document | None] = raise_error
    batch_size: int | None = None
    max_words: int = MAX_BUFFERED_WORDS
    batch_words: int | None = None  # of a batch; None: the default of the device
    on_progress: Callable[[int], None] | None = None
    done_words: int = 0
    get_constraints: Callable[[Item], Mapping[int, SentenceConstraints]] | None = None
    group_by: Callable[[Item], Any] | None = None
    group_words: int = MAX_BUFFERED_WORDS

    def stream(self, items: Iterable[Item]) -> Iterator[tuple[Item, Document]]:
        """Yield each item and its document with entities, in order."""
        for groups in self.buffers(items):
            yield from self.predict(groups)

    def buffers(self, items: Iterable[Item]) -> Iterator[list[Group[Item]]]:
        """Yield the groups of items that are predicted together; without `group_by`, one group.

        An error of the stream, or that `on_error` raises, comes after the items before it.
        """
        buffer: list[Group[Item]] = [[]]
        buffered_words = words = 0  # of the buffer; of its last group
        key, failure, documents = None, None, self.documents(items)
        while True:
            try:
                item, document = next(documents)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            if self.group_by:
                new_key = self.group_by(item)
                if buffer[-1] and (key != new_key or words >= self.group_words):
                    if buffered_words >= self.max_words:
                        yield buffer
                        buffer, buffered_words = [], 0
                    buffer.append([])
                    words = 0
                key = new_key
            buffer[-1].append((item, document))
            words += count_words(document)
            buffered_words += count_words(document)
            if not self.group_by and (len(buffer[-1]) == self.batch_size or words >= self.max_words):
                yield buffer
                buffer, buffered_words, words = [[]], 0, 0
        if buffer[-1]:
            yield buffer
        if failure:
            raise failure

    def documents(self, items: Iterable[Item]) -> Iterator[tuple[Item, Document]]:
        """Yield the items with their documents, without entities."""
        for item in items:
            document: Document | None
            try:
                document = self.to_document(item)
            except Exception as error:
                document = self.on_error(item, error)
            if document is not None:
                yield item, document

    def predict(self, groups: list[Group[Item]]) -> Iterator[tuple[Item, Document]]:
        """Yield the items of these groups and their documents; what fails together is divided."""
        items = [item for group in groups for item, _ in group]
        documents = [document for group in groups for _, document in group]
        words, done_sentences, sentences = sum(map(count_words, documents)), 0, 0
        constraints: dict[int, SentenceConstraints] = {}
        for item, document in zip(items, documents, strict=True):
            if self.get_constraints:
                found = self.get_constraints(item)
                constraints.update((sentences + index, spans) for index, spans in found.items())
            sentences += len(document.sentences)

        def report(count: int) -> None:
            nonlocal done_sentences
            done_sentences += count
            if self.on_progress:
                self.on_progress(self.done_words + words * done_sentences // sentences)

        sizes = list(map(len, groups)) if self.group_by else None
        try:
            predicted = self.pipeline.predict_documents(
                documents, self.options, constraints, self.batch_words, report, sizes
            )
        except WorkerStartError:
            raise
        except Exception as error:
            if len(items) == 1:
                replacement = self.on_error(items[0], error)
                if replacement is not None:
                    yield items[0], replacement
                return
            kind = type(error).__name__  # messages may quote texts, which are not logged
            log.info("%d documents failed in one batch, which is split in half: %s", len(items), kind)
        else:
            self.done_words += words
            yield from zip(items, predicted, strict=True)
            return
        for half in halves(groups):
            yield from self.predict(half)


def halves(groups: list[Group[Item]]) -> tuple[list[Group[Item]], list[Group[Item]]]:
    """Two halves of the groups or, of one group, of its items: groups are never mixed."""
    if len(groups) > 1:
        return groups[: len(groups) // 2], groups[len(groups) // 2 :]
    (group,) = groups
    return [group[: len(group) // 2]], [group[len(group) // 2 :]]


def count_words(document: Document) -> int:
    return sum(len(sentence.words) for sentence in document.sentences)


def with_decoding(settings: Settings, **changes: Any) -> Settings:
    return replace(settings, decoding=replace(settings.decoding, **changes))


@contextmanager
def override_decoding(model: Recognizer, **changes: Any) -> Iterator[None]:
    """A context in which the model decodes with other settings, such as head_sharing_penalty=0.4."""
    before = model.settings
    model.settings = with_decoding(before, **changes)
    try:
        yield
    finally:
        model.settings = before


def predict(
    model: Recognizer,
    sentences: Sequence[Sentence],
    batch_words: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    options: PredictOptions = PredictOptions(),  # noqa: B008 (immutable)
    constraints: Mapping[int, SentenceConstraints] | None = None,
    workers: "WorkerPool | None" = None,
    group_sizes: Sequence[int] | None = None,
) -> list[Sentence]:
    """These sentences with the entities that the model predicts instead of their own.

    `batch_words`: the size of a batch; None: the default of the device. `on_progress` is called with the number of
    sentences that each batch completes. `constraints`: by the index of the sentence. `workers`: processes with the same
    model, used if it is on a CPU. `group_sizes`: numbers of consecutive sentences that may share batches; the results
    of a group then depend neither on other groups nor on the number of threads or workers.
    """
    settings, constraints = options.settings or model.settings, constraints or {}
    for known, forbidden in constraints.values():  # before windows divide them
        check_constraints(known, forbidden, model.labels, settings.model.structure != "none")
    windows_of = predict_windows(model, sentences, options, batch_words, on_progress, constraints, workers, group_sizes)
    results, cut = [], 0
    for index, (sentence, parts) in enumerate(zip(sentences, windows_of, strict=True)):
        if len(parts) == 1:
            results.append(with_entities(sentence, *parts[0][1][:2], sentence.extra))
            continue
        cut += 1
        parts.sort(key=lambda part: part[0].start)
        entities = merge_windows(
            [prediction.entities for _, prediction in parts],
            [(window.start, window.end) for window, _ in parts],
            settings.decoding.method == "spans",
            {(span.start, span.end) for span in constraints.get(index, NO_CONSTRAINTS)[0]},
        )
        results.append(with_entities(sentence, entities, None, {**sentence.extra, "windows": len(parts)}))
    if cut:
        log.info("%d sentences of more than %d words are predicted in windows", cut, options.max_sentence_words)
    return results


class Window(NamedTuple):
    """The words start to end of a sentence, with the constraints among them in its own word indices."""

    number: int  # of the sentence
    start: int
    end: int
    sentence: Sentence  # the whole sentence itself if it is short enough
    constraints: SentenceConstraints


NO_CONSTRAINTS: SentenceConstraints = ((), ())


def window_spans(words: int, max_words: int) -> list[Span]:
    """The whole sentence if it has at most `max_words` words; else windows that overlap by half.

    >>> window_spans(18, 8)
    [(0, 8), (4, 12), (8, 16), (10, 18)]
    >>> window_spans(8, 8)
    [(0, 8)]
    """
    if words <= max_words:
        return [(0, words)]
    size = min(max_words, WINDOW_WORDS)
    step = size - size // 2
    starts = [min(start, words - size) for start in range(0, words - size + step, step)]
    return [(start, start + size) for start in starts]


def cut_windows(
    sentences: Sequence[Sentence], constraints: Mapping[int, SentenceConstraints], max_words: int
) -> list[Window]:
    """The sentences, in windows if they have more than `max_words` words; raise if a known span is in no window."""
    windows = []
    for index, sentence in enumerate(sentences):
        known, forbidden = constraints.get(index, NO_CONSTRAINTS)
        spans = window_spans(len(sentence.words), max_words)
        if len(spans) == 1:
            windows.append(Window(index, 0, len(sentence.words), sentence, (known, forbidden)))
            continue
        for span in known:
            if not any(start <= span.start and span.end <= end for start, end in spans):
                words = sentence.words
                raise InputError(
                    f"known {describe(span)} ({' '.join(words[span.start : span.end])[:40]!r}) has "
                    f"{span.end - span.start} words, and no window of its sentence of {len(words)} words holds all of "
                    f"them. Set max_sentence_words to {len(words)}, so that the sentence is not cut, or leave out the "
                    "entity."
                )
        for start, end in spans:
            inside: SentenceConstraints = (
                [span.shift(-start) for span in known if start <= span.start and span.end <= end],
                [span.shift(-start) for span in forbidden if start <= span.start and span.end <= end],
            )
            part = Sentence(sentence.words[start:end], id=sentence.id)
            windows.append(Window(index, start, end, part, inside))
    return windows


def predict_windows(
    model: Recognizer,
    sentences: Sequence[Sentence],
    options: PredictOptions,
    batch_words: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    constraints: Mapping[int, SentenceConstraints] | None = None,
    workers: "WorkerPool | None" = None,
    group_sizes: Sequence[int] | None = None,
) -> list[list[tuple[Window, Prediction]]]:
    """The windows of each sentence, in any order, with their predictions; arguments as of `predict`."""
    windows = cut_windows(sentences, constraints or {}, options.max_sentence_words)
    batch_words = batch_words or default_batch_words(model.device)
    results: list[list[tuple[Window, Prediction]]] = [[] for _ in sentences]
    with torch.inference_mode(), eval_mode(model), bf16_weights(model):
        for batch, predictions in run_batches(model, windows, batch_words, options, workers, group_sizes):
            for window, prediction in zip(batch, predictions, strict=True):
                results[window.number].append((window, prediction))
            if on_progress:
                on_progress(sum(window.end == len(sentences[window.number].words) for window in batch))
    return results


def merge_windows(
    window_entities: Sequence[Sequence[Entity]], spans: Sequence[Span], may_cross: bool, known: Collection[Span] = ()
) -> tuple[Entity, ...]:
    """The entities of a sentence from those of its windows.

    Where two windows overlap, an entity comes from the first if it begins before the middle of the overlap, and from
    the second otherwise or if only that holds all of it. Of entities that cross, known ones are kept first, then those
    with the highest probability.
    """
    middles = [0, *((b[0] + a[1] + 1) // 2 for a, b in pairwise(spans)), spans[-1][1]]
    previous_end = 0
    merged: list[Entity] = []
    for k, (entities, (offset, end)) in enumerate(zip(window_entities, spans, strict=True)):
        for entity in entities:
            start, stop = entity.start + offset, entity.end + offset
            if start < middles[k + 1] and (middles[k] <= start or previous_end < stop):
                head = None if entity.head is None else entity.head + offset
                merged.append(Entity(start, stop, entity.label, head, entity.score))
        previous_end = end
    crossing: dict[Entity, list[Entity]] = {}
    for a, b in () if may_cross else crossing_pairs(merged):
        crossing.setdefault(a, []).append(b)
        crossing.setdefault(b, []).append(a)
    dropped: set[Entity] = set()
    for entity in sorted(crossing, key=lambda entity: (entity.span not in known, -(entity.score or 0.0))):
        if entity not in dropped:
            dropped.update(crossing[entity])
    kept = [entity for entity in merged if entity not in dropped]
    return tuple(sorted(kept, key=lambda entity: (entity.start, -entity.end)))


def bf16_weights(model: Recognizer) -> AbstractContextManager[None]:
    """On CUDA, a context in which the encoder's weights are cast to bf16 once rather than for each batch."""
    if model.device.type != "cuda":
        return nullcontext()
    return model.encoder.bf16_cache.hold(model.encoder.transformer)


def default_batch_words(device: torch.device) -> int:
    return BATCH_WORDS_GPU if device.type == "cuda" else BATCH_WORDS


def run_batches(
    model: Recognizer,
    windows: Sequence[Window],
    batch_words: int,
    options: PredictOptions,
    workers: "WorkerPool | None",
    group_sizes: Sequence[int] | None,
) -> Iterator[tuple[list[Window], list[Prediction]]]:
    """Yield batches of windows with their predictions."""
    device = model.device
    on_cpu = device.type == "cpu"
    parts = [windows]
    if group_sizes is not None:
        numbers = [window.number for window in windows]
        parts = [windows[i:j] for i, j in pairwise(bisect_left(numbers, n) for n in accumulate(group_sizes, initial=0))]
    threads = min(torch.get_num_threads(), MAX_THREADS)
    threads = 1 if group_sizes is not None else workers.processes if workers else threads
    batches: list[tuple[list[Window], int]] = []  # with the most subwords of each
    for part in parts:
        # Context words, which only the encoder reads, count a quarter.
        costs = [len(w.sentence.words) + sum(map(len, w.sentence.context or ())) // 4 for w in part]
        words = batch_words
        if on_cpu:
            per_batch = sum(costs) // (BATCHES_PER_THREAD * threads)
            words = min(words, max(MIN_BATCH_WORDS_CPU, min(MAX_BATCH_WORDS_CPU, per_batch)))
        rows = batches_by_length(costs, words)
        if on_cpu and threads > 1 and words >= 2 * MIN_BATCH_WORDS_CPU:
            # The last batches are halved, so that no thread waits long for the others.
            halves_of_last = [half for batch in rows[-threads:] for half in (batch[::2], batch[1::2])]
            rows[-threads:] = [half for half in halves_of_last if half]
        batches += [([part[k] for k in batch], MAX_SUBWORDS_PER_WORD * words) for batch in rows]
    total = sum(len(window.sentence.words) for window in windows)
    log.debug("%d words in %d batches on %s", total, len(batches), device)
    streams = cuda_streams(device)
    results: Iterator[list[Prediction]]
    if workers and on_cpu:
        results = workers.map([(batch, options, max_subwords) for batch, max_subwords in batches])
    else:
        jobs = [
            BatchJob(model, batch, options, streams[number % 2], max_subwords)
            for number, (batch, max_subwords) in enumerate(batches)
        ]
        # One thread computes a batch of a group: several would round sums differently.
        results = map_threaded(BatchJob.run, jobs, group_sizes is not None) if on_cpu else run_on_streams(jobs)
    yield from zip([batch for batch, _ in batches], results, strict=True)


collate_lock = threading.Lock()  # the collator caches words
if hasattr(os, "register_at_fork"):  # a child would wait forever for a thread that only its parent has
    os.register_at_fork(
        before=collate_lock.acquire, after_in_parent=collate_lock.release, after_in_child=collate_lock.release
    )


@dataclass
class BatchJob:
    """The prediction of one batch, in two steps: `launch` queues the computation of scores, `collect` decodes them."""

    model: Recognizer
    windows: Sequence[Window]
    options: PredictOptions
    stream: "torch.cuda.Stream | None"
    max_subwords: int
    scores: Scores | None = None  # None after `launch`: the batch is too large
    means: torch.Tensor | None = None  # [B, D]

    def collate(self) -> Batch | None:
        """The batch on the host, in pinned memory for a GPU; None if it has too many subwords."""
        with collate_lock:
            batch = self.model.collate_words([window.sentence for window in self.windows])
        if batch.subwords.numel() > self.max_subwords and len(self.windows) > 1:
            return None
        return batch if self.stream is None else batch.pin_memory()

    def launch(self, get_batch: Callable[[], Batch | None]) -> None:
        """Start to compute the scores of the batch, which another thread may collate."""
        with ignore_out_of_memory(), self.stream_context():
            batch = get_batch()
            if batch is not None:
                device = self.model.device
                if device.type != "cpu":
                    batch = batch.to(device)
                with autocast(device):
                    if not self.options.means:
                        self.scores = self.model(batch)
                        return
                    vectors = self.model.encoder(batch)
                    self.means = mean_vectors(vectors.words[:, 1:], batch.lengths)
                    self.scores = self.model.score_vectors(vectors, batch)

    def collect(self) -> list[Prediction]:
        """Wait for the scores and decode them. A batch that is too large is split in half and run again."""
        scores, self.scores = self.scores, None
        if scores is not None:
            with ignore_out_of_memory(), self.stream_context():
                return self.decode(scores)
        del scores
        if len(self.windows) == 1:
            sentence = self.windows[0].sentence
            raise ChartMemoryError(
                f"there is not enough memory for a sentence of {len(sentence.words)} words: {sentence}"
            )
        log.info("a batch of %d sentences is too large, and is split in half", len(self.windows))
        middle = len(self.windows) // 2
        halves = [replace(self, windows=half) for half in (self.windows[:middle], self.windows[middle:])]
        return [prediction for half in halves for prediction in half.run()]

    def decode(self, scores: Scores) -> list[Prediction]:
        if self.options.uncertainty or self.options.margins or self.options.means:
            return self.measure_uncertainty(scores)
        known, forbidden = zip(*(window.constraints for window in self.windows), strict=True)
        constraints, options = Constraints(known, forbidden), self.options
        decoded = self.model.decode_scores(
            scores,
            constraints or None,
            options.settings,
            scored=options.scored,
            trees=options.trees,
            label_thresholds=options.label_thresholds,
        )
        return predictions(decoded, self.model.labels, len(self.windows))

    def measure_uncertainty(self, scores: Scores) -> list[Prediction]:
        """How unsure the model is of each sentence."""
        model, options, count = self.model, self.options, len(self.windows)
        settings = options.settings or model.settings
        values, margins = [0.0] * count, [[]] * count  # type: ignore[var-annotated]
        if options.uncertainty:
            values = uncertainty(scores, settings, model.temperatures, options.uncertainty).tolist()
        if options.margins:
            margins = smallest_margins(scores, settings, model.temperatures, model.labels, options.margins)
        means = [None] * count if self.means is None else self.means.float().cpu().numpy()
        return [Prediction((), None, *each) for each in zip(values, margins, means, strict=True)]

    def run(self) -> list[Prediction]:
        with torch.inference_mode():  # a setting of the thread
            self.launch(self.collate)
            return self.collect()

    def stream_context(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def mean_vectors(words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[B, D] the mean over the words of each sentence [B, n, D]."""
    within = torch.arange(words.shape[1], device=words.device) < lengths[:, None]  # [B, n]
    return words.masked_fill(~within[..., None], 0.0).sum(1) / lengths[:, None]


def run_on_streams(jobs: Sequence[BatchJob]) -> Iterator[list[Prediction]]:
    """Yield the predictions of each batch. A batch is launched before the previous one is collected.

    Another thread collates the next batch meanwhile. Two CUDA streams take turns, so that collecting a batch does not
    wait for the one after it.
    """
    for job in jobs[:2]:
        if job.stream is not None:
            job.stream.wait_stream(torch.cuda.current_stream(job.model.device))  # pending updates of the model
    launched: BatchJob | None = None
    prefetched: Future[Batch | None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="nestree-batches") as prefetcher:
        for job, following in zip_longest(jobs, jobs[1:]):
            job.launch(prefetched.result if prefetched else job.collate)
            # Not before: collating holds the GIL, which delays the launch of kernels.
            prefetched = prefetcher.submit(following.collate) if following else None
            if launched:
                yield launched.collect()
            launched = job
    if launched:
        yield launched.collect()


@functools.cache
def cuda_streams(device: torch.device) -> "tuple[torch.cuda.Stream | None, torch.cuda.Stream | None]":
    """Two streams, cached because each has a memory pool of its own."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def map_threaded(
    function: Callable[[Item], Result], items: Sequence[Item], one_thread_each: bool = False
) -> Iterator[Result]:
    """Yield function(item) for each item, in order; runs on as many threads as PyTorch uses, up to MAX_THREADS.

    A single item has all threads for itself, unless `one_thread_each`.
    """
    threads = min(torch.get_num_threads(), MAX_THREADS)
    if threads < 2 or (len(items) < 2 and not one_thread_each):
        yield from map(function, items)
    else:
        pool = thread_pool(os.getpid(), threads)
        yield from results_in_order([pool.submit(function, item) for item in items])


def results_in_order(futures: Sequence["Future[Result]"]) -> Iterator[Result]:
    """Yield the result of each future. What has not begun is canceled when the caller stops."""
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@functools.cache
def thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """A pool of this process (a forked child needs its own), in whose threads PyTorch uses one thread each."""

    def limit_threads() -> None:
        torch.get_num_threads()  # the first call in a thread takes over the global number
        torch.set_num_threads(1)
        ready.wait()

    before = torch.get_num_threads()
    ready = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="nestree-reader")
    for _ in range(threads):
        pool.submit(limit_threads)
    ready.wait()
    torch.set_num_threads(before)  # set_num_threads in a thread also changes the default of new threads
    return pool


WORKER_ENDED = (
    "a worker process ended unexpectedly. A script that uses workers must be a file, and start them under "
    '`if __name__ == "__main__":`, because each worker imports it; if this one does, memory may have run out: use '
    "fewer workers."
)


class WorkerStartError(NestreeError):
    """No worker process could start, whatever there is to predict."""


class WorkerPool:
    """Processes that predict batches on a CPU, one thread each; they start with the first batch.

    Python code in threads waits for the GIL, so that more than about four threads gain little.
    """

    def __init__(self, pipeline: Pipeline, processes: int) -> None:
        self.pipeline, self.processes = pipeline, processes
        self.lock = threading.RLock()  # of the pool, which several threads may use
        self.pool: ProcessPoolExecutor | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None  # of the model, which the processes read

    def map(self, batches: Sequence[tuple[Any, ...]]) -> Iterator[list[Prediction]]:
        """Yield the predictions of each batch, in order."""
        try:
            with self.lock:
                self.pool = pool = self.pool or self.start()
                first_task = self.first_task
                futures = [pool.submit(predict_in_worker, self.arguments, batch) for batch in batches]
            yield from results_in_order(futures)
        except BrokenProcessPool:
            with self.lock:
                if self.pool is pool:
                    self.close()
            had_started = first_task.exception() is None
            raise (NestreeError if had_started else WorkerStartError)(WORKER_ENDED) from None

    def start(self) -> ProcessPoolExecutor:
        # As arguments, the weights would fill a pipe, and a process that dies before it reads would block this one.
        self.folder = tempfile.TemporaryDirectory(prefix="nestree-")
        folder = Path(self.folder.name)
        log.info("%d worker processes", self.processes)
        # A forked process rounds some products differently once PyTorch has been imported before the fork.
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.processes, spawn, initialize_worker, (folder,))
        try:
            # This starts a worker, which removes the folder if this process is killed.
            self.first_task = pool.submit(os.getpid)
        except RuntimeError:  # this process is a worker that imports the script
            raise WorkerStartError(WORKER_ENDED) from None
        checkpoint.save(self.pipeline.model, folder / "model", self.pipeline.model.card)
        self.arguments = folder / "model", self.pipeline.max_sentence_words, self.pipeline.precision
        return pool

    def close(self) -> None:
        """End the processes when they have predicted what was submitted."""
        with self.lock:
            if self.pool is not None:
                self.pool.shutdown()
                self.pool = None
            if self.folder is not None:
                self.folder.cleanup()
                self.folder = None


def initialize_worker(temporary: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C interrupts the parent, which ends this process
    threading.Thread(target=exit_with_parent, args=(temporary,), daemon=True).start()
    torch.set_num_threads(1)


def exit_with_parent(temporary: Path) -> None:
    """End this process when its parent is killed, as it would wait for batches forever; remove the folder of both."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(temporary, ignore_errors=True)  # other workers do the same
    os._exit(1)


@functools.cache
def worker_pipeline(folder: Path, max_sentence_words: int, precision: Precision) -> Pipeline:
    """The pipeline of this worker process."""
    return Pipeline(checkpoint.load(folder), max_sentence_words, precision)


def predict_in_worker(
    arguments: tuple[Path, int, Precision], batch: tuple[Sequence[Window], PredictOptions, int]
) -> list[Prediction]:
    windows, options, max_subwords = batch
    model = worker_pipeline(*arguments).inference_model
    with eval_mode(model):
        return BatchJob(model, windows, options, None, max_subwords).run()
