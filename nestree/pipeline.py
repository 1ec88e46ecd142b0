"""Sentences -> the same sentences with entities: in batches of like length, in their order, of any length."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from nestree.decoding import best
from nestree.errors import ChartMemoryError, InputError, ModelError
from nestree.model import Recognizer
from nestree.sentence import Entity, Sentence
from nestree.treecrf import Tree

BATCH_WORDS = 4_000


def predict(
    model: Recognizer,
    sentences: Sequence[Sentence],
    batch_words: int = BATCH_WORDS,
    tell: Callable[[int], None] | None = None,
) -> list[Sentence]:
    """These sentences with the entities that the model finds; those they had are gone.

    `tell` hears how many sentences each batch had. A batch that does not fit into memory is halved.
    """
    found: list[Sentence | None] = [None] * len(sentences)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), precision(model.device):
            for batch in by_length([len(sentence.words) for sentence in sentences], batch_words):
                for k, entities in zip(batch, decoded(model, [sentences[k] for k in batch]), strict=True):
                    found[k] = replace(sentences[k], entities=entities, complete=True)
                if tell:
                    tell(len(batch))
    finally:
        model.train(training)
    return [sentence for sentence in found if sentence is not None]


@contextmanager
def decoding_with(model: Recognizer, **changes: Any) -> Iterator[None]:
    """Within this, the model decodes with other settings, such as sharing=0.4."""
    before = model.settings
    model.settings = before.changed([f"decoding.{name}={value}" for name, value in changes.items()])
    try:
        yield
    finally:
        model.settings = before


def trees(model: Recognizer, sentences: Sequence[Sentence]) -> list[Tree]:
    """The best tree of each sentence; a model without trees has none."""
    if not model.settings.decoding.tree:
        raise ModelError("this model decodes without trees (decoding.tree = false), so it has none to show.")
    found = []
    with torch.inference_mode(), precision(model.device):
        for sentence in sentences:
            scores = model(model.collate_words([sentence]).to(model.device))
            found.append(best(scores, model.settings)[0])
    return found


def best_device(name: str = "auto") -> torch.device:
    """A device by its name; `auto` is the best there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    able = [each for each, found in there.items() if found]
    if name == "auto":
        return torch.device(able[0])
    if name not in there:
        raise InputError(f"there is no device {name!r}. Choose one of auto, {', '.join(there)}.")
    if not there[name]:
        raise InputError(
            f"PyTorch finds no {name} device on this machine. Choose one of auto, {', '.join(able)}."
        )
    return torch.device(name)


def precision(device: torch.device) -> "torch.autocast | nullcontext[None]":
    """Half precision for the encoder where that is faster."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def by_length(lengths: Sequence[int], words: int) -> list[list[int]]:
    """Numbers of sentences in batches, the longest first, such that `words` words, padding included, are a batch.

    >>> by_length([3, 9, 2, 8], 18)
    [[1, 3], [0, 2]]
    """
    batches: list[list[int]] = []
    for k in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= words:
            batches[-1].append(k)
        else:
            batches.append([k])
    return batches


def decoded(model: Recognizer, sentences: Sequence[Sentence]) -> list[tuple[Entity, ...]]:
    """The entities of each of these sentences."""
    try:
        return list(model.decode(model.collate_words(sentences).to(model.device)))
    except (MemoryError, torch.OutOfMemoryError):
        if len(sentences) == 1:
            raise ChartMemoryError(
                f"there is not enough memory for a sentence of {len(sentences[0].words)} words: {sentences[0]}"
            ) from None
    half = len(sentences) // 2
    return decoded(model, sentences[:half]) + decoded(model, sentences[half:])
