"""When the Triton kernels sum in logarithms: where, and only where, plain numbers would lose something that matters."""

import pytest
import torch

from nestree.errors import PotentialsError
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    log_partition,
    raise_pending,
    reference,
    use_backend,
)
from tests.treecrf.cases import Potentials, lexical, to
from tests.treecrf.sweep import Case
from tests.treecrf.test_triton_kernels import interpreted

triton_kernels = pytest.importorskip("nestree.treecrf.triton_kernels")
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")  # the interpreter's
on_both = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.cuda)]
)


def needs_logspace(given: Potentials, lengths: list[int]) -> list[bool]:
    """Which sentences were summed with a maximum of their terms first."""
    _, chart = triton_kernels.inside(given, torch.tensor(lengths, device=given.span.device))
    return (chart.report[4] != 0).tolist()


@on_both
def test_careful_sums_only_where_they_are_needed(device):
    lengths = [9, 5, 2]
    assert needs_logspace(Case((9, 5, 2), mute=False).potentials(device), lengths) == [False] * 3
    assert (
        needs_logspace(Case((9, 5, 2), observed=True, mute=False).potentials(device), lengths) == [False] * 3
    )
    assert needs_logspace(Case((9, 5, 2), 60.0, mute=False).potentials(device), lengths) == [True] * 3
    never_governs = Case((9, 5, 2)).potentials(device)  # one word of the first two
    assert needs_logspace(never_governs, lengths) == [True, True, False]
    rough = Case((9, 5, 2), mute=False).potentials(device)
    rough.inherit[1, 1, 3] = IMPOSSIBLE
    assert needs_logspace(rough, lengths) == [False, True, False]


def with_entities(device: str, cost: float) -> tuple[Potentials, list[int]]:
    """Four sentences in which (1, 7) and (2, 5) are spans of every tree, and labels speak against all heads of these
    but one, so much that no float32 holds it. In the first, word 2 is the one for both; in the second it is word 2 for
    the narrow one and 6, outside of it, for the wide one; in the third, 2 and then 3, which had to head the narrow one,
    too; in the last, nobody has anything against a head of the wide one, and no other word than 3 can be the root.
    """
    lengths = [8] * 4
    given = lexical(lengths, seed=3)
    for i in range(9):
        for j in range(i + 1, 9):
            for a, b in ((1, 7), (2, 5)):
                if i < a < j < b or a < i < b < j:
                    given.span[:, i, j] = IMPOSSIBLE
    given.head[:3, 2, 5, [3, 4]] -= cost
    for sentence, best in enumerate((2, 6, 3)):
        given.head[sentence, 1, 7, [x for x in range(8) if x != best]] -= 3 * cost
    given.head[3, 2, 5, [3, 4]] -= cost
    given.root[3, [x for x in range(8) if x != 3]] = IMPOSSIBLE
    return to(given, device, torch.float32), lengths


@on_both
def test_heads_that_labels_speak_against(device):
    """SCALED may lose them where they are worth nothing. Elsewhere the outside pass finds out."""
    for cost, expected in ((20.0, [False] * 4), (90.0, [False, False, True, True])):
        given, lengths = with_entities(device, cost)
        sizes = torch.tensor(lengths, device=device)
        chart, part = triton_kernels.run_inside_outside(given, sizes, heads=len(lengths))
        right_z, right = reference.inside_outside(to(given, "cpu", torch.float64), sizes.cpu(), True)
        assert (chart.report[4] != 0).tolist() == expected
        if cost > 20:
            assert needs_logspace(given, lengths) == [True] * 4  # without an outside pass nobody finds out
        assert torch.allclose(chart.log_z.cpu().double(), right_z, rtol=2e-6, atol=2e-5)
        for found, true in zip(part, right, strict=True):
            errors = (found.cpu() - true).abs().flatten(1).amax(1).tolist()
            assert all(error < (1e-4 if slow else 6e-6) for error, slow in zip(errors, expected, strict=True))


@on_both
def test_heads_of_which_only_the_outside_pass_knows(device):
    """Spans (0, j), of which (0, 2) wants word 1 for its head by far, and all wider ones word 0 by more: of word 0 as
    the head of (0, 2), which SCALED cannot hold beside word 1, the inside pass can tell nothing."""
    span = torch.full((1, 6, 6), IMPOSSIBLE)
    span[0, range(5), range(1, 6)] = span[0, 0, 1:] = 0.0
    head = torch.zeros(1, 6, 6, 5)
    head[0, 0, 2, 0] = -84
    head[0, 0, 3:, 1] = -30
    head[0, 0, 3:, 2:] = -200
    given = LexicalPotentials(span, torch.zeros(1, 5, 5), torch.zeros(1, 5), torch.zeros(1, 6, 6), head)
    chart = check_alone(to(given, device, torch.float32))
    assert (chart.report[4] != 0).tolist() == [True]


@on_both
def test_spans_that_lend_dearly_and_have_small_heads(device):
    """What a span lends costs so much that its other head, 2^-124 by itself, is as likely as the first.

    A head below 2^-126 would be summed in logarithms on a GPU, whose exp2 flushes denormal results to zero.
    """
    span, arc, root = torch.zeros(1, 5, 5), torch.zeros(1, 4, 4), torch.full((1, 4), -68.0)
    span[0, [1, 1, 2], [3, 4, 4]] = IMPOSSIBLE
    inherit, head = torch.zeros(1, 5, 5), torch.zeros(1, 5, 5, 4)
    inherit[0, [1, 0, 3], [2, 2, 4]] = -21
    head[0, 0, 2, 0] = -86
    arc[0, 2, 1] = arc[0, 3] = -68
    root[0, 2] = 0
    chart = check_alone(to(LexicalPotentials(span, arc, root, inherit, head), device, torch.float32))
    assert (chart.report[4] != 0).tolist() == [False]


def check_alone(given: LexicalPotentials):
    """The chart of one sentence, if its sums are right."""
    sizes = torch.tensor([given.root.shape[1]])
    right_z, right = reference.inside_outside(to(given, "cpu", torch.float64), sizes, True)
    chart, part = triton_kernels.run_inside_outside(given, sizes.to(given.span.device), heads=1)
    assert torch.allclose(chart.log_z.cpu().double(), right_z, rtol=2e-6, atol=2e-5)
    for found, true in zip(part, right, strict=True):
        assert (found.cpu() - true).abs().max() < 6e-6
    return chart


@on_both
def test_large_scores_are_summed_precisely_or_refused(device):
    for score, sums in ((90.0, True), (900.0, True), (2e4, False)):
        shapes = (1, 5, 5), (1, 4, 4), (1, 4), (1, 5, 5), (1, 5, 5, 4)
        equal = LexicalPotentials(*(torch.full(shape, score, device=device) for shape in shapes))
        if sums:
            _, part = triton_kernels.inside_outside(equal, torch.tensor([4], device=device), True)
            assert all(t.max() <= 1 for t in part)
            assert abs(part.span.sum() - 7) < 0.02
            continue
        with pytest.raises(PotentialsError, match=r"sentence 0 .* float64"):
            log_partition_at_last(equal)


def log_partition_at_last(given: LexicalPotentials) -> None:
    with use_backend("triton"):
        log_partition(given, [given.root.shape[1]])
        raise_pending()
