"""Batches of few shapes: sentences, pieces and entities that count for nothing are added to a batch.

What a GPU has recorded for one shape serves all batches of this shape (training/records.py). What is added lies in
sentences of one word that are not used (`Gold.used`): no loss learns anything from them.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nestree.nn.batch import Batch, Gold

CELLS = 2048  # what makes words of pieces is padded to a multiple of so many weights


def framed(batch: Batch, padding: int, most: int) -> Batch | None:
    """The same batch in one of few shapes. None: it has no such shape.

    `padding`: the piece that stands for none. `most`: pieces that the encoder reads at once.
    """
    gold, (rows, pieces) = batch.gold, batch.pieces.shape
    if gold is None or batch.windows is not None:  # without gold, or with sentences in several windows
        return None
    more, places = room_for(rows) - rows, min(rounded(pieces, 8, 8), most)
    longest = min(places - 2, rounded(batch.longest, 8, 8))  # a word has one piece or more
    words = longest - batch.longest
    if words < 0:
        return None
    attention = pad(batch.attention, (0, places - pieces, 0, more))
    attention[rows:, 0] = 1  # a window that is not there looks at one piece, not at none
    row, cell = divided(batch.cells, (batch.longest + 2) * pieces)
    position, place = divided(cell, pieces)
    cells = (row * (longest + 2) + position) * places + place
    weights = up(len(cells), CELLS) - len(cells)
    nowhere = rows * (longest + 2) * places  # a cell of a sentence that is not there
    return replace(
        batch,
        longest=longest,
        lengths=pad(batch.lengths, (0, more), value=1),
        pieces=pad(batch.pieces, (0, places - pieces, 0, more), value=padding),
        attention=attention,
        cells=pad(cells, (0, weights), value=nowhere),
        weights=pad(batch.weights, (0, weights)),
        shapes=wider(batch.shapes, more, words),
        characters=None if batch.characters is None else pad(batch.characters, (0, 0, 0, words, 0, more)),
        vectors=wider(batch.vectors, more, words),
        gold=framed_gold(gold, rows, more, longest + 1),
        taught=None if batch.taught is None else pad(batch.taught, (0, more)),
    )


def framed_gold(gold: Gold, rows: int, more: int, posts: int) -> Gold:
    """`rows` sentences, and `more` that are not used, of so many fenceposts each."""
    spans, pairs = more_than(len(gold.spans)), more_than(len(gold.pairs))
    nowhere = no_spans(spans - len(gold.spans), rows, more, posts)
    return replace(
        gold,
        spans=torch.cat([gold.spans, nowhere]),
        labels=pad(gold.labels, (0, 0, 0, len(nowhere)), value=True),  # something can be said of it
        pairs=torch.cat([gold.pairs, no_pairs(pairs - len(gold.pairs), len(gold.spans), spans, posts - 1)]),
        used=pad(gold.used, (0, more)),
        complete=pad(gold.complete, (0, more), value=True),
    )


def no_spans(count: int, rows: int, more: int, posts: int) -> Tensor:
    """[count, 3] places in sentences that are not used; few twice, as a GPU adds up what meets in one place in turn."""
    k = torch.arange(count)
    return torch.stack([rows + k % more, k // more % posts, (k // more // posts + k + 1) % posts], 1)


def no_pairs(count: int, first: int, spans: int, words: int) -> Tensor:
    """[count, 2] spans from the first that is not used on, and their heads."""
    k = torch.arange(count)
    return torch.stack([first + k % (spans - first), k % words], 1)


def room_for(sentences: int) -> int:
    """With one at least that is not used, for what is added."""
    return rounded(sentences + 1, 2, 4)


def rounded(number: int, least: int, steps: int) -> int:
    """The next multiple of `least`, or of one of so many `steps` between two powers of 2, whichever is further apart.

    Few large numbers are left, and little is added to small ones: batches of few sentences have long ones.

    >>> [rounded(number, 2, 4) for number in (2, 5, 17, 33, 65)], [rounded(number, 8, 8) for number in (5, 60, 130)]
    ([2, 6, 20, 40, 80], [8, 64, 144])
    """
    return up(number, max(least, (1 << number.bit_length() - 1) // steps))


def up(number: int, step: int) -> int:
    """
    >>> up(16, 8), up(17, 8)
    (16, 24)
    """
    return -(-number // step) * step


def more_than(number: int) -> int:
    """The next of 256, 1024, 4096 ...: room for one more at least.

    >>> more_than(0), more_than(255), more_than(256)
    (256, 256, 1024)
    """
    return max(256, 4 ** (number.bit_length() + 1 >> 1))


def divided(numbers: Tensor, by: int) -> tuple[Tensor, Tensor]:
    return numbers // by, numbers % by


def wider(table: Tensor | None, rows: int, columns: int) -> Tensor | None:
    return None if table is None else pad(table, (0, columns, 0, rows))
