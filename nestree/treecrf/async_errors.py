"""Errors in values on a GPU, raised without synchronizing.

Reading a value from a GPU blocks until the GPU has computed it. So the kernels write one status word per sentence, give
NaN for a sentence with invalid values, and the words are copied to the host asynchronously. The next call of this
package (or `raise_pending`) raises the errors that have arrived by then.
"""

from collections import deque

import torch
from torch import Tensor

from nestree.errors import PotentialsError
from nestree.treecrf.potentials import (
    LexicalPotentials,
    invalid_score_message,
    no_tree_message,
    wrong_length_message,
)

# A status word: bits 0 to 4 say that a field of LexicalPotentials holds an invalid score, others as follows.
WRONG_LENGTH = 32
NO_TREE_BIT = 64
TOO_LARGE_BIT = 128


# The report on the host, valid once the event is done; n; the number of different sentences
_pending: deque[tuple[Tensor, torch.cuda.Event, int, int]] = deque()


def send_report(report: Tensor, n: int, sentences: int | None = None) -> None:
    """Copy the report (status and length of each sentence) to the host, where a later call reads it.

    `sentences`: the number of different sentences, if the batch holds them several times.
    """
    sentences = report.shape[1] if sentences is None else sentences
    if not report.is_cuda:
        raise_status(report, n, sentences)
        return
    if torch.cuda.is_current_stream_capturing():
        return  # while a CUDA graph is captured nothing has a value
    host = torch.empty((2, report.shape[1]), dtype=report.dtype, pin_memory=True)
    host.copy_(report[:2], non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    _pending.append((host, done, n, sentences))


def raise_pending(wait: bool = True) -> None:
    """Raise the error of an earlier call on a GPU, if there is one. `wait`: synchronize with calls still running."""
    if _pending and torch.cuda.is_current_stream_capturing():
        return  # CUDA graph capture forbids queries
    while _pending and (wait or _pending[0][1].query()):
        report, done, n, sentences = _pending.popleft()
        done.synchronize()
        raise_status(report, n, sentences)


def raise_status(report: Tensor, n: int, sentences: int) -> None:
    """Raise the error of the first sentence whose status is not zero."""
    wrong = report[0].nonzero()
    if not len(wrong):
        return
    word, length = report[:2, wrong[0, 0]].tolist()
    b = int(wrong[0, 0]) % sentences
    if word & WRONG_LENGTH:
        raise PotentialsError(wrong_length_message(b, length, n))
    for bit, name in enumerate(LexicalPotentials._fields):
        if word & (1 << bit):
            raise PotentialsError(invalid_score_message(b, name, "a value that is not a score"))
    if word & NO_TREE_BIT:
        raise PotentialsError(no_tree_message(b))
    raise PotentialsError(
        f"the scores of sentence {b} of the batch add up to more than float32 can sum precisely. "
        "Scale or center them, or pass the potentials in float64."
    )
