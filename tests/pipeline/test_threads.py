"""Several threads of a CPU: the order is kept, errors arrive, nobody else notices."""

import threading

import pytest
import torch

from nestree.pipeline import predict
from nestree.pipeline.threads import on_threads
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

    assert list(on_threads(work, range(6))) == [(number, 1) for number in range(6)]
    assert torch.get_num_threads() == 2


def test_one_thread_is_this_one(two):
    torch.set_num_threads(1)
    assert list(on_threads(lambda _: threading.get_ident(), [1, 2])) == [threading.get_ident()] * 2


def test_an_error_arrives_and_the_rest_is_not_begun(two):
    begun, failed = [], threading.Event()

    def work(number):
        begun.append(number)
        if number == 0:
            raise ValueError("zero")
        failed.wait(timeout=30)

    threading.Timer(0.1, failed.set).start()
    with pytest.raises(ValueError, match="zero"):
        list(on_threads(work, range(50)))
    assert len(begun) < 50


def test_threads_find_the_same(two, model):
    sentences = tiny.SENTENCES * 5
    found = predict(model, sentences, batch_words=20)
    torch.set_num_threads(1)
    assert found == predict(model, sentences, batch_words=20)
