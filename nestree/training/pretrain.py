"""An encoder gets used to texts: words are hidden from it, and it learns to tell which ones stood there.

Most pretrained encoders have read other texts, and those of sentence-transformers have since learned to say one thing
of a whole sentence. What they know of single words comes back this way, and fits these texts (Gururangan et al., ACL
2020). No annotation is used, so any texts of the same kind will do.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nestree.checkpoint import LABELS, write_tensors
from nestree.config import Settings
from nestree.data.io import atomic_path
from nestree.errors import InputError, ModelError, TrainingError
from nestree.nn.encoder import Encoder, load_pretrained, load_tokenizer, max_input_length
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.pipeline import select_device
from nestree.training.optimizer import make_optimizer, set_lr
from nestree.treecrf.memory import is_out_of_memory
from nestree.types import Sentence

BATCH_SUBWORDS = 128  # of a window
WINDOWS = 32  # of an update
MASK_RATE = 0.15  # of the words; of these,
MASKED, EXCHANGED = 0.8, 0.1  # so many by the mask, by another piece; the rest stand as they are
WARMUP = 0.1  # of all updates
WINDOWS_PER_PASS = 1_000  # sentences that are split into pieces together
TELL = 1.0  # seconds between two words about how far it is


class MaskedBatch(NamedTuple):
    """How far it is."""

    passes: int  # that are over
    share: float  # of all updates
    loss: float  # mean over the pass under way, or just over
    seconds_left: float


def pretrain(
    encoder: str,
    sentences: Iterable[Sentence],
    out: Path,
    passes: int = 10,
    seed: int = 1,
    device: str = "auto",
    tell: Callable[[MaskedBatch], None] | None = None,
) -> None:
    """Let a pretrained encoder read these sentences so many times; `out` becomes the folder of the one it is then.

    What can be checked is checked before the first sentence is asked for.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, and a directory is meant. Give a new name.")
    if (Path(encoder) / LABELS).is_file():
        raise InputError(
            f"{encoder} is a model of nestree, which has learned entities, and an encoder is meant. Name the one that "
            "the model was made from."
        )
    place = select_device(device)
    with atomic_path(out) as folder:
        torch.manual_seed(seed)
        tokenizer, transformer = load_tokenizer(encoder), load_pretrained(encoder, whole=True)
        check(tokenizer, transformer, encoder)
        network: Any = transformer
        splitter = SubwordTokenizer(
            tokenizer, min(BATCH_SUBWORDS, max_input_length(tokenizer, network.config))
        )
        vocabulary = min(len(tokenizer), network.get_input_embeddings().num_embeddings)
        texts = Texts(splitter, sentences, tokenizer.mask_token_id, vocabulary, seed)
        try:
            for told in read(transformer.to(place), texts, passes):
                if tell:
                    tell(told)
        except (MemoryError, RuntimeError) as why:
            if not is_out_of_memory(why):
                raise
            raise TrainingError(
                f"there is not enough memory on {place} for {WINDOWS} windows of {splitter.longest} pieces with "
                f"{encoder}. Choose another device, or a smaller encoder."
            ) from why
        try:
            network.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except Exception as why:  # `tokenizers` raises only this
            raise ModelError(
                f"{out} could not be written: {why}. Make room, or choose another place."
            ) from why
        write_tensors(folder / "model.safetensors", transformer.state_dict(), {"format": "pt"})


def check(tokenizer: Any, transformer: nn.Module, name: str) -> None:
    """Can pieces be hidden from this encoder, and told by it?"""
    network: Any = transformer
    embeddings = network.get_input_embeddings()
    if tokenizer.mask_token_id is None or tokenizer.mask_token_id >= embeddings.num_embeddings:
        raise InputError(
            f"{name} knows no piece that hides others, so it cannot learn to tell hidden words. Take an encoder of the "
            "families of BERT, RoBERTa or MPNet."
        )
    begins, ends = embeddings.embedding_dim, network.config.hidden_size
    if begins != ends:
        raise InputError(
            f"the pieces of {name} begin with vectors of {begins} dimensions and end with {ends}, so hidden ones "
            "cannot be told by products of both. Take an encoder where these are alike, such as BERT, RoBERTa or MPNet."
        )


def read(transformer: nn.Module, texts: "Texts", passes: int) -> Iterator[MaskedBatch]:
    """Update by update, with the rates of the default recipe."""
    settings = Settings.read("default")
    network: Any = transformer
    embeddings = network.get_input_embeddings()
    device = embeddings.weight.device
    encoder = Encoder(
        replace(settings.encoder, mix_layers=1, word_shape_size=0), transformer, words=0, dimensions=0
    )
    guesser = MLMHead(embeddings).to(device)
    learned = nn.ModuleList([transformer, guesser]).train()
    moving = make_optimizer(learned, transformer, settings.training)
    updates, done, started = passes * texts.updates, 0, time.monotonic()
    last = started
    for number in range(passes):
        losses: list[Tensor] = []
        for task in texts.tasks():
            done += 1
            set_lr(moving, lr_factor(done, updates))
            moving.zero_grad(set_to_none=True)
            loss = mlm_loss(encoder, guesser, task.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(learned.parameters(), settings.training.clip_norm or math.inf)
            moving.step()
            losses.append(loss.detach())
            over = len(losses) == texts.updates
            if over or time.monotonic() - last > TELL:
                mean = float(torch.stack(losses).mean())
                if not math.isfinite(mean):
                    raise TrainingError(
                        f"what is wrong became {mean} by update {done} of {updates}. Try another --seed, or look for "
                        "what is odd in the texts."
                    )
                last = time.monotonic()
                yield MaskedBatch(
                    number + over, done / updates, mean, (last - started) / done * (updates - done)
                )


def lr_factor(done: int, updates: int) -> float:
    """The share of the peak rate for the `done`th of all updates: it rises, then falls; none of them has 0.

    >>> [round(lr_factor(done, 10), 2) for done in (1, 2, 10)], lr_factor(1, 1)
    ([1.0, 1.0, 0.11], 1.0)
    """
    return min(1.0, done / (WARMUP * updates), (updates - done + 1) / ((1 - WARMUP) * updates))


def mlm_loss(encoder: Encoder, guesser: "MLMHead", task: "Task") -> Tensor:
    """How badly hidden pieces are told from the others."""
    device = task.pieces.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = encoder.states(task.pieces, task.real.long())[-1].flatten(0, 1)  # [W * P, D]
        network: Any = encoder.transformer
        scores = guesser(states[task.places], network.get_input_embeddings().weight)
    return cross_entropy(scores.float(), task.answers)


class MLMHead(nn.Module):
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

    def __init__(
        self, splitter: SubwordTokenizer, sentences: Iterable[Sentence], mask: int, vocabulary: int, seed: int
    ) -> None:
        """`mask`: the piece that hides others. `vocabulary`: how many pieces there are."""
        self.splitter, self.mask, self.vocabulary = splitter, mask, vocabulary
        self.chance = np.random.default_rng(seed)
        ids, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        rest = iter(sentences)
        while some := list(islice(rest, WINDOWS_PER_PASS)):
            found = splitter.words.pieces(splitter.numbers([sentence.words for sentence in some]))
            ids.append(found[0])
            sizes.append(found[1])
        self.ids = np.concatenate(ids)  # all pieces of all words
        self.posts = np.cumsum([0, *np.concatenate(sizes)])  # those of word k are from post k to post k + 1
        if len(self.posts) == 1:
            raise InputError("there are no words to read. Give files with texts.")
        self.updates = -(-len(self.windows(0)) // WINDOWS)

    def windows(self, less: int) -> list[tuple[int, int]]:
        """Windows of words: from, to. `less`: how many pieces less the first one has."""
        found, start = [], 0
        while start < len(self.posts) - 1:
            end = int(np.searchsorted(self.posts, self.posts[start] + self.splitter.room - less, "right")) - 1
            found.append((start, max(end, start + 1)))  # a word always fits: the splitter cuts monstrous ones
            start, less = found[-1][1], 0
        return found

    def tasks(self) -> Iterator[Task]:
        """All windows once, in any order; they begin elsewhere each time, and are as many updates as the first time."""
        windows = self.windows(int(self.chance.integers(self.splitter.room // 2 + 1)))
        self.chance.shuffle(windows)
        for k in range(self.updates):
            share = windows[k * len(windows) // self.updates : (k + 1) * len(windows) // self.updates]
            yield self.task([self.hidden(*window) for window in share])

    def task(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Task:
        """Rows of pieces, and which of them are asked for and what stood there: below 0 where nobody asks."""
        width = max(len(shown) for shown, _ in rows)
        pieces = np.full((len(rows), width), self.splitter.pad)
        answers = np.full((len(rows), width), -1)
        real = np.zeros((len(rows), width), dtype=bool)
        for k, (shown, true) in enumerate(rows):
            pieces[k, : len(shown)], answers[k, : len(shown)], real[k, : len(shown)] = shown, true, True
        places = np.flatnonzero(answers >= 0)
        return Task(*map(torch.from_numpy, (pieces, real, places, answers.flatten()[places])))

    def hidden(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of a window, some words hidden, and what stood there; -1: nobody asks. One is hidden at least."""
        draws = self.chance.random(end - start) / MASK_RATE
        if draws.min() >= 1:
            draws[self.chance.integers(len(draws))] = self.chance.random()
        draw = np.repeat(draws, np.diff(self.posts[start : end + 1]))
        true = self.ids[self.posts[start] : self.posts[end]]
        others = self.chance.integers(self.vocabulary, size=len(true))
        shown = np.select([draw < MASKED, draw < MASKED + EXCHANGED], [self.mask, others], true)
        first, last = self.splitter.first, self.splitter.last
        nobody = np.full(len(first), -1), np.full(len(last), -1)
        return (
            np.concatenate([first, shown, last]).astype(np.int64),
            np.concatenate([nobody[0], np.where(draw < 1, true, -1), nobody[1]]),
        )
