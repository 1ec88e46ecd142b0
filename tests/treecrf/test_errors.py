"""Every error says what was wrong, where, and what to do, in a sentence; and leaves the engine usable."""

import math
import re

import numpy as np
import pytest
import torch

from nestree import errors
from nestree.treecrf import (
    IMPOSSIBLE,
    LexicalPotentials,
    PlainPotentials,
    best_trees,
    crossing_spans,
    entropy,
    head_marginals,
    kl_divergence,
    log_partition,
    log_partitions,
    marginals,
    observe,
    ops,
    sample_trees,
    span_cells,
    use_backend,
)
from tests.treecrf.cases import EVERY_LENGTH, lexical, plain
from tests.treecrf.conftest import FUNCTIONS, LENGTHS, valid


def raises(error: type[Exception], *pieces: str):
    """The error, with all these pieces of text in this order, ending as a sentence."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, pieces)) + r".*\.$")


def test_the_errors_are_also_those_that_python_programmers_catch():
    tree = {
        errors.InputError: ValueError,
        errors.PotentialsError: errors.InputError,
        errors.ObservationError: errors.InputError,
        errors.WrongTreeError: TypeError,
        errors.BackendError: RuntimeError,
        errors.ChartMemoryError: MemoryError,
    }
    for error, parent in tree.items():
        assert issubclass(error, parent)
        assert issubclass(error, errors.NestreeError)
        assert error.__name__ in errors.__doc__


# Shapes and types


@pytest.mark.parametrize(
    ("change", "pieces"),
    [
        ({"span": torch.zeros(2, 5, 4)}, ["span has shape (2, 5, 4)", "[batch, n + 1, n + 1]"]),
        ({"span": torch.zeros(5, 5)}, ["span has shape (5, 5)", "[batch, n + 1, n + 1]"]),
        ({"span": torch.zeros(2, 1, 1)}, ["span has shape (2, 1, 1)", "n >= 1"]),
        ({"span": [[0.0]]}, ["span has shape list", "[batch, n + 1, n + 1]"]),
        ({"arc": torch.zeros(2, 5, 5)}, ["arc has shape (2, 5, 5)", "it must be (2, 4, 4) beside span (2, 5, 5)"]),
        ({"root": torch.zeros(2, 4, 1)}, ["root has shape (2, 4, 1)", "it must be (2, 4)"]),
        ({"inherit": torch.zeros(2, 4, 4)}, ["inherit has shape (2, 4, 4)", "it must be (2, 5, 5)"]),
        ({"inherit": None}, ["inherit has shape NoneType", "it must be (2, 5, 5)"]),
        ({"head": torch.zeros(2, 5, 5, 5)}, ["head has shape (2, 5, 5, 5)", "it must be (2, 5, 5, 4)"]),
        ({"arc": torch.zeros(2, 4, 4, dtype=torch.int64)}, ["arc holds torch.int64", "pass arc.float()"]),
        ({"arc": torch.zeros(2, 4, 4, device="meta")}, ["arc is on meta and span on cpu", "one device"]),
        ({"arc": torch.zeros(2, 4, 4).to_sparse()}, ["arc is not a dense tensor", "pass arc.to_dense()"]),
        ({"root": torch.zeros(2, 4).to(torch.float8_e4m3fn)}, ["root holds torch.float8", "root.float()"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_shapes_and_types_that_do_not_fit(function, change, pieces):
    with raises(errors.PotentialsError, *pieces):
        function(valid()._replace(**change), LENGTHS)


def test_potentials_of_another_kind_or_without_values():
    for wrong in (torch.zeros(1, 3, 3), (torch.zeros(1, 3, 3),), None):
        with raises(errors.WrongTreeError, type(wrong).__name__, "pass LexicalPotentials or PlainPotentials"):
            log_partition(wrong, [2])
    empty = LexicalPotentials(*(t.to("meta") for t in valid()))
    with raises(errors.PotentialsError, "the potentials are on meta", "on another device"):
        log_partition(empty, LENGTHS)
    with pytest.raises(TypeError, match="PlainPotentials have no heads; pass LexicalPotentials"):
        head_marginals(plain(LENGTHS), LENGTHS)
    with raises(errors.PotentialsError, "Lexical", "(2, 5, 5)", "PlainPotentials (2, 5, 5)", "same trees"):
        kl_divergence(valid(), plain(LENGTHS), LENGTHS)
    with raises(errors.PotentialsError, "(2, 5, 5)", "(2, 6, 6)", "same trees"):
        kl_divergence(plain(LENGTHS), plain(LENGTHS, 5), LENGTHS)


@pytest.mark.parametrize("k", [-1, 1.5, "2", None, True])
def test_numbers_of_samples_that_are_not_whole(k):
    with raises(errors.PotentialsError, f"k is {k!r}", "a whole number, 0 or more"):
        sample_trees(valid(), LENGTHS, k)


def test_arguments_of_another_type():
    potentials = valid()
    for wrong in (potentials, potentials.span, 5, None):
        with raises(errors.PotentialsError, f"several is one {type(wrong).__name__}", "pass a list of potentials"):
            log_partitions(wrong, LENGTHS)
    for wrong in (True, 5, torch.tensor(True)):
        with raises(errors.PotentialsError, f"heads is {wrong!r}", "True or False for each"):
            log_partitions([potentials], LENGTHS, heads=wrong)
    for wrong in (5, "5"):
        with raises(errors.PotentialsError, f"generator is {wrong!r}", "pass a torch.Generator"):
            sample_trees(potentials, LENGTHS, 1, generator=wrong)
    for wrong in (5, ["numba"], None):
        with raises(errors.BackendError, f"there is no backend {wrong!r}", "choose one of"), use_backend(wrong):
            pass
    with raises(errors.PotentialsError, "lengths are on meta", "on another device"):
        log_partition(potentials, torch.tensor(LENGTHS, device="meta"))
    for wrong in ([3], torch.tensor(3), None):
        with raises(errors.PotentialsError, f"lengths are {wrong!r}", "pass a tensor [batch]"):
            span_cells(wrong, 3)
    for wrong in ([[0, 0, 2]], torch.zeros(1, 3), torch.zeros(3, dtype=torch.int64)):
        with raises(errors.PotentialsError, f"spans are {wrong!r}", "pass a tensor [K, 3]"):
            crossing_spans(wrong, 1, 3)
    for wrong in (5, None, torch.tensor(3)):
        with raises(errors.ObservationError, f"spans are {wrong!r}", "for each sentence"):
            observe(potentials, wrong, LENGTHS)


# Lengths


@pytest.mark.parametrize("wrong", [0, -1, 5, 1000])
def test_lengths_beyond_the_sentence(backend, function, wrong):
    with raises(errors.PotentialsError, "sentence 1 of", f"length {wrong};", "1 to 4 words", "pad"):
        function(valid(), [3, wrong])


@pytest.mark.parametrize(
    "wrong", [[3], [[3, 4]], [3.0, 4.0], [True, True], torch.tensor(3), torch.tensor([3j, 4j]), None, "ab"], ids=str
)
def test_lengths_of_another_shape_or_type(function, wrong):
    found = ["lengths are", repr(wrong)]
    if wrong is not None and wrong != "ab":
        sizes = torch.as_tensor(wrong)
        found = ["lengths have shape", str(tuple(sizes.shape)), str(sizes.dtype)]
    with raises(errors.PotentialsError, *found, "2 whole numbers"):
        function(valid(), wrong)


# Values


CELLS = {"span": (1, 3), "arc": (3, 0), "root": (2,), "inherit": (0, 3), "head": (0, 3, 2)}


@pytest.mark.parametrize("part", CELLS)
def test_values_that_are_no_scores_are_named_with_their_place(backend, function, part):
    for value in (math.nan, math.inf, 1.1e5, -4e8) if function is log_partition else (math.nan, -1.1e5):
        wrong = LexicalPotentials(*(t.float() for t in valid()))
        cell = CELLS[part]
        getattr(wrong, part)[(1, *cell)] = value
        limits = "scores must lie between -100000 and 100000, or be IMPOSSIBLE"
        named = f"{value:g} in {part}{list(cell)}; {limits}"
        with raises(errors.PotentialsError, "sentence 1 of", named, "overflow"):
            function(wrong, LENGTHS)


def test_plain_potentials_are_checked_too(backend):
    invalid, no_tree = plain(LENGTHS), plain(LENGTHS)
    invalid.span[0, 1, 2] = math.nan
    no_tree.span[1, 0, 4] = IMPOSSIBLE
    for function in (log_partition, marginals, best_trees, entropy):
        with raises(errors.PotentialsError, "sentence 0 of", "nan in span[1, 2];"):
            function(invalid, LENGTHS)
        with raises(errors.PotentialsError, "no tree is possible for sentence 1 of"):
            function(no_tree, LENGTHS)
    with raises(errors.PotentialsError, "span has shape (3, 3)"):
        log_partition(PlainPotentials(torch.zeros(3, 3)), [2])


NO_TREES = {
    "no root": {"root": ()},
    "no word 2": {"span": (2, 3)},
    "word 2 has no governor and is not the root": {"arc": (slice(None), 2), "root": (2,)},
    "nothing inherits": {"inherit": ()},
    "no head of the sentence": {"head": (0, 4)},
}  # cells of sentence 1 that are impossible


@pytest.mark.parametrize("name", NO_TREES)
def test_a_sentence_without_trees_is_named_and_afterwards_everything_works_as_before(backend, function, name):
    before, wrong = log_partition(valid(), LENGTHS), valid()
    for part, cells in NO_TREES[name].items():
        getattr(wrong, part)[(1, *cells)] = -math.inf
    with raises(errors.PotentialsError, "no tree is possible for sentence 1 of", "Allow one more part"):
        function(wrong, LENGTHS)
    function(valid(), LENGTHS)
    assert torch.equal(log_partition(valid(), LENGTHS), before)


# Observed spans


@pytest.mark.parametrize(
    ("spans", "pieces"),
    [
        ([(0, 2), (1, 3)], ["(0, 2) and (1, 3) of sentence 3 cross", "leave one of them out"]),
        ([(2, 4), (0, 4), (1, 3)], ["(1, 3) and (2, 4) of sentence 3 cross"]),
        ([(3, 5)], ["observed span (3, 5) of sentence 3", "its 4 words", "0 <= start < end <= 4"]),
        ([(-1, 2)], ["observed span (-1, 2) of sentence 3"]),
        ([(2, 2)], ["observed span (2, 2) of sentence 3"]),
        *(
            (no_pairs, ["observed spans of sentence 3 are", "; pass a list of (start, end)"])
            for no_pairs in ([(0, 2, 1)], [(0.7, 2.2)], (0, 2), [None], None)
        ),
    ],
)
def test_observed_spans_that_no_tree_can_hold(spans, pieces):
    for kind in (lexical, plain):
        with raises(errors.ObservationError, *pieces):
            observe(kind(EVERY_LENGTH), [[], [], [], spans, [], []], EVERY_LENGTH)


def test_lists_of_observed_spans():
    spans = [[(0, 1)], [(0, 2), (0, 2)], [], [(0, 2), (2, 4), (0, 4)], [(1, 2), (1, 3)], [(0, 6), (5, 6)]]
    right = observe(plain(EVERY_LENGTH), spans, EVERY_LENGTH).span
    arrays = [np.array(s, dtype=int).reshape(-1, 2) for s in spans]
    found = observe(plain(EVERY_LENGTH), arrays, torch.tensor(EVERY_LENGTH)).span
    assert torch.equal(found.nan_to_num(), right.nan_to_num())
    with raises(errors.ObservationError, "1 lists of spans for a batch of 2", "one list"):
        observe(valid(), [[]], LENGTHS)
    with raises(errors.PotentialsError, "sentence 0 of", "length 7;"):
        observe(valid(), [[], []], [7, 4])


# Memory


def test_a_chart_that_cannot_fit_says_how_much_it_needs_before_trying(backend, function):
    n, batch = 200, 10**9  # beyond what any machine would even promise
    shapes = (n + 1, n + 1), (n, n), (n,), (n + 1, n + 1)
    huge = LexicalPotentials(*(torch.zeros(1, *shape).expand(batch, *shape) for shape in shapes))
    lengths = torch.ones(1, dtype=torch.int64).expand(batch)
    if function in (FUNCTIONS["kl_divergence, p"], FUNCTIONS["kl_divergence, q"]):
        function = lambda potentials, lengths: kl_divergence(potentials, potentials, lengths)  # noqa: E731
    with raises(errors.ChartMemoryError, f"charts for {batch} sentences of up to {n} words", "GiB"):
        function(huge, lengths)


@pytest.mark.parametrize("kind", [lexical, plain])
def test_what_a_chart_needs_is_compared_with_what_is_free(backend, monkeypatch, kind):
    monkeypatch.setattr(ops, "MIN_CHECKED_BYTES", 0)
    log_partition(kind(LENGTHS), LENGTHS)
    monkeypatch.setattr(ops, "free_bytes", lambda device: 10)
    with raises(errors.ChartMemoryError, "2 sentences of up to 4 words", "cpu has", "fewer sentences"):
        log_partition(kind(LENGTHS), LENGTHS)
