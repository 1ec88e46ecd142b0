"""BERT and its kin, read in 8 bits: the layers of layers.py with the weights of an encoder of `transformers`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nestree.nn.encoder import Mix
from nestree.nn.quick.layers import Layer, Norm, layer_part, room_for
from nestree.nn.quick.products import TALL, fits, weights_of

COUNTED_FROM = {
    "bert": 0,
    "electra": 0,
    "roberta": 1,
    "xlm-roberta": 1,
    "camembert": 1,
}  # 1: after the padding id


class QuickTransformer(nn.Module):
    """The mixed last layers of an encoder of `transformers`, computed in 8 bits."""

    def __init__(self, transformer: Any, mix: Mix):
        super().__init__()
        self.config, self.embeddings, self.mix = transformer.config, transformer.embeddings, mix
        self.projection = getattr(transformer, "embeddings_project", None)
        config = transformer.config
        self.first_place = COUNTED_FROM[config.model_type] * ((config.pad_token_id or 0) + 1)
        self.layers = [layer_of(each, config) for each in transformer.encoder.layer]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """`hidden_states`: one, the mixture [W, P, D]; padding is 0."""
        real = attention_mask.reshape(len(input_ids), -1) > 0  # [W, P]
        ends = real.sum(1).cumsum(0).numpy()
        rows, size = int(ends[-1]), self.layers[0].asked.inputs
        states = [self.embedded(input_ids, real)]  # [rows * D] each, or a little more
        room = room_for(self.layers[0], real.shape[1])
        for layer in self.layers:
            out = np.empty((rows + TALL - 1) * size, np.float32)
            layer_part(states[-1], out, ends, layer, room)
            states.append(out)
        kept = [torch.from_numpy(each) for each in states[-len(self.mix.weights) :]]
        mixed = self.mix(tuple(each[: rows * size].view(rows, size) for each in kept))
        return SimpleNamespace(hidden_states=(spread_out(mixed, real),))

    def embedded(self, input_ids: Tensor, real: Tensor) -> np.ndarray:
        """[rows * D] of all pieces that are no padding."""
        places = (torch.arange(real.shape[1]) + self.first_place).expand_as(real)[real]  # [rows]
        pieces = input_ids[real]  # [rows]
        found = self.embeddings(
            input_ids=pieces[None], position_ids=places[None], token_type_ids=torch.zeros_like(pieces)[None]
        )
        if self.projection is not None:
            found = self.projection(found)
        flat: np.ndarray = found.contiguous().view(-1).numpy()
        return flat


class Mixed(nn.Module):
    """In place of a Mix: there is nothing left to mix."""

    weights = (1.0,)

    def forward(self, layers: tuple[Tensor]) -> Tensor:
        return layers[0]


def spread_out(rows: Tensor, real: Tensor) -> Tensor:
    """Rows [rows, D] at their places among padding: [W, P, D]."""
    if len(rows) == real.numel():
        return rows.view(*real.shape, -1)
    padded = rows.new_zeros(*real.shape, rows.shape[1])
    padded[real] = rows
    return padded


def serves(transformer: Any) -> bool:
    """Is this an encoder whose layers are those of BERT, in sizes that fit?"""
    config = getattr(transformer, "config", None)
    if config is None or config.model_type not in COUNTED_FROM or config.hidden_act != "gelu":
        return False
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return False
    size, hidden, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return absolute and fits(size, hidden) and fits(hidden, size) and (size // heads) % 4 == 0


def layer_of(layer: Any, config: Any) -> Layer:
    """The weights of a layer of `transformers`."""
    asked = layer.attention.self
    heads: int = config.num_attention_heads
    shrunk = np.float32((config.hidden_size // heads) ** -0.5)
    parts = [(asked.query, shrunk), (asked.key, np.float32(1)), (asked.value, np.float32(1))]
    weight = np.concatenate([array(part.weight) * factor for part, factor in parts])
    bias = np.concatenate([array(part.bias) * factor for part, factor in parts])
    return Layer(
        weights_of(weight, bias),
        weights_of(array(layer.attention.output.dense.weight), array(layer.attention.output.dense.bias)),
        norm_of(layer.attention.output.LayerNorm),
        weights_of(array(layer.intermediate.dense.weight), array(layer.intermediate.dense.bias)),
        weights_of(array(layer.output.dense.weight), array(layer.output.dense.bias)),
        norm_of(layer.output.LayerNorm),
        heads,
    )


def norm_of(norm: Any) -> Norm:
    return Norm(array(norm.weight), array(norm.bias), np.float32(norm.eps))


def array(parameter: Tensor) -> np.ndarray:
    return parameter.detach().float().cpu().contiguous().numpy()
