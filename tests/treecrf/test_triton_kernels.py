"""What only the Triton kernels have: asynchronous errors, groups of programs, CUDA graphs, and the choice of LOGSPACE.

test_backends.py tests that they equal the reference. `make test-triton` runs small cases under Triton's interpreter.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nestree.errors import PotentialsError
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    best_trees,
    head_marginals,
    log_partition,
    marginals,
    raise_pending,
    reference,
    sample_trees,
    use_backend,
)
from tests.treecrf import test_backends as checks
from tests.treecrf.cases import Case, Potentials, leaves, lexical, plain, score_of, to

triton_kernels = pytest.importorskip("nestree.treecrf.triton_kernels")
pytestmark = checks.pytestmark
interpreted = checks.INTERPRETED
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.cuda)]
on_both = pytest.mark.parametrize("device", DEVICES)


@interpreted
@pytest.mark.parametrize("observed", [False, True])
def test_far_terms_of_several_widths_together_equal_the_reference(observed):
    """From 17 words on: the far splits and parents of four widths at a time (triton_kernels/common.py)."""
    case = Case((19, 13), head=observed, observed=observed, mute=False)
    checks.test_log_partition_each_gradient_and_marginals("triton", "cpu", case)


@interpreted
def test_far_terms_of_spans_that_several_tiles_share(monkeypatch):
    """A tile of four blocks of four cells holds the first words of a span of nine, and the next tile the others."""
    tiles = triton_kernels.Shape(2, 4, 4, 1, 2, 8, 1, FAR=True, FT=2, FI=4)
    monkeypatch.setattr(triton_kernels, "shape_for", lambda *_: tiles)
    errors = checks.sum_errors("triton", Case((11,), head=False, mute=False), "cpu")
    assert max(errors.values()) < 2e-6


def with_invalid(part: str, value: float) -> tuple[Potentials, str]:
    given = lexical([3, 4], seed=1)
    cell = {"span": (0, 2), "arc": (2, 0), "root": (3,), "inherit": (1, 3), "head": (1, 3, 2)}[part]
    getattr(given, part)[(1, *cell)] = value
    return to(given, torch.float32), rf"sentence 1 .* in {part}\b"


INVALID = [("span", torch.nan), ("arc", torch.inf), ("root", -2e5), ("inherit", torch.nan), ("head", 2e5)]


@interpreted
@pytest.mark.parametrize(("part", "value"), INVALID)
def test_the_kernels_find_nan_and_infinity(part, value):
    given, message = with_invalid(part, value)
    for function in (log_partition, best_trees):
        with use_backend("triton"), pytest.raises(PotentialsError, match=message):
            function(given, [3, 4])


@on_both
@pytest.mark.parametrize(
    "function", [log_partition, lambda p, n: log_partition(leaves(p), n), lambda p, n: best_trees(p, n).score]
)
@pytest.mark.parametrize("kind", [lexical, plain])
def test_the_kernels_find_sentences_without_trees(device, function, kind):
    """At once under the interpreter; on a GPU, NaN comes first."""
    given = to(kind([3, 4, 2], seed=2), device, torch.float32)
    given.span[1, 0, 4] = -torch.inf
    with use_backend("triton"), pytest.raises(PotentialsError, match=r"no tree .* sentence 1 "):  # noqa: PT012
        assert function(given, [3, 4, 2]).isnan().tolist() == [False, True, False]
        raise_pending()


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
@pytest.mark.parametrize(
    "lengths",
    [(30, 15), (63, 31), (100, 50), (31,) * 40, (50,) * 40, (60, 45) * 50, (90, 40, 55) * 40, (60, 45) * 150],
    ids=lambda lengths: f"{len(lengths)} x {lengths[0]}",
)
def test_fast_sums_keep_the_precision_of_float32(lengths):
    """In small batches several programs share a sentence; in large ones each has one, whose tiles share spans."""
    case = Case(lengths, head=False, mute=False)
    errors = checks.sum_errors("triton", case, "cuda")
    assert max(error for name, error in errors.items() if name != "value") < 3e-6  # 8.2e-7 measured


@pytest.mark.cuda
@pytest.mark.parametrize(("part", "value"), INVALID)
def test_trouble_gives_nan_at_once_and_an_error_later(part, value):
    given, message = with_invalid(part, value)
    given = to(given, "cuda")
    log_z = log_partition(given, [3, 4])
    assert log_z.isnan().tolist() == [False, True]
    fine = to(lexical([3, 4]), "cuda", torch.float32)
    torch.cuda.synchronize()
    with pytest.raises(PotentialsError, match=message):  # the next call raises what has arrived
        log_partition(fine, [3, 4])
    raise_pending()  # once is enough
    assert log_partition(fine, [3, 4]).isfinite().all()


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
    functions += [head_marginals] if kind == "lexical" else []

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
def test_a_graph_of_the_user_reports_errors():
    given = to(lexical([3, 4]), "cuda", torch.float32)
    sizes = torch.tensor([3, 4], device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        log_partition(given, sizes)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        log_z = log_partition(given, sizes)
    graph.replay()
    raise_pending()
    assert log_z.isfinite().all()
    given.root[1, 2] = torch.nan
    graph.replay()
    with pytest.raises(PotentialsError, match=r"sentence 1 .*root"):
        raise_pending()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["lexical", "plain"])
def test_shapes_that_recur_are_replayed_with_the_same_bits(kind):
    """The first calls launch kernels, later ones replay a CUDA graph, with other inputs and other lengths."""
    lengths = [(12, 30, 7), (30, 1, 30), (5, 6, 30)]
    cases = [Case(each, n=30, kind=kind) for each in lengths]
    inputs = [leaves(case.potentials("cuda", seed)) for seed, case in enumerate(cases)]

    def run(k: int) -> list[torch.Tensor]:
        log_z = log_partition(inputs[k], lengths[k])
        return [log_z.detach(), *torch.autograd.grad(log_z.sum(), inputs[k])]

    triton_kernels._graphs.clear()
    launched = [run(k) for k in range(3)]
    replayed = [run(k) for k in range(3)]  # all are kept: a later call must not write to an earlier result
    with torch.inference_mode():
        without_gradient = [marginals(inputs[k], lengths[k]) for k in range(3)]
    captured = [each for each in triton_kernels._graphs.values() if not isinstance(each, int)]
    assert captured
    for once, again, other in zip(launched, replayed, without_gradient, strict=True):
        assert checks.same_bits(again, once)
        assert checks.same_bits([part for part in other if part is not None], once[1:])
    wrong = inputs[0]._replace(span=torch.full_like(inputs[0].span, torch.nan))
    for _ in range(2):  # the second call overwrites what the first wrote
        with pytest.raises(PotentialsError, match="sentence 0"):  # noqa: PT012
            assert log_partition(wrong, lengths[0]).isnan().all()
            assert log_partition(inputs[0], lengths[0]).isfinite().all()
            raise_pending()
        raise_pending()


@pytest.mark.cuda
def test_threads_replay_one_graph_with_their_own_inputs_and_results():
    fine = leaves(to(lexical([3, 4]), "cuda", torch.float32))
    wrong = fine._replace(span=torch.full_like(fine.span, torch.nan))
    triton_kernels._graphs.clear()
    for _ in range(triton_kernels.CALLS_BEFORE_CAPTURE + 1):
        right = log_partition(fine, [3, 4])
    assert [type(each) for each in triton_kernels._graphs.values()] == [triton_kernels.Captured]

    def run(given: Potentials) -> tuple[list[bool], int]:
        """Whether the results of calls are those of `fine`, and how many errors of earlier calls were raised."""
        found, errors = [], 0
        for _ in range(200):
            try:
                found.append(log_partition(given, [3, 4]))
            except PotentialsError:
                errors += 1
        return [torch.equal(each, right) for each in found], errors

    with ThreadPoolExecutor(4) as pool:
        (first, *_), (second, *_), *others = results = list(pool.map(run, [fine, fine, wrong, wrong]))
    assert all(first)
    assert all(second)
    assert not any(each for found, _ in others for each in found)
    try:
        raise_pending()
        raised = 0
    except PotentialsError:
        raised = 1
    assert sum(errors for _, errors in results) + raised > 0
    raise_pending()


@pytest.mark.cuda
def test_graphs_of_many_shapes_stay_within_their_memory(monkeypatch):
    cases = [Case((n,) * 4) for n in (20, 21, 22)]
    inputs = [leaves(case.potentials("cuda")) for case in cases]
    sizes = [triton_kernels.chart_bytes(given, True) for given in inputs]
    monkeypatch.setattr(triton_kernels, "MAX_GRAPH_BYTES", sizes[1] + sizes[2])
    triton_kernels._graphs.clear()
    for case, given in zip(cases, inputs, strict=True):
        for _ in range(triton_kernels.CALLS_BEFORE_CAPTURE + 1):
            log_partition(given, case.lengths)
    kept = [each.chart_bytes for each in triton_kernels._graphs.values()]
    assert kept == sizes[1:]  # the first was forgotten


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
def test_another_stream_gives_the_same_bits():
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


def needs_logspace(given: Potentials, lengths: list[int]) -> list[bool]:
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


def with_entities(device: str, cost: float) -> Potentials:
    """Four sentences in which (1, 7) and (2, 5) are spans of every tree, and labels speak against all heads of these
    but one, so much that no float32 holds it. In the first, word 2 is the one for both; in the second it is word 2 for
    the narrow one and 6, outside of it, for the wide one; in the third, 2 and then 3, which had to head the narrow one,
    too; in the last, nobody has anything against a head of the wide one, and no other word than 3 can be the root.
    """
    given = lexical([8] * 4, seed=3)
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
    return to(given, device, torch.float32)


def check_outside(given: LexicalPotentials, in_logspace: list[bool], logspace_error: float = 6e-6) -> None:
    """The results are right, and these sentences, all of n words, were summed in LOGSPACE."""
    sizes = torch.full((len(given.root),), given.root.shape[1])
    right_z, right = reference.inside_outside(to(given, "cpu", torch.float64), sizes, True)
    found = triton_kernels.launch_inside_outside(given, sizes.to(given.span.device), heads=len(sizes))
    assert (found.report[4] != 0).tolist() == in_logspace
    assert torch.allclose(found.log_z.cpu().double(), right_z, rtol=2e-6, atol=2e-5)
    for part, true in zip(found.marginals, right, strict=True):
        errors = (part.cpu() - true).abs().flatten(1).amax(1).tolist()
        for error, slow in zip(errors, in_logspace, strict=True):
            assert error < (logspace_error if slow else 6e-6)


@on_both
def test_heads_that_labels_speak_against(device):
    """SCALED may lose them where they are worth nothing. Elsewhere the outside pass finds out."""
    for cost, expected in ((20.0, [False] * 4), (90.0, [False, False, True, True])):
        given = with_entities(device, cost)
        check_outside(given, expected, logspace_error=1e-4)
        if cost > 20:
            assert needs_logspace(given, [8] * 4) == [True] * 4  # without an outside pass nobody finds out


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
    check_outside(to(given, device, torch.float32), [True])


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
    check_outside(to(LexicalPotentials(span, arc, root, inherit, head), device, torch.float32), [False])


@on_both
@pytest.mark.parametrize(("score", "sums"), [(90.0, True), (900.0, True), (2e4, False)])
def test_large_scores_are_summed_precisely_or_refused(device, score, sums):
    shapes = (1, 5, 5), (1, 4, 4), (1, 4), (1, 5, 5), (1, 5, 5, 4)
    equal = LexicalPotentials(*(torch.full(shape, score, device=device) for shape in shapes))
    if sums:
        _, part = triton_kernels.inside_outside(equal, torch.tensor([4], device=device), True)
        assert all(t.max() <= 1 for t in part)
        assert abs(part.span.sum() - 7) < 0.02
        return
    with use_backend("triton"), pytest.raises(PotentialsError, match=r"sentence 0 .* float64"):  # noqa: PT012
        log_partition(equal, [4])
        raise_pending()
