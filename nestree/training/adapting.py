"""An encoder gets used to texts: words are hidden from it, and it learns to tell which ones stood there.

Most pretrained encoders have read other texts, and those of sentence-transformers have since learned to say one thing
of a whole sentence. What they know of single words comes back this way, and fits these texts (Gururangan et al., ACL
2020). No annotation is used, so any texts of the same kind will do.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nestree.config import Settings
from nestree.data.files import placed
from nestree.errors import InputError, TrainingError
from nestree.nn.encoder import Encoder, load_pretrained, load_tokenizer, longest_input, save_pretrained
from nestree.pipeline import best_device
from nestree.sentence import Sentence
from nestree.training.optimiser import optimiser, set_rates

PIECES = 128  # of a window
WINDOWS = 32  # of an update
HIDDEN = 0.15  # of the words; of these,
MASKED, EXCHANGED = 0.8, 0.1  # so many by the mask, by another piece; the rest stand as they are
WARMUP = 0.1  # of all updates


class Told(NamedTuple):
    """How far it is."""

    passes: int  # that are over
    share: float  # of all updates
    loss: float  # mean over the pass under way
    seconds_left: float


def adapt(
    encoder: str,
    sentences: Sequence[Sentence],
    out: Path,
    passes: int = 10,
    seed: int = 1,
    device: str = "auto",
    tell: Callable[[Told], None] | None = None,
) -> None:
    """Let a pretrained encoder read these sentences so many times; `out` becomes the folder of the one it is then."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, and a directory is meant. Give a new name.")
    settings = Settings.read("default").changed([f"encoder.path={encoder}", f"training.seed={seed}"])
    torch.manual_seed(seed)
    tokenizer, transformer = load_tokenizer(encoder), load_pretrained(encoder)
    config: Any = transformer.config
    texts = Texts(tokenizer, sentences, seed, min(PIECES, longest_input(tokenizer, config)))
    check_sizes(transformer, encoder)
    with placed(out) as folder:
        for told in read(transformer.to(best_device(device)), texts, passes, settings):
            if tell:
                tell(told)
        save_pretrained(transformer.cpu(), tokenizer, folder)


def check_sizes(transformer: nn.Module, name: str) -> None:
    network: Any = transformer
    begins, ends = network.get_input_embeddings().embedding_dim, network.config.hidden_size
    if begins != ends:
        raise InputError(
            f"the pieces of {name} begin with vectors of {begins} dimensions and end with {ends}, so hidden ones "
            "cannot be told by products of both. Take an encoder where these are alike, such as BERT, RoBERTa or MPNet."
        )


def read(transformer: nn.Module, texts: "Texts", passes: int, settings: Settings) -> Iterator[Told]:
    """Update by update."""
    network: Any = transformer
    embeddings = network.get_input_embeddings()
    device = embeddings.weight.device
    encoder = Encoder(replace(settings.encoder, layers=1, shape=0), transformer, words=0, dimensions=0)
    guesser = Guesser(embeddings).to(device)
    learned = nn.ModuleList([transformer, guesser]).train()
    moving = optimiser(learned, transformer, settings.training)
    updates, done, started = passes * texts.updates, 0, time.monotonic()
    for number in range(passes):
        losses: list[Tensor] = []
        for task in texts.tasks():
            done += 1
            set_rates(moving, min(done / (WARMUP * updates), (updates - done) / ((1 - WARMUP) * updates)))
            moving.zero_grad(set_to_none=True)
            loss = wrong(encoder, guesser, task.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(learned.parameters(), settings.training.clip or math.inf)
            moving.step()
            losses.append(loss.detach())
            over = len(losses) == texts.updates
            if over or len(losses) % 10 == 0:
                mean = float(torch.stack(losses).mean())
                if not math.isfinite(mean):
                    raise TrainingError(f"update {done} gave a loss of {mean}, which is not finite.")
                passed = time.monotonic() - started
                yield Told(number + over, done / updates, mean, passed / done * (updates - done))


def wrong(encoder: Encoder, guesser: "Guesser", task: "Task") -> Tensor:
    """How badly hidden pieces are told from the others."""
    device = task.pieces.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = encoder.states(task.pieces, task.real.long())[-1].flatten(0, 1)  # [W * P, D]
        network: Any = encoder.transformer
        scores = guesser(states[task.places], network.get_input_embeddings().weight)
    return cross_entropy(scores.float(), task.answers)


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

    pieces: Tensor  # [W, P]
    real: Tensor  # [W, P] bool: what is no padding
    places: Tensor  # [K] which of the W * P pieces are asked for
    answers: Tensor  # [K] what stood there

    def to(self, device: torch.device) -> "Task":
        return Task(*(each.to(device) for each in self))


class Texts:
    """Sentences one after another, cut into windows; each time other words are hidden."""

    def __init__(self, tokenizer: Any, sentences: Sequence[Sentence], seed: int, pieces: int = PIECES):
        if not any(sentence.words for sentence in sentences):
            raise InputError("there are no words to read. Give files with texts.")
        if None in (tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
            raise InputError(
                "the tokenizer of this encoder has no piece that hides others, or none for begin and end, so it cannot "
                "learn to fill in words. Take an encoder of the families of BERT, RoBERTa or MPNet."
            )
        self.tokenizer, self.pieces, self.chance = tokenizer, pieces, random.Random(f"reading {seed}")
        told = tokenizer(
            [list(s.words) for s in sentences], is_split_into_words=True, add_special_tokens=False
        )
        self.words = [
            [piece for _, piece in group]
            for k, pieces in enumerate(told["input_ids"])
            for _, group in groupby(zip(told.word_ids(k), pieces, strict=True), key=itemgetter(0))
        ]  # the pieces of each word
        self.updates = -(-len(self.windows(0)) // WINDOWS)

    def windows(self, first: int) -> list[list[int]]:
        """Windows of words, by their numbers; `first`: how many pieces less the first one has."""
        windows: list[list[int]] = [[]]
        room = self.pieces - 2 - first
        for number, word in enumerate(self.words):
            if len(word) > room and windows[-1]:
                windows.append([])
                room = self.pieces - 2
            windows[-1].append(number)
            room -= len(word)
        return windows

    def tasks(self) -> Iterator[Task]:
        """All windows once, in any order; they begin elsewhere each time, and are as many updates as the first time."""
        windows = self.windows(self.chance.randrange(self.pieces // 2))
        self.chance.shuffle(windows)
        for k in range(self.updates):
            share = windows[k * len(windows) // self.updates : (k + 1) * len(windows) // self.updates]
            yield self.task([self.hidden(window) for window in share])

    def task(self, rows: Sequence[tuple[list[int], list[int | None]]]) -> Task:
        pieces = torch.full((len(rows), self.pieces), self.tokenizer.pad_token_id)
        real = torch.zeros(len(rows), self.pieces, dtype=torch.bool)
        asked: list[tuple[int, int]] = []
        for k, (shown, true) in enumerate(rows):
            pieces[k, : len(shown)] = torch.tensor(shown)
            real[k, : len(shown)] = True
            asked += [(k * self.pieces + p, answer) for p, answer in enumerate(true) if answer is not None]
        places, answers = torch.tensor(asked or [(0, int(pieces[0, 0]))]).unbind(1)
        return Task(pieces, real, places, answers)

    def hidden(self, window: Sequence[int]) -> tuple[list[int], list[int | None]]:
        """The pieces of a window, some words hidden, and what stood there; None: nobody asks."""
        shown: list[int] = []
        answers: list[int | None] = []
        for number in window:
            word = self.words[number]
            draw = self.chance.random() / HIDDEN
            shown += word if draw > MASKED + EXCHANGED else [self.instead(draw) for _ in word]
            answers += word if draw < 1 else [None] * len(word)
        begin, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        room = self.pieces - 2
        return [begin, *shown[:room], end], [None, *answers[:room], None]

    def instead(self, draw: float) -> int:
        """What stands in place of a hidden piece."""
        if draw < MASKED:
            return int(self.tokenizer.mask_token_id)
        return self.chance.randrange(len(self.tokenizer))
