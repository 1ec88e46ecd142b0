"""BERT in plain PyTorch, to read with: what `transformers` computes, by the same names, without importing it.

That import takes several seconds, most of what loading a small model would take.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nestree.nn.encoder import looked_at


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Drawing weights would take longer than reading them."""


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """The same."""


class Bert(nn.Module):
    """An encoder without weights: they have to be given to it."""

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """Pieces [W, P], and which of them are real -> `hidden_states` of all layers, [W, P, D] each."""
        real = looked_at(attention_mask)[:, None, None, :]  # for all heads and all pieces that look
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        states = [self.embeddings(input_ids, places, torch.zeros_like(input_ids))]
        for layer in self.encoder.layer:  # type: ignore[union-attr]
            states.append(layer(states[-1], real))
        return SimpleNamespace(hidden_states=tuple(states))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings


class Embeddings(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position_embeddings = Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        found = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        added: Tensor = self.dropout(self.LayerNorm(found + self.position_embeddings(position_ids)))
        return added


class Layer(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        size, hidden = config.hidden_size, config.intermediate_size
        self.heads, self.rate = config.num_attention_heads, config.attention_probs_dropout_prob
        asked = nn.ModuleDict({name: Linear(size, size) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": asked, "output": Output(size, config)})
        self.intermediate = nn.ModuleDict({"dense": Linear(size, hidden)})
        self.output = Output(hidden, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # [W, P, D], [W, 1, 1, P]
        asked: Any = self.attention["self"]
        query, key, value = (
            asked[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )  # [W, heads, P, D / heads]
        rate = self.rate if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        x = self.attention["output"](seen.transpose(1, 2).flatten(2), x)
        found: Tensor = self.output(functional.gelu(self.intermediate["dense"](x)), x)
        return found


class Output(nn.Module):
    """A linear map, beside which its input goes by."""

    def __init__(self, given: int, config: Any):
        super().__init__()
        self.dense = Linear(given, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        found: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + by)
        return found
