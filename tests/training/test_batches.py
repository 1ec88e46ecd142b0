"""Batches: every sentence once, within the budget, the same for any number of processes."""

import random

import pytest

from nestree.training.dataset import batches, microbatches, rank_share

CHANCE = random.Random(7)
LENGTHS = [CHANCE.randint(1, 60) for _ in range(300)]


@pytest.mark.parametrize("words", [1, 60, 500, 10**6])
def test_each_sentence_is_in_one_batch_within_the_budget(words):
    found = batches(LENGTHS, words, seed=3, epoch=1)
    assert sorted(k for batch in found for k in batch) == list(range(300))
    assert all(sum(LENGTHS[k] for k in batch) <= words or len(batch) == 1 for batch in found)


def test_batches_are_full_and_hardly_padded():
    found = batches(LENGTHS, 500, seed=3, epoch=1)
    assert len(found) <= 1.15 * sum(LENGTHS) / 500 + 1
    padded = sum(len(batch) * max(LENGTHS[k] for k in batch) for batch in found)
    assert padded < 1.2 * sum(LENGTHS)


def test_one_long_sentence_does_not_stretch_a_batch_of_short_ones():
    lengths = [20] * 50 + [300]
    for batch in batches(lengths, 1200, seed=1, epoch=1):
        assert len(batch) == 1 or len(batch) * max(lengths[k] for k in batch) <= 2 * 1200


def test_order_follows_from_seed_and_epoch():
    first = batches(LENGTHS, 500, seed=3, epoch=1)
    assert batches(LENGTHS, 500, seed=3, epoch=1) == first
    for other in (batches(LENGTHS, 500, seed=3, epoch=2), batches(LENGTHS, 500, seed=4, epoch=1)):
        assert other != first
        assert sorted(map(sorted, other)) != sorted(
            map(sorted, first)
        )  # not the same batches in another order


def test_long_and_short_batches_alternate():
    longest = [max(LENGTHS[k] for k in batch) for batch in batches(LENGTHS, 300, seed=3, epoch=1)]
    assert longest != sorted(longest)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_and_pieces_divide_a_batch(processes, count):
    for batch in batches(LENGTHS, 200, seed=1, epoch=1):
        shares = [rank_share(batch, process, processes) for process in range(processes)]
        assert sorted(k for each in shares for k in each) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        for each in shares:
            cut = microbatches(each, LENGTHS, count)
            assert [k for piece in cut for k in piece] == each
            assert len(cut) <= count
            assert all(cut)


def test_pieces_halve_the_words():
    batch = batches(LENGTHS, 500, seed=3, epoch=1)[0]
    sizes = [sum(LENGTHS[k] for k in piece) for piece in microbatches(batch, LENGTHS, 2)]
    assert len(sizes) == 2
    assert abs(sizes[0] - sizes[1]) <= 2 * max(LENGTHS[k] for k in batch)


def test_nothing_makes_no_batch():
    assert batches([], 100, 1, 1) == []
    assert microbatches([], [], 3) == []
