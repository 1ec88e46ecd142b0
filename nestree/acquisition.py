"""Which sentences to annotate next: `select`, the function behind `nestree select`.

The pool streams through the model in buffers, and only the best candidates are kept, so that memory depends on the
budget and not on the pool. Sentences are ranked by a criterion of `nestree.decoding.uncertainty`, divided by what they
cost to annotate, mostly words to read. With `partial`, single spans are asked about instead of whole sentences.
"""

import hashlib
import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from nestree.data import formats
from nestree.data.formats.text import is_text_name
from nestree.decoding import Prediction
from nestree.decoding.constraints import as_int
from nestree.decoding.uncertainty import CRITERIA
from nestree.errors import InputError, plural
from nestree.model import OnnxRecognizer
from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import Pipeline, PredictOptions, default_batch_words, load, predict, predict_windows
from nestree.types import Document, Entity, Sentence, Span, round_probability

DIVERSITIES = ("none", "k-center", "k-means")
UNITS = ("sentence", "document")
CANDIDATE_BUDGETS = 3  # diverse units are chosen among candidates of so many times the budget
SPARE_BUDGETS, SPARE_WORDS = 2, 1_000  # without diversity: so that shorter units fill the rest of the budget
BUFFERED_BATCHES = 10
QUESTIONS_PER_SENTENCE = 8  # answered ones included
# Added to the cost of a sentence when it is ranked: else sentences of one or two words come first.
EXTRA_WORDS = 10
KMEANS_ROUNDS = 10

log = logging.getLogger(__name__)
Pool = str | Path | Iterable[Document | Sentence | str]
Value = TypeVar("Value")


@dataclass
class Selection:
    """What to annotate, best first, and what was seen of the pool."""

    documents: list[Document] = field(default_factory=list)  # with entities and extra["uncertainty"]
    words: int = 0  # to read
    questions: int = 0  # to answer, if single spans are asked about
    pool_sentences: int = 0
    pool_words: int = 0
    excluded_words: int = 0  # of them
    excluded: int = 0  # units that are annotated already
    duplicates: int = 0  # candidates with the words of another one
    notes: list[str] = field(default_factory=list)  # sentences for the user


class Unit(NamedTuple):
    """A sentence or document of the pool."""

    document: Document
    sentences: Sequence[Sentence]  # with context
    key: str  # equal for equal words

    @property
    def words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def cost(self) -> int:
        """What it costs to annotate, for the ranking."""
        return self.words + EXTRA_WORDS * len(self.sentences)


class Scored(NamedTuple):
    unit: Unit
    uncertainty: float  # divided by the cost
    mean: np.ndarray | None


class Question(NamedTuple):
    """A span of one of the sentences of a unit."""

    unit: Unit
    sentence: int
    entity: Entity  # with the most probable label, and its probability
    margin: float


def select(
    pool: Pool,
    *,
    budget: int,
    model: Pipeline | str | Path | None = None,
    by: str = "f1-loss",
    diversity: str = "none",
    unit: str = "sentence",
    exclude: str | Path | Iterable[Pool] = (),
    partial: bool = False,
    seed: int = 1,
    device: str = "auto",
    on_progress: Callable[[int], None] | None = None,
) -> Selection:
    """The sentences of a pool that help most if they are annotated, up to `budget` words, with predicted entities.

    `pool`: a file, or documents, sentences or texts, from any iterator. `by`: f1-loss, entity-entropy, mnlp,
    tree-entropy or random (see nestree.decoding.uncertainty), each per word. `diversity`: "k-center" or "k-means"
    chooses sentences with different vectors among the best ones. `unit`: "sentence" or "document", what is ranked and
    annotated as a whole. `exclude`: files or lists that are annotated already. `partial`: ask about the single spans
    with the smallest margins; `budget` then counts these, and of incomplete sentences to exclude only what is known is
    not asked again. `on_progress` is called with the words done so far.
    """
    # These messages name no arguments, as `nestree select` shows them too and has options.
    for name, value, choices, default in (
        ("criterion", by, CRITERIA, "f1-loss"),
        ("diversity", diversity, DIVERSITIES, "none"),
        ("unit", unit, UNITS, "sentence"),
    ):
        if value not in choices:
            raise InputError(f"there is no {name} {value!r}. Choose one of {', '.join(choices)}.")
        if partial and value != default:
            raise InputError(f"the {name} {value} is for whole sentences, and spans are asked about. Leave it out.")
    if (as_int(budget) or 0) < 1:
        raise InputError(f"budget is {budget!r}; it must be a whole number of words, 1 or more.")
    sources: Any = exclude
    if isinstance(exclude, str | Document) or not isinstance(exclude, Iterable):
        sources = [exclude]
    sources = list(sources)
    for name, value in (("pool", pool), *(("a source in exclude", source) for source in sources)):
        # A Document is iterable, too: over its entities.
        if isinstance(value, Document) or not isinstance(value, Path | Iterable):
            raise InputError(
                f"{name} is {value!r:.60}; it must be a file, or a list or iterator of documents, sentences or texts."
            )
    pipeline = model if isinstance(model, Pipeline) else load_fast(model, device)
    if diversity != "none" and isinstance(pipeline.model, OnnxRecognizer):
        raise InputError(
            f"{diversity} needs the vectors of words, which an exported model hides. Use the model that it was made of."
        )
    result, known_labels = Selection(), set(pipeline.model.labels)
    seen: set[str] = set()
    answers: dict[str, set[Span]] = {}  # by sentence: what is known of those that are annotated in part
    for document in (d for source in sources for d in read_pool(source, pipeline)):
        for sentence in document.sentences:
            if partial and not sentence.complete:
                answers.setdefault(words_key(sentence.words), set()).update(answered_spans(sentence))
            else:
                seen.add(words_key(sentence.words))
        if not partial or all(sentence.complete for sentence in document.sentences):
            # A task of one sentence may have been split into several when its annotation was read.
            seen.add(words_key(word for sentence in document.sentences for word in sentence.words))
    random = by == "random"
    options = PredictOptions(
        max_sentence_words=pipeline.max_sentence_words,
        uncertainty=None if random or partial else by,
        margins=QUESTIONS_PER_SENTENCE if partial else 0,
        means=diversity != "none",
    )
    limit = budget * CANDIDATE_BUDGETS
    if partial:
        limit = budget
    elif diversity == "none":
        limit = budget * SPARE_BUDGETS + SPARE_WORDS
    best: BoundedHeap[Scored] = BoundedHeap(limit)
    questions: BoundedHeap[Question] = BoundedHeap(limit)
    unknown: set[str] = set()

    def rank(units: Sequence[Unit]) -> None:
        """Keep the best of these units, or their spans with the smallest margins."""
        sentences = [sentence for each in units for sentence in each.sentences]
        found = iter(measure_uncertainty(pipeline, sentences, options) if options.means or not random else ())
        for each in units:
            predictions = list(islice(found, len(each.sentences)))  # none if the order is random
            if partial:
                for k, (sentence, prediction) in enumerate(zip(each.sentences, predictions, strict=True)):
                    answered = answered_spans(sentence) | answers.get(words_key(sentence.words), set())
                    for margin, start, end, label, p in prediction.margins:
                        if (start, end) not in answered:
                            entity = Entity(start, end, label, None, round_probability(min(1.0, p)))
                            question = Question(each, k, entity, margin)
                            questions.add(f"{each.key} {k} {start} {end}", -margin, 1, question)
            elif each.words <= budget:  # a larger one would take the place of others
                value = sum(prediction.uncertainty for prediction in predictions) / each.cost
                mean: Any = None
                if options.means:
                    weights = [len(sentence.words) for sentence in each.sentences]
                    means: Any = [prediction.mean for prediction in predictions]
                    mean = np.average(means, axis=0, weights=weights)
                priority = Random(f"{seed} {each.key}").random() if random else value
                best.add(each.key, priority, each.words, Scored(each, value, mean))
        if on_progress:
            on_progress(result.pool_words)

    buffer: list[Unit] = []
    buffered, most = 0, BUFFERED_BATCHES * default_batch_words(pipeline.device)
    for document in read_pool(pool, pipeline):
        unknown |= {e.label for s in document.sentences for e in s.entities} - known_labels
        for each in make_units(document, unit, pipeline, result.pool_sentences):
            result.pool_sentences += len(each.sentences)
            result.pool_words += each.words
            if seen and all(words_key(sentence.words) in seen for sentence in each.sentences):
                result.excluded += 1
                result.excluded_words += each.words
                continue
            buffer.append(each)
            buffered += each.words
            if buffered >= most:
                rank(buffer)
                buffer, buffered = [], 0
    if not result.pool_sentences:
        raise InputError("the pool has no sentence. Check the names of its files, or give it texts.")
    rank(buffer)
    if partial:
        result.duplicates = questions.duplicates
        result.documents = make_questions(questions.values()[:budget], result)
    else:
        result.duplicates = best.duplicates
        chosen = choose(best.values(), budget, diversity)
        result.words = sum(one.unit.words for one in chosen)
        asked = [sentence for one in chosen for sentence in one.unit.sentences]
        predicted = iter(predict(pipeline.inference_model, asked, options=pipeline.predict_options(trees=False)))
        for one in chosen:
            sentences = []
            for sentence in islice(predicted, len(one.unit.sentences)):
                entities = tuple(replace(e, score=round_probability(e.score)) for e in sentence.entities)
                sentences.append(replace(sentence, entities=entities, context=None))
            extra = {**one.unit.document.extra, "uncertainty": round(float(one.uncertainty), 6)}
            result.documents.append(replace(one.unit.document, sentences=tuple(sentences), extra=extra))
    result.notes = make_notes(result, budget, unit, partial, bool(seen), unknown, pipeline)
    return result


def make_notes(
    result: Selection, budget: int, unit: str, partial: bool, excluding: bool, unknown: set[str], pipeline: Pipeline
) -> list[str]:
    """What the user should know about the pool."""
    notes = []
    if excluding:
        notes.append(f"left out, as the data to exclude has their words: {plural(result.excluded, unit)}.")
    if result.duplicates and not partial:
        notes.append(f"left out, as another one has the same words: {plural(result.duplicates, unit)}.")
    if unknown:
        notes.append(
            f"the pool has entities with labels that the model does not know, {', '.join(sorted(unknown)[:5])}: "
            f"entities of the pool are ignored, and those to correct have the labels "
            f"{', '.join(pipeline.model.labels[:5])}{', ...' * (len(pipeline.model.labels) > 5)}."
        )
    spent = result.questions if partial else result.words
    if not result.documents and not partial and result.pool_words:
        nothing = f"nothing fits into a budget of {plural(budget, 'word')}. Give a larger one."
        notes.append("the whole pool is excluded." if result.excluded_words == result.pool_words else nothing)
    elif partial and spent < budget:
        notes.append(f"the pool has only {plural(spent, 'span')} to ask about: all of them are asked.")
    elif not partial and result.pool_words <= budget:
        rest = "all the rest" if result.excluded or result.duplicates else "all"
        notes.append(
            f"the budget is {plural(budget, 'word')}, and the pool has {result.pool_words:,}: {rest} is selected."
        )
    return notes


# The pool


def load_fast(model: str | Path | None, device: str) -> Pipeline:
    """A pipeline that predicts in 8 bits where that is possible: a ranking needs no more precision."""
    pipeline = load(model, device)
    if pipeline.device.type == "cpu" and not isinstance(pipeline.model, OnnxRecognizer):
        pipeline.precision = "auto" if unavailable_reason() else "int8"
        pipeline.to("cpu")
    return pipeline


def read_pool(pool: Pool, pipeline: Pipeline) -> Iterator[Document]:
    """The documents of a pool; texts are split as the model splits them."""
    if isinstance(pool, str | Path):
        path = Path(pool)
        format = "text" if is_text_name(path) and path.is_file() else None
        pool = formats.read(path, format, text_rules=pipeline.model.text_rules._asdict())
    for item in pool:
        if isinstance(item, str):
            yield pipeline.split(item)
        elif isinstance(item, Sentence):
            yield Document((item,))
        elif isinstance(item, Document):
            yield item
        else:
            raise InputError(f"a pool has documents, sentences or texts, and this is {item!r:.60}.")


def make_units(document: Document, unit: str, pipeline: Pipeline, number: int) -> Iterator[Unit]:
    """The document, or each sentence as a document of its own; `number`: of sentences of the pool before it."""
    sentences = pipeline.model.sentences_with_context([document])
    if unit == "document":
        if sentences:
            yield Unit(document, sentences, " ".join(words_key(s.words) for s in sentences))
        return
    several = len(sentences) > 1
    for k, sentence in enumerate(sentences, 1):
        own = replace(sentence, start=0)
        name = sentence.id or f"pool:{number + k}"
        if document.id:
            name = f"{document.id}:{k}" if several else document.id
        extra = {} if several else document.extra
        yield Unit(Document((own,), own.text, name, extra), [own], words_key(sentence.words))


def words_key(words: Iterable[str]) -> str:
    """Equal for the same characters, however they are split into words."""
    return hashlib.blake2b("".join(words).encode("utf-8", "replace"), digest_size=12).hexdigest()


def answered_spans(sentence: Sentence) -> set[Span]:
    """The spans of an incomplete sentence that are known or forbidden: they are not asked about again."""
    return set() if sentence.complete else {*sentence.forbidden, *(e.span for e in sentence.entities)}


def measure_uncertainty(pipeline: Pipeline, sentences: Sequence[Sentence], options: PredictOptions) -> list[Prediction]:
    """The uncertainty, margins and mean of each sentence; those of a long sentence come from its windows."""
    results = []
    windows_of = predict_windows(pipeline.inference_model, sentences, options, workers=pipeline.worker_pool)
    for sentence, parts in zip(sentences, windows_of, strict=True):
        if len(parts) == 1:
            results.append(parts[0][1])
            continue
        covered = sum(window.end - window.start for window, _ in parts)
        value = sum(prediction.uncertainty for _, prediction in parts) * len(sentence.words) / covered
        margins = {}
        for window, prediction in parts:
            for span in prediction.margins:
                start, end = span.start + window.start, span.end + window.start
                margins[start, end] = span._replace(start=start, end=end)
        means = [prediction.mean for _, prediction in parts]
        mean = None if means[0] is None else np.mean(means, axis=0)  # type: ignore[arg-type]
        results.append(Prediction((), None, value, sorted(margins.values())[: options.margins], mean))
    return results


# The choice


class BoundedHeap(Generic[Value]):
    """Keeps the values of highest priority whose costs just reach `limit`; of equal keys, the first one."""

    def __init__(self, limit: int) -> None:
        self.limit, self.cost, self.duplicates, self.count = limit, 0, 0, 0
        self.heap: list[tuple[float, int, str, int, Value]] = []  # priority, -number, key, cost, value
        self.keys: set[str] = set()

    def add(self, key: str, priority: float, cost: int, value: Value) -> None:
        if key in self.keys:
            self.duplicates += 1
            return
        if self.cost >= self.limit and priority <= self.heap[0][0]:
            return
        self.count += 1
        heapq.heappush(self.heap, (priority, -self.count, key, cost, value))
        self.keys.add(key)
        self.cost += cost
        while self.cost - self.heap[0][3] >= self.limit:
            _, _, removed, freed, _ = heapq.heappop(self.heap)
            self.keys.remove(removed)
            self.cost -= freed

    def values(self) -> list[Value]:
        """The values, best first."""
        return [item[4] for item in sorted(self.heap, key=lambda item: item[:2], reverse=True)]


def choose(candidates: Sequence[Scored], budget: int, diversity: str) -> list[Scored]:
    """The candidates, best first, that fit into the budget; `diversity` changes their order."""
    order: Iterable[int] = range(len(candidates))
    if diversity != "none" and candidates:
        vectors = np.stack([np.asarray(one.mean, dtype=np.float32) for one in candidates])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)
        costs = np.array([one.unit.words for one in candidates])
        if costs.sum() > budget:
            order = (k_center_order if diversity == "k-center" else k_means_order)(vectors, costs, budget)
    chosen, left = [], budget
    for k in order:
        if candidates[k].unit.words <= left:
            chosen.append(candidates[k])
            left -= candidates[k].unit.words
    return chosen


def k_center_order(vectors: np.ndarray, costs: np.ndarray, budget: int) -> Iterator[int]:
    """Greedy k-center: the best candidate, then again and again the one that is farthest from all before."""
    nearest = np.full(len(vectors), np.inf)  # squared distance to the nearest center
    k = 0
    while nearest[k] > 0:
        yield k
        nearest = np.minimum(nearest, 2 - 2 * (vectors @ vectors[k]))
        nearest[k] = 0
        budget -= costs[k]
        nearest[costs > budget] = 0
        k = int(nearest.argmax())


def k_means_order(vectors: np.ndarray, costs: np.ndarray, budget: int) -> Iterator[int]:
    """The best candidate of each cluster, then the second of each; as many clusters as the budget has candidates."""
    count = max(1, min(len(vectors), int(budget / costs.mean())))
    centers = vectors[list(islice(k_center_order(vectors, costs * 0, budget), count))]
    cluster = np.zeros(len(vectors), dtype=np.int64)
    for _ in range(KMEANS_ROUNDS):
        nearest = (vectors @ centers.T).argmax(1)
        if (nearest == cluster).all():
            break
        cluster = nearest
        sums = np.zeros_like(centers)
        np.add.at(sums, cluster, vectors)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centers = np.where(norms > 0, sums / norms.clip(1e-9), centers)
    counts: dict[int, int] = {}
    ranks = []  # of each candidate within its cluster
    for k, c in enumerate(cluster.tolist()):  # candidates are sorted, best first
        ranks.append((counts.get(c, 0), k))
        counts[c] = counts.get(c, 0) + 1
    yield from (k for _, k in sorted(ranks))


# Questions about single spans


def make_questions(questions: Sequence[Question], result: Selection) -> list[Document]:
    """A document for each sentence that is asked about: the spans in question are its entities.

    Its extra["questions"] lists them in characters. The sentence is incomplete: all other spans stay open.
    """
    by_sentence: dict[tuple[int, int], list[Question]] = {}
    for question in questions:
        by_sentence.setdefault((id(question.unit), question.sentence), []).append(question)
    documents = []
    for asked in by_sentence.values():
        unit, number = asked[0].unit, asked[0].sentence
        sentence = replace(unit.sentences[number], start=0, context=None, complete=False)
        entities = sorted((question.entity for question in asked), key=lambda e: (e.start, -e.end))
        sentence = replace(sentence.with_text(), entities=tuple(entities))
        several = len(unit.sentences) > 1
        name = f"{unit.document.id}:{number + 1}" if several else unit.document.id
        places = [(*sentence.characters(entity), entity) for entity in entities]
        extra: dict[str, Any] = {
            "questions": [{"start": i, "end": j, "label": entity.label} for i, j, entity in places],
            "uncertainty": round(1 - asked[0].margin, 6),
        }
        documents.append(Document((sentence,), sentence.text, name, {**unit.document.extra, **extra}))
        result.questions += len(asked)
        result.words += len(sentence.words)
    return documents


def json_questions(document: Document) -> Document:
    """A document of `make_questions` as JSON lines hold it: questions by words, with a place for the answer."""
    (sentence,) = document.sentences
    questions = [
        {"start": e.start, "end": e.end, "label": e.label, "score": round_probability(e.score), "answer": None}
        for e in sentence.entities
    ]
    extra = {key: value for key, value in document.extra.items() if key != "questions"}
    open_sentence = replace(sentence, entities=(), extra={**sentence.extra, "questions": questions})
    return replace(document, sentences=(open_sentence,), extra=extra)
