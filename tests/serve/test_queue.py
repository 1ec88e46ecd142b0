"""The queue: batches are whatever waits, limits, and requests that were given up."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nestree.pipeline import Batcher, Pipeline
from nestree.serve.metrics import Metrics
from nestree.serve.options import ApiError, ServeOptions
from nestree.serve.queue import Item, PredictionQueue
from tests.serve.conftest import until
from tests.serve.test_app import TEXTS, error_of, post


class Gate:
    """Holds back the worker thread before each batch, and notes the batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting, self.batches = threading.Semaphore(0), 0, []
        predict = PredictionQueue.predict

        def held(queue, pipeline, batch):
            self.waiting += 1
            self.batches.append([" ".join(item.document.words) for item in batch])
            self.open.acquire()
            self.waiting -= 1
            predict(queue, pipeline, batch)

        monkeypatch.setattr(PredictionQueue, "predict", held)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.open.release(100)  # a failed test must not keep the queue from closing


@pytest.fixture
def queue(pipeline):
    def start(**options) -> PredictionQueue:
        queue = PredictionQueue(lambda: pipeline, ServeOptions(**options), Metrics())
        queue.thread.start()
        until(lambda: queue.pipeline is not None)
        queues.append(queue)
        return queue

    queues: list[PredictionQueue] = []
    yield start
    for queue in queues:
        queue.close()


def item(pipeline: Pipeline, text: str, **options) -> Item:
    document, constraints = pipeline.prepare(text)
    return Item(document, constraints, pipeline.predict_options(**options), len(document.words))


def test_a_batch_is_what_waits_up_to_a_number_of_words(pipeline, queue, gate):
    started = queue(batch_words=6)
    long = "eight nine ten eleven twelve thirteen fourteen"
    texts = ["first", "one two three", "four five", "six seven", long, "x"]
    items = [item(pipeline, text) for text in texts]
    started.submit(items[:1])
    until(lambda: gate.waiting == 1)
    started.submit(items[1:3])  # while the first is predicted
    started.submit(items[3:])
    gate.open.release(20)
    for text, waited in zip(texts, items, strict=True):
        assert waited.future.result(60).to_dict() == pipeline(text).to_dict()
    assert gate.batches == [["first"], ["one two three", "four five"], ["six seven"], [texts[4]], ["x"]]
    more = [item(pipeline, "she left") for _ in range(5)]
    started.submit(more)
    started.close()  # predicts what waits
    assert not started.thread.is_alive()
    assert all(waited.future.done() for waited in more)
    assert (len(started.waiting), started.waiting_words) == (0, 0)


def test_texts_with_other_options_share_a_batch(pipeline, queue, gate):
    started = queue()
    options = [{}, {"threshold": 0.9}, {"labels": ["PER"]}, {}]
    items = [item(pipeline, TEXTS[0], trees=False, **each) for each in options]
    started.submit(items)
    gate.open.release(2)
    for each, waited in zip(options, items, strict=True):
        assert waited.future.result(60).to_dict() == pipeline(TEXTS[0], **each).to_dict()
    assert len(gate.batches) == 1


def test_full_queues_reject_and_abandoned_requests_make_room(pipeline, queue, gate):
    started = queue(max_waiting_requests=2, max_waiting_words=10)
    first, *others = [item(pipeline, "one two three") for _ in range(6)]
    started.submit([first])
    until(lambda: gate.waiting == 1)
    started.submit(others[:2])
    with pytest.raises(ApiError) as full:
        started.submit(others[2:4])  # 12 words
    assert full.value.status == 429
    assert "1 requests with 6 words wait" in full.value.message
    started.submit(others[2:3])
    for check in (lambda: started.submit(others[3:4]), started.check_open):
        with pytest.raises(ApiError) as full:
            check()
        assert 1 <= int(full.value.headers["Retry-After"]) <= 60
    started.cancel(others[:2])
    started.submit(others[3:4])  # in place of the request that was given up
    gate.open.release(10)
    others[3].future.result(60)
    assert gate.batches == [["one two three"], ["one two three"] * 2]
    assert started.metrics.abandoned == 2


def test_a_text_that_fails_does_not_fail_its_batch(pipeline, queue, gate, monkeypatch):
    started = queue()
    predict = Pipeline.predict_documents

    def fail(self, documents, *rest):
        if any("poison" in document.words for document in documents):
            raise MemoryError
        return predict(self, documents, *rest)

    monkeypatch.setattr(Pipeline, "predict_documents", fail)
    items = [item(pipeline, text) for text in ("the mayor", "poison", "of Lisbon", "she left")]
    started.submit(items)
    gate.open.release(2)
    errors = [waited.future.exception(60) for waited in items]
    assert [type(error) for error in errors] == [type(None), MemoryError, type(None), type(None)]
    monkeypatch.setattr(Batcher, "predict", lambda self, buffer: 1 / 0)  # a bug
    after = item(pipeline, "the mayor")
    started.submit([after])
    assert isinstance(after.future.exception(60), ZeroDivisionError)


def test_late_answers_are_504_and_full_queues_429(serve, gate):
    with serve(timeout=0.5, max_waiting_requests=1) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, client, {"texts": ["one"]})
        until(lambda: gate.waiting == 1)
        second = pool.submit(post, client, {"texts": ["two"]})
        queue = client.app.state.service.queue
        until(lambda: len(queue.waiting) == 1)
        rejected = post(client, {"texts": ["three"]})
        assert "The queue is full" in error_of(rejected, 429, "queue_full")
        assert int(rejected.headers["retry-after"]) >= 1
        for late in (first, second):
            assert "within 0.5 s" in error_of(late.result(), 504, "timeout")
        gate.open.release(10)
        until(lambda: not queue.waiting and not gate.waiting)
        assert queue.metrics.abandoned == 1  # the second was never predicted
        assert gate.batches == [["one"]]
        time.sleep(0.05)
        assert post(client, {"texts": ["four"]}).status_code == 200
