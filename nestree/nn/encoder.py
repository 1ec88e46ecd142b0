"""Batch -> one vector per word and per fencepost: a pretrained encoder, features beside it, BiLSTMs on top.

A position has a forward half and a backward half: those of a BiLSTM or, without one, halves of its vector.
    word w         both halves at position w + 1
    fencepost t    the forward half at position t, the backward half at position t + 1: the gap before word t

Encoders of the BERT family run in `nestree.nn.bert`, all others in `transformers`.
"""

import inspect
import logging
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nestree.config import EncoderSettings
from nestree.errors import ModelError, first_line
from nestree.nn import bert
from nestree.nn.batch import Batch
from nestree.nn.features import SHAPES

Halves = list[tuple[Tensor, ...]]  # forward and backward half of each part of a vector


class Vectors(NamedTuple):
    """Vectors of the words of a batch. Labels see the same as trees, unless each has a BiLSTM of its own."""

    words: Tensor  # [B, n + 1, D] position 0 is BOS, position w + 1 is word w
    posts: Tensor  # [B, n + 1, D] fenceposts
    label_words: Tensor  # [B, n + 1, D]
    label_posts: Tensor  # [B, n + 1, D]


class LockedDropout(nn.Module):
    """Dropout with one mask per sentence: a dimension is dropped for all of its words or for none."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:  # [B, positions, D]
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), 1, x.shape[-1], device=x.device) >= self.rate
        return x * keep / (1 - self.rate)


class ScalarMix(nn.Module):
    """A learned weighted mean of layers, times a learned factor."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, layers: list[Tensor]) -> Tensor:
        first, *others = (self.weights.softmax(0) * self.factor).unbind()
        mixed = layers[0] * first
        for weight, layer in zip(others, layers[1:], strict=True):
            mixed = torch.addcmul(mixed, layer, weight)
        return mixed


class BiLSTM(nn.Module):
    """Layers of bidirectional LSTMs, each with a locked dropout before it."""

    def __init__(self, input_size: int, size: int, layers: int, dropout: float):
        super().__init__()
        self.dropout = LockedDropout(dropout)
        self.layers = nn.ModuleList(
            nn.LSTM(input_size if layer == 0 else 2 * size, size, batch_first=True, bidirectional=True)
            for layer in range(layers)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, positions, D], and the number of positions of each sentence, on the CPU -> [B, positions, 2 * size]."""
        positions = x.shape[1]
        for layer in self.layers:
            packed = pack_padded_sequence(self.dropout(x), lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=positions)
        return x


class Encoder(nn.Module):
    """A pretrained encoder whose subwords are averaged to words; features beside it; BiLSTMs on top."""

    def __init__(self, settings: EncoderSettings, transformer: nn.Module, words: int, dimensions: int):
        """`words`: how many have static vectors, of so many `dimensions`."""
        super().__init__()
        self.transformer = transformer  # a Bert, or a model of `transformers`
        is_bert = isinstance(transformer, bert.Bert)
        self.bf16_cache = bert.Bf16WeightCache(bert.stays_float32) if is_bert else bert.Bf16WeightCache()
        config: Any = transformer.config
        layers = config.num_hidden_layers + 1  # the embeddings count as one
        if settings.mix_layers > layers:
            raise ModelError(
                f"encoder.mix_layers is {settings.mix_layers}, and the encoder has {layers}, embeddings included."
            )
        self.mix = ScalarMix(settings.mix_layers)
        self.size = config.hidden_size
        if words:
            self.vectors = nn.Embedding(words + 1, dimensions, padding_idx=0)  # row 0: words without a vector
            self.vectors.weight.requires_grad_(False)
            self.size += dimensions
        if settings.word_shape_size:
            self.shapes = nn.Embedding(SHAPES, settings.word_shape_size, padding_idx=0)
            self.size += settings.word_shape_size
        self.dropout = LockedDropout(settings.dropout)
        self.lstms = nn.ModuleList()
        if settings.lstm_layers:
            self.lstms.extend(
                BiLSTM(self.size, settings.lstm_size, settings.lstm_layers, settings.lstm_dropout)
                for _ in range(settings.lstms)
            )
            self.size = 2 * settings.lstm_size

    def forward(self, batch: Batch) -> Vectors:
        parts = [self.word_states(batch)]  # [B, n + 2, ...] each
        if batch.vectors is not None:
            parts.append(self.vectors(batch.vectors))
        if batch.shapes is not None:
            parts.append(self.shapes(batch.shapes))
        parts = [self.dropout(part) for part in parts]

        halves: list[Halves]
        if self.lstms:
            features = torch.cat(parts, -1)  # [B, n + 2, D]
            lengths = torch.tensor(batch.sizes) + 2  # on the CPU, where packing needs them
            halves = [[lstm(features, lengths).chunk(2, -1)] for lstm in self.lstms]
        else:
            halves = [[part.tensor_split([part.shape[-1] // 2], -1) for part in parts]]
        posts, words = fencepost_vectors(halves[0]), word_vectors(halves[1 % len(halves)])
        if len(halves) == 1:
            return Vectors(words, posts, words, posts)
        return Vectors(words, posts, word_vectors(halves[3]), fencepost_vectors(halves[2]))

    def word_states(self, batch: Batch) -> Tensor:
        """[B, n + 2, D] the mix of the last layers, averaged over the subwords of each word."""
        return pool_subwords(self.mix(self.hidden_states(batch.subwords, batch.attention_mask)), batch)

    def hidden_states(self, subwords: Tensor, attention: Tensor) -> list[Tensor]:
        """Hidden states of the last layers, as many as are mixed, [W, P, D] each, in float32 or better."""
        weights = self.bf16_cache.weights(self.transformer) if bert.uses_bf16(subwords.device) else None
        layers = len(self.mix.weights)
        if isinstance(self.transformer, bert.Bert):
            states: list[Tensor] = self.transformer(subwords, attention > 0, layers, weights)
            return states
        inputs = {"input_ids": subwords, "attention_mask": attention, "output_hidden_states": True}
        if weights is None:
            return list(self.transformer(**inputs).hidden_states[-layers:])
        with torch.autocast(subwords.device.type, enabled=False):
            output = functional_call(self.transformer, weights, (), inputs)
        return [state.float() for state in output.hidden_states[-layers:]]

    def lexical_embeddings(self, batch: Batch) -> Tensor:
        """[B, n, D] words before the first layer, where none has seen its context; without gradient."""
        transformer: Any = self.transformer
        with torch.no_grad(), torch.autocast(batch.subwords.device.type, enabled=False):
            return pool_subwords(transformer.get_input_embeddings()(batch.subwords), batch)[:, 1:-1]


def pool_subwords(subwords: Tensor, batch: Batch) -> Tensor:
    """Subwords [W, P, D] -> the means of those of each word, between BOS and EOS: [B, n + 2, D]."""
    if batch.windows is not None:
        subwords = subwords[batch.windows].flatten(1, 2)  # [B, K * P, D]
    return batch.pooling.to(subwords.dtype) @ subwords


def word_vectors(halves: Halves) -> Tensor:
    """Halves of positions [B, n + 2, ...] -> [B, n + 1, D]."""
    forward, backward = zip(*halves, strict=True)
    return torch.cat([half[:, :-1] for half in forward + backward], -1)


def fencepost_vectors(halves: Halves) -> Tensor:
    """Halves of positions [B, n + 2, ...] -> [B, n + 1, D]."""
    forward, backward = zip(*halves, strict=True)
    return torch.cat([*(half[:, :-1] for half in forward), *(half[:, 1:] for half in backward)], -1)


# Loading


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub name."""
    from transformers import AutoTokenizer

    return call_loader(AutoTokenizer.from_pretrained, source, "tokenizer")


def load_pretrained(source: str, keep_pooler: bool = False) -> nn.Module:
    """The encoder of a folder or hub name, with its weights, in float32; without its pooler, which is not used."""
    from transformers import AutoModel

    config = load_config(source, "encoder")
    check_layers(config, Path(source) / "model.safetensors")
    model = call_loader(AutoModel.from_pretrained, source, "encoder", config=config, dtype=torch.float32)
    if not keep_pooler:
        remove_pooler(model)
    return bert.Bert(config, model.state_dict()) if bert.supports(config) else model


def load_saved(folder: str) -> tuple[Any, nn.Module]:
    """Tokenizer and encoder that `Recognizer.save_encoder` wrote to a folder; the weights are uninitialized."""
    loaded = bert.build_bert(Path(folder))
    if loaded is not None:
        return loaded
    tokenizer = load_tokenizer(folder)
    from transformers import AutoModel
    from transformers.initialization import no_init_weights

    config = load_config(folder)
    with no_init_weights():  # drawing weights takes longer than reading them
        build = partial(AutoModel.from_config, config, dtype=torch.float32)
        model = call_loader(lambda _, **options: build(**options), folder, "encoder")
    remove_pooler(model)
    return tokenizer, model


def load_saved_tokenizer(folder: str) -> Any:
    """The tokenizer that `Recognizer.save_encoder` wrote to a folder."""
    saved = bert.read_saved(Path(folder))
    return load_tokenizer(folder) if saved is None else saved[0]


def check_layers(config: Any, weights: Path) -> None:
    """Raise, before memory is allocated, if the configuration has more layers than the file of weights has tensors."""
    if not weights.is_file():
        return
    try:
        with safe_open(weights, "pt") as file:
            tensors = len(file.keys())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{weights} cannot be read: {error}. Fetch the encoder again.") from error
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > tensors:
        raise ModelError(
            f"{weights.with_name('config.json')}: num_hidden_layers is {layers}, and {weights.name} has {tensors} "
            "tensors: they belong to different encoders. Fetch the encoder again."
        )


def load_config(source: str, what: str = "configuration") -> Any:
    """The configuration of an encoder, without what names code to run: its own classes, or kernels of the hub."""
    from transformers import AutoConfig

    config = call_loader(AutoConfig.from_pretrained, source, what)
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "num_hidden_layers"):
        raise ModelError(
            f"encoder {source!r} is a {config.model_type} model, and not an encoder of text alone. Choose one, such as "
            "roberta-base."
        )
    if isinstance(heads := getattr(config, "num_attention_heads", None), int) and heads < 1:
        raise ModelError(
            f"encoder {source!r}: num_attention_heads is {heads} in config.json; it must be 1 or more. Fetch the "
            "encoder again."
        )
    bert.warn_about_code(source, vars(config).pop("auto_map", None))
    if "/" in str(config._attn_implementation):
        config._attn_implementation = None
    return config


def remove_pooler(model: Any) -> None:
    """Remove the layer that pools a sentence in BERT and related models: it is not used."""
    if "add_pooling_layer" in inspect.signature(type(model)).parameters:
        model.pooler = None


def call_loader(load: Any, source: str, what: str, **options: Any) -> Any:
    """Call a loader of `transformers`: quietly, without running code of the source, with errors in one sentence."""
    from transformers.utils import logging as transformers_logging

    had_progress_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # there would be one for each file
    hub_logger = logging.getLogger("huggingface_hub")
    level = hub_logger.level
    hub_logger.setLevel(logging.ERROR)  # it logs each attempt to reach the hub; failures are raised below
    try:
        return load(source, trust_remote_code=False, **options)
    except Exception as error:  # a damaged file can raise anything, and `tokenizers` raises only this
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"encoder {source!r}: its {what} needs Python code that comes with it, and nestree does not run "
                "the code of a model. Use an encoder whose architecture `transformers` knows."
            ) from error
        if Path(source).is_dir():
            reason = f"in this folder: {first_line(error)}"
        elif len(Path(source).parts) > 2 or source.startswith((".", "~", "/")):  # no name of the hub
            reason = "there is no such folder"
        else:
            reason = f"there is no such folder, and on the hub: {first_line(error)}"
        raise ModelError(
            f"encoder {source!r}: no {what} found; {reason}. "
            "Give a folder that holds config.json, tokenizer.json and weights, or a name of the hub."
        ) from error
    finally:
        hub_logger.setLevel(level)
        if had_progress_bar:
            transformers_logging.enable_progress_bar()


def max_input_length(tokenizer: Any, transformer: Any) -> int:
    """How many subwords the encoder reads at once, special ones included."""
    positions = getattr(transformer.config, "max_position_embeddings", None) or 512
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding = getattr(transformer, "padding_position", getattr(table, "padding_idx", None))
    if padding is not None:  # RoBERTa and related models number positions from there
        positions -= padding + 1
    return int(min(positions, tokenizer.model_max_length))
