"""Errors in values on a GPU, raised without synchronizing.

Reading a value from a GPU blocks until the GPU has computed it. So the kernels write one status word per sentence, give
NaN for a sentence with invalid values, and the words are copied to the host asynchronously. The next call of this
package (or `raise_pending`) raises the errors that have arrived by then.
"""

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from nestree.errors import PotentialsError
from nestree.treecrf.potentials import (
    invalid_score_message,
    no_tree_message,
    too_large_message,
    wrong_length_message,
)

NOT_A_SCORE = (
    "span",
    "arc",
    "root",
    "inherit",
    "head",
)  # bit 0..4 of a status word: this one holds what is not a score
WRONG_LENGTH = 32
NO_TREE_BIT = 64
TOO_LARGE_BIT = 128


class Pending(NamedTuple):
    status: Tensor  # [batch] on the host, filled in when `done`
    done: torch.cuda.Event
    lengths: Tensor  # [batch] on the host
    n: int
    sentences: int  # of the batch, which may hold them several times


_pending: deque[Pending] = deque()


def send_report(report: Tensor, n: int, sentences: int | None = None) -> None:
    """Copy the report (status and given length of each sentence) to the host, where a later call reads it.

    `sentences`: the number of different sentences, if the batch holds them several times.
    """
    sentences = report.shape[1] if sentences is None else sentences
    if not report.is_cuda:
        _raise(report[0], report[1], n, sentences)
        return
    if torch.cuda.is_current_stream_capturing():
        return  # while a CUDA graph is captured nothing has a value
    host = torch.empty((2, report.shape[1]), dtype=report.dtype, pin_memory=True)
    host.copy_(report[:2], non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    _pending.append(Pending(host[0], done, host[1], n, sentences))


def raise_pending(wait: bool = True) -> None:
    """Raise the error of an earlier call on a GPU, if there is one. `wait`: synchronize with calls still running."""
    if _pending and torch.cuda.is_current_stream_capturing():
        return  # CUDA graph capture forbids queries
    while _pending and (wait or _pending[0].done.query()):
        oldest = _pending.popleft()
        oldest.done.synchronize()
        _raise(oldest.status, oldest.lengths, oldest.n, oldest.sentences)


def _raise(status: Tensor, lengths: Tensor, n: int, sentences: int) -> None:
    if not bool(status.any()):
        return
    first = int(status.nonzero()[0, 0])
    word, b = int(status[first]), first % sentences
    if word & WRONG_LENGTH:
        raise PotentialsError(wrong_length_message(b, int(lengths[first]), n))
    for bit, name in enumerate(NOT_A_SCORE):
        if word & (1 << bit):
            raise PotentialsError(invalid_score_message(b, name, "a value that is not a score"))
    raise PotentialsError(no_tree_message(b) if word & NO_TREE_BIT else too_large_message(b))
