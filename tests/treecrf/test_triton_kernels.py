"""The Triton kernels: small shapes under Triton's interpreter, and what only a CUDA device can show.

`make test-triton` runs the first kind on a CPU. Shapes of full size on a CUDA device: test_backends.py.
"""

import os

import pytest
import torch

from nestree.errors import PotentialsError
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    best_trees,
    entropy,
    head_marginals,
    log_partition,
    log_partition_and_heads,
    log_partitions,
    marginals,
    memory,
    raise_pending,
    reference,
    sample_trees,
    use_backend,
)
from tests.treecrf import checks
from tests.treecrf.cases import leaves, lexical, plain, score_of, to
from tests.treecrf.sweep import SMALL_CASES, Case

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
triton_kernels = pytest.importorskip("nestree.treecrf.triton_kernels")
assign = pytest.importorskip("nestree.treecrf.triton_kernels.common").assign
# The interpreter computes with numpy, which warns of log2(0) and the like; on a GPU that is -inf, as wanted.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs under Triton's interpreter: make test-triton"
)
on_both = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.cuda)]
)
SMALL_SHAPES = {"lexical": Case((4, 1, 3)), "plain": Case((4, 1, 3), kind="plain")}
SMALL_TIES = {
    f"{kind}, std {std:g}": Case((8, 2, 5), std, kind=kind, whole=True)
    for kind in ("lexical", "plain")
    for std in (0.0, 0.7, 2.0)
}


# Under the interpreter


@interpreted
@pytest.mark.parametrize("name", SMALL_CASES)
def test_sums_equal_the_reference(name):
    checks.check_sums("triton", SMALL_CASES[name], "cpu")


@interpreted
@pytest.mark.parametrize("name", ["n=1", "std 1", "no head", "plain, n=3"])
def test_marginals_equal_the_reference(name):
    checks.check_marginals("triton", SMALL_CASES[name], "cpu")


@interpreted
@pytest.mark.parametrize("name", [*SMALL_CASES, *SMALL_TIES])
def test_best_trees_and_ties_are_those_of_the_reference_bit_for_bit(name):
    checks.check_best_trees("triton", (SMALL_CASES | SMALL_TIES)[name], "cpu")


@interpreted
@pytest.mark.parametrize("name", ["std 1", "no head", "plain, std 1"])
def test_entropy_and_divergence_equal_the_reference(name):
    checks.check_entropy("triton", SMALL_CASES[name], "cpu")


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    checks.check_sums("triton", Case((6, 3), dtype=dtype), "cpu")


@interpreted
@pytest.mark.parametrize("name", SMALL_SHAPES)
@pytest.mark.parametrize("check", [checks.check_layout, checks.check_padding, checks.check_buffers])
def test_layout_padding_and_old_buffers_do_not_matter(name, check):
    check("triton", SMALL_SHAPES[name], "cpu")


@interpreted
@pytest.mark.parametrize("observed", [False, True])
def test_far_terms_of_several_widths_together_equal_the_reference(observed):
    """From 17 words on: the far splits and parents of four widths at a time (triton_kernels/blocked.py)."""
    lengths = (19, 13)
    checks.check_sums("triton", Case(lengths, head=observed, observed=observed, mute=False), "cpu")


@triton.jit
def assign_kernel(lengths, assigned, batch):
    sentence, member, group = assign(lengths, batch, True, 128)
    row = assigned + 3 * tl.program_id(0)
    tl.store(row, sentence.to(tl.int32))
    tl.store(row + 1, member)
    tl.store(row + 2, group)


@interpreted
@pytest.mark.parametrize(
    ("lengths", "programs"),
    [([350, 1, 173, 198, 1], 132), ([40] * 66, 132), ([1], 8), ([2000, 1, 1999], 132), ([7, 9, 8], 4)],
)
def test_programs_are_assigned_in_proportion_to_the_work(lengths, programs):
    assigned = torch.empty(programs, 3, dtype=torch.int32)
    assign_kernel[(programs,)](torch.tensor(lengths, dtype=torch.int32), assigned, len(lengths))
    sizes = [sum(sentence == b for sentence, _, _ in assigned.tolist()) for b in range(len(lengths))]
    assert assigned.tolist() == [[b, k, size] for b, size in enumerate(sizes) for k in range(size)]
    shares = [length**4 / sum(n**4 for n in lengths) for length in lengths]
    for size, share in zip(sizes, shares, strict=True):
        assert abs(size - 1 - share * (programs - len(lengths))) < 1


@interpreted
def test_several_sums_at_once_on_the_cpu():
    checks.check_several("triton", (5, 1, 4), "cpu")
    checks.check_several("triton", (3, 18), "cpu")


@interpreted
def test_short_sentences_are_summed_together(monkeypatch):
    batches = []
    run_inside_outside = triton_kernels.run_inside_outside

    def counted(given, *rest):
        batches.append(len(given.span))
        return run_inside_outside(given, *rest)

    monkeypatch.setattr(triton_kernels, "run_inside_outside", counted)
    three = [to(lexical([3, 2], seed=seed), torch.float32) for seed in range(3)]

    def seen(several):
        batches.clear()
        with use_backend("triton"):
            found = log_partitions(several, [3, 2])
        assert [log_z.shape for log_z, _ in found] == [(2,)] * len(several)
        return list(batches)

    assert seen(three) == [6]
    assert seen([]) == []
    plain_one = to(plain([3, 2], seed=1), torch.float32)
    assert seen([three[0], plain_one]) == seen([plain_one, three[0]]) == [2, 2]
    with monkeypatch.context() as scarce:
        scarce.setattr(
            memory, "fits", lambda needed, device: needed < 2 * triton_kernels.chart_bytes(three[0], True)
        )
        assert seen(three) == [2, 2, 2]
    monkeypatch.setattr(triton_kernels, "MAX_FUSED_WORDS", 2)
    assert seen(three) == [2, 2, 2]


@interpreted
def test_several_sums_of_several_backends():
    """Each by the one that would serve it alone."""
    one = lexical([3, 2], seed=1)
    (_, single), (_, double) = log_partitions([to(one, torch.float32), one], [3, 2])
    assert (single.span.dtype, double.span.dtype) == (torch.float32, torch.float64)


@interpreted
def test_a_batch_of_no_sentences_on_the_cpu():
    checks.check_empty_batch("triton", "cpu")


def with_invalid(part: str, value: float) -> tuple[checks.Potentials, str]:
    given = lexical([3, 4], seed=1)
    cell = {"span": (0, 2), "arc": (2, 0), "root": (3,), "inherit": (1, 3), "head": (1, 3, 2)}[part]
    getattr(given, part)[(1, *cell)] = value
    return to(given, torch.float32), rf"sentence 1 .* in {part}\b"


PARTS = ("span", "arc", "root", "inherit", "head")


@interpreted
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -2e5])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("function", [log_partition, best_trees])
def test_the_kernels_find_nan_and_infinity(function, part, value):
    given, message = with_invalid(part, value)
    with use_backend("triton"), pytest.raises(PotentialsError, match=message):
        function(given, [3, 4])


def without_trees(device: str) -> tuple[checks.Potentials, checks.Potentials]:
    barred = to(lexical([3, 4, 2], seed=2), device, torch.float32)
    barred.root[1] = IMPOSSIBLE
    bare = to(plain([3, 4, 2], seed=2), device, torch.float32)
    bare.span[1, 0, 4] = -torch.inf
    return barred, bare


@interpreted
@pytest.mark.parametrize("function", [log_partition, best_trees, marginals, entropy])
def test_the_kernels_find_sentences_without_trees(function):
    for given in without_trees("cpu"):
        with use_backend("triton"), pytest.raises(PotentialsError, match=r"no tree .* sentence 1 "):
            function(given, [3, 4, 2])


@on_both
def test_samples_follow_the_marginals(device):
    """Samples are trees, with their scores, and contain parts about as often as their marginals say."""
    lengths, k = [5, 1, 3], 400
    for given in (
        to(lexical(lengths, 6), device, torch.float32),
        to(plain(lengths, 6), device, torch.float32),
    ):
        with use_backend("triton"):
            drawn = sample_trees(given, lengths, k, torch.Generator(device).manual_seed(0))
            expected = marginals(given, lengths).span.cpu()
        on_host, seen = to(given, "cpu", torch.float64), torch.zeros_like(expected)
        for trees in drawn:
            for b, length in enumerate(lengths):
                tree = trees[b]
                assert score_of(tree, on_host, b, length) == pytest.approx(tree.score, abs=1e-4)
                for i, j, *_ in tree.spans:
                    seen[b, i, j] += 1 / k
        assert (seen - expected).abs().max() < 5 * 0.5 / k**0.5  # five standard deviations


# On a CUDA device


@pytest.mark.cuda
@pytest.mark.parametrize("n", [30, 63, 100])
def test_fast_sums_keep_the_precision_of_float32(n):
    case = Case((n, n // 2), head=False, mute=False)
    errors = checks.sum_errors("triton", case, "cuda")
    assert max(error for name, error in errors.items() if name != "value") < 3e-6  # 8.2e-7 measured


@pytest.mark.cuda
@pytest.mark.parametrize("observed", [False, True])
def test_long_and_short_sentences_side_by_side(observed):
    """Some have many programs, some have one; and one sentence alone has all of them."""
    for lengths in ((1, 97, 5, 60, 1, 33), (1, 1, 1, 70), (90,)):
        checks.check_sums("triton", Case(lengths, head=observed, observed=observed, mute=False), "cuda")
        checks.check_best_trees("triton", Case(lengths), "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("lengths", [(40,) * 5, (20, 33) * 20, (60, 9) * 12, (80, 9, 1), (130, 60)])
def test_several_sums_at_once(lengths):
    """With many programs for each sentence, with one, with two on each processor; and, of long ones, one by one."""
    checks.check_several("triton", lengths, "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 2e5])
@pytest.mark.parametrize("part", PARTS)
def test_trouble_gives_nan_at_once_and_an_error_later(part, value):
    given, message = with_invalid(part, value)
    given = to(given, "cuda")
    log_z = log_partition(given, [3, 4])
    assert log_z.isnan().tolist() == [False, True]
    with pytest.raises(PotentialsError, match=message):
        raise_pending()
    raise_pending()  # once is enough
    assert log_partition(to(lexical([3, 4]), "cuda", torch.float32), [3, 4]).isfinite().all()


@pytest.mark.cuda
def test_the_next_call_raises_what_has_arrived():
    given, message = with_invalid("arc", torch.nan)
    log_partition(to(given, "cuda"), [3, 4])
    torch.cuda.synchronize()
    with pytest.raises(PotentialsError, match=message):
        log_partition(to(lexical([3, 4]), "cuda", torch.float32), [3, 4])


@pytest.mark.cuda
@pytest.mark.parametrize("function", [log_partition, best_trees])
def test_sentences_without_trees_are_named_later(function):
    for given in without_trees("cuda"):
        found = function(given, [3, 4, 2])
        score = found if function is log_partition else found.score
        assert score.isnan().tolist() == [False, True, False]
        with pytest.raises(PotentialsError, match=r"no tree .* sentence 1 "):
            raise_pending()


@pytest.mark.cuda
def test_wrong_lengths_on_the_device_are_named_later():
    given = to(lexical([3, 4]), "cuda", torch.float32)
    for wrong in (0, 5, -1):
        log_partition(given, torch.tensor([3, wrong], device="cuda"))
        with pytest.raises(PotentialsError, match=f"sentence 1 .* length {wrong};"):
            raise_pending()


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", ["lexical", "plain"])
def test_nothing_waits_for_the_device(kind):
    case = Case((20, 7), kind=kind)
    given = leaves(case.potentials("cuda"))
    on_device = torch.tensor(case.lengths, device="cuda")
    functions = [log_partition, best_trees, marginals]
    functions += [head_marginals, log_partition_and_heads] if kind == "lexical" else []

    def run() -> list[torch.Tensor]:
        found = []
        for lengths in (case.lengths, on_device):
            log_z = log_partition(given, lengths)
            log_z.sum().backward()
            found.append(log_z.detach())
            for function in functions:
                function(given, lengths)
        return found

    expected = run()  # compiles
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")  # whatever waits raises
        found = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    raise_pending()
    torch.testing.assert_close(found, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("lengths", [(30,) * 64, (80, 80), (130,)], ids=["64x30", "2x80", "1x130"])
def test_a_recorded_graph_gives_the_same_bits(lengths):
    given = leaves(Case(lengths).potentials("cuda"))
    sizes = torch.tensor(lengths, device="cuda")
    right = log_partition(given, sizes)
    wanted = torch.autograd.grad(right.sum(), given)
    right = right.detach()  # what autograd keeps of the leaves must not outlive the stream it was made in
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as CUDA graphs ask for
        torch.autograd.grad(log_partition(given, sizes).sum(), given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        log_z = log_partition(given, sizes)
        found = torch.autograd.grad(log_z.sum(), given)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(log_z, right)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [1, 3, 64, 200])
@pytest.mark.parametrize("n", [31, 64, 100])
def test_groups_of_programs_give_the_same_bits_ten_times(batch, n):
    case = Case((n,) * batch)
    given = case.potentials("cuda")
    once = checks.everything("triton", given, case.lengths)
    for _ in range(10):
        assert checks.same_bits(checks.everything("triton", given, case.lengths), once)


@pytest.mark.cuda
def test_another_stream_and_another_thread():
    case = Case((30, 12))
    given = case.potentials("cuda")
    right = checks.everything("triton", given, case.lengths)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = checks.everything("triton", given, case.lengths)
    stream.synchronize()
    assert checks.same_bits(found, right)


# When LOGSPACE runs: only for sentences where scaled numbers would lose something that matters


def needs_logspace(given: checks.Potentials, lengths: list[int]) -> list[bool]:
    """Which sentences were summed in LOGSPACE."""
    _, chart = triton_kernels.inside(given, torch.tensor(lengths, device=given.span.device))
    return (chart.report[4] != 0).tolist()


@on_both
def test_logspace_only_where_it_is_needed(device):
    lengths = [9, 5, 2]
    assert needs_logspace(Case((9, 5, 2), mute=False).potentials(device), lengths) == [False] * 3
    observed = Case((9, 5, 2), observed=True, mute=False).potentials(device)
    assert needs_logspace(observed, lengths) == [False] * 3
    assert needs_logspace(Case((9, 5, 2), 60.0, mute=False).potentials(device), lengths) == [True] * 3
    never_governs = Case((9, 5, 2)).potentials(device)  # one word of the first two
    assert needs_logspace(never_governs, lengths) == [True, True, False]
    rough = Case((9, 5, 2), mute=False).potentials(device)
    rough.inherit[1, 1, 3] = IMPOSSIBLE
    assert needs_logspace(rough, lengths) == [False, True, False]


def with_entities(device: str, cost: float) -> tuple[checks.Potentials, list[int]]:
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
