"""Text or sentences in, the same with entities out.

sentences.py   sentences -> sentences with entities: batches of like length, order kept
threads.py     batches on several threads of a CPU
windows.py     sentences too long for a chart, in windows that overlap, merged
texts.py       Pipeline: text -> documents; streams of texts; what is known before
"""

import functools
import operator
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import torch

from nestree import checkpoint
from nestree.config import Settings
from nestree.decoding import Prediction
from nestree.decoding import predictions as readings_of
from nestree.decoding.constraints import Constraints, Forbidden, Known, check_constraints, shown
from nestree.errors import ChartMemoryError, InputError, NestreeError
from nestree.model import Recognizer
from nestree.nn.batch import Batch
from nestree.nn.devices import select_device
from nestree.nn.int8 import unavailable_reason
from nestree.nn.scorers import Scores
from nestree.text import split
from nestree.treecrf.memory import ignore_out_of_memory
from nestree.types import Document, Entity, Sentence, Span, crossing_pairs, with_entities

__all__ = ["Pipeline", "batches_by_length", "decoding_with", "load", "predict", "select_device"]


Given = TypeVar("Given")
Made = TypeVar("Made")


def map_threaded(work: Callable[[Given], Made], given: Sequence[Given]) -> Iterator[Made]:
    """work(one) for each of these, in their order; on as many threads as PyTorch uses."""
    threads = torch.get_num_threads()
    if min(threads, len(given)) < 2:
        yield from map(work, given)
        return
    waiting: list[Future[Made]] = []
    try:
        waiting += [thread_pool(os.getpid(), threads).submit(work, one) for one in given]
        for future in waiting:
            yield future.result()
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            if not future.cancelled():
                future.exception()  # wait: it may still be at work


@functools.cache
def thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of them."""
    before = torch.get_num_threads()
    there = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="nestree-reader")
    for _ in range(threads):
        pool.submit(report, there)
    there.wait()
    torch.set_num_threads(before)  # a thread sets its own number, and that of threads to come
    return pool


def report(there: threading.Barrier) -> None:
    """The first that a thread of the crew does."""
    torch.get_num_threads()  # when first asked, a thread takes the number of all others
    torch.set_num_threads(1)
    there.wait()


WINDOW = 64  # words


def windows(words: int, longest: int) -> list[Span]:
    """All words if there are `longest` at most; else stretches of that size or WINDOW, that overlap by half.

    >>> windows(18, 8)
    [(0, 8), (4, 12), (8, 16), (10, 18)]
    >>> windows(8, 8)
    [(0, 8)]
    """
    if words <= longest:
        return [(0, words)]
    size = min(longest, WINDOW)
    step = size - size // 2
    starts = [min(start, words - size) for start in range(0, words - size + step, step)]
    return [(start, start + size) for start in starts]


def cut_windows(sentence: Sentence, spans: Sequence[Span]) -> list[Sentence]:
    """The words of each window."""
    return [Sentence(sentence.words[i:j], id=sentence.id) for i, j in spans]


def merge_windows(
    found: Sequence[Sequence[Entity]], spans: Sequence[Span], may_cross: bool, known: Collection[Span] = ()
) -> tuple[Entity, ...]:
    """The entities of the whole sentence from those of its windows, numbered from its first word."""
    middles = [0, *((b[0] + a[1] + 1) // 2 for a, b in pairwise(spans)), spans[-1][1]]
    before = 0  # where the window before ends
    kept: list[Entity] = []
    for k, (entities, (start, end)) in enumerate(zip(found, spans, strict=True)):
        own = [moved(entity, start) for entity in entities]
        kept += [e for e in own if e.start < middles[k + 1] and (middles[k] <= e.start or before < e.end)]
        before = end
    if not may_cross:
        kept = without_crossing(kept, known)
    return tuple(sorted(kept, key=lambda entity: (entity.start, -entity.end)))


def without_crossing(entities: Sequence[Entity], known: Collection[Span]) -> list[Entity]:
    """Those that stay if what is known, then what is likeliest, drives out all that cross it."""
    rivals: dict[Entity, list[Entity]] = {}
    for one, other in crossing_pairs(entities):
        rivals.setdefault(one, []).append(other)
        rivals.setdefault(other, []).append(one)
    lost: set[Entity] = set()
    for entity in sorted(rivals, key=lambda entity: (entity.span not in known, -(entity.score or 0.0))):
        if entity not in lost:
            lost.update(rivals[entity])
    return [entity for entity in entities if entity not in lost]


def moved(entity: Entity, by: int) -> Entity:
    head = None if entity.head is None else entity.head + by
    return Entity(entity.start + by, entity.end + by, entity.label, head, entity.score)


class KnownSpan(NamedTuple):
    """An entity that is known, in characters."""

    start: int
    end: int
    label: str | None
    head: Span | None


class ForbiddenSpan(NamedTuple):
    """What is no entity, in characters."""

    start: int
    end: int
    label: str | None


def as_known(given: Sequence[Any], text: str) -> KnownSpan:
    """(start, end), (start, end, label) or (start, end, label, head)."""
    span, label, head = fields(given, "known", 4, text)
    if head is not None:
        at = as_int(head)
        word = as_span(head if at is None else (at, at + 1))
        if word is None:
            raise InputError(f"the head of known {given!r} must be a place in the text, or (start, end).")
        head = trimmed(text, word, "the head of known")
    return KnownSpan(*span, label, head)


def as_forbidden(given: Sequence[Any], text: str) -> ForbiddenSpan:
    """(start, end) or (start, end, label)."""
    span, label, _ = fields(given, "forbidden", 3, text)
    return ForbiddenSpan(*span, label)


def fields(given: Sequence[Any], name: str, most: int, text: str) -> tuple[Span, str | None, Any]:
    """Span, label and head. White space at either end of a span does not count."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not 2 <= len(given) <= most:
        last = "(start, end, label, head)" if most == 4 else "(start, end, label)"
        raise InputError(f"{name} {given!r:.60} must be (start, end), and may go on as {last}.")
    label, head = [*given[2:], None, None][:2]
    span = as_span(given[:2])
    if span is None:
        raise InputError(f"{name} {given!r:.60} must begin with two places in the text, the second greater.")
    if not (label is None or isinstance(label, str)):
        raise InputError(f"the label of {name} {given!r:.60} must be a string or None.")
    return trimmed(text, span, name), label, head


def as_span(value: Any) -> Span | None:
    """Two places in a text, the second greater; None if it is anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        return None
    start, end = map(as_int, value)
    return (start, end) if start is not None and end is not None and 0 <= start < end else None


def as_int(value: Any) -> int | None:
    """A whole number, of Python or NumPy; None if it is anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def trimmed(text: str, span: Span, name: str) -> Span:
    """The span without the white space at either end."""
    start, end = span
    if end > len(text):
        raise InputError(f"{name} {span} ends after the text, which has {len(text)} characters.")
    piece = text[start:end]
    if not piece.strip():
        raise InputError(f"{name} {span} has no characters but white space: {piece!r:.40}.")
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def split_at_borders(words: Sequence[Span], keep: Iterable[Span]) -> list[Span]:
    """The words, cut where one of the spans to keep begins or ends.

    >>> split_at_borders([(0, 3), (4, 11)], [(4, 9)])
    [(0, 3), (4, 9), (9, 11)]
    """
    borders = sorted({border for span in keep for border in span})
    cut: list[Span] = []
    for i, j in words:
        inner = borders[bisect_right(borders, i) : bisect_left(borders, j)]
        cut += pairwise([i, *inner, j])
    return cut


def to_word_constraints(
    document: Document, known: Sequence[KnownSpan], forbidden: Sequence[ForbiddenSpan]
) -> dict[int, tuple[list[Known], list[Forbidden]]]:
    """By the number of a sentence. A forbidden span that is no span of words cannot be found anyway."""
    starts = [sentence.start for sentence in document.sentences]
    told: dict[int, tuple[list[Known], list[Forbidden]]] = {}
    for each in known:
        number, i, j = place(document, starts, each.start, each.end, "known")
        head = None
        if each.head is not None:
            other, first, last = place(document, starts, *each.head, "the head of known")
            if (other, last) != (number, first + 1) or not i <= first < j:
                raise InputError(
                    f"the head {each.head} of known {tuple(each[:3])} must lie in one word of it."
                )
            head = first
        one = Known(i, j, each.label, head, (each.start, each.end), each.head)
        told.setdefault(number, ([], []))[0].append(one)
    for bad in forbidden:
        number, i, j = place(document, starts, bad.start, bad.end, "forbidden")
        if i < j:
            told.setdefault(number, ([], []))[1].append(Forbidden(i, j, bad.label, (bad.start, bad.end)))
    return told


def check_labels(
    known: Sequence[KnownSpan], forbidden: Sequence[ForbiddenSpan], labels: Sequence[str]
) -> None:
    """Those that a model does not know."""
    for name, some in (("known", known), ("forbidden", forbidden)):
        for start, end, label, *_ in some:
            if label is not None and label not in labels:
                raise InputError(
                    f"{name} {(start, end, label)} has a label that this model does not know. Its labels are "
                    f"{', '.join(labels)}."
                )


def place(document: Document, starts: Sequence[int], start: int, end: int, name: str) -> tuple[int, int, int]:
    """The sentence and the words at these characters, which neither begin nor end with white space."""
    number = bisect_right(starts, start) - 1
    sentence = document.sentences[number]
    offsets = sentence.offsets or ()
    start, end = start - sentence.start, end - sentence.start
    first = bisect_right(offsets, start, key=lambda word: word[1])  # the first word that ends after the start
    after = bisect_left(offsets, end, key=lambda word: word[0])  # the first that begins at the end or later
    if name == "forbidden" and (offsets[first][0], offsets[after - 1][1]) != (start, end):
        return number, first, first
    return number, first, after


BATCH_WORDS = 4_000
BATCH_WORDS_GPU = 16_000  # instead, on a CUDA device; what does not fit is halved
MAX_BATCH_WORDS_CPU = 1_000  # of a batch on a CPU, where larger ones are no faster
MIN_BATCH_WORDS_CPU = 100  # likewise: for less it is not worth waking another thread
BATCHES = 4  # for each thread, if there are enough words: so that all end at about the same time
SUBWORDS_PER_WORD = 8  # of a batch, padding included, at most: many more than any language has
CHARTS_COUNT = 90  # words; with shorter sentences, charts are small beside the rest
MAX_SENTENCE_WORDS = 200  # words of a sentence that is read at once
collate_lock = threading.Lock()

Facts = tuple[Sequence[Known], Sequence[Forbidden]]  # what is known of a sentence
SentenceConstraints = Mapping[int, Facts]  # by its number
NOTHING_KNOWN: Facts = ((), ())


class PredictOptions(NamedTuple):
    """What is wanted of each sentence beyond its entities."""

    scored: bool = False  # their probabilities
    trees: bool = False  # the tree they stand in
    settings: Settings | None = None  # others than the model's, for decoding
    longest: int = MAX_SENTENCE_WORDS


def predict(
    model: Recognizer,
    sentences: Sequence[Sentence],
    batch_words: int | None = None,
    tell: Callable[[int], None] | None = None,
    asked: PredictOptions = PredictOptions(),  # noqa: B008 (it cannot change)
    known: SentenceConstraints | None = None,
) -> list[Sentence]:
    """These sentences with the entities that the model finds; those they had are gone.

    `batch_words`: None for what suits the device. `tell` hears how many sentences are done. `known` says of sentences,
    by their number, which spans are entities and which are not. A batch that does not fit into memory is halved.
    """
    settings, known = asked.settings or model.settings, known or {}
    for entities, others in known.values():  # here, as a window sees only a part of it
        check_constraints(entities, others, model.labels, settings.model.structure != "none")
    parts, owners = cut_long_sentences(sentences, asked.longest)
    told = knowledge_of(known, sentences, owners)
    shares = WindowMerger(sentences, owners, settings.decoding.method == "spans", known)
    with torch.inference_mode(), eval_mode(model), bf16_weights(model):
        words = batch_words or default_batch_words(model.device)
        for batch, found in run_batches(model, parts, words, asked, told):
            done = shares.take(batch, found)
            if tell:
                tell(done)
    return [made for made in shares.made if made is not None]


Owner = tuple[int, Span]  # the sentence that a part belongs to, and its words in it


def cut_long_sentences(sentences: Sequence[Sentence], longest: int) -> tuple[list[Sentence], list[Owner]]:
    """The sentences, those that are too long in windows."""
    parts: list[Sentence] = []
    owners: list[Owner] = []
    for number, sentence in enumerate(sentences):
        if len(sentence.words) <= longest:
            parts.append(sentence)
            owners.append((number, (0, len(sentence.words))))
            continue
        spans = windows(len(sentence.words), longest)
        parts += cut_windows(sentence, spans)
        owners += [(number, span) for span in spans]
    return parts, owners


def knowledge_of(
    known: SentenceConstraints, sentences: Sequence[Sentence], owners: Sequence[Owner]
) -> list[Facts]:
    """What is known of each part: all that lies within it. Raise if an entity lies in none."""
    if not known:
        return [NOTHING_KNOWN] * len(owners)
    told: list[Facts] = []
    held: set[tuple[int, Known]] = set()
    for number, (start, end) in owners:
        entities, others = known.get(number, NOTHING_KNOWN)
        within = [each for each in entities if start <= each.start and each.end <= end]
        held |= {(number, each) for each in within}
        told.append(
            (
                [
                    k._replace(
                        start=k.start - start,
                        end=k.end - start,
                        head=None if k.head is None else k.head - start,
                    )
                    for k in within
                ],
                [
                    f._replace(start=f.start - start, end=f.end - start)
                    for f in others
                    if start <= f.start and f.end <= end
                ],
            )
        )
    for number, (entities, _) in known.items():
        for each in entities:
            if (number, each) not in held:
                raise in_no_window(each, sentences[number])
    return told


def in_no_window(each: Known, sentence: Sentence) -> InputError:
    words = len(sentence.words)
    return InputError(
        f"known {shown(each)} ({' '.join(sentence.words[each.start : each.end])!r:.40}) has "
        f"{each.end - each.start} words, and no window in which its sentence of {words} words is read holds all of "
        f"them. Set `longest` to {words}, so that the sentence is read at once, or leave the entity out."
    )


class WindowMerger:
    """Sentences, of which one part after another is read. One is put together when the last of its parts arrives."""

    def __init__(
        self,
        sentences: Sequence[Sentence],
        owners: Sequence[Owner],
        may_cross: bool,
        known: SentenceConstraints,
    ) -> None:
        self.sentences, self.owners, self.may_cross, self.known = sentences, owners, may_cross, known
        self.made: list[Sentence | None] = [None] * len(sentences)
        self.readings: dict[int, Prediction] = {}
        self.parts: dict[int, list[int]] = {}  # of sentences that have several
        for k, (number, span) in enumerate(owners):
            if span[1] - span[0] < len(sentences[number].words):
                self.parts.setdefault(number, []).append(k)
        self.left = {number: len(parts) for number, parts in self.parts.items()}

    def take(self, batch: Sequence[int], found: Sequence[Prediction]) -> int:
        """What was found in these parts. Returns how many sentences are whole now."""
        done = 0
        for k, reading in zip(batch, found, strict=True):
            number = self.owners[k][0]
            sentence = self.sentences[number]
            if number not in self.parts:
                self.made[number] = with_entities(sentence, reading.entities, reading.tree, sentence.extra)
                done += 1
                continue
            self.readings[k] = reading
            self.left[number] -= 1
            if not self.left[number]:
                self.made[number] = self.put_together(number)
                done += 1
        return done

    def put_together(self, number: int) -> Sentence:
        """A sentence with what was found in its parts."""
        sentence, parts = self.sentences[number], self.parts[number]
        spans = [self.owners[k][1] for k in parts]
        known = {(each.start, each.end) for each in self.known.get(number, NOTHING_KNOWN)[0]}
        read = [self.readings.pop(k).entities for k in parts]
        entities = merge_windows(read, spans, self.may_cross, known)
        return with_entities(sentence, entities, None, {**sentence.extra, "windows": len(spans)})


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Within this, no part of the model is in training mode; after it, each is as it was."""
    learning = [part for part in model.modules() if part.training]
    for part in learning:
        part.training = False
    try:
        yield
    finally:
        for part in learning:
            part.training = True


@contextmanager
def decoding_with(model: Recognizer, **changes: Any) -> Iterator[None]:
    """Within this, the model decodes with other settings, such as sharing=0.4."""
    before = model.settings
    model.settings = before.changed([f"decoding.{name}={value}" for name, value in changes.items()])
    try:
        yield
    finally:
        model.settings = before


def precision(device: torch.device) -> "torch.autocast | nullcontext[None]":
    """Half precision for the encoder where that is faster."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def bf16_weights(model: Recognizer) -> AbstractContextManager[None]:
    """Within this, where the encoder runs in half precision its weights are turned once, not for each batch."""
    encoder = model.encoder
    return encoder.keeper.keeping(encoder.transformer) if model.device.type == "cuda" else nullcontext()


def batches_by_length(lengths: Sequence[int], words: int) -> list[list[int]]:
    """Numbers of sentences in batches, the longest first, such that `words` words, padding included, are a batch.

    Of sentences beyond CHARTS_COUNT words there are fewer: their charts, which grow with the cube, fill the memory.

    >>> batches_by_length([3, 9, 2, 8], 18)
    [[1, 3], [0, 2]]
    """
    batches: list[list[int]] = []
    for k in sorted(
        range(len(lengths)), key=lengths.__getitem__, reverse=True
    ):  # of a length, in their order
        longest = lengths[batches[-1][0]] if batches else 0
        if batches and (len(batches[-1]) + 1) * longest * max(1, longest / CHARTS_COUNT) ** 2 <= words:
            batches[-1].append(k)
        else:
            batches.append([k])
    return batches


def run_batches(
    model: Recognizer,
    parts: Sequence[Sentence],
    batch_words: int,
    asked: PredictOptions,
    told: Sequence[Facts],
) -> Iterator[tuple[list[int], list[Prediction]]]:
    """Batches, as numbers of parts, and what is found in them."""
    lengths = [batch_cost(part) for part in parts]
    streams = cuda_streams(model.device)
    if model.device.type == "cpu":
        batch_words = min(batch_words, threaded_batch_words(sum(lengths)))
    batches = batches_by_length(lengths, batch_words)
    turns = [
        BatchJob(
            model,
            [parts[k] for k in batch],
            asked,
            Constraints([told[k][0] for k in batch], [told[k][1] for k in batch]),
            streams[number % 2],
            SUBWORDS_PER_WORD * batch_words,
        )
        for number, batch in enumerate(batches)
    ]
    done = map_threaded(BatchJob.whole, turns) if model.device.type == "cpu" else run_on_streams(turns)
    yield from zip(batches, done, strict=True)


def default_batch_words(device: torch.device) -> int:
    """How many words are a batch, unless somebody says otherwise.

    >>> default_batch_words(torch.device("cpu")), default_batch_words(torch.device("cuda"))
    (4000, 16000)
    """
    return BATCH_WORDS_GPU if device.type == "cuda" else BATCH_WORDS


def batch_cost(sentence: Sentence) -> int:
    """How many words of a batch it is; those around it, which only the encoder reads, count a quarter."""
    return len(sentence.words) + sum(map(len, sentence.context or ())) // 4


def threaded_batch_words(words: int) -> int:
    """How many words are a batch on a CPU, if there are so many in all."""
    return max(MIN_BATCH_WORDS_CPU, min(MAX_BATCH_WORDS_CPU, words // (BATCHES * torch.get_num_threads())))


def run_on_streams(turns: "Sequence[BatchJob]") -> Iterator[list[Prediction]]:
    """What is found in each. A GPU is given one before the one before is read; another thread lays out the next."""
    for turn in turns[:2]:
        if turn.stream is not None:
            turn.stream.wait_stream(torch.cuda.current_stream())  # the model may still be changing
    if len(turns) == 1:  # nothing can be laid out ahead
        turns[0].begin()
        yield turns[0].end()
        return
    waiting: BatchJob | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="nestree-batches") as helper:
        coming = [helper.submit(turn.lay_out) for turn in turns[:1]]
        for number, turn in enumerate(turns, 1):
            turn.begin(coming.pop().result)
            # Only now: both are Python, and while operations are queued nobody else should have it.
            coming += [helper.submit(after.lay_out) for after in turns[number : number + 1]]
            if waiting:
                yield waiting.end()
            waiting = turn
    if waiting:
        yield waiting.end()


@functools.cache
def cuda_streams(device: torch.device) -> "tuple[torch.cuda.Stream | None, torch.cuda.Stream | None]":
    """Two to take turns on; always the same, as each keeps memory of its own."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@dataclass
class BatchJob:
    """A batch. On a GPU it has a stream of its own, so that nobody waits for the batch after it."""

    model: Recognizer
    sentences: Sequence[Sentence]
    asked: PredictOptions
    knowledge: Constraints
    stream: "torch.cuda.Stream | None"
    most_pieces: int
    scores: Scores | None = None  # None: there is not enough memory

    def lay_out(self) -> Batch | None:
        """The batch, on the host; None: it has too many pieces, as of words that are no words."""
        with collate_lock:  # it remembers words
            batch = self.model.collate_words(self.sentences)
        if batch.pieces.numel() > self.most_pieces and len(self.sentences) > 1:
            return None
        # From there, it goes to a GPU while we do something else.
        return batch if self.stream is None else batch.pin_memory()

    def begin(self, laid_out: Callable[[], Batch | None] | None = None) -> None:
        """Let the device compute scores; `laid_out`: gives the batch, if another thread makes it."""
        with ignore_out_of_memory(), self.on_its_own():
            batch = (laid_out or self.lay_out)()
            if batch is not None:
                with precision(self.model.device):
                    self.scores = self.model(batch.to(self.model.device))

    def end(self) -> list[Prediction]:
        """Wait for the scores, and for what is found by them; of too many sentences in halves."""
        scores, self.scores = self.scores, None
        if scores is not None:
            with ignore_out_of_memory(), self.on_its_own():
                known = self.knowledge if self.knowledge else None
                asked = self.asked
                found = self.model.found(
                    scores, known, asked.settings, scored=asked.scored, trees=asked.trees
                )
                return readings_of(found, self.model.labels, len(self.sentences))
        del scores
        return [reading for half in self.halves() for reading in half.whole()]

    def whole(self) -> list[Prediction]:
        with torch.inference_mode():  # of this thread
            self.begin()
            return self.end()

    def halves(self) -> "list[BatchJob]":
        if len(self.sentences) == 1:
            raise ChartMemoryError(
                f"there is not enough memory for a sentence of {len(self.sentences[0].words)} words: "
                f"{self.sentences[0]}"
            )
        middle = len(self.sentences) // 2
        return [
            replace(
                self,
                sentences=self.sentences[some],
                knowledge=Constraints(self.knowledge.known[some], self.knowledge.forbidden[some]),
            )
            for some in (slice(middle), slice(middle, None))
        ]

    def on_its_own(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


BATCH_TEXTS = 64  # texts of a stream that are read together
MAX_BUFFERED_WORDS = 40_000  # of them, at most: what bounds the memory

Precision = Literal["auto", "float32", "int8"]


def load(
    model: str | Path | None = None,
    device: str = "auto",
    longest: int = MAX_SENTENCE_WORDS,
    precision: Precision = "auto",
    verify: bool = True,
) -> "Pipeline":
    """the bundled model, of a directory, or of a name on the Hugging Face hub, ready to read text.

    `longest`: sentences of more words are read through windows that overlap. `precision` on a CPU: "int8", several
    times as fast as "float32" on processors that have instructions for it; "auto" is "int8" there for a model whose
    weights are stored in 8 bits, such as the one in the box.
    Without `verify`, its files are not compared with manifest.json.
    """
    words = as_int(longest)
    if words is None or words < 4:
        raise InputError(
            f"longest is {longest!r}; windows of sentences need a whole number of words, 4 at least."
        )
    from nestree import hub

    loaded = checkpoint.load(hub.resolve(model), select_device(device), verify=verify)
    return Pipeline(loaded, words, precision)


class Pipeline:
    """Finds nested entities in text."""

    def __init__(
        self, model: Recognizer, longest: int = MAX_SENTENCE_WORDS, precision: Precision = "auto"
    ) -> None:
        self.model, self.longest = model, longest
        self.int8_model = model.to_int8() if uses_int8(model, precision) else None

    @property
    def reader(self) -> Recognizer:
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
        """A text with its entities; several, in their order.

        `known`: what are entities, each (start, end), (start, end, label) or (start, end, label, head), in
        characters; a head is a place in the text or (start, end). White space at either end of a span does not count.
        `forbidden`: what are none, (start, end), or none of this label, (start, end, label). All else is found given
        that. `threshold`: the probability that an entity needs; the higher, the more precise and the fewer. `trees`:
        keep the trees too, as `document.tree`.
        """
        if isinstance(texts, str):
            entities = [as_known(each, texts) for each in known]
            others = [as_forbidden(each, texts) for each in forbidden]
            check_labels(entities, others, self.model.labels)
            document = self.split(texts, [(each.start, each.end) for each in entities])
            told = to_word_constraints(document, entities, others)
            return self.recognised([document], self.asked(threshold, trees), told)[0]
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a text must be a string, or several of them, and this is {texts!r:.60}.")
        if tuple(known) or tuple(forbidden):
            raise InputError("known and forbidden are places in one text; give texts one by one with them.")
        return list(self.pipe(texts, threshold=threshold, trees=trees))

    def words(self, sentences: Iterable[Sequence[str]], *, threshold: float | None = None) -> list[Sentence]:
        """Sentences that are split into words already; entities are counted in words."""
        if isinstance(sentences, str | bytes | Sentence) or not isinstance(sentences, Iterable):
            raise InputError(
                f"sentences must be lists of words, and this is {sentences!r:.60}. Give a list of such lists."
            )
        asked = self.asked(threshold, trees=True)
        return predict(self.reader, list(map(as_sentence, sentences)), asked=asked)

    def pipe(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = BATCH_TEXTS,
        threshold: float | None = None,
        trees: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Iterator[Document]:
        """The documents of a stream of texts, in their order; never more than `batch_size` are held.

        Sentences of like length are read together, whichever texts they are of. With on_error="skip" a text that
        fails becomes a document without sentences that says why in extra["error"].
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InputError(f"a stream has many texts, and this is {texts!r:.60}. Give a list of texts.")
        if (as_int(batch_size) or 0) < 1:
            raise InputError(f"batch_size is {batch_size!r}; it must be a whole number, 1 or more.")
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error is {on_error!r}; it must be "raise" or "skip".')
        asked = self.asked(threshold, trees)
        held: list[Document] = []
        words = first = number = 0
        for number, text in enumerate(texts):
            held.append(self.attempt(text, number, on_error))
            words += sum(len(sentence.words) for sentence in held[-1].sentences)
            if len(held) >= batch_size or words >= MAX_BUFFERED_WORDS:
                yield from self.all_recognised(held, asked, first, on_error)
                held, words, first = [], 0, number + 1
        yield from self.all_recognised(held, asked, first, on_error)

    def split(self, text: str, keep: Sequence[Span] = ()) -> Document:
        """The document of a text, with words and sentences as the model knows them; no entities yet."""
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

    def recognised(
        self, documents: Sequence[Document], asked: PredictOptions, told: SentenceConstraints | None = None
    ) -> list[Document]:
        """These documents with entities; what is `told` is of the sentences of all of them, in a row."""
        sentences = self.model.sentences_of(documents)
        found = iter(predict(self.reader, sentences, asked=asked, known=told))
        return [replace(d, sentences=tuple(next(found) for _ in d.sentences)) for d in documents]

    def all_recognised(
        self, documents: Sequence[Document], asked: PredictOptions, first: int, on_error: str
    ) -> list[Document]:
        """The same; if that fails, one by one, to find the text that is to blame."""
        try:
            return self.recognised(documents, asked)
        except Exception:
            found = []
            for number, document in enumerate(documents, first):
                try:
                    found += self.recognised([document], asked)
                except Exception as why:
                    found.append(failed_document(document.text, number, why, on_error))
            return found

    def attempt(self, text: str, number: int, on_error: str) -> Document:
        try:
            return self.split(text)
        except Exception as why:
            return failed_document(text, number, why, on_error)

    def asked(self, threshold: float | None, trees: bool) -> PredictOptions:
        settings: Settings | None = None
        if threshold is not None:
            number = isinstance(threshold, Real) and not isinstance(threshold, bool)
            if not (number and 0 <= threshold < 1):
                raise InputError(
                    f"threshold is {threshold!r}; it must be a number, 0 or more and less than 1."
                )
            settings = self.model.settings.changed([f"decoding.threshold={float(threshold)}"])
        return PredictOptions(scored=True, trees=trees, settings=settings, longest=self.longest)


def uses_int8(model: Recognizer, precision: Precision) -> bool:
    """Is this how the model shall read?"""
    if precision not in ("auto", "float32", "int8"):
        raise InputError(f'precision is {precision!r}; it must be "auto", "float32" or "int8".')
    why = unavailable_reason() if model.device.type == "cpu" else "it is for a CPU"
    if precision == "int8" and why:
        raise InputError(f'precision="int8" is not to be had: {why}. Leave it at "auto".')
    return precision == "int8" or (precision == "auto" and model.eight_bits and why is None)


def as_sentence(given: Any) -> Sentence:
    """A sentence that is split already. A string is iterable, too, but its parts are no words."""
    if isinstance(given, Sentence):
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"a sentence must be a list of words, and this is {given!r:.60}. Split it first.")
    return Sentence(tuple(given))


def failed_document(text: Any, number: int, why: Exception, on_error: str) -> Document:
    """An empty document in place of a text that failed, or an error that names it."""
    what = why if isinstance(why, NestreeError) else f"{type(why).__name__}: {why}"
    sentence = f"text {number} ({text!r:.40}) failed: {what}"
    if on_error == "raise":
        raise InputError(sentence) from why
    return Document((), text if isinstance(text, str) else None, extra={"error": sentence})
