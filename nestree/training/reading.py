"""Before it learns entities, an encoder may learn to read the texts: to fill in words that are hidden from it.

Most pretrained encoders have seen other texts, and those of sentence-transformers have since learned to say one thing
of a whole sentence. What they know of single words comes back, and fits the texts, if words of these are hidden and
they have to tell which ones (Gururangan et al., ACL 2020). No annotation is used.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nestree.errors import TrainingError
from nestree.model import Recognizer
from nestree.sentence import Sentence
from nestree.training.optimiser import optimiser, set_rates

PIECES = 128  # of a window
WINDOWS = 32  # of an update
HIDDEN = 0.15  # of the words; of these,
MASKED, EXCHANGED = 0.8, 0.1  # so many by the mask, by another piece; the rest stand as they are
WARMUP = 0.1  # of all updates
NOTHING = -100  # the answer where nothing is asked


class Guesser(nn.Module):
    """Vectors of pieces -> scores of all pieces there are: products with the vectors that pieces begin with."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        size = embeddings.embedding_dim
        self.turn, self.norm = nn.Linear(size, size), nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.zeros(embeddings.num_embeddings))
        nn.init.eye_(self.turn.weight)

    def forward(self, vectors: Tensor, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.norm(self.turn(vectors)) @ embeddings.T + self.bias
        return scores


class Task(NamedTuple):
    """Windows with hidden words."""

    pieces: Tensor  # [W, PIECES]
    real: Tensor  # [W, PIECES] bool: what is no padding
    answers: Tensor  # [W, PIECES] what stood there; NOTHING: nobody asks

    def to(self, device: torch.device) -> "Task":
        return Task(*(each.to(device) for each in self))


def read(model: Recognizer, sentences: Sequence[Sentence]) -> Iterator[float]:
    """Let the encoder read these sentences so often as `training.reading` says; after each time, the mean loss."""
    settings, device = model.settings.training, model.device
    texts = Texts(model.tokenizer, sentences, settings.seed)
    transformer: Any = model.encoder.transformer
    embeddings = transformer.get_input_embeddings()
    guesser = Guesser(embeddings).to(device)
    moving = optimiser(nn.ModuleList([transformer, guesser]), transformer, settings)
    model.train()
    updates, done = settings.reading * texts.updates, 0
    for _ in range(settings.reading):
        losses = []
        for task in texts.tasks():
            done += 1
            set_rates(moving, min(done / (WARMUP * updates), (updates - done) / ((1 - WARMUP) * updates)))
            asked = task.to(device)
            moving.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                vectors = model.encoder.states(asked.pieces, asked.real.long())[-1]
                hidden = asked.answers != NOTHING
                scores = guesser(vectors[hidden], embeddings.weight)
            loss = cross_entropy(scores.float(), asked.answers[hidden])
            loss.backward()
            nn.utils.clip_grad_norm_(
                [*transformer.parameters(), *guesser.parameters()], settings.clip or math.inf
            )
            moving.step()
            losses.append(loss.detach())
        yield float(torch.stack(losses).mean())
    moving.zero_grad(set_to_none=True)


class Texts:
    """Sentences one after another, cut into windows; each time other words are hidden."""

    def __init__(self, tokenizer: Any, sentences: Sequence[Sentence], seed: int) -> None:
        if tokenizer.mask_token_id is None:
            raise TrainingError(
                "the tokenizer of this encoder has no piece that hides others, so it cannot learn to fill in words. "
                "Set training.reading to 0."
            )
        self.tokenizer, self.chance = tokenizer, random.Random(f"reading {seed}")
        told = tokenizer(
            [list(s.words) for s in sentences], is_split_into_words=True, add_special_tokens=False
        )
        self.words = [
            [piece for _, piece in group]
            for k, pieces in enumerate(told["input_ids"])
            for _, group in groupby(zip(told.word_ids(k), pieces, strict=True), key=itemgetter(0))
        ]  # the pieces of each word
        self.updates = len(self.batches())

    def batches(self) -> list[list[list[int]]]:
        """Batches of windows of words, by their numbers; windows begin elsewhere each time."""
        windows: list[list[int]] = [[]]
        room = self.chance.randrange(PIECES // 2, PIECES - 2)
        for number, word in enumerate(self.words):
            if len(word) > room and windows[-1]:
                windows.append([])
                room = PIECES - 2
            windows[-1].append(number)
            room -= len(word)
        self.chance.shuffle(windows)
        return [windows[k : k + WINDOWS] for k in range(0, len(windows), WINDOWS)]

    def tasks(self) -> Iterator[Task]:
        for batch in self.batches():
            rows = [self.hidden(window) for window in batch]
            pieces = torch.full((len(rows), PIECES), self.tokenizer.pad_token_id)
            answers = torch.full((len(rows), PIECES), NOTHING)
            real = torch.zeros(len(rows), PIECES, dtype=torch.bool)
            for k, (shown, true) in enumerate(rows):
                pieces[k, : len(shown)], answers[k, : len(true)] = torch.tensor(shown), torch.tensor(true)
                real[k, : len(shown)] = True
            yield Task(pieces, real, answers)

    def hidden(self, window: Sequence[int]) -> tuple[list[int], list[int]]:
        """The pieces of a window, some words hidden, and what stood there."""
        shown: list[int] = []
        answers: list[int] = []
        for number in window:
            word = self.words[number]
            draw = self.chance.random() / HIDDEN
            shown += word if draw > MASKED + EXCHANGED else [self.instead(draw) for _ in word]
            answers += word if draw < 1 else [NOTHING] * len(word)
        begin, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        room = PIECES - 2
        return [begin, *shown[:room], end], [NOTHING, *answers[:room], NOTHING]

    def instead(self, draw: float) -> int:
        """What stands in place of a hidden piece."""
        return (
            int(self.tokenizer.mask_token_id) if draw < MASKED else self.chance.randrange(len(self.tokenizer))
        )
