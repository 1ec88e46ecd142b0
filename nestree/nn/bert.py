"""The BERT family (BERT, ELECTRA, MPNet, RoBERTa) as functions of its weights: training and inference, CPU and GPU.

`Bert` computes what `transformers` computes, with the same parameter names and half as many operations: with small
batches, a GPU takes longer to launch kernels than to run them. Under autocast to bfloat16 all weights are cast at
once (`Bf16WeightCache`), not one by one where they are used. `build_bert` makes the encoder of a model directory
without importing `transformers`, which takes seconds.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

log = logging.getLogger(__name__)

# The attention kernels for a GPU: one that takes any mask, and a fallback. The others replan for each batch shape.
CUDA_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MASK_ALIGNMENT = 8  # the efficient kernel needs mask rows of a multiple of this many numbers
DISTANCE_BUCKETS = 32  # MPNet's relative positions; the code of `transformers` has no other
FAMILIES = {"bert", "camembert", "electra", "mpnet", "roberta", "xlm-roberta"}  # values of `model_type`
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
NUMBERS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "pad_token_id",
    "max_position_embeddings", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip
# Parameters of layer K, after `encoder.layer.K.`: query, key, value, attention output, its norm
BERT_LAYER = (
    "attention.self.query", "attention.self.key", "attention.self.value",
    "attention.output.dense", "attention.output.LayerNorm",
)  # fmt: skip
MPNET_LAYER = (*(f"attention.attn.{name}" for name in "qkvo"), "attention.LayerNorm")

Weights = Mapping[str, Tensor]


def supports(config: Any) -> bool:
    """Whether `Bert` computes encoders of this configuration."""
    return (
        config.model_type in FAMILIES
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "add_cross_attention", False)
        and getattr(config, "relative_attention_num_buckets", DISTANCE_BUCKETS) == DISTANCE_BUCKETS
    )


def parameter_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of an encoder, by its name in `transformers`."""
    size, is_mpnet = config.hidden_size, config.model_type == "mpnet"
    embedding_size = getattr(config, "embedding_size", size) if config.model_type == "electra" else size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, embedding_size),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, embedding_size),
    }
    if not is_mpnet:
        shapes["embeddings.token_type_embeddings.weight"] = (config.type_vocab_size, embedding_size)

    def add(name: str, *weight: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = weight, weight[:1]

    add("embeddings.LayerNorm", embedding_size)
    if embedding_size != size:
        add("embeddings_project", size, embedding_size)
    *linear, norm = MPNET_LAYER if is_mpnet else BERT_LAYER
    for layer in [f"encoder.layer.{number}" for number in range(config.num_hidden_layers)]:
        for name in linear:
            add(f"{layer}.{name}", size, size)
        add(f"{layer}.{norm}", size)
        add(f"{layer}.intermediate.dense", config.intermediate_size, size)
        add(f"{layer}.output.dense", size, config.intermediate_size)
        add(f"{layer}.output.LayerNorm", size)
    if is_mpnet:
        shapes["encoder.relative_attention_bias.weight"] = (DISTANCE_BUCKETS, config.num_attention_heads)
    return shapes


class Bert(nn.Module):
    """An encoder of the BERT family. Its parameters have the names that `transformers` gives them."""

    def __init__(self, config: Any, weights: Weights | None = None) -> None:
        """`weights` may have names that the encoder does not use, such as a pooler's; None: uninitialized ones."""
        super().__init__()
        self.config = config
        self.layer_names = MPNET_LAYER if config.model_type == "mpnet" else BERT_LAYER
        # RoBERTa and MPNet number positions from the padding id + 1 on, and padding has the padding id
        self.padding_position: int | None = None
        if config.model_type == "mpnet":
            self.padding_position = 1  # whatever the configuration says
        elif config.model_type in ("camembert", "roberta", "xlm-roberta"):
            self.padding_position = config.pad_token_id
        if weights is None:
            weights = {name: torch.empty(shape) for name, shape in parameter_shapes(config).items()}
        for name, weight in weights.items():
            *path, leaf = name.split(".")
            module: nn.Module = self
            for part in path:
                if not hasattr(module, part):
                    is_table = part == "word_embeddings"
                    child = nn.Embedding.from_pretrained(weight, freeze=False) if is_table else nn.Module()
                    module.add_module(part, child)
                module = getattr(module, part)
            if not hasattr(module, leaf):
                module.register_parameter(leaf, nn.Parameter(weight))

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of subword embeddings, as models of `transformers` return it."""
        table = self.get_submodule("embeddings.word_embeddings")
        assert isinstance(table, nn.Embedding)
        return table

    def forward(self, subwords: Tensor, mask: Tensor, last_layers: int, weights: Weights | None = None) -> list[Tensor]:
        """Subwords and a mask, False for padding, [W, P] -> hidden states of so many last layers, [W, P, D] each.

        The embeddings count as the first layer. `weights` replace the parameters, for instance in bfloat16, in which
        products are computed then. The results have float32 or better.
        """
        weights = dict(self.named_parameters()) if weights is None else weights
        attention = sdpa_kernel(CUDA_ATTENTION) if subwords.is_cuda else nullcontext()
        with torch.autocast(subwords.device.type, enabled=False), attention:
            states = [self.embed(weights, subwords, self.positions(subwords))]
            bias = self.attention_bias(weights, mask)
            for layer in range(self.config.num_hidden_layers):
                states.append(self.layer(weights, f"encoder.layer.{layer}", states[-1], bias))
        return states[-last_layers:]

    def positions(self, subwords: Tensor) -> Tensor:
        """[W, P] rows of the position embeddings."""
        if self.padding_position is None:
            return torch.arange(subwords.shape[1], device=subwords.device).expand_as(subwords)
        real = subwords != self.padding_position
        return real.cumsum(1) * real + self.padding_position

    def embed(self, weights: Weights, subwords: Tensor, positions: Tensor) -> Tensor:
        """[..., D] the input of the first layer."""
        x = functional.embedding(subwords, weights["embeddings.word_embeddings.weight"])
        if "embeddings.token_type_embeddings.weight" in weights:
            x = x + weights["embeddings.token_type_embeddings.weight"][0]
        x = x + functional.embedding(positions, weights["embeddings.position_embeddings.weight"])
        x = self.dropout(self.layer_norm(weights, "embeddings.LayerNorm", x))
        if "embeddings_project.weight" in weights:
            x = self.linear(weights, "embeddings_project", x)
        return x

    def attention_bias(self, weights: Weights, mask: Tensor) -> Tensor:
        """[W, heads, P, P] added to attention logits: MPNet's relative position bias; the lowest number for padding."""
        length = mask.shape[1]
        dtype = weights[f"encoder.layer.0.{self.layer_names[0]}.bias"].dtype
        bias = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        bias = bias[:, None, None, :]
        if self.config.model_type == "mpnet":
            table = weights["encoder.relative_attention_bias.weight"]
            buckets = distance_buckets(self.config.max_position_embeddings, mask.device)[:length, :length]
            by_distance = functional.embedding(buckets, table).permute(2, 0, 1)  # [heads, P, P]
            bias = bias + by_distance.contiguous()  # the efficient kernel refuses rows with a stride
        bias = functional.pad(bias, (0, -length % MASK_ALIGNMENT))
        return bias.expand(mask.shape[0], self.config.num_attention_heads, length, -1)[..., :length]

    def layer(self, weights: Weights, layer: str, x: Tensor, bias: Tensor) -> Tensor:
        """[W, P, D] -> [W, P, D]"""
        *projections, output, norm = (f"{layer}.{name}" for name in self.layer_names)
        inputs = x.to(weights[f"{projections[0]}.bias"].dtype)  # cast once for all three
        heads = self.config.num_attention_heads, -1
        query, key, value = (
            self.linear(weights, name, inputs).unflatten(-1, heads).transpose(1, 2) for name in projections
        )  # [W, heads, P, D / heads]
        rate = self.config.attention_probs_dropout_prob if self.training else 0.0
        if rate and x.device.type == "cpu":
            logits = (query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3) + bias
            context = dropout(logits.softmax(-1), rate) @ value
        else:
            context = functional.scaled_dot_product_attention(query, key, value, bias, rate)
        context = self.linear(weights, output, context.transpose(1, 2).flatten(2))
        x = self.layer_norm(weights, norm, self.dropout(context) + x)
        hidden = functional.gelu(self.linear(weights, f"{layer}.intermediate.dense", x))
        hidden = self.dropout(self.linear(weights, f"{layer}.output.dense", hidden))
        return self.layer_norm(weights, f"{layer}.output.LayerNorm", hidden + x)

    def linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        weight = weights[f"{name}.weight"]
        return functional.linear(x.to(weight.dtype), weight, weights[f"{name}.bias"])

    def layer_norm(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        """In float32 or better, as is all that lies between the layers."""
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return functional.layer_norm(
            x.to(dtype), (x.shape[-1],), weight.to(dtype), bias.to(dtype), self.config.layer_norm_eps
        )

    def dropout(self, x: Tensor) -> Tensor:
        rate = self.config.hidden_dropout_prob if self.training else 0.0
        return dropout(x, rate) if rate else x


def dropout(x: Tensor, rate: float) -> Tensor:
    """Dropout with a rate in multiples of 2 ** -16 on a CPU, where it is four times as fast as PyTorch's.

    There, random numbers are drawn one after the other; one of 64 bits serves four elements.
    """
    kept = round((1 - rate) * 2**16)  # of 2 ** 16 values
    if x.device.type != "cpu" or not 0 < kept < 2**16:
        return functional.dropout(x, rate)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    mask = draws.view(torch.int16)[: x.numel()].view(x.shape) < kept - 2**15
    return x * mask.to(x.dtype).mul_(2**16 / kept)


@cache  # for good, as CUDA graphs read it
@torch.inference_mode(False)  # so that training can use it, too
def distance_buckets(length: int, device: torch.device) -> Tensor:
    """[P, P] MPNet's bucket of each distance: half of them for keys after the query; logarithmic beyond 8 subwords.

    >>> distance_buckets(4, torch.device("cpu"))[1].tolist()
    [1, 0, 17, 18]
    """
    position = torch.arange(length)
    distance = position[None, :] - position[:, None]
    half, exact, farthest = DISTANCE_BUCKETS // 2, DISTANCE_BUCKETS // 4, 128
    logarithm = torch.log(distance.abs().clamp(min=1).float() / exact) / math.log(farthest / exact)
    far = (exact + (logarithm * (half - exact)).long()).clamp(max=half - 1)
    buckets = torch.where(distance.abs() < exact, distance.abs(), far) + (distance > 0) * half
    return buckets.to(device)


# Mixed precision


def uses_bf16(device: torch.device) -> bool:
    """Whether autocast to bfloat16 is on for this device."""
    name = device.type
    enabled = torch.amp.is_autocast_available(name) and torch.is_autocast_enabled(name)
    return enabled and torch.get_autocast_dtype(name) == torch.bfloat16


def stays_float32(name: str) -> bool:
    """Whether a weight of `Bert` stays in float32: no matrix product takes it.

    >>> stays_float32("embeddings.word_embeddings.weight"), stays_float32("encoder.layer.3.output.LayerNorm.bias")
    (True, True)
    >>> stays_float32("encoder.layer.3.output.dense.bias"), stays_float32("encoder.relative_attention_bias.weight")
    (False, False)
    """
    return name.startswith("embeddings.") or ".LayerNorm." in name


class Bf16WeightCache:
    """Casts the weights of a network to bfloat16, all at once; gradients come back in float32."""

    def __init__(self, stays_float32: Callable[[str], bool] = lambda name: False) -> None:
        """`stays_float32`: which weights are not cast, by name."""
        self.stays_float32 = stays_float32
        self.cached: dict[str, Tensor] | None = None

    def weights(self, network: nn.Module) -> dict[str, Tensor]:
        """The weights by name: the cached ones, or cast now."""
        if self.cached is not None:
            return self.cached
        weights = dict(network.named_parameters())
        names = [name for name in weights if not self.stays_float32(name)]
        cast = _CastToBf16.apply(*(weights[name] for name in names))  # type: ignore[no-untyped-call]
        return {**weights, **dict(zip(names, cast, strict=True))}

    @torch.no_grad()
    def freeze(self, network: nn.Module) -> None:
        """Cast the weights once, of a network that is not trained any more."""
        self.cached = self.weights(network)

    @contextmanager
    def hold(self, network: nn.Module) -> Iterator[None]:
        """Within this context the weights do not change, and are cast once."""
        if self.cached is not None:
            yield
            return
        self.freeze(network)
        try:
            yield
        finally:
            self.cached = None


class _CastToBf16(torch.autograd.Function):
    """Many tensors in bfloat16, in one operation; their gradients in the types that the tensors had."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # unused weights get no gradient, so that weight decay skips them
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return cast_tensors(tensors, [torch.bfloat16] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        present = [k for k, gradient in enumerate(gradients) if gradient is not None]
        converted = cast_tensors([gradients[k] for k in present], [ctx.dtypes[k] for k in present])
        by_index = dict(zip(present, converted, strict=True))
        return tuple(map(by_index.get, range(len(gradients))))


def cast_tensors(tensors: Any, dtypes: list[torch.dtype]) -> tuple[Tensor, ...]:
    """Tensors in other types, by as few kernels as possible."""
    converted = [
        torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)
        for tensor, dtype in zip(tensors, dtypes, strict=True)
    ]
    if converted:
        torch._foreach_copy_(converted, list(tensors))
    return tuple(converted)


# Loading without `transformers`


class FileConfig:
    """The values of config.json as attributes; it is saved as it was read."""

    def __init__(self, text: str) -> None:
        vars(self).update(json.loads(text), _text=text)

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / CONFIG).write_text(vars(self)["_text"], encoding="utf-8")


class FileTokenizer:
    """As much of a fast tokenizer of `transformers` as is used here; its files are saved as they were read."""

    is_fast = True

    def __init__(self, files: Mapping[str, str]) -> None:
        config = json.loads(files[TOKENIZER_CONFIG])
        self.files = {name: text for name, text in files.items() if name != CONFIG}
        self.backend_tokenizer = Tokenizer.from_str(files[TOKENIZER])
        self.model_max_length = int(config["model_max_length"])
        for name in ("pad", "unk", "mask", "eos", "sep", "cls", "bos"):
            token = config.get(f"{name}_token")
            token = token["content"] if isinstance(token, dict) else token
            number = None if token is None else self.backend_tokenizer.token_to_id(token)
            setattr(self, f"{name}_token_id", number)

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")


def build_bert(folder: Path) -> tuple[FileTokenizer, Bert] | None:
    """Tokenizer and encoder of a model directory, weights uninitialized; None: `transformers` has to load them."""
    saved = read_saved(folder)
    try:
        return saved and (saved[0], Bert(saved[1]))
    except Exception:  # `transformers` says what is wrong
        return None


def read_saved(folder: Path) -> tuple[FileTokenizer, FileConfig] | None:
    """Tokenizer and configuration of a model directory; None: `transformers` has to load them."""
    try:
        paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
        files = {path.name: path.read_text(encoding="utf-8") for path in paths}
        config: Any = FileConfig(files[CONFIG])
        names = NUMBERS if config.model_type == "mpnet" else (*NUMBERS, "type_vocab_size")
        has_numbers = all(isinstance(getattr(config, name, None), int | float) for name in names)
        heads = config.num_attention_heads
        is_divisor = isinstance(heads, int) and heads > 0 and config.hidden_size % heads == 0
        if not (supports(config) and has_numbers and is_divisor):
            return None
        tokenizer = FileTokenizer(files)
    except Exception:  # not the expected files: `transformers` can read them, or says what is wrong
        return None
    warn_about_code(folder, getattr(config, "auto_map", None))
    return tokenizer, config


def warn_about_code(source: str | Path, auto_map: Any = None) -> None:
    """Log a warning if an encoder comes with Python code, which nestree never runs."""
    if auto_map or any(Path(source).glob("*.py")):
        log.warning(
            "%s comes with Python code, which nestree does not run: the encoder is built by transformers' own code.",
            source,
        )
