"""Batch -> one vector per word and per fencepost. Any Hugging Face encoder, and what may stand beside and above it.

A position has a forward half and a backward half: those of a BiLSTM or, without one, halves of its vector.
    word w         both halves at position w + 1
    fencepost t    the forward half at position t, the backward half at position t + 1: the gap before word t
"""

import inspect
import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nestree.config import EncoderSettings
from nestree.errors import ModelError
from nestree.nn import direct, half
from nestree.nn.batch import Batch
from nestree.nn.features import SHAPES, WordVectors

log = logging.getLogger(__name__)

MASKED_BY_PAIRS = {"bert", "camembert", "electra", "mpnet", "roberta", "xlm-roberta"}  # with `attention_mask`
BYTE_SIZE = 32  # of the vector of a byte, before the bytes of a word are put together

Halves = list[tuple[Tensor, Tensor]]  # of each part of a vector: forward, backward


class Vectors(NamedTuple):
    """What the words of a batch look like. Labels see the same as trees, unless each has a BiLSTM of its own."""

    words: Tensor  # [B, n + 1, D] position 0 is BOS, position w + 1 is word w
    posts: Tensor  # [B, n + 1, D] fenceposts
    label_words: Tensor  # [B, n + 1, D]
    label_posts: Tensor  # [B, n + 1, D]

    def to(self, dtype: torch.dtype) -> "Vectors":
        words, posts = self.words.to(dtype), self.posts.to(dtype)
        if self.label_words is self.words:
            return Vectors(words, posts, words, posts)
        return Vectors(words, posts, self.label_words.to(dtype), self.label_posts.to(dtype))


class LockedDropout(nn.Module):
    """Dropout with one mask per sentence: a dimension is there for all of its words or for none."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:  # [B, positions, D]
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), 1, x.shape[-1], device=x.device) >= self.rate
        return x * keep / (1 - self.rate)


class ScalarMix(nn.Module):
    """A weighted mean of layers, times a factor; the weights are learned."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, layers: tuple[Tensor, ...]) -> Tensor:
        first, *shares = (self.weights.softmax(0) * self.factor).unbind()
        mixed = layers[0] * first
        for share, layer in zip(shares, layers[1:], strict=True):
            mixed = torch.addcmul(mixed, layer, share)
        return mixed


class Characters(nn.Module):
    """The bytes of a word -> a vector: a convolution over three bytes, and the maximum over the word."""

    def __init__(self, size: int):
        super().__init__()
        self.embedding = nn.Embedding(257, BYTE_SIZE, padding_idx=0)
        self.convolution = nn.Conv1d(BYTE_SIZE, size, 3, padding=1)

    def forward(self, characters: Tensor) -> Tensor:  # [B, positions, BYTES]
        rows = characters.flatten(0, 1)  # [B * positions, BYTES]
        seen = self.convolution(self.embedding(rows).transpose(1, 2))  # [B * positions, size, BYTES]
        best = seen.masked_fill(rows[:, None] == 0, torch.finfo(seen.dtype).min).amax(-1)
        best = best.masked_fill(rows[:, :1] == 0, 0.0)  # BOS, EOS and padding have no bytes
        return best.view(*characters.shape[:2], -1)


class BiLSTM(nn.Module):
    """Layers of bidirectional LSTMs, each with a shared dropout before it."""

    def __init__(self, given: int, size: int, layers: int, dropout: float):
        super().__init__()
        self.dropout = LockedDropout(dropout)
        self.layers = nn.ModuleList(
            nn.LSTM(given if layer == 0 else 2 * size, size, batch_first=True, bidirectional=True)
            for layer in range(layers)
        )

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """[B, positions, D], and on the host how many positions are real -> [B, positions, 2 * size]."""
        positions = x.shape[1]
        for layer in self.layers:
            packed = pack_padded_sequence(self.dropout(x), sizes, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=positions)
        return x


class Encoder(nn.Module):
    """Pieces through a pretrained encoder; words are means of their pieces; more features beside; LSTMs on top."""

    def __init__(self, settings: EncoderSettings, transformer: nn.Module, words: int, dimensions: int):
        """`words`: how many have static vectors, of so many `dimensions`."""
        super().__init__()
        self.transformer = transformer
        config: Any = transformer.config
        self.keeper = half.Bf16WeightCache(direct.whole if direct.supports(config) else half.none_of_them)
        layers = config.num_hidden_layers + 1  # the embeddings count as one
        if settings.mix_layers > layers:
            raise ModelError(
                f"encoder.mix_layers is {settings.mix_layers}, and the encoder has {layers}, embeddings included."
            )
        self.mix = ScalarMix(settings.mix_layers)
        parts = [config.hidden_size]
        if words:
            self.vectors = nn.Embedding(words + 1, dimensions, padding_idx=0)
            self.vectors.weight.requires_grad_(False)
            parts.append(dimensions)
        if settings.word_shape_size:
            self.shapes = nn.Embedding(SHAPES, settings.word_shape_size, padding_idx=0)
            parts.append(settings.word_shape_size)
        self.dropout = LockedDropout(settings.dropout)
        self.size = sum(parts)
        self.lstms = nn.ModuleList()
        if settings.lstm_layers:
            self.lstms.extend(
                BiLSTM(self.size, settings.lstm_size, settings.lstm_layers, settings.lstm_dropout)
                for _ in range(settings.lstms)
            )
            self.size = 2 * settings.lstm_size

    def forward(self, batch: Batch) -> Vectors:
        pieces = self.mix(self.states(batch.pieces, batch.attention)[-len(self.mix.weights) :])  # [W, P, D]
        parts = [pooled(pieces, batch)]
        if batch.vectors is not None:
            parts.append(self.vectors(batch.vectors))
        if batch.shapes is not None:
            parts.append(self.shapes(batch.shapes))
        parts = [self.dropout(part) for part in parts]

        halves = self.halves(parts, batch)
        posts, words = of_posts(halves[0]), of_words(halves[1 % len(halves)])
        if len(halves) == 1:
            return Vectors(words, posts, words, posts)
        return Vectors(words, posts, label_words=of_words(halves[3]), label_posts=of_posts(halves[2]))

    def lexical_embeddings(self, batch: Batch) -> Tensor:
        """The words before the first layer, where none knows another: [B, n, D], constants."""
        transformer: Any = self.transformer
        with torch.no_grad(), torch.autocast(batch.pieces.device.type, enabled=False):
            return pooled(transformer.get_input_embeddings()(batch.pieces), batch)[:, 1:-1]

    def states(self, pieces: Tensor, attention: Tensor) -> tuple[Tensor, ...]:
        """What each layer of the pretrained encoder says of the pieces, [W, P, D]."""
        config, device = self.transformer.config, pieces.device
        if not half.uses_bf16(device):
            mask = attention_mask(attention, config)
            said = self.transformer(input_ids=pieces, attention_mask=mask, output_hidden_states=True)
            return tuple(said.hidden_states)
        weights = self.keeper.weights(self.transformer)
        if direct.supports(config):
            found = direct.states(config, weights, pieces, attention > 0, self.transformer.training)
            return tuple(state.float() for state in found[-len(self.mix.weights) :])
        said = half.call(
            self.transformer,
            weights,
            input_ids=pieces,
            attention_mask=attention_mask(attention, config, half.HALF),
            output_hidden_states=True,
        )
        return tuple(state.float() for state in said.hidden_states[-len(self.mix.weights) :])

    def halves(self, parts: list[Tensor], batch: Batch) -> list[Halves]:
        """The forward and backward half of each position: of each BiLSTM, or of the parts [B, n + 2, ...]."""
        if self.lstms:
            sizes = torch.tensor(batch.sizes) + 2  # on the host, where packing wants them
            together = torch.cat(parts, -1)  # [B, n + 2, D]
            return [[lstm(together, sizes).chunk(2, -1)] for lstm in self.lstms]
        middles = [part.shape[-1] // 2 for part in parts]
        return [[(p[..., :m], p[..., m:]) for p, m in zip(parts, middles, strict=True)]]

    def place_vectors(self, vectors: WordVectors) -> None:
        """Put static vectors into their table; row 0 stays zero: words without one."""
        with torch.no_grad():
            self.vectors.weight[1:] = torch.from_numpy(vectors.vectors)


def attention_mask(attention: Tensor, config: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Which pieces [W, P] are looked at, as the encoder takes it without asking the device, which would be waiting.

    Given a mask of pieces, `transformers` looks whether anything is masked at all; given one of all pairs, it does not.
    """
    if config.model_type not in MASKED_BY_PAIRS:
        return attention
    real = attention[:, None, None, :] > 0  # [W, 1, 1, P] for all heads and all pieces that look
    if config._attn_implementation == "sdpa":
        return real
    if config._attn_implementation == "eager":
        return torch.zeros_like(real, dtype=dtype).masked_fill(~real, torch.finfo(dtype).min)
    return attention


def looked_at(mask: Tensor) -> Tensor:
    """Which pieces [W, P] are real, of any mask that `attention_mask` makes: numbers that are not whole are added."""
    mask = mask.flatten(1)
    return mask >= 0 if mask.is_floating_point() else mask > 0


def pooled(pieces: Tensor, batch: Batch) -> Tensor:
    """Pieces [W, P, D] -> words, the means of theirs, between BOS and EOS: [B, n + 2, D]."""
    if batch.windows is not None:
        pieces = pieces[batch.windows].flatten(1, 2)  # [B, K * P, D]
    return batch.pooling.to(pieces.dtype) @ pieces


def of_words(halves: Halves) -> Tensor:
    """Halves of positions [B, n + 2, ...] -> [B, n + 1, D]."""
    forward, backward = zip(*halves, strict=True)
    return torch.cat([half[:, :-1] for half in forward + backward], -1)


def of_posts(halves: Halves) -> Tensor:
    """Halves of positions [B, n + 2, ...] -> [B, n + 1, D]."""
    forward, backward = zip(*halves, strict=True)
    return torch.cat([*(half[:, :-1] for half in forward), *(half[:, 1:] for half in backward)], -1)


# Getting an encoder. To import `transformers` takes seconds, and reading can often do without: see light.py


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub name."""
    from transformers import AutoTokenizer

    return found(AutoTokenizer.from_pretrained, source, "tokenizer")


def load_pretrained(source: str, whole: bool = False) -> nn.Module:
    """The encoder of a folder or hub name, with its weights, in float32; `whole`: with layers that nobody asks here."""
    from transformers import AutoModel

    config = load_config(source, "encoder")
    check_layers(config, Path(source) / "model.safetensors")
    model: nn.Module = found(AutoModel.from_pretrained, source, "encoder", config=config, dtype=torch.float32)
    return model if whole else without_pooler(model)


def check_layers(config: Any, weights: Path) -> None:
    """Raise before memory is taken if the configuration has more layers than the file of weights has tensors."""
    if not weights.is_file():
        return
    try:
        with safe_open(weights, "pt") as file:
            tensors = len(file.keys())
    except (OSError, SafetensorError) as why:
        raise ModelError(f"{weights} cannot be read: {why}. Fetch the encoder again.") from why
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > tensors:
        raise ModelError(
            f"{weights.with_name('config.json')}: num_hidden_layers is {layers}, and {weights.name} has {tensors} "
            "tensors: they belong to different encoders. Fetch the encoder again."
        )


def load_untrained(source: str) -> nn.Module:
    """An encoder of the same form; its weights are whatever was in memory, and have to be given to it."""
    from transformers import AutoModel
    from transformers.initialization import no_init_weights

    config = load_config(source)
    with no_init_weights():  # drawing them takes longer than reading them
        model = found(
            lambda _, **options: AutoModel.from_config(config, **options),
            source,
            "encoder",
            dtype=torch.float32,
        )
    return without_pooler(model)


def load_config(source: str, what: str = "configuration") -> Any:
    """The configuration of an encoder, without what names code to run: classes of its own, or kernels of the hub."""
    from transformers import AutoConfig

    config = found(AutoConfig.from_pretrained, source, what)
    warn_about_code(source, vars(config).pop("auto_map", None))
    if "/" in str(config._attn_implementation):
        config._attn_implementation = None
    return config


def warn_about_code(source: str | Path, auto_map: Any = None) -> None:
    """Log a warning if an encoder comes with Python code, which nestree never runs."""
    if auto_map or any(Path(source).glob("*.py")):
        log.warning(
            "%s comes with Python code, which nestree does not run: the encoder is built by transformers' own code.",
            source,
        )


def without_pooler(model: Any) -> nn.Module:
    """BERT and its kin have a layer that sums up a sentence; nobody here asks for that."""
    if "add_pooling_layer" in inspect.signature(type(model)).parameters:
        model.pooler = None
    found: nn.Module = model
    return found


def found(load: Any, source: str, what: str, **options: Any) -> Any:
    """What a loader of `transformers` makes of a folder or hub name; it never runs code that it finds there."""
    from transformers.utils import logging as progress

    shown, talker = progress.is_progress_bar_enabled(), logging.getLogger("huggingface_hub")
    progress.disable_progress_bar()  # there is one for each file, however small
    level = talker.level
    talker.setLevel(
        logging.ERROR
    )  # it tells of each attempt to reach the hub; what came of them is told below
    try:
        return load(source, trust_remote_code=False, **options)
    except Exception as why:  # a damaged file can raise any, and `tokenizers` only this
        if "trust_remote_code" in str(why):
            raise ModelError(
                f"encoder {source!r}: its {what} needs Python code that comes with it, and nestree does not run "
                "the code of a model. Use an encoder whose architecture `transformers` knows."
            ) from why
        place = "in this folder" if Path(source).is_dir() else "there is no such folder, and on the hub"
        first = str(why).strip().splitlines()[0] if str(why).strip() else type(why).__name__
        raise ModelError(
            f"encoder {source!r}: no {what} found; {place}: {first[:200].rstrip('.:')}. "
            "Give a folder that holds config.json, tokenizer.json and weights, or a name of the hub."
        ) from why
    finally:
        talker.setLevel(level)
        if shown:
            progress.enable_progress_bar()


def max_input_length(tokenizer: Any, config: Any) -> int:
    """How many pieces the encoder reads at once, special ones included."""
    positions = getattr(config, "max_position_embeddings", None) or 512
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "longformer"):
        positions -= (
            config.pad_token_id if config.pad_token_id is not None else 1
        ) + 1  # they count from there
    return int(min(positions, tokenizer.model_max_length))
