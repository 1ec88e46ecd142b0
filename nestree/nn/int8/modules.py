"""Modules whose matrix products are in 8 bits, made from float32 ones."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nestree.errors import ModelError
from nestree.nn.batch import Batch
from nestree.nn.bert import BERT_LAYER, Bert, Weights
from nestree.nn.encoder import Encoder, Vectors
from nestree.nn.int8 import to_int8
from nestree.nn.int8.kernels import (
    OUTPUTS,
    OVERHANG,
    STRIDE,
    TILE_ROWS,
    Int8Weights,
    LabelWeights,
    LayerWeights,
    Norm,
    ScorerWeights,
    Workspace,
    allocate_label_workspace,
    allocate_scorer_workspace,
    allocate_workspace,
    embed_kernel,
    fits,
    label_kernel,
    linear,
    normalized_dot_kernel,
    pool_kernel,
    quantize_weights,
    run_layers,
    score_kernel,
    stack_weights,
)
from nestree.nn.scorers import (
    LEAKY_SLOPE,
    MLP,
    SOFTENING,
    Biaffine,
    HeadPrior,
    LabelScorer,
    LazyHeadLabels,
    LowRankTriaffine,
    Scorer,
    Scores,
    rotary_cos_sin,
)

NO_ROTATIONS = np.empty(0, np.float32), np.empty(0, np.float32)


def int8_module(module: nn.Module) -> nn.Module | None:
    """The 8-bit version of this module; None: it has none, though its children may have."""
    if isinstance(module, Encoder) and isinstance(module.transformer, Bert):
        return Int8Encoder(module) if kernel_supports(module.transformer.config) else None
    if isinstance(module, Bert):
        return Int8Bert(module) if kernel_supports(module.config) else Int8LinearBert(module)
    if isinstance(module, nn.Linear) and fits(module.in_features, module.out_features):
        return Int8Linear(module)
    if isinstance(module, Scorer) and scorer_supported(module):
        return Int8Scorer(module)
    return KernelHeadPrior(module) if isinstance(module, HeadPrior) else None


def to_array(tensor: Tensor) -> np.ndarray:
    """A copy in float32: the original may be trained further."""
    return tensor.detach().float().cpu().numpy().copy()


class Int8Linear(nn.Module):
    """A linear layer."""

    def __init__(self, float_linear: nn.Linear):
        super().__init__()
        bias = None if float_linear.bias is None else to_array(float_linear.bias)
        self.int8_weights = quantize_weights(to_array(float_linear.weight), bias)

    def forward(self, x: Tensor) -> Tensor:  # [..., inputs]
        return linear(x, self.int8_weights).to(x.dtype)


class Int8Scorer(nn.Module):
    """A Scorer of lexicalised trees: spans and arcs of a batch are one kernel, without padding."""

    def __init__(self, scorer: Scorer):
        super().__init__()
        settings, size = scorer.settings, scorer.settings.mlp_size
        self.rotary, self.channels = settings.rotary, scorer.spans.weight.shape[0]
        self.labels: nn.Module | None = None
        if scorer.labels is not None:
            fused = label_scorer_supported(scorer.labels)
            self.labels = Int8LabelScorer(scorer.labels) if fused else to_int8(scorer.labels)
        self.weights = ScorerWeights(
            quantize_side(scorer.left, scorer.right),
            quantize_side(scorer.head, scorer.modifier),
            quantize_biaffine(scorer.spans),
            quantize_biaffine(scorer.arcs),
            size,
            self.channels,
            np.float32(LEAKY_SLOPE),
            settings.normalize,
            np.float32(SOFTENING),
        )
        self.buffers_of_thread = ThreadBuffers()

    def forward(self, vectors: Vectors, lengths: Tensor) -> Scores:
        vectors = Vectors(*(part.float() for part in vectors))
        batch, posts, _ = vectors.posts.shape
        mention = np.zeros((batch, posts, posts, self.channels), np.float32)
        arcs = np.zeros((batch, posts, posts - 1), np.float32)
        cos, sin = NO_ROTATIONS
        if self.rotary:
            cos, sin = rotary_cos_sin_arrays(1 << (posts - 1).bit_length(), self.weights.size)
        workspace = self.buffers_of_thread.get(partial(allocate_scorer_workspace, self.weights), posts)
        flat = (part.contiguous().view(-1).numpy() for part in (vectors.posts, vectors.words))
        score_kernel(
            *flat, lengths.numpy(), posts - 1, self.weights, cos, sin, workspace, mention.reshape(-1),
            arcs.reshape(-1),
        )  # fmt: skip
        labels = None
        if self.labels is not None:
            fused = isinstance(self.labels, Int8LabelScorer)  # whose kernel knows no autocast
            with nullcontext() if fused else torch.autocast("cpu", enabled=False):
                labels = self.labels(vectors)
        arc, root = torch.from_numpy(arcs[:, 1:]), torch.from_numpy(arcs[:, 0])
        return Scores(lengths, torch.from_numpy(mention), arc, root, labels)


@cache
def rotary_cos_sin_arrays(positions: int, size: int) -> tuple[np.ndarray, ...]:
    """Those of `rotary_cos_sin`, flat."""
    tensors = rotary_cos_sin(positions, size, torch.float32, torch.device("cpu"))
    return tuple(tensor.flatten().numpy() for tensor in tensors)


def scorer_supported(scorer: Scorer) -> bool:
    """Whether `Int8Scorer` computes it: trees are lexicalised, and sizes fill whole registers."""
    if scorer.settings.structure != "lexical":
        return False
    size, inputs = scorer.settings.mlp_size, scorer.left[0].in_features
    return fits(inputs, 2 * size) and fits(size, size)


class Int8LabelScorer(nn.Module):
    """A LabelScorer that reads heads: the label scores of chosen spans and heads are one kernel."""

    def __init__(self, scorer: LabelScorer):
        super().__init__()
        assert isinstance(scorer.triples, LowRankTriaffine)
        sides, out = scorer.triples.sides, scorer.triples.out
        left, right, head = (quantize_side(mlp) for mlp in (scorer.left, scorer.right, scorer.head))
        self.weights = LabelWeights(
            (left, right, head),
            tuple(quantize_weights(to_array(side.weight), to_array(side.bias)) for side in sides),
            to_array(pad(out.weight.T, (0, OVERHANG))).reshape(-1),
            to_array(out.bias),
            np.float32(LEAKY_SLOPE),
        )
        self.buffers_of_thread = ThreadBuffers()

    def forward(self, vectors: Vectors) -> "Int8HeadLabels":
        return Int8HeadLabels(vectors.label_posts, vectors.label_words, self)


@dataclass(frozen=True)
class Int8HeadLabels(LazyHeadLabels):
    """The same in one kernel."""

    scorer: Int8LabelScorer  # type: ignore[assignment]

    def score_spans(self, b: Tensor, i: Tensor, j: Tensor, h: Tensor | None) -> Tensor:
        assert h is not None, "these labels depend on heads"
        weights, positions = self.scorer.weights, self.posts.shape[1]
        assert self.posts.shape == self.words.shape == (*self.posts.shape[:2], weights.mlps[0].in_features)
        places = b.numpy() * positions, i.numpy(), j.numpy(), h.numpy() + 1
        shape = np.broadcast(*places).shape
        rows = np.empty((3, *shape), np.int64)
        rows[:] = places[0]
        for k in range(3):
            rows[k] += places[k + 1]
        triples = rows[0].size
        index, used = np.empty((2, self.posts.shape[0] * positions), np.int64)
        distinct = min(triples, len(index)) + TILE_ROWS
        vectors = np.empty(3 * distinct * weights.sides[0].out_features, np.float32)
        out = np.empty((triples, len(weights.bias)), np.float32)
        exist = label_kernel(
            self.posts.contiguous().view(-1).numpy(), self.words.contiguous().view(-1).numpy(),
            rows.reshape(3, -1), weights,
            self.scorer.buffers_of_thread.get(partial(allocate_label_workspace, weights)),
            index, used, vectors, out,
        )  # fmt: skip
        if not exist:
            raise IndexError(f"spans or heads lie beyond the {positions - 1} words of a sentence.")
        return torch.from_numpy(out.reshape(*shape, len(weights.bias)))


def label_scorer_supported(scorer: LabelScorer) -> bool:
    """Whether `Int8LabelScorer` computes it: labels depend on heads, by factors, and sizes fill whole registers."""
    if not scorer.by_head or not isinstance(scorer.triples, LowRankTriaffine):
        return False
    maps = scorer.left[0], *scorer.triples.sides
    return all(fits(one.in_features, one.out_features) for one in maps)


def quantize_side(*mlps: MLP) -> Int8Weights:
    """The linear layers of these MLPs side by side."""
    weights, biases = zip(*((to_array(mlp[0].weight), to_array(mlp[0].bias)) for mlp in mlps), strict=True)
    return quantize_weights(np.concatenate(weights), np.concatenate(biases))


def quantize_biaffine(biaffine: Biaffine) -> Int8Weights:
    """Its product with the left side: for each channel `size` outputs, a bias, and padding up to OUTPUTS more."""
    channels, size = biaffine.weight.shape[0], biaffine.weight.shape[1] - 1
    weight = pad(biaffine.weight.detach(), (0, OUTPUTS - 1))  # [C, size + 1, size + OUTPUTS]
    stacked = weight.transpose(1, 2).reshape(channels * (size + OUTPUTS), size + 1)
    return quantize_weights(to_array(stacked[:, :-1]), to_array(stacked[:, -1]))


class KernelHeadPrior(nn.Module):
    """A HeadPrior in one kernel, in float32."""

    def __init__(self, prior: HeadPrior):
        super().__init__()
        norm, out = prior.norm, prior.out
        self.weight = to_array(norm.weight * out.weight[0])
        self.bias, self.epsilon = float((norm.bias @ out.weight[0] + out.bias).detach()), norm.eps

    def forward(self, embeddings: Tensor) -> Tensor:  # [B, n, D]
        rows = embeddings.contiguous().flatten(0, 1).numpy()
        out = np.empty(len(rows), np.float32)
        normalized_dot_kernel(rows, self.weight, self.bias, self.epsilon, out)
        return torch.from_numpy(out).view(embeddings.shape[:2])


class Int8LinearBert(Bert):
    """A Bert whose linear layers are in 8 bits, for those that the kernels of `Int8Bert` do not support."""

    def __init__(self, bert: Bert):
        weights = {name: weight.detach().clone() for name, weight in bert.named_parameters()}
        int8_weights = {}
        for name in [name.removesuffix(".weight") for name in weights if name.startswith("encoder.layer.")]:
            weight = weights.get(f"{name}.weight")
            if weight is not None and weight.ndim == 2 and fits(weight.shape[1], weight.shape[0]):
                bias = to_array(weights[f"{name}.bias"])
                int8_weights[name] = quantize_weights(to_array(weights.pop(f"{name}.weight")), bias)
        super().__init__(bert.config, weights)
        self.int8_weights = int8_weights
        self.train(bert.training)

    def forward(self, subwords: Tensor, mask: Tensor, last_layers: int, weights: Weights | None = None) -> list[Tensor]:
        return super().forward(subwords, mask, last_layers)  # with its own weights, under autocast, too

    def linear(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        if name in self.int8_weights:
            return linear(x, self.int8_weights[name])
        return super().linear(weights, name, x)


# BERT, one kernel per layer


def kernel_supports(config: Any) -> bool:
    """Whether `Int8Bert` supports this encoder: no relative position bias, and sizes that fill whole registers."""
    size, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    whole = fits(size, hidden) and fits(hidden, size) and size % (STRIDE * heads) == 0
    return config.model_type != "mpnet" and whole


class Int8Bert(Bert):
    """A Bert whose layers are computed in 8 bits; its parameters are those of the embeddings alone."""

    def __init__(self, bert: Bert):
        parameters = dict(bert.named_parameters())
        embeddings = {n: w.detach().clone() for n, w in parameters.items() if n.startswith("embeddings")}
        super().__init__(bert.config, embeddings)
        self.train(bert.training).requires_grad_(False)
        self.layers = bert.config.num_hidden_layers
        self.layer_weights: LayerWeights = stack_weights(
            [quantize_layer(parameters, f"encoder.layer.{layer}.", bert.config) for layer in range(self.layers)]
        )
        # Embeddings of positions and token type 0 [positions, D], and the norm; None: an `embeddings_project` follows.
        self.position_table, self.embedding_norm = None, None
        if not hasattr(self, "embeddings_project"):
            self.position_table = to_array(embeddings["embeddings.position_embeddings.weight"])
            if "embeddings.token_type_embeddings.weight" in embeddings:
                self.position_table += to_array(embeddings["embeddings.token_type_embeddings.weight"][0])
            norm = (to_array(embeddings[f"embeddings.LayerNorm.{name}"]) for name in ("weight", "bias"))
            self.embedding_norm = Norm(*norm, np.float32(bert.config.layer_norm_eps))
        self.buffers_of_thread = ThreadBuffers()

    def forward(self, subwords: Tensor, mask: Tensor, last_layers: int, weights: Weights | None = None) -> list[Tensor]:
        """As of `Bert`, without dropout, in float32 also under autocast; the states of padding are undefined."""
        packed, _ = self.packed_states(subwords.numpy(), mask.numpy(), last_layers)
        states = torch.from_numpy(packed)
        row_of = (mask.flatten().cumsum(0) - 1).clamp(min=0)  # [W * P] padding gets the row before it
        order = self.last_states(last_layers)
        return [states[number].index_select(0, row_of).view(*mask.shape, -1) for number in order]

    def last_states(self, last_layers: int) -> list[int]:
        """Where `packed_states` has the states of these layers."""
        return [number % max(2, last_layers) for number in range(self.layers + 1)[-last_layers:]]

    def packed_states(
        self, subwords: np.ndarray, present: np.ndarray, last_layers: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """States without padding [layers, rows, D], valid until the next call; the first row of each window [W]."""
        sizes = present.sum(1)
        ends = sizes.cumsum()
        rows, size = int(ends[-1]), self.layer_weights.qkv.in_features
        index = np.flatnonzero(present)  # [rows]
        kept = max(2, last_layers)  # a layer reads one state and writes another
        buffers, workspace = self.buffers_of_thread.get(self.allocate, kept, rows, present.shape[1])
        positions = index % present.shape[1] + (0 if self.padding_position is None else self.padding_position + 1)
        ids = subwords.reshape(-1)[index]
        table = self.get_input_embeddings().weight.numpy()
        if self.position_table is None:
            with torch.autocast("cpu", enabled=False):
                parameters = dict(self.named_parameters())
                embedded = self.embed(parameters, torch.from_numpy(ids), torch.from_numpy(positions))
            buffers[0, : rows * size] = embedded.numpy().reshape(-1)
        elif not embed_kernel(ids, positions, table, self.position_table, self.embedding_norm, buffers[0]):
            raise ModelError(
                f"a subword or its position is beyond the {len(table)} and {len(self.position_table)} embeddings of "
                "this encoder: its tokenizer belongs to another one."
            )
        run_layers(buffers[:kept], ends, self.layers, self.layer_weights, workspace)
        return buffers[:kept, : rows * size].reshape(kept, rows, size), ends - sizes

    def allocate(self, kept: int, rows: int, longest: int) -> tuple[np.ndarray, Workspace]:
        """States of `kept` layers, and a workspace, for so many rows in windows of at most `longest`."""
        layer = self.layer_weights
        states = np.empty((kept, (rows + TILE_ROWS - 1) * layer.qkv.in_features), np.float32)
        return states, allocate_workspace(layer, longest)

    def dropout(self, x: Tensor) -> Tensor:
        return x


class Int8Encoder(Encoder):
    """An Encoder whose states are mixed and averaged over subwords by one kernel, without padding."""

    def __init__(self, encoder: Encoder):
        nn.Module.__init__(self)
        self.size, self.bf16_cache = encoder.size, encoder.bf16_cache
        for name, child in encoder.named_children():
            self.add_module(name, to_int8(child))
        mixed = len(encoder.mix.weights)
        self.state_factors = np.zeros(max(2, mixed), np.float32)  # of each of the packed states
        places = self.transformer.last_states(mixed)  # type: ignore[operator]
        self.state_factors[places] = to_array(encoder.mix.weights.softmax(0) * encoder.mix.factor)

    def forward(self, batch: Batch) -> Vectors:
        if self.lstms:
            return super().forward(batch)
        parts = [self.word_states(batch).numpy()]  # [B, n + 2, ...] each
        for name, rows in (("vectors", batch.vectors), ("shapes", batch.shapes)):
            if rows is not None:
                parts.append(getattr(self, name).weight.detach().numpy()[rows.numpy()])
        halves = [(part[..., : part.shape[-1] // 2], part[..., part.shape[-1] // 2 :]) for part in parts]
        forward, backward = zip(*halves, strict=True)
        states = np.concatenate(forward + backward, -1)  # [B, n + 2, D]
        middle = sum(half.shape[-1] for half in forward)
        words, posts = states[:, :-1].copy(), states[:, :-1].copy()
        posts[..., middle:] = states[:, 1:, middle:]
        vectors = torch.from_numpy(words), torch.from_numpy(posts)
        return Vectors(*vectors, *vectors)

    def word_states(self, batch: Batch) -> Tensor:
        transformer = self.transformer
        assert isinstance(transformer, Int8Bert)
        present = batch.attention_mask.numpy() > 0
        states, starts = transformer.packed_states(batch.subwords.numpy(), present, len(self.mix.weights))
        rows = starts[:, None] + np.arange(batch.subwords.shape[1])
        return self.pool(batch, rows, states, self.state_factors)

    def lexical_embeddings(self, batch: Batch) -> Tensor:
        transformer: Any = self.transformer
        table = transformer.embeddings.word_embeddings.weight.numpy()[None]
        return self.pool(batch, batch.subwords.numpy(), table, np.ones(1, np.float32))[:, 1:-1]

    def pool(self, batch: Batch, rows: np.ndarray, layers: np.ndarray, factors: np.ndarray) -> Tensor:
        """[B, n + 2, D] as `pool_subwords`, of layers times factors; `rows` [W, P] are those of `layers`."""
        positions, size = batch.longest + 2, layers.shape[-1]
        windows = np.arange(len(batch))[:, None] if batch.windows is None else batch.windows.numpy()  # [B, K]
        out = np.zeros((len(batch.lengths) * positions, size), np.float32)
        pool_kernel(
            batch.pooling_index.numpy(), batch.pooling_weights.numpy(), windows, rows, positions, layers,
            factors, out,
        )  # fmt: skip
        return torch.from_numpy(out.reshape(-1, positions, size))


class ThreadBuffers(threading.local):
    """The buffers of each thread, kept between calls: allocating them costs more than using them."""

    sizes: tuple[int, ...] = ()
    buffers: Any = None

    def __reduce__(self) -> tuple[type["ThreadBuffers"], tuple[()]]:
        """A copy begins without any."""
        return ThreadBuffers, ()

    def get(self, allocate: Callable[..., Any], *sizes: int) -> Any:
        """allocate(*sizes), or earlier buffers if these are as large."""
        if self.buffers is None or any(size > own for size, own in zip(sizes, self.sizes, strict=True)):
            self.sizes = tuple(map(max, sizes, self.sizes or sizes))
            self.buffers = allocate(*self.sizes)
        return self.buffers


def quantize_layer(parameters: Weights, prefix: str, config: Any) -> LayerWeights:
    """The weights of the layer whose parameters begin with `prefix`."""
    *projections, output, output_norm = BERT_LAYER
    query_factor = np.float32((config.hidden_size // config.num_attention_heads) ** -0.5)

    def array(name: str) -> np.ndarray:
        return to_array(parameters[prefix + name])

    def qkv(kind: str) -> np.ndarray:
        query, key, value = (array(f"{name}.{kind}") for name in projections)
        return np.concatenate([query * query_factor, key, value])

    def quantize(name: str) -> Int8Weights:
        return quantize_weights(array(f"{name}.weight"), array(f"{name}.bias"))

    def norm(name: str) -> Norm:
        return Norm(array(f"{name}.weight"), array(f"{name}.bias"), np.float32(config.layer_norm_eps))

    return LayerWeights(
        quantize_weights(qkv("weight"), qkv("bias")),
        quantize(output),
        norm(output_norm),
        quantize("intermediate.dense"),
        quantize("output.dense"),
        norm("output.LayerNorm"),
        config.num_attention_heads,
    )
