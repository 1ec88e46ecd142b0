"""The scores of tree parts, what may be in them, errors in them, and restricting them to observed spans.

Words are 0..n-1, fenceposts 0..n, a span (i, j) is half-open. Scores lie between -MAX_SCORE and MAX_SCORE. A part
that no tree may contain has the score IMPOSSIBLE, and any score below NO_TREE means the same. Cells outside a sentence,
below the diagonal of `span`, and on the diagonal of `arc` belong to no tree: they are never read and may hold anything,
NaN included.
"""

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from nestree.errors import ObservationError, PotentialsError, WrongTreeError

IMPOSSIBLE = -1e9  # finite: a log-sum-exp over nothing but -inf has NaN gradients
NO_TREE = IMPOSSIBLE / 2  # a score or a log-partition below this is that of something impossible
MAX_SCORE = 1e5  # above any float16; up to 800 words, no tree can outweigh an impossible part
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class LexicalPotentials(NamedTuple):
    """Log-scores of the parts of a lexicalised tree over n words."""

    span: Tensor  # [batch, n + 1, n + 1]  span (i, j) is in the tree
    arc: Tensor  # [batch, n, n]  word h governs word m
    root: Tensor  # [batch, n]  word h heads the sentence
    inherit: Tensor  # [batch, n + 1, n + 1]  span (i, j) lends its head to its parent
    head: Tensor | None = None  # [batch, n + 1, n + 1, n]  (i, j) is in the tree with head h; None: all zero


class PlainPotentials(NamedTuple):
    """Log-scores of the spans of a binary tree over n words."""

    span: Tensor  # [batch, n + 1, n + 1]  span (i, j) is in the tree


Potentials = LexicalPotentials | PlainPotentials
AnyPotentials = TypeVar("AnyPotentials", bound=Potentials)
Lengths = Tensor | np.ndarray | Sequence[int]


def map_tensors(potentials: AnyPotentials, change: Callable[[Tensor], Tensor | None]) -> AnyPotentials:
    """Apply `change` to every tensor; an absent `head` stays absent."""
    tensors: list[Any] = [None if tensor is None else change(tensor) for tensor in potentials]
    return type(potentials)(*tensors)


def check_shapes(potentials: Potentials) -> None:
    """Raise unless the potentials are dense floating-point tensors of one batch, one n and one device."""
    if not isinstance(potentials, LexicalPotentials | PlainPotentials):
        raise WrongTreeError(
            f"potentials are a {type(potentials).__name__}; pass LexicalPotentials or PlainPotentials."
        )
    for name, tensor in potentials._asdict().items():
        if isinstance(tensor, Tensor) and (tensor.layout is not torch.strided or tensor.is_nested):
            raise PotentialsError(f"{name} is not a dense tensor; pass {name}.to_dense().")
    span = potentials.span
    batch, n = (span.shape[0], span.shape[1] - 1) if isinstance(span, Tensor) and span.dim() == 3 else (0, 0)
    expected = {
        "span": (batch, n + 1, n + 1),
        "arc": (batch, n, n),
        "root": (batch, n),
        "inherit": (batch, n + 1, n + 1),
        "head": (batch, n + 1, n + 1, n),
    }
    for name, tensor in potentials._asdict().items():
        if tensor is None and name == "head":
            continue
        shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        if shape != expected[name] or n < 1:
            needed = "[batch, n + 1, n + 1] with n >= 1"
            if name != "span":
                needed = f"{expected[name]} beside span {tuple(span.shape)}"
            raise PotentialsError(f"{name} has shape {shape}; it must be {needed}.")
        if tensor.dtype not in DTYPES:
            raise PotentialsError(f"{name} holds {tensor.dtype}; potentials are scores: pass {name}.float().")
        if tensor.device != span.device:
            raise PotentialsError(
                f"{name} is on {tensor.device} and span on {span.device}; move all potentials to one device."
            )
    if span.is_meta:
        raise PotentialsError("the potentials are on meta and hold no values; make them on another device.")


def as_lengths(lengths: Lengths, batch: int) -> Tensor:
    """The lengths as int64 [batch]; raises for anything else. Does not read their values."""
    if isinstance(lengths, Tensor) and lengths.is_meta:
        raise PotentialsError("lengths are on meta and hold no values; make them on another device.")
    usual = (torch.strided, torch.int64, (batch,))
    try:
        if isinstance(lengths, Tensor) and (lengths.layout, lengths.dtype, lengths.shape) == usual:
            return lengths
        # A copy: PyTorch rejects arrays with negative strides, and warns about read-only ones.
        sizes = (lengths if isinstance(lengths, Tensor) else torch.tensor([*lengths], device="cpu")).to_dense()
        found = f"have shape {tuple(sizes.shape)} and type {sizes.dtype}"
    except (TypeError, ValueError, RuntimeError):
        sizes, found = torch.empty(0, 0), f"are {lengths!r}"
    empty = sizes.shape == (0,)  # torch gives an empty list a floating-point type
    wrong_type = sizes.is_floating_point() or sizes.is_complex() or sizes.dtype == torch.bool
    if sizes.shape != (batch,) or (wrong_type and not empty):
        raise PotentialsError(f"lengths {found}; for this batch they must be {batch} whole numbers.")
    return sizes.to(torch.int64)


def check_lengths(lengths: Tensor, n: int) -> None:
    """Raise unless every length is in 1..n. Reads the values."""
    for b, length in enumerate(lengths.tolist()):
        if not 1 <= length <= n:
            raise PotentialsError(wrong_length_message(b, length, n))


# Messages that the checks here and those of the CUDA kernels share


def wrong_length_message(sentence: int, length: int, n: int) -> str:
    return (
        f"sentence {sentence} of the batch has length {length}; the potentials hold 1 to {n} words. "
        "Leave empty sentences out, and pad the potentials to the longest sentence."
    )


def invalid_score_message(sentence: int, name: str, value: str) -> str:
    return (
        f"sentence {sentence} of the batch has {value} in {name}; scores must lie between -{MAX_SCORE:g} and "
        f"{MAX_SCORE:g}, or be IMPOSSIBLE or -inf for a part that no tree may contain. "
        "Look for a division by zero or an overflow in what computed them."
    )


def no_tree_message(sentence: int) -> str:
    return (
        f"no tree is possible for sentence {sentence} of the batch: each one contains a part with the score "
        "IMPOSSIBLE. Allow one more part, or leave the sentence out."
    )


def span_cells(lengths: Tensor, n: int) -> Tensor:
    """[batch, i, j] the spans that some tree of the sentence may contain."""
    if not isinstance(lengths, Tensor) or lengths.dim() != 1:
        raise PotentialsError(f"lengths are {lengths!r:.60}; pass a tensor [batch].")
    post = torch.arange(n + 1, device=lengths.device)
    return (post[:, None] < post) & (post <= lengths[:, None, None])


def cell_masks(lengths: Tensor, n: int) -> LexicalPotentials:
    """For each potential, the cells that some tree of the sentence may contain; `head` for a sentence of any length."""
    post = torch.arange(n + 1, device=lengths.device)
    word, spans = post[:n], span_cells(lengths, n)
    words = word < lengths[:, None]  # [batch, h]
    arcs = words[:, :, None] & words[:, None, :] & (word[:, None] != word)  # [batch, h, m]
    whole = (post[:, None] == 0) & (post == lengths[:, None, None])  # [batch, i, j]: it has no parent
    within = (post[:, None, None] <= word) & (word < post[None, :, None])  # [i, j, h]
    return LexicalPotentials(spans, arcs, words, spans & ~whole, within)


def mask_of(masks: LexicalPotentials, name: str) -> Tensor:
    mask: Tensor = getattr(masks, name)
    return masks.span[..., None] & mask if name == "head" else mask


def check_values(potentials: Potentials, lengths: Tensor) -> None:
    """Raise if a value that some tree reads is not a score. Synchronizes with a GPU: not for the fast path there."""
    for name, tensor in potentials._asdict().items():
        if tensor is None or tensor.numel() == 0:
            continue
        values = tensor.detach()
        low, high = values.aminmax()  # both NaN if any value is
        if float(low) >= -MAX_SCORE and float(high) <= MAX_SCORE:
            continue
        invalid = ~((values.abs() <= MAX_SCORE) | (values < NO_TREE))
        if not invalid.any():
            continue
        invalid &= mask_of(cell_masks(lengths, potentials.span.shape[1] - 1), name)
        for b, *cell in invalid.nonzero()[:1].tolist():
            value = f"{float(values[(b, *cell)]):g}"
            raise PotentialsError(invalid_score_message(b, f"{name}{cell}", value))


def sanitize(potentials: AnyPotentials, lengths: Tensor) -> AnyPotentials:
    """The same potentials with 0 in every cell that belongs to no tree, and nothing below IMPOSSIBLE."""
    masks = cell_masks(lengths, potentials.span.shape[1] - 1)
    tensors: list[Any] = [
        None if tensor is None else torch.where(mask_of(masks, name), tensor, 0.0).clamp(min=IMPOSSIBLE)
        for name, tensor in potentials._asdict().items()
    ]
    return type(potentials)(*tensors)


def observe(potentials: AnyPotentials, spans: Iterable[Iterable[Sequence[int]]], lengths: Lengths) -> AnyPotentials:
    """Only the trees that contain these spans: one list of (i, j) per sentence.

    A span that crosses an observed one becomes IMPOSSIBLE, and that is enough: a binary tree in which nothing
    crosses (i, j) contains (i, j).

    >>> plain = PlainPotentials(torch.zeros(1, 4, 4))
    >>> observe(plain, [[(0, 2)]], [3]).span[0, 1, 3].item() == IMPOSSIBLE
    True
    """
    check_shapes(potentials)
    batch, n = potentials.span.shape[0], potentials.span.shape[1] - 1
    sizes = as_lengths(lengths, batch).cpu()
    check_lengths(sizes, n)
    try:
        spans = list(spans)
    except TypeError:
        raise ObservationError(f"spans are {spans!r:.60}; pass a list of spans for each sentence.") from None
    if len(spans) != batch:
        raise ObservationError(
            f"{len(spans)} lists of spans for a batch of {batch} sentences; "
            "pass one list, possibly empty, for each sentence."
        )
    observed = [(b, i, j) for b, size in enumerate(sizes.tolist()) for i, j in nested_spans(b, spans[b], size)]
    rows = torch.tensor(observed, dtype=torch.long).view(-1, 3)
    crossing = crossing_spans(rows.to(potentials.span.device, non_blocking=True), batch, n)
    dtype = torch.promote_types(potentials.span.dtype, torch.float32)  # float16 cannot hold IMPOSSIBLE
    span = potentials.span.to(dtype).masked_fill(crossing, IMPOSSIBLE)
    return type(potentials)(**{**potentials._asdict(), "span": span})


def nested_spans(sentence: int, spans: Iterable[Sequence[int]], length: int) -> list[tuple[int, int]]:
    """The spans, without repetitions; raises if one lies outside the sentence or two of them cross."""
    try:
        pairs = {(operator.index(i), operator.index(j)) for i, j in spans}
    except (TypeError, ValueError) as why:
        raise ObservationError(
            f"observed spans of sentence {sentence} are {spans!r}; pass a list of (start, end), "
            "such as [(0, 2), (1, 2)]; of a tree's spans, span[:2]."
        ) from why
    ordered = sorted(pairs, key=lambda span: (span[0], -span[1]))
    enclosing: list[tuple[int, int]] = []  # a stack, outermost first
    for i, j in ordered:
        if not 0 <= i < j <= length:
            raise ObservationError(
                f"observed span ({i}, {j}) of sentence {sentence} is not within its {length} words; "
                f"spans are (start, end) with 0 <= start < end <= {length}, end exclusive."
            )
        while enclosing and enclosing[-1][1] <= i:
            enclosing.pop()
        if enclosing and enclosing[-1][1] < j:
            raise ObservationError(
                f"observed spans {enclosing[-1]} and {(i, j)} of sentence {sentence} cross; "
                "a tree cannot hold both: leave one of them out."
            )
        enclosing.append((i, j))
    return ordered


def crossing_spans(spans: Tensor, batch: int, n: int) -> Tensor:
    """[batch, n + 1, n + 1] which spans cross one of these [K, 3], which are (b, i, j). Does not synchronize.

    A span (start, end) crosses (i, j) if start < i < end < j or i < start < j < end. With up(x, y) = 1 for x < y, two
    matrix products count those: the sum over i of up(start, i) up(i, end) up(end, j), and the sum over j of
    up(i, start) up(start, j) up(j, end).

    >>> crossing_spans(torch.tensor([[0, 0, 2]]), 1, 3).nonzero().tolist()
    [[0, 1, 3]]
    """
    if not isinstance(spans, Tensor) or spans.dim() != 2 or spans.shape[1] != 3 or spans.is_floating_point():
        raise PotentialsError(f"spans are {spans!r:.60}; pass a tensor [K, 3] of whole numbers (sentence, start, end).")
    b, i, j = spans.unbind(1)
    present = torch.zeros(batch, n + 1, n + 1, device=spans.device, dtype=torch.float32)
    present.index_put_((b, i, j), present.new_ones(()))  # a Python number would be copied to the device
    post = torch.arange(n + 1, device=spans.device)
    up = (post[:, None] < post).float()
    return up @ (present @ up.T * up) + (up.T @ present * up) @ up > 0


# Errors in values on a GPU, raised without synchronizing: reading a value from a GPU blocks until the GPU has computed
# it. So the kernels write one status word per sentence, give NaN for a sentence with invalid values, and write the
# first error to pinned memory, where the host sees it. The next call of this package (or `raise_pending`) raises it if
# it has arrived by then. Further errors that occur before it is raised are not recorded.

# A status word: bits 0 to 4 say that a field of LexicalPotentials holds an invalid score, others as follows.
WRONG_LENGTH = 32
NO_TREE_BIT = 64
TOO_LARGE_BIT = 128


class ErrorRecord(NamedTuple):
    """The first error on a device: status word, sentence, its length, and n; zeros if there is none."""

    tensor: Tensor  # [4] int32, pinned, for kernels
    array: np.ndarray  # the same memory


_error_records: dict[torch.device, ErrorRecord] = {}
_error_lock = threading.Lock()


def error_record(device: torch.device) -> Tensor | None:
    """The error record of a device; None: it cannot be allocated while a CUDA graph is captured."""
    record = _error_records.get(device)
    if record is None:
        on_cuda = device.type == "cuda"
        if on_cuda and torch.cuda.is_current_stream_capturing():
            return None
        with _error_lock, torch.inference_mode(False):
            tensor = torch.zeros(4, dtype=torch.int32, device="cpu", pin_memory=on_cuda)
            record = _error_records.setdefault(device, ErrorRecord(tensor, tensor.numpy()))
    return record.tensor


def raise_pending(wait: bool = True) -> None:
    """Raise the error of an earlier call on a GPU, if there is one. `wait`: synchronize with calls still running."""
    for device, record in tuple(_error_records.items()):
        if not (wait or record.array[0]):
            continue
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return  # CUDA graph capture forbids synchronization
            torch.cuda.synchronize(device)
        with _error_lock:
            status, sentence, length, n = record.array.tolist()
            record.array[:] = 0
        if status:
            raise PotentialsError(status_message(status, sentence, length, n))


def status_message(status: int, sentence: int, length: int, n: int) -> str:
    """What a status word other than zero says."""
    if status & WRONG_LENGTH:
        return wrong_length_message(sentence, length, n)
    for bit, name in enumerate(LexicalPotentials._fields):
        if status & (1 << bit):
            return invalid_score_message(sentence, name, "a value that is not a score")
    if status & NO_TREE_BIT:
        return no_tree_message(sentence)
    return (
        f"the scores of sentence {sentence} of the batch add up to more than float32 can sum precisely. "
        "Scale or center them, or pass the potentials in float64."
    )
