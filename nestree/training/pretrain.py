"""Continued pretraining: the encoder learns to predict masked words of given texts (masked language model).

Most pretrained encoders have read other texts, and those of sentence-transformers have since been trained on whole
sentences. This restores what they know of single words, and fits them to these texts (Gururangan et al., ACL 2020). No
annotation is used, so any texts of the same kind will do.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from nestree.checkpoint import LABELS, write_tensors
from nestree.config import Settings
from nestree.data.io import atomic_path
from nestree.errors import InputError, ModelError, TrainingError
from nestree.nn.devices import select_device
from nestree.nn.encoder import Encoder, load_pretrained, load_tokenizer, max_input_length
from nestree.nn.tokenizer import SubwordTokenizer
from nestree.training.optimizer import CLIP_NORM, make_optimizer, set_lr
from nestree.treecrf import is_out_of_memory
from nestree.types import Sentence

MASKED, REPLACED = 0.8, 0.1  # shares of the predicted words that are masked, and replaced by a random subword
WARMUP_RATIO = 0.1  # of all updates
SENTENCES_AT_ONCE = 1_000  # that are tokenized together
PROGRESS_SECONDS = 1.0  # between two reports


class PretrainStep(NamedTuple):
    """The progress of pretraining."""

    passes: int  # over the texts that are done
    share: float  # of all updates
    loss: float  # masked-language-model loss: cross-entropy of a masked subword in nats, mean over the current pass
    seconds_left: float


def pretrain(
    encoder: str,
    sentences: Iterable[Sentence],
    out: Path,
    passes: int = 10,
    seed: int = 1,
    device: str = "auto",
    on_progress: Callable[[PretrainStep], None] | None = None,
    *,
    window: int = 128,
    batch_size: int = 32,
    mask_rate: float = 0.15,
    encoder_lr: float = 5e-5,
) -> None:
    """Continue the pretraining of an encoder on these sentences; `out` becomes the folder of the new encoder.

    An update reads `batch_size` windows of `window` subwords, and predicts `mask_rate` of the words. Everything that
    can be checked is checked before the first sentence is read.
    """
    if not 0 < mask_rate < 1:
        raise InputError(f"a mask rate of {mask_rate} cannot be used. Choose one between 0 and 1, such as 0.15.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, and a directory is needed. Give a new name.")
    if (Path(encoder) / LABELS).is_file():
        raise InputError(
            f"{encoder} is a model of nestree, trained to find entities, and an encoder is needed. Name the one that "
            "the model was made from."
        )
    torch_device = select_device(device)
    with atomic_path(out) as folder:
        torch.manual_seed(seed)
        tokenizer, transformer = load_tokenizer(encoder), load_pretrained(encoder, keep_pooler=True)
        check_encoder(tokenizer, transformer, encoder)
        network: Any = transformer
        longest = min(window, max_input_length(tokenizer, network))
        subword_tokenizer = SubwordTokenizer(tokenizer, longest)
        vocabulary_size = min(len(tokenizer), network.get_input_embeddings().num_embeddings)
        texts = MaskedTexts(
            subword_tokenizer, sentences, tokenizer.mask_token_id, vocabulary_size, seed, batch_size, mask_rate
        )
        try:
            for progress in train_mlm(transformer.to(torch_device), texts, passes, encoder_lr):
                if on_progress:
                    on_progress(progress)
        except (MemoryError, RuntimeError) as why:
            if not is_out_of_memory(why):
                raise
            raise TrainingError(
                f"there is not enough memory on {torch_device} for {batch_size} windows of "
                f"{subword_tokenizer.longest} subwords with {encoder}. Choose a smaller batch size or encoder, or "
                "another device."
            ) from why
        try:
            network.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except Exception as why:  # `tokenizers` raises nothing more specific
            message = f"{out} could not be written: {why}. Make room, or choose another place."
            raise ModelError(message) from why
        write_tensors(folder / "model.safetensors", transformer.state_dict(), {"format": "pt"})


def check_encoder(tokenizer: Any, transformer: Any, name: str) -> None:
    """Raise unless the encoder has a mask token, and embeddings that can be used to predict subwords."""
    embeddings, states = transformer.get_input_embeddings(), transformer.config.hidden_size
    if tokenizer.mask_token_id is None or tokenizer.mask_token_id >= embeddings.num_embeddings:
        problem = f"the tokenizer of {name} has no mask token"
    elif embeddings.embedding_dim != states:
        dimensions = f"{embeddings.embedding_dim} dimensions and its states {states}"
        problem = f"the embeddings of {name} have {dimensions}"
    else:
        return
    raise InputError(
        f"{problem}, so masked words cannot be predicted. Take one of the families of BERT, RoBERTa or MPNet."
    )


def train_mlm(transformer: nn.Module, texts: "MaskedTexts", passes: int, encoder_lr: float) -> Iterator[PretrainStep]:
    """Train with the optimizer of the default recipe; yields the progress."""
    settings = Settings.read("default")
    embeddings = cast(Any, transformer).get_input_embeddings()
    encoder_settings = replace(settings.encoder, mix_layers=1, word_shape_size=0)
    encoder = Encoder(encoder_settings, transformer, words=0, dimensions=0)
    head = MLMHead(embeddings).to(embeddings.weight.device)
    modules = nn.ModuleList([transformer, head]).train()
    optimizer = make_optimizer(modules, transformer, replace(settings.training, encoder_lr=encoder_lr))
    total_steps, step = passes * texts.updates, 0
    started = reported = time.monotonic()
    for number in range(passes):
        losses: list[Tensor] = []
        for task in texts.tasks():
            step += 1
            set_lr(optimizer, lr_factor(step, total_steps))
            optimizer.zero_grad(set_to_none=True)
            loss = mlm_loss(encoder, head, task)
            loss.backward()
            nn.utils.clip_grad_norm_(modules.parameters(), CLIP_NORM)
            optimizer.step()
            losses.append(loss.detach())
            pass_done = len(losses) == texts.updates
            if pass_done or time.monotonic() - reported > PROGRESS_SECONDS:
                mean = float(torch.stack(losses).mean())
                if not math.isfinite(mean):
                    raise TrainingError(
                        f"the loss became {mean} by update {step} of {total_steps}. Try another --seed, or check the "
                        "texts."
                    )
                reported = time.monotonic()
                seconds_left = (reported - started) / step * (total_steps - step)
                yield PretrainStep(number + pass_done, step / total_steps, mean, seconds_left)


def lr_factor(step: int, total_steps: int) -> float:
    """The learning rate of a step, from 1 on, relative to its peak: linear warmup, then linear decay; never 0.

    >>> [round(lr_factor(step, 10), 2) for step in (1, 2, 10)], lr_factor(1, 1)
    ([1.0, 1.0, 0.11], 1.0)
    """
    return min(1.0, step / (WARMUP_RATIO * total_steps), (total_steps - step + 1) / ((1 - WARMUP_RATIO) * total_steps))


class MLMTask(NamedTuple):
    """A batch of windows with masked words."""

    subwords: Tensor  # [W, P]
    attention: Tensor  # [W, P] bool: not padding
    positions: Tensor  # [K] of the W * P subwords, those that are predicted
    labels: Tensor  # [K] the original subwords


def mlm_loss(encoder: Encoder, head: "MLMHead", task: MLMTask) -> Tensor:
    """The mean cross-entropy of the predicted subwords."""
    device = head.bias.device
    subwords, attention, positions, labels = (tensor.to(device) for tensor in task)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = encoder.hidden_states(subwords, attention.long())[-1].flatten(0, 1)  # [W * P, D]
        network: Any = encoder.transformer
        logits = head(states[positions], network.get_input_embeddings().weight)
    return cross_entropy(logits.float(), labels)


class MLMHead(nn.Module):
    """States -> logits of all subwords, by products with their embeddings."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        size = embeddings.embedding_dim
        self.dense, self.norm = nn.Linear(size, size), nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.zeros(embeddings.num_embeddings))
        nn.init.eye_(self.dense.weight)

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.norm(self.dense(states)) @ embeddings.T + self.bias
        return logits


class MaskedTexts:
    """Consecutive sentences, cut into windows; each pass masks other words."""

    def __init__(
        self,
        subword_tokenizer: SubwordTokenizer,
        sentences: Iterable[Sentence],
        mask: int,
        vocabulary_size: int,
        seed: int,
        batch_size: int = 32,
        mask_rate: float = 0.15,
    ) -> None:
        """`mask`: the id of the mask token. `vocabulary_size`: the number of subwords."""
        self.subword_tokenizer, self.mask, self.vocabulary_size = subword_tokenizer, mask, vocabulary_size
        self.mask_rate = mask_rate
        self.rng = np.random.default_rng(seed)
        ids, sizes = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
        remaining = iter(sentences)
        while chunk := list(islice(remaining, SENTENCES_AT_ONCE)):
            subwords = subword_tokenizer.subwords([sentence.words for sentence in chunk])
            ids.append(subwords[0])
            sizes.append(subwords[1])
        self.ids = np.concatenate(ids)  # of all subwords
        self.posts = np.cumsum(np.concatenate(sizes))  # word k has the subwords posts[k] to posts[k + 1]
        if len(self.posts) == 1:
            raise InputError("there are no words to read. Give files with texts.")
        self.updates = -(-len(self.windows(0)) // batch_size)

    def windows(self, shift: int) -> list[tuple[int, int]]:
        """(start, end) words of all windows; the first one is shorter by `shift` subwords."""
        windows, start = [], 0
        while start < len(self.posts) - 1:
            limit = self.posts[start] + self.subword_tokenizer.capacity - shift
            end = int(np.searchsorted(self.posts, limit, "right")) - 1
            windows.append((start, max(end, start + 1)))  # the tokenizer cuts words so that one always fits
            start, shift = windows[-1][1], 0
        return windows

    def tasks(self) -> Iterator[MLMTask]:
        """All windows once, in random order and with a random shift, in as many batches in each pass."""
        windows = self.windows(int(self.rng.integers(self.subword_tokenizer.capacity // 2 + 1)))
        self.rng.shuffle(windows)
        for k in range(self.updates):
            batch = windows[k * len(windows) // self.updates : (k + 1) * len(windows) // self.updates]
            rows = [map(torch.from_numpy, self.mask_window(*window)) for window in batch]
            shown, original = map(list, zip(*rows, strict=True))
            attention = pad_sequence([torch.ones_like(row) for row in shown], batch_first=True).bool()
            labels = pad_sequence(original, batch_first=True, padding_value=-1).flatten()
            positions = (labels >= 0).nonzero().squeeze(1)
            subwords = pad_sequence(shown, batch_first=True, padding_value=self.subword_tokenizer.pad)
            yield MLMTask(subwords, attention, positions, labels[positions])

    def mask_window(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The subwords of a window, at least one word masked, and the original ones; -1 where none is predicted."""
        draws = self.rng.random(end - start) / self.mask_rate
        if draws.min() >= 1:
            draws[self.rng.integers(len(draws))] = self.rng.random()
        draw = np.repeat(draws, np.diff(self.posts[start : end + 1]))
        original = self.ids[self.posts[start] : self.posts[end]]
        others = self.rng.integers(self.vocabulary_size, size=len(original))
        shown = np.select([draw < MASKED, draw < MASKED + REPLACED], [self.mask, others], original)
        first, last = self.subword_tokenizer.first, self.subword_tokenizer.last
        labels = np.pad(np.where(draw < 1, original, -1), (len(first), len(last)), constant_values=-1)
        return np.concatenate([first, shown, last]).astype(np.int64), labels.astype(np.int64)
