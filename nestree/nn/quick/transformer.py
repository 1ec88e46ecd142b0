"""BERT and its kin, read in 8 bits: the layers of layers.py with the weights of an encoder of `transformers`."""

import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nestree.nn.encoder import Mix, looked_at
from nestree.nn.quick.layers import Layer, Norm, Room, layer_part, room_for
from nestree.nn.quick.products import TALL, fits, weights_of
from nestree.nn.quick.rows import STRIDE

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
        self.desks = Desks()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """`hidden_states`: one, the mixture [W, P, D]; padding is 0."""
        real = looked_at(attention_mask)  # [W, P]
        ends = real.sum(1).cumsum(0).numpy()
        rows, size = int(ends[-1]), self.layers[0].asked.inputs
        desk = self.desks.for_this_thread(self.layers[0], rows, real.shape[1])
        state, other = desk.states
        state[: rows * size] = self.embedded(input_ids, real)
        shares = self.shares()
        mixed = torch.zeros(rows, size)
        for number in range(len(self.layers) + 1):
            if number:
                layer_part(state, other, ends, self.layers[number - 1], desk.room)
                state, other = other, state
            if number in shares:
                mixed.add_(torch.from_numpy(state[: rows * size]).view(rows, size), alpha=shares[number])
        return SimpleNamespace(hidden_states=(spread_out(mixed, real),))

    def get_input_embeddings(self) -> nn.Module:
        """As encoders of `transformers` call it."""
        table: nn.Module = self.embeddings.word_embeddings
        return table

    def shares(self) -> dict[int, float]:
        """How much of each layer is in the mixture, by its number; 0: the embeddings."""
        found: list[float] = (self.mix.weights.softmax(0) * self.mix.factor).tolist()
        return dict(enumerate(found, len(self.layers) + 1 - len(found)))

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


class Desk(NamedTuple):
    """Memory to work in."""

    rows: int
    longest: int
    states: tuple[np.ndarray, np.ndarray]  # [rows * D + a little]
    room: Room


class Desks(threading.local):
    """One for each thread, kept: memory that is new each time costs more than what is done with it."""

    desk: Desk | None = None

    def __reduce__(self) -> tuple[type["Desks"], tuple[()]]:
        """A copy begins with none."""
        return Desks, ()

    def for_this_thread(self, layer: Layer, rows: int, longest: int) -> Desk:
        """A desk for so many rows, in windows of so many pieces at most."""
        desk = self.desk
        if desk is None or desk.rows < rows or desk.longest < longest:
            rows, longest = max(rows, desk.rows if desk else 0), max(longest, desk.longest if desk else 0)
            numbers = (rows + TALL - 1) * layer.asked.inputs
            states = np.empty(numbers, np.float32), np.empty(numbers, np.float32)
            desk = self.desk = Desk(rows, longest, states, room_for(layer, longest))
        return desk


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
    return absolute and fits(size, hidden) and fits(hidden, size) and size % (STRIDE * heads) == 0


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
