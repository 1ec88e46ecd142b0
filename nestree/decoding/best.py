"""The entities of the best tree; or, without a tree, every span that looks like one."""

from typing import NamedTuple

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.nn.scorers import Scores
from nestree.treecrf import LexicalPotentials, PlainPotentials, Trees, best_trees, head_marginals
from nestree.treecrf.potentials import Potentials, cell_masks

MOST_ROWS = 1 << 18  # spans x labels that are looked at all together, where waiting costs more


class Spans(NamedTuple):
    """Spans that are entities, if they get a label."""

    b: Tensor  # [K] the sentence
    i: Tensor  # [K]
    j: Tensor  # [K]
    h: Tensor | None  # [K] the head; None: there are none
    real: Tensor | None = None  # [K] the others are no entities whatever their labels; None: all are real


def search(scores: Scores, settings: Settings) -> tuple[Tensor, Trees | None]:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity, and the trees they stand in, if any.

    Rows of -1 at the end are none: on a GPU, how many there are is known only to those who wait for it.
    """
    if settings.decoding.by == "spans":
        return labelled(spans_alone(scores, settings), scores, settings), None
    trees = best(scores, settings)
    return labelled(spans_of_trees(trees, scores, settings), scores, settings), trees


def best(scores: Scores, settings: Settings) -> Trees:
    """The best tree of each sentence."""
    return best_trees(decoding_potentials(scores, settings), scores.lengths)


def decoding_potentials(scores: Scores, settings: Settings) -> Potentials:
    """A span scores what its best answer does, and pays if it shares its head and is an entity."""
    span = biased(scores, settings).amax(-1)  # [B, n + 1, n + 1]
    if scores.arc is None or scores.root is None:
        return PlainPotentials(span)
    inherit = torch.zeros_like(span)
    if settings.decoding.sharing and settings.model.mention != "score":
        inherit = inherit.masked_fill(says_yes(scores, settings), -settings.decoding.sharing)
    return LexicalPotentials(span, scores.arc, scores.root, inherit, scores.head)


def biased(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1, C] what spans say, with the bias on "no"."""
    if settings.decoding.bias == 0 or settings.model.mention == "score":
        return scores.mention
    bias = torch.zeros_like(scores.mention[0, 0, 0])
    bias[0] = settings.decoding.bias
    return scores.mention + bias


def says_yes(scores: Scores, settings: Settings) -> Tensor:
    """[B, n + 1, n + 1] does anything beat "no"?"""
    said = biased(scores, settings)
    return said[..., 1:].amax(-1) > said[..., 0]


def spans_of_trees(trees: Trees, scores: Scores, settings: Settings) -> Spans:
    """The spans of trees that say yes; all of them, if that is left to stage two."""
    real = trees.spans[..., 0] >= 0  # [B, 2n - 1]
    row = torch.arange(len(real), device=real.device)[:, None].expand_as(real)
    if settings.model.mention != "score":
        i, j = trees.spans[..., 0].clamp(min=0), trees.spans[..., 1].clamp(min=0)
        real = real & says_yes(scores, settings)[row, i, j]
    if must_not_wait(real):
        flat = trees.spans.clamp(min=0).flatten(0, 1)  # [B * (2n - 1), 2 or 3]
        return Spans(
            row.flatten(), flat[:, 0], flat[:, 1], flat[:, 2] if flat.shape[1] == 3 else None, real.flatten()
        )
    kept = trees.spans[real]  # [K, 2 or 3]
    return Spans(row[real], kept[:, 0], kept[:, 1], kept[:, 2] if kept.shape[1] == 3 else None)


def must_not_wait(tensor: Tensor) -> bool:
    """Whether the program should go on before the device knows these values: it has more to do than to wait."""
    return tensor.is_cuda


def spans_alone(scores: Scores, settings: Settings) -> Spans:
    """Every span that says yes; its head is the likeliest over all trees."""
    cells = cell_masks(scores.lengths, scores.mention.shape[1] - 1).span
    b, i, j = (cells & says_yes(scores, settings)).nonzero().unbind(1)
    if scores.arc is None or scores.root is None:
        return Spans(b, i, j, None)
    span = biased(scores, settings).logsumexp(-1)
    free = LexicalPotentials(span, scores.arc, scores.root, torch.zeros_like(span), scores.head)
    heads = head_marginals(free, scores.lengths)[b, i, j]  # [K, n]
    word = torch.arange(heads.shape[1], device=heads.device)
    within = (i[:, None] <= word) & (word < j[:, None])  # even if no tree at all has the span
    return Spans(b, i, j, torch.where(within, heads, -1.0).argmax(-1))


def labelled(spans: Spans, scores: Scores, settings: Settings) -> Tensor:
    """[R, 5] sentence, start, end, label and head (or -1) of each entity."""
    b, i, j, h, real = spans
    if scores.labels is None:
        label = biased(scores, settings)[b, i, j, 1:].argmax(-1)
        right = torch.nn.functional.one_hot(label, scores.mention.shape[-1] - 1).bool()  # [K, L]
    else:
        seen = h if settings.model.labelling == "head" else None
        scored = scores.labels.of(b, i, j, seen)  # [K, L]
        right = scored > 0
        first = torch.nn.functional.one_hot(scored.argmax(-1), scored.shape[-1]).bool()
        if settings.loss.label == "softmax":  # one label at most
            right = right & first
        if scores.must is not None:  # what is known to be an entity has a label
            right = right | (first & (scores.must[b, i, j] & ~right.any(-1))[:, None])
    if real is not None:
        right = right & real[:, None]
    head = torch.full_like(b, -1) if h is None else h
    columns = torch.stack([b, i, j, head], -1)  # [K, 4]
    if real is not None and right.numel() <= MOST_ROWS:
        return without_waiting(columns, right)
    k, label = right.nonzero().unbind(1)
    return torch.cat([columns[k, :3], label[:, None], columns[k, 3:]], -1)


def without_waiting(columns: Tensor, right: Tensor) -> Tensor:
    """[K * L, 5] the same rows, and then as many of -1 as there are spans and labels that do not go together."""
    spans, labels = right.shape
    label = torch.arange(labels, device=right.device).expand(spans, -1)  # [K, L]
    rows = torch.cat([columns[:, None, :3].expand(-1, labels, -1), label[..., None]], -1)
    rows = torch.cat([rows, columns[:, None, 3:].expand(-1, labels, -1)], -1).flatten(0, 1)
    taken = right.flatten()
    place = torch.where(taken, taken.cumsum(0) - 1, len(rows))  # what is not taken goes beyond the end
    return torch.full((len(rows) + 1, 5), -1, device=rows.device).index_put((place,), rows)[:-1]
