"""Several threads of a CPU: the order is kept, errors arrive, nobody else notices."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from nestree.nn.int8 import unavailable_reason
from nestree.pipeline import Pipeline, map_threaded, predict, thread_pool
from tests import tiny


@pytest.fixture
def two():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_at_a_time_in_order(two):
    meeting = threading.Barrier(2)  # nobody leaves it alone

    def work(number):
        meeting.wait(timeout=30)
        return number, torch.get_num_threads()

    assert list(map_threaded(work, range(6))) == [(number, 1) for number in range(6)]
    assert torch.get_num_threads() == 2


def test_one_thread_is_this_one(two):
    torch.set_num_threads(1)
    assert list(map_threaded(lambda _: threading.get_ident(), [1, 2])) == [threading.get_ident()] * 2


def test_an_error_arrives_and_the_rest_is_not_begun(two):
    begun, failed = [], threading.Event()

    def work(number):
        begun.append(number)
        if number == 0:
            raise ValueError("zero")
        failed.wait(timeout=30)

    threading.Timer(0.1, failed.set).start()
    with pytest.raises(ValueError, match="zero"):
        list(map_threaded(work, range(50)))
    assert len(begun) < 50


def test_threads_to_come_have_as_many_as_before(two):
    thread_pool.cache_clear()
    list(map_threaded(abs, range(2)))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


def test_one_crew_is_enough():
    torch.set_num_threads(4)
    thread_pool.cache_clear()
    before = set(threading.enumerate())
    for batches in range(1, 10):
        assert list(map_threaded(abs, range(batches))) == list(range(batches))
    ours = [thread for thread in set(threading.enumerate()) - before if "nestree-reader" in thread.name]
    assert len(ours) == 4


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param(
            "int8", marks=pytest.mark.skipif(bool(unavailable_reason()), reason=str(unavailable_reason()))
        ),
    ],
)
def test_threads_find_the_same(two, model, precision):
    reader, sentences = Pipeline(model, precision=precision).reader, tiny.SENTENCES * 5
    found = predict(reader, sentences, batch_words=20)
    torch.set_num_threads(1)
    assert found == predict(reader, sentences, batch_words=20)


def test_one_thread_at_a_time_collates(two, model, monkeypatch):
    meeting, met = threading.Barrier(2), []
    collate = model.collate_words

    def waiting(sentences):
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.5)  # for another; once nobody has come, nobody waits
            met.append(sentences)
        return collate(sentences)

    monkeypatch.setattr(model, "collate_words", waiting)
    predict(model, tiny.SENTENCES, batch_words=20)
    assert meeting.broken
    assert not met
