"""Sentences -> the same sentences with entities: in batches of like length, in their order, of any length."""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from nestree.config import Settings
from nestree.decoding import Reading
from nestree.decoding import readings as readings_of
from nestree.decoding.known import Forbidden, Knowledge, Known, check, shown
from nestree.errors import ChartMemoryError, InputError
from nestree.model import Recognizer
from nestree.nn.batch import Batch
from nestree.nn.scorers import Scores
from nestree.pipeline.threads import on_threads
from nestree.pipeline.windows import cut, merged, windows
from nestree.sentence import Sentence, Span, with_found
from nestree.treecrf.memory import ignore_out_of_memory

BATCH_WORDS = 4_000
GPU_WORDS = 16_000  # instead, on a CUDA device; what does not fit is halved
MOST_WORDS = 1_000  # of a batch on a CPU, where larger ones are no faster
FEWEST_WORDS = 100  # likewise: for less it is not worth waking another thread
BATCHES = 4  # for each thread, if there are enough words: so that all end at about the same time
PIECES_PER_WORD = 8  # of a batch, padding included, at most: many more than any language has
CHARTS_COUNT = 90  # words; with shorter sentences, charts are small beside the rest
LONGEST = 200  # words of a sentence that is read at once
collating = threading.Lock()

Facts = tuple[Sequence[Known], Sequence[Forbidden]]  # what is known of a sentence
Told = Mapping[int, Facts]  # by its number
NOTHING_KNOWN: Facts = ((), ())


class Asked(NamedTuple):
    """What is wanted of each sentence beyond its entities."""

    scored: bool = False  # their probabilities
    trees: bool = False  # the tree they stand in
    settings: Settings | None = None  # others than the model's, for decoding
    longest: int = LONGEST


def predict(
    model: Recognizer,
    sentences: Sequence[Sentence],
    batch_words: int | None = None,
    tell: Callable[[int], None] | None = None,
    asked: Asked = Asked(),  # noqa: B008 (it cannot change)
    known: Told | None = None,
) -> list[Sentence]:
    """These sentences with the entities that the model finds; those they had are gone.

    `batch_words`: None for what suits the device. `tell` hears how many sentences are done. `known` says of sentences,
    by their number, which spans are entities and which are not. A batch that does not fit into memory is halved.
    """
    settings, known = asked.settings or model.settings, known or {}
    for entities, others in known.values():  # here, as a window sees only a part of it
        check(entities, others, model.labels, settings.model.structure != "none")
    parts, owners = in_parts(sentences, asked.longest)
    told = knowledge_of(known, sentences, owners)
    shares = Shares(sentences, owners, settings.decoding.by == "spans", known)
    with torch.inference_mode(), not_learning(model), weights_kept(model):
        words = batch_words or words_for(model.device)
        for batch, found in in_turns(model, parts, words, asked, told):
            done = shares.take(batch, found)
            if tell:
                tell(done)
    return [made for made in shares.made if made is not None]


Owner = tuple[int, Span]  # the sentence that a part belongs to, and its words in it


def in_parts(sentences: Sequence[Sentence], longest: int) -> tuple[list[Sentence], list[Owner]]:
    """The sentences, those that are too long in windows."""
    parts: list[Sentence] = []
    owners: list[Owner] = []
    for number, sentence in enumerate(sentences):
        if len(sentence.words) <= longest:
            parts.append(sentence)
            owners.append((number, (0, len(sentence.words))))
            continue
        spans = windows(len(sentence.words), longest)
        parts += cut(sentence, spans)
        owners += [(number, span) for span in spans]
    return parts, owners


def knowledge_of(known: Told, sentences: Sequence[Sentence], owners: Sequence[Owner]) -> list[Facts]:
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


class Shares:
    """Sentences, of which one part after another is read. One is put together when the last of its parts arrives."""

    def __init__(
        self, sentences: Sequence[Sentence], owners: Sequence[Owner], may_cross: bool, known: Told
    ) -> None:
        self.sentences, self.owners, self.may_cross, self.known = sentences, owners, may_cross, known
        self.made: list[Sentence | None] = [None] * len(sentences)
        self.readings: dict[int, Reading] = {}
        self.parts: dict[int, list[int]] = {}  # of sentences that have several
        for k, (number, span) in enumerate(owners):
            if span[1] - span[0] < len(sentences[number].words):
                self.parts.setdefault(number, []).append(k)
        self.left = {number: len(parts) for number, parts in self.parts.items()}

    def take(self, batch: Sequence[int], found: Sequence[Reading]) -> int:
        """What was found in these parts. Returns how many sentences are whole now."""
        done = 0
        for k, reading in zip(batch, found, strict=True):
            number = self.owners[k][0]
            sentence = self.sentences[number]
            if number not in self.parts:
                self.made[number] = with_found(sentence, reading.entities, reading.tree, sentence.extra)
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
        entities = merged(read, spans, self.may_cross, known)
        return with_found(sentence, entities, None, {**sentence.extra, "windows": len(spans)})


@contextmanager
def not_learning(model: torch.nn.Module) -> Iterator[None]:
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


def weights_kept(model: Recognizer) -> AbstractContextManager[None]:
    """Within this, where the encoder runs in half precision its weights are turned once, not for each batch."""
    encoder = model.encoder
    return encoder.keeper.keeping(encoder.transformer) if model.device.type == "cuda" else nullcontext()


def by_length(lengths: Sequence[int], words: int) -> list[list[int]]:
    """Numbers of sentences in batches, the longest first, such that `words` words, padding included, are a batch.

    Of sentences beyond CHARTS_COUNT words there are fewer: their charts, which grow with the cube, fill the memory.

    >>> by_length([3, 9, 2, 8], 18)
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


def in_turns(
    model: Recognizer,
    parts: Sequence[Sentence],
    batch_words: int,
    asked: Asked,
    told: Sequence[Facts],
) -> Iterator[tuple[list[int], list[Reading]]]:
    """Batches, as numbers of parts, and what is found in them."""
    lengths = [to_read(part) for part in parts]
    streams = streams_of(model.device)
    if model.device.type == "cpu":
        batch_words = min(batch_words, words_for_threads(sum(lengths)))
    batches = by_length(lengths, batch_words)
    turns = [
        Turn(
            model,
            [parts[k] for k in batch],
            asked,
            Knowledge([told[k][0] for k in batch], [told[k][1] for k in batch]),
            streams[number % 2],
            PIECES_PER_WORD * batch_words,
        )
        for number, batch in enumerate(batches)
    ]
    done = on_threads(Turn.whole, turns) if model.device.type == "cpu" else overlapping(turns)
    yield from zip(batches, done, strict=True)


def words_for(device: torch.device) -> int:
    """How many words are a batch, unless somebody says otherwise.

    >>> words_for(torch.device("cpu")), words_for(torch.device("cuda"))
    (4000, 16000)
    """
    return GPU_WORDS if device.type == "cuda" else BATCH_WORDS


def to_read(sentence: Sentence) -> int:
    """How many words of a batch it is; those around it, which only the encoder reads, count a quarter."""
    return len(sentence.words) + sum(map(len, sentence.context or ())) // 4


def words_for_threads(words: int) -> int:
    """How many words are a batch on a CPU, if there are so many in all."""
    return max(FEWEST_WORDS, min(MOST_WORDS, words // (BATCHES * torch.get_num_threads())))


def overlapping(turns: "Sequence[Turn]") -> Iterator[list[Reading]]:
    """What is found in each. A GPU is given one before the one before is read; another thread lays out the next."""
    for turn in turns[:2]:
        if turn.stream is not None:
            turn.stream.wait_stream(torch.cuda.current_stream())  # the model may still be changing
    if len(turns) == 1:  # nothing can be laid out ahead
        turns[0].begin()
        yield turns[0].end()
        return
    waiting: Turn | None = None
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
def streams_of(device: torch.device) -> "tuple[torch.cuda.Stream | None, torch.cuda.Stream | None]":
    """Two to take turns on; always the same, as each keeps memory of its own."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@dataclass
class Turn:
    """A batch. On a GPU it has a stream of its own, so that nobody waits for the batch after it."""

    model: Recognizer
    sentences: Sequence[Sentence]
    asked: Asked
    knowledge: Knowledge
    stream: "torch.cuda.Stream | None"
    most_pieces: int
    scores: Scores | None = None  # None: there is not enough memory

    def lay_out(self) -> Batch | None:
        """The batch, on the host; None: it has too many pieces, as of words that are no words."""
        with collating:  # it remembers words
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

    def end(self) -> list[Reading]:
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

    def whole(self) -> list[Reading]:
        with torch.inference_mode():  # of this thread
            self.begin()
            return self.end()

    def halves(self) -> "list[Turn]":
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
                knowledge=Knowledge(self.knowledge.known[some], self.knowledge.forbidden[some]),
            )
            for some in (slice(middle), slice(middle, None))
        ]

    def on_its_own(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
