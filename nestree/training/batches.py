"""Which sentences make an update, in what order, and which of them a process and a step take.

An update sees about `words` words, of sentences that are about equally long. The batches of an epoch follow from
the lengths, the seed and the number of the epoch, whatever the number of processes: each process takes its share
of every batch, in as many pieces as its memory asks for. So neither changes what is learned, but for dropout.
"""

import random
from collections.abc import Sequence

JITTER = (
    0.1  # lengths are blurred by so much before sentences are sorted, so that each epoch has other batches
)
PADDED = 2  # times its words, with padding, is a batch at most: the longest sentence makes charts large


def batches(lengths: Sequence[int], words: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as numbers of sentences: each sentence once, the shorter first within a batch.

    No batch has more than `words` words, or more than twice as many with its padding, unless it is a single sentence.

    >>> batches([3, 30, 4, 31, 3], words=12, seed=1, epoch=1)
    [[3], [1], [0, 4, 2]]
    """
    chance = random.Random(f"batches {seed} {epoch}")
    blurred = [length * (1 + JITTER * (2 * chance.random() - 1)) for length in lengths]
    found: list[list[int]] = [[]]
    size = longest = 0
    for sentence in sorted(range(len(lengths)), key=lambda k: (blurred[k], k)):
        length = lengths[sentence]
        padded = (len(found[-1]) + 1) * max(longest, length)
        if found[-1] and (size + length > words or padded > PADDED * words):
            found.append([])
            size = longest = 0
        found[-1].append(sentence)
        size, longest = size + length, max(longest, length)
    found = [sorted(batch, key=lambda k: (lengths[k], k)) for batch in found if batch]
    chance.shuffle(found)
    return found


def share(batch: Sequence[int], process: int, processes: int) -> list[int]:
    """What one of several processes takes of a batch: long and short sentences alike.

    >>> share([7, 8, 9], 0, 2), share([7, 8, 9], 1, 2)
    ([7, 9], [8])
    """
    return list(batch[process::processes])


def pieces(batch: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """A batch in up to `count` pieces of about as many words, in its order; none is empty.

    >>> pieces([0, 1, 2, 3], [3, 3, 3, 3], 2)
    [[0, 1], [2, 3]]
    """
    total, before = sum(lengths[k] for k in batch), 0
    found: list[list[int]] = [[] for _ in range(count)]
    for k in batch:
        found[min(before * count // max(total, 1), count - 1)].append(k)
        before += lengths[k]
    return [piece for piece in found if piece]
