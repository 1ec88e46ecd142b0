"""Pipeline: text or words in, documents with entities out.

`predict` finds the entities of sentences: it cuts long sentences into overlapping windows, groups sentences of similar
length into batches, runs them on several CPU threads or on two CUDA streams, and merges the windows. A batch that does
not fit into memory is split in half. `Batcher` predicts streams of documents in bounded memory and isolates those that
fail; it serves `Pipeline.pipe`, `nestree.predict_files` and the spaCy component.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, overload

import torch

from nestree import checkpoint, hub
from nestree.config import Settings
from nestree.decoding import Prediction, predictions
from nestree.decoding.constraints import (
    Constraints,
    SentenceConstraints,
    align_constraints,
    as_int,
    check_constraints,
    describe,
    parse_char_spans,
    split_at_borders,
)
from nestree.errors import ChartMemoryError, InputError, NestreeError
from nestree.model import Recognizer, autocast, eval_mode
from nestree.nn.batch import BATCH_WORDS, MAX_SENTENCE_WORDS, Batch, batches_by_length
from nestree.nn.devices import select_device
from nestree.nn.int8 import unavailable_reason
from nestree.nn.scorers import Scores
from nestree.text import split
from nestree.treecrf.memory import ignore_out_of_memory
from nestree.types import Document, Entity, Sentence, Span, crossing_pairs, with_entities

__all__ = ["Batcher", "Pipeline", "load", "override_decoding", "predict"]

BATCH_WORDS_GPU = 16_000  # replaces BATCH_WORDS on a CUDA device
MAX_BATCH_WORDS_CPU = 1_000  # larger batches are no faster on a CPU
MIN_BATCH_WORDS_CPU = 100  # smaller batches are not worth another thread
BATCHES_PER_THREAD = 4  # if there are enough words: so that all threads end at about the same time
MAX_SUBWORDS_PER_WORD = 8  # in a batch, padding included; natural language stays far below
WINDOW_WORDS = 64
BATCH_TEXTS = 64  # buffered by Pipeline.pipe
MAX_BUFFERED_WORDS = 40_000  # by Batcher

Precision = Literal["auto", "float32", "int8"]
log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


class PredictOptions(NamedTuple):
    """What `predict` returns besides entities, and how it decodes."""

    scored: bool = False  # with probabilities
    trees: bool = False  # with trees
    settings: Settings | None = None  # decoding settings; None: the model's
    max_sentence_words: int = MAX_SENTENCE_WORDS


def load(
    model: str | Path | None = None,
    device: str = "auto",
    max_sentence_words: int = MAX_SENTENCE_WORDS,
    precision: Precision = "auto",
    verify: bool = True,
) -> "Pipeline":
    """The bundled model, or that of a directory or of a name on the Hugging Face hub, as a Pipeline.

    `max_sentence_words`: longer sentences are cut into overlapping windows. `precision` on a CPU: "int8" is several
    times as fast as "float32" on processors with the instructions for it; "auto" is "int8" there if the weights of the
    model are stored in 8 bits, as those of the bundled model are. Without `verify`, the files of the model are not
    compared with manifest.json.
    """
    max_words = as_int(max_sentence_words)
    if max_words is None or max_words < 4:
        raise InputError(
            f"max_sentence_words is {max_sentence_words!r}; it must be a whole number, 4 or more."
        )
    loaded = checkpoint.load(hub.resolve(model), select_device(device), verify=verify)
    return Pipeline(loaded, max_words, precision)


class Pipeline:
    """Finds nested entities in text."""

    def __init__(
        self, model: Recognizer, max_sentence_words: int = MAX_SENTENCE_WORDS, precision: Precision = "auto"
    ) -> None:
        self.model, self.max_sentence_words = model, max_sentence_words
        self.int8_model = model.to_int8() if uses_int8(model, precision) else None

    @property
    def inference_model(self) -> Recognizer:
        """The model that predicts; in 8 bits, it has the weights of the moment when this pipeline was made."""
        return self.int8_model if self.int8_model is not None and self.device.type == "cpu" else self.model

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.labels

    @property
    def device(self) -> torch.device:
        return self.model.device

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a string is an iterable of strings
        self,
        texts: str,
        *,
        known: Iterable[Sequence[Any]] = ...,
        forbidden: Iterable[Sequence[Any]] = ...,
        threshold: float | None = ...,
        trees: bool = ...,
    ) -> Document: ...
    @overload
    def __call__(
        self,
        texts: Iterable[str],
        *,
        known: Iterable[Sequence[Any]] = ...,
        forbidden: Iterable[Sequence[Any]] = ...,
        threshold: float | None = ...,
        trees: bool = ...,
    ) -> list[Document]: ...

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        known: Iterable[Sequence[Any]] = (),
        forbidden: Iterable[Sequence[Any]] = (),
        threshold: float | None = None,
        trees: bool = True,
    ) -> Document | list[Document]:
        """The document of a text, with its entities; a list of documents for several texts.

        `known`: spans that are entities, each (start, end), (start, end, label) or (start, end, label, head), in
        characters; a head is a position in the text or (start, end). White space at either end of a span is ignored.
        `forbidden`: spans that are no entities, (start, end), or not with this label, (start, end, label). All other
        entities are predicted given these constraints. `threshold`: the minimum probability of an entity; a higher
        one gives fewer entities with higher precision. `trees`: keep the trees too, as `document.tree`.
        """
        if isinstance(texts, str):
            known_spans = parse_char_spans(known, "known", texts, self.labels)
            forbidden_spans = parse_char_spans(forbidden, "forbidden", texts, self.labels)
            document = self.split(texts, [(span.start, span.end) for span in known_spans])
            constraints = align_constraints(document, known_spans, forbidden_spans)
            return self.predict_documents([document], self.predict_options(threshold, trees), constraints)[0]
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a text must be a string, or several of them, and this is {texts!r:.60}.")
        if tuple(known) or tuple(forbidden):
            raise InputError("known and forbidden are places in one text; give texts one by one with them.")
        return list(self.pipe(texts, threshold=threshold, trees=trees))

    def words(self, sentences: Iterable[Sequence[str]], *, threshold: float | None = None) -> list[Sentence]:
        """The same for sentences that are lists of words; entities are counted in words."""
        if isinstance(sentences, str | bytes | Sentence) or not isinstance(sentences, Iterable):
            raise InputError(
                f"sentences must be lists of words, and this is {sentences!r:.60}. Give a list of such lists."
            )
        options = self.predict_options(threshold, trees=True)
        return predict(self.inference_model, list(map(as_sentence, sentences)), options=options)

    def pipe(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = BATCH_TEXTS,
        threshold: float | None = None,
        trees: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Iterator[Document]:
        """Yield the documents of a stream of texts, in order; at most `batch_size` texts are buffered.

        Sentences of similar length share a batch, whichever texts they belong to. With on_error="skip" a text that
        fails gives a document without sentences whose extra["error"] says why.
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a stream has many texts, and this is {texts!r:.60}. Give a list of texts.")
        if (as_int(batch_size) or 0) < 1:
            raise InputError(f"batch_size is {batch_size!r}; it must be a whole number, 1 or more.")
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error is {on_error!r}; it must be "raise" or "skip".')

        def handle_error(item: tuple[int, str], error: Exception) -> Document:
            number, text = item
            reason = error if isinstance(error, NestreeError) else f"{type(error).__name__}: {error}"
            message = f"text {number} ({text!r:.40}) failed: {reason}"
            if on_error == "raise":
                raise InputError(message) from error
            return Document((), text if isinstance(text, str) else None, extra={"error": message})

        batcher = Batcher(
            self,
            lambda item: self.split(item[1]),
            self.predict_options(threshold, trees),
            handle_error,
            batch_size,
        )
        return (document for _, document in batcher.stream(enumerate(texts)))

    def split(self, text: str, keep: Sequence[Span] = ()) -> Document:
        """The document of a text, without entities; the model knows how its training data was split.

        Known spans to `keep` lie within one sentence each, and begin and end with a word.
        """
        if not isinstance(text, str):
            raise InputError(f"a text must be a string, and this is {text!r:.60}.")
        rules = self.model.text_rules
        sentences = []
        for start, end, words in split(text, rules.words, rules.sentences, keep):
            if keep:
                words = split_at_borders(words, keep)
            sentences.append(
                Sentence(
                    tuple(text[i:j] for i, j in words),
                    (),
                    text[start:end],
                    tuple((i - start, j - start) for i, j in words),
                    start,
                )
            )
        return Document(tuple(sentences), text)

    def predict_documents(
        self,
        documents: Sequence[Document],
        options: PredictOptions,
        constraints: Mapping[int, SentenceConstraints] | None = None,
        batch_words: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Document]:
        """These documents with entities; `constraints` by the index of the sentence in all documents together."""
        sentences = self.model.sentences_with_context(documents)
        predicted = iter(
            predict(self.inference_model, sentences, batch_words, on_progress, options, constraints)
        )
        return [replace(d, sentences=tuple(islice(predicted, len(d.sentences)))) for d in documents]

    def predict_options(self, threshold: float | None, trees: bool) -> PredictOptions:
        """Options for `predict`; a threshold of None is the model's own."""
        settings: Settings | None = None
        if threshold is not None:
            is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
            if not (is_number and 0 <= threshold < 1):
                raise InputError(
                    f"threshold is {threshold!r}; it must be a number, 0 or more and less than 1."
                )
            decoding = replace(self.model.settings.decoding, threshold=float(threshold))
            settings = replace(self.model.settings, decoding=decoding)
        return PredictOptions(
            scored=True, trees=trees, settings=settings, max_sentence_words=self.max_sentence_words
        )


def uses_int8(model: Recognizer, precision: Precision) -> bool:
    """Whether the model runs in 8 bits."""
    if precision not in ("auto", "float32", "int8"):
        raise InputError(f'precision is {precision!r}; it must be "auto", "float32" or "int8".')
    why = unavailable_reason() if model.device.type == "cpu" else "it is for a CPU"
    if precision == "int8" and why:
        raise InputError(f'precision="int8" is not to be had: {why}. Leave it at "auto".')
    return precision == "int8" or (precision == "auto" and model.is_quantized and why is None)


def as_sentence(words: Any) -> Sentence:
    if isinstance(words, Sentence):
        return words
    if isinstance(words, str | bytes) or not isinstance(words, Iterable):
        raise InputError(f"a sentence must be a list of words, and this is {words!r:.60}. Split it first.")
    return Sentence(tuple(words))


def raise_error(item: object, error: Exception) -> NoReturn:
    raise error


@dataclass
class Batcher(Generic[Item]):
    """Predicts the entities of a stream of items that can be turned into documents.

    Items are buffered, up to `batch_size` of them and until they have `max_words` words, and predicted together. If
    that fails, they are predicted one by one. For an item that fails, `on_error(item, exception)` returns the document
    in its place, or None to leave it out, or raises. `on_progress` is called with the number of words done so far.
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

    def stream(self, items: Iterable[Item]) -> Iterator[tuple[Item, Document]]:
        """Yield each item and its document with entities, in order."""
        buffer: list[tuple[Item, Document]] = []
        words = 0
        for item in items:
            try:
                document = self.to_document(item)
            except Exception as error:
                replacement = self.on_error(item, error)
                if replacement is None:
                    continue
                document = replacement
            buffer.append((item, document))
            words += count_words(document)
            if len(buffer) == self.batch_size or words >= self.max_words:
                yield from self.predict_or_isolate(buffer)
                buffer, words = [], 0
        yield from self.predict_or_isolate(buffer)

    def predict_or_isolate(self, buffer: Sequence[tuple[Item, Document]]) -> Iterator[tuple[Item, Document]]:
        items = [item for item, _ in buffer]
        try:
            predicted = self.predict([document for _, document in buffer])
        except Exception as error:
            if len(buffer) == 1:
                replacement = self.on_error(items[0], error)
                if replacement is not None:
                    yield items[0], replacement
                return
            log.info("these documents failed together; they are predicted one by one", exc_info=True)
        else:
            yield from zip(items, predicted, strict=True)
            return
        for item, document in buffer:
            try:
                (result,) = self.predict([document])
            except Exception as error:
                replacement = self.on_error(item, error)
                if replacement is None:
                    continue
                result = replacement
            yield item, result

    def predict(self, documents: Sequence[Document]) -> list[Document]:
        sentences = sum(len(document.sentences) for document in documents)
        words = sum(map(count_words, documents))
        done_sentences = 0

        def report(count: int) -> None:
            nonlocal done_sentences
            done_sentences += count
            if self.on_progress:
                self.on_progress(self.done_words + words * done_sentences // sentences)

        predicted = self.pipeline.predict_documents(documents, self.options, None, self.batch_words, report)
        self.done_words += words
        return predicted


def count_words(document: Document) -> int:
    return sum(len(sentence.words) for sentence in document.sentences)


@contextmanager
def override_decoding(model: Recognizer, **changes: Any) -> Iterator[None]:
    """A context in which the model decodes with other settings, such as head_sharing_penalty=0.4."""
    before = model.settings
    model.settings = replace(before, decoding=replace(before.decoding, **changes))
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
) -> list[Sentence]:
    """These sentences with the entities that the model predicts instead of their own.

    `batch_words`: the size of a batch; None: the default of the device. `on_progress` is called with the number of
    sentences that each batch completes. `constraints`: by the index of the sentence.
    """
    settings, constraints = options.settings or model.settings, constraints or {}
    for known_spans, forbidden_spans in constraints.values():  # before windows divide them
        check_constraints(known_spans, forbidden_spans, model.labels, settings.model.structure != "none")
    parts, windows = cut_long_sentences(sentences, options.max_sentence_words)
    part_constraints = cut_constraints(constraints, sentences, windows)
    results: dict[int, Sentence] = {}
    cut: dict[int, list[tuple[Window, Prediction]]] = {}  # by sentence
    with torch.inference_mode(), eval_mode(model), bf16_weights(model):
        batch_words = batch_words or default_batch_words(model.device)
        for batch, batch_predictions in run_batches(model, parts, batch_words, options, part_constraints):
            completed = 0
            for window, prediction in zip([windows[k] for k in batch], batch_predictions, strict=True):
                sentence = sentences[window.sentence]
                completed += window.end == len(sentence.words)
                if window.end - window.start == len(sentence.words):
                    results[window.sentence] = with_entities(
                        sentence, prediction.entities, prediction.tree, sentence.extra
                    )
                else:
                    cut.setdefault(window.sentence, []).append((window, prediction))
            if on_progress:
                on_progress(completed)
    for index, window_predictions in cut.items():
        window_predictions.sort(key=lambda pair: pair[0])
        entities = merge_windows(
            [prediction.entities for _, prediction in window_predictions],
            [(window.start, window.end) for window, _ in window_predictions],
            settings.decoding.method == "spans",
            {(span.start, span.end) for span in constraints.get(index, NO_CONSTRAINTS)[0]},
        )
        extra = {**sentences[index].extra, "windows": len(window_predictions)}
        results[index] = with_entities(sentences[index], entities, None, extra)
    return [results[index] for index in range(len(sentences))]


class Window(NamedTuple):
    """The words start to end of a sentence."""

    sentence: int  # its index
    start: int
    end: int


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


def cut_long_sentences(sentences: Sequence[Sentence], max_words: int) -> tuple[list[Sentence], list[Window]]:
    """The sentences, with windows in place of those that have more than `max_words` words."""
    parts: list[Sentence] = []
    windows: list[Window] = []
    for index, sentence in enumerate(sentences):
        spans = window_spans(len(sentence.words), max_words)
        if len(spans) == 1:
            parts.append(sentence)
        else:
            parts += [Sentence(sentence.words[i:j], id=sentence.id) for i, j in spans]
        windows += [Window(index, i, j) for i, j in spans]
    return parts, windows


def cut_constraints(
    constraints: Mapping[int, SentenceConstraints], sentences: Sequence[Sentence], windows: Sequence[Window]
) -> list[SentenceConstraints]:
    """The constraints within each window, in its own word indices; raise if a known span is in no window."""
    if not constraints:
        return [NO_CONSTRAINTS] * len(windows)
    cut: list[SentenceConstraints] = []
    covered = set()
    for index, start, end in windows:
        known, forbidden = constraints.get(index, NO_CONSTRAINTS)
        known = [span for span in known if start <= span.start and span.end <= end]
        forbidden = [span for span in forbidden if start <= span.start and span.end <= end]
        covered |= {(index, span) for span in known}
        cut.append(([span.shift(-start) for span in known], [span.shift(-start) for span in forbidden]))
    for index, (known, _) in constraints.items():
        words = sentences[index].words
        for span in known:
            if (index, span) not in covered:
                raise InputError(
                    f"known {describe(span)} ({' '.join(words[span.start : span.end])!r:.40}) has "
                    f"{span.end - span.start} words, and no window of its sentence of {len(words)} words holds all of "
                    f"them. Set max_sentence_words to {len(words)}, so that the sentence is not cut, or leave out the "
                    "entity."
                )
    return cut


def merge_windows(
    window_entities: Sequence[Sequence[Entity]],
    spans: Sequence[Span],
    may_cross: bool,
    known: Collection[Span] = (),
) -> tuple[Entity, ...]:
    """The entities of a sentence from those of its windows.

    Where two windows overlap, an entity comes from the first if it begins before the middle of the overlap, and from
    the second otherwise or if only that holds all of it.
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
    if not may_cross:
        merged = remove_crossing(merged, known)
    return tuple(sorted(merged, key=lambda entity: (entity.start, -entity.end)))


def remove_crossing(entities: Sequence[Entity], known: Collection[Span]) -> list[Entity]:
    """Greedily keep known entities, then those with the highest probability, and drop all that cross them."""
    crossing: dict[Entity, list[Entity]] = {}
    for a, b in crossing_pairs(entities):
        crossing.setdefault(a, []).append(b)
        crossing.setdefault(b, []).append(a)
    dropped: set[Entity] = set()
    for entity in sorted(crossing, key=lambda entity: (entity.span not in known, -(entity.score or 0.0))):
        if entity not in dropped:
            dropped.update(crossing[entity])
    return [entity for entity in entities if entity not in dropped]


def bf16_weights(model: Recognizer) -> AbstractContextManager[None]:
    """On CUDA, a context in which the encoder's weights are cast to bf16 once rather than for each batch."""
    encoder = model.encoder
    return encoder.bf16_cache.hold(encoder.transformer) if model.device.type == "cuda" else nullcontext()


def default_batch_words(device: torch.device) -> int:
    return BATCH_WORDS_GPU if device.type == "cuda" else BATCH_WORDS


def run_batches(
    model: Recognizer,
    sentences: Sequence[Sentence],
    batch_words: int,
    options: PredictOptions,
    constraints: Sequence[SentenceConstraints],
) -> Iterator[tuple[list[int], list[Prediction]]]:
    """Yield batches, as indices of sentences, with their predictions."""
    # Context words, which only the encoder reads, count a quarter.
    costs = [len(s.words) + sum(map(len, s.context or ())) // 4 for s in sentences]
    streams = cuda_streams(model.device)
    if model.device.type == "cpu":
        per_batch = sum(costs) // (BATCHES_PER_THREAD * torch.get_num_threads())
        batch_words = min(batch_words, max(MIN_BATCH_WORDS_CPU, min(MAX_BATCH_WORDS_CPU, per_batch)))
    batches = batches_by_length(costs, batch_words)
    jobs = [
        BatchJob(
            model,
            [sentences[k] for k in batch],
            options,
            Constraints([constraints[k][0] for k in batch], [constraints[k][1] for k in batch]),
            streams[number % 2],
            MAX_SUBWORDS_PER_WORD * batch_words,
        )
        for number, batch in enumerate(batches)
    ]
    results = map_threaded(BatchJob.run, jobs) if model.device.type == "cpu" else run_on_streams(jobs)
    yield from zip(batches, results, strict=True)


collate_lock = threading.Lock()  # the collator caches words


@dataclass
class BatchJob:
    """The prediction of one batch, in two steps: `launch` queues the computation of scores, `collect` decodes them."""

    model: Recognizer
    sentences: Sequence[Sentence]
    options: PredictOptions
    constraints: Constraints
    stream: "torch.cuda.Stream | None"
    max_subwords: int
    scores: Scores | None = None  # None after `launch`: the batch is too large

    def collate(self) -> Batch | None:
        """The batch on the host, in pinned memory for a GPU; None if it has too many subwords."""
        with collate_lock:
            batch = self.model.collate_words(self.sentences)
        if batch.subwords.numel() > self.max_subwords and len(self.sentences) > 1:
            return None
        return batch if self.stream is None else batch.pin_memory()

    def launch(self, get_batch: Callable[[], Batch | None] | None = None) -> None:
        """Start to compute scores; `get_batch` waits for the batch if another thread collates it."""
        with ignore_out_of_memory(), self.stream_context():
            batch = (get_batch or self.collate)()
            if batch is not None:
                with autocast(self.model.device):
                    self.scores = self.model(batch.to(self.model.device))

    def collect(self) -> list[Prediction]:
        """Wait for the scores and decode them. A batch that is too large is split in half and run again."""
        scores, self.scores = self.scores, None
        if scores is not None:
            with ignore_out_of_memory(), self.stream_context():
                decoded = self.model.decode_scores(
                    scores,
                    self.constraints if self.constraints else None,
                    self.options.settings,
                    scored=self.options.scored,
                    trees=self.options.trees,
                )
                return predictions(decoded, self.model.labels, len(self.sentences))
        del scores
        if len(self.sentences) == 1:
            raise ChartMemoryError(
                f"there is not enough memory for a sentence of {len(self.sentences[0].words)} words: "
                f"{self.sentences[0]}"
            )
        middle = len(self.sentences) // 2
        results = []
        for half in (slice(middle), slice(middle, None)):
            constraints = Constraints(self.constraints.known[half], self.constraints.forbidden[half])
            results += replace(self, sentences=self.sentences[half], constraints=constraints).run()
        return results

    def run(self) -> list[Prediction]:
        with torch.inference_mode():  # a setting of the thread
            self.launch()
            return self.collect()

    def stream_context(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def run_on_streams(jobs: Sequence[BatchJob]) -> Iterator[list[Prediction]]:
    """Yield the predictions of each batch. A batch is launched before the previous one is collected.

    Another thread collates the next batch meanwhile. Two CUDA streams take turns, so that collecting a batch does not
    wait for the one after it.
    """
    for job in jobs[:2]:
        if job.stream is not None:
            job.stream.wait_stream(torch.cuda.current_stream())  # pending updates of the model
    if len(jobs) == 1:  # nothing to prefetch
        jobs[0].launch()
        yield jobs[0].collect()
        return
    launched: BatchJob | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="nestree-batches") as prefetcher:
        prefetched = [prefetcher.submit(job.collate) for job in jobs[:1]]
        for number, job in enumerate(jobs, 1):
            job.launch(prefetched.pop().result)
            # Not before: collating holds the GIL, which delays the launch of kernels.
            prefetched += [prefetcher.submit(following.collate) for following in jobs[number : number + 1]]
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


def map_threaded(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield function(item) for each item, in order; runs on as many threads as PyTorch uses."""
    threads = torch.get_num_threads()
    if min(threads, len(items)) < 2:
        yield from map(function, items)
        return
    futures: list[Future[Result]] = []
    try:
        futures += [thread_pool(os.getpid(), threads).submit(function, item) for item in items]
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()  # waits until it has ended


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
