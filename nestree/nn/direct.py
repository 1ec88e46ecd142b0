"""BERT and MPNet as functions of their weights: what `transformers` computes, by half as many operations.

On a GPU that is given a small batch, queueing operations takes longer than doing them: modules that call modules,
and attention in eight steps. Here attention is one, and nothing lies between the operations.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# Of PyTorch's ways to compute attention, one that takes any mask, and one for where that is not to be had. Others
# make a plan for each new shape of a batch, and every batch has another.
WAYS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
BUCKETS = 32  # of distances, in MPNet, whatever its configuration says
PADDING = 1  # in MPNet, whatever its configuration says
ALIGNED = 8  # numbers that a row of the mask must be a multiple of


class Names(NamedTuple):
    """What the weights of a layer are called, after `encoder.layer.K.`"""

    query: str
    key: str
    value: str
    seen: str
    norm: str


NAMES = {
    "bert": Names(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
    ),
    "mpnet": Names(
        "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm"
    ),
}


def supports(config: Any) -> bool:
    """Is this an encoder of the kinds that are computed here?"""
    return (
        config.model_type in NAMES
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "add_cross_attention", False)
        and getattr(config, "relative_attention_num_buckets", BUCKETS) == BUCKETS
    )


def whole(name: str) -> bool:
    """Is this a weight that no product takes, and that stays in float32? They are small, or only looked up.

    >>> whole("embeddings.word_embeddings.weight"), whole("encoder.layer.3.output.LayerNorm.bias")
    (True, True)
    >>> whole("encoder.layer.3.output.dense.bias"), whole("encoder.relative_attention_bias.weight")
    (False, False)
    """
    return name.startswith("embeddings.") or ".LayerNorm." in name


def states(
    config: Any, weights: Mapping[str, Tensor], pieces: Tensor, real: Tensor, learns: bool
) -> list[Tensor]:
    """Pieces [W, P], and which of them are real -> what each layer says, [W, P, D]; `learns`: with dropout."""
    network = Network(config, weights, config.hidden_dropout_prob if learns else 0.0)
    attention_dropout = config.attention_probs_dropout_prob if learns else 0.0
    as_they_are = torch.autocast(pieces.device.type, enabled=False)  # products are in the type of the weights
    with as_they_are, sdpa_kernel(WAYS):
        found = [network.embedded(pieces)]
        mask = network.mask(real)
        for number in range(config.num_hidden_layers):
            found.append(network.layer(number, found[-1], mask, attention_dropout))
    return found


class Network(NamedTuple):
    """The weights, by the names that `transformers` gives them."""

    config: Any
    weights: Mapping[str, Tensor]
    dropout: float

    def embedded(self, pieces: Tensor) -> Tensor:
        """What lies below the first layer, [W, P, D]."""
        if self.config.model_type == "mpnet":  # it counts what is no padding, from the number of that on
            counted = pieces != PADDING
            places = counted.cumsum(1) * counted + PADDING
        else:
            places = torch.arange(pieces.shape[1], device=pieces.device).expand_as(pieces)
        found = functional.embedding(pieces, self.weights["embeddings.word_embeddings.weight"])
        found = found + functional.embedding(places, self.weights["embeddings.position_embeddings.weight"])
        if self.config.model_type == "bert":
            found = found + self.weights["embeddings.token_type_embeddings.weight"][0]
        return self.dropped(self.normed("embeddings.LayerNorm", found))

    def mask(self, real: Tensor) -> Tensor:
        """[W, heads, P, P] what is added to the scores of attention: by distance, and for padding."""
        places = real.shape[1]
        dtype = self.weights["encoder.layer.0.output.dense.weight"].dtype  # that of all products
        padding = torch.zeros_like(real, dtype=dtype).masked_fill(~real, torch.finfo(dtype).min)
        added = padding[:, None, None, :]  # for all heads and all pieces that look
        if self.config.model_type == "mpnet":
            table = self.weights["encoder.relative_attention_bias.weight"]
            near = buckets(self.config.max_position_embeddings, real.device)[:places, :places]
            by_distance = functional.embedding(near, table).permute(2, 0, 1)  # [heads, P, P]
            added = added + by_distance.contiguous()  # rows that lie apart are refused by the quick way
        added = functional.pad(added, (0, -places % ALIGNED))
        return added.expand(len(real), self.config.num_attention_heads, places, -1)[..., :places]

    def layer(self, number: int, x: Tensor, mask: Tensor, dropout: float) -> Tensor:
        """One layer, [W, P, D] -> [W, P, D]."""
        at, names, heads = (
            f"encoder.layer.{number}",
            NAMES[self.config.model_type],
            self.config.num_attention_heads,
        )
        given = x.to(self.weights[f"{at}.{names.query}.weight"].dtype)
        query, key, value = (
            self.linear(f"{at}.{name}", given).unflatten(-1, (heads, -1)).transpose(1, 2)
            for name in names[:3]
        )  # [W, heads, P, D / heads]
        seen = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        seen = self.linear(f"{at}.{names.seen}", seen.transpose(1, 2).flatten(2))
        x = self.normed(f"{at}.{names.norm}", self.dropped(seen) + x)
        wide = functional.gelu(self.linear(f"{at}.intermediate.dense", x))
        found = self.dropped(self.linear(f"{at}.output.dense", wide))
        return self.normed(f"{at}.output.LayerNorm", found + x)

    def linear(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return functional.linear(x.to(weight.dtype), weight, self.weights[f"{name}.bias"])

    def normed(self, name: str, x: Tensor) -> Tensor:
        """In float32 or better, as all that lies between the layers."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return functional.layer_norm(
            x.to(dtype), (x.shape[-1],), weight.to(dtype), bias.to(dtype), self.config.layer_norm_eps
        )

    def dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout) if self.dropout else x


@cache  # for good, as recorded passes read it
@torch.inference_mode(False)  # whoever reads first, others may learn
def buckets(places: int, device: torch.device) -> Tensor:
    """[P, P] the bucket of each distance: half of them for what comes later; beyond a few words by its logarithm.

    >>> buckets(4, torch.device("cpu"))[1].tolist()
    [1, 0, 17, 18]
    """
    place = torch.arange(places)
    distance = place[None, :] - place[:, None]  # from the piece that looks
    half, exact, farthest = BUCKETS // 2, BUCKETS // 4, 128
    size = distance.abs().clamp(min=1)
    share = torch.log(size.float() / exact) / math.log(farthest / exact)
    far = (exact + (share * (half - exact)).long()).clamp(max=half - 1)
    found = torch.where(distance.abs() < exact, distance.abs(), far) + (distance > 0) * half
    return found.to(device)
