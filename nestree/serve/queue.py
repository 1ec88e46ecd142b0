"""The queue: requests wait, and one worker thread predicts.

There is no timer. When the worker has finished a batch, the next one is whatever waits by then, up to a number of
words, which is larger while the queue is long; `nestree.pipeline` sorts its sentences by length. Texts whose clients
have gone are dropped before they are predicted.
"""

import gc
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter

from nestree.decoding.constraints import SentenceConstraints
from nestree.pipeline import Batcher, Pipeline, PredictOptions, default_batch_words
from nestree.serve.metrics import Metrics
from nestree.serve.options import ApiError, ServeOptions
from nestree.types import Document

log = logging.getLogger(__name__)
WARM_UP = "Ann lives in Lisbon. "  # five words
# Seconds that the worker waits for the interpreter while requests are parsed; Python's own interval is 5 ms.
SWITCH_INTERVAL = 0.0005
LONG_QUEUE_BATCHES = 4  # larger batches are faster, and their answers come later
MIN_SPEED_WORDS = 1_000  # smaller batches say little about the speed under load


@dataclass(eq=False)
class Item:
    """A text that waits for its entities."""

    document: Document
    constraints: Mapping[int, SentenceConstraints]
    options: PredictOptions
    words: int
    future: Future[Document] = field(default_factory=Future)


class PredictionQueue:
    """Bounded by requests and by words; `load` runs in the worker thread, so that the server can answer meanwhile."""

    def __init__(self, load: Callable[[], Pipeline], options: ServeOptions, metrics: Metrics) -> None:
        self.load, self.options, self.metrics = load, options, metrics
        self.pipeline: Pipeline | None = None  # while it is loaded
        self.load_error: Exception | None = None
        self.on_load_error: Callable[[], None] = lambda: None
        self.draining = False
        self.waiting: deque[deque[Item]] = deque()  # the items of each request
        self.waiting_words = 0
        self.words_per_second = 1.0  # of the last large batches
        self.closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.run, name="nestree-worker", daemon=True)

    def get_pipeline(self) -> Pipeline:
        """The pipeline; raises an ApiError while it is loaded or the server shuts down."""
        if self.draining:
            message = "The server is shutting down; try another one."
            raise ApiError(503, "draining", message, {"Retry-After": "5"})
        if self.pipeline is None:
            message = "The model is being loaded; try again in a few seconds."
            raise ApiError(503, "loading", message, {"Retry-After": "2"})
        return self.pipeline

    def check_open(self) -> Pipeline:
        """The pipeline; raises an ApiError also if the queue is full."""
        pipeline = self.get_pipeline()
        self.reject_if_full(0)
        return pipeline

    def reject_if_full(self, words: int) -> None:
        """Raise an ApiError if a request with so many words cannot wait, or would wait longer than its timeout."""
        with self.changed:
            waiting, total = len(self.waiting), self.waiting_words
            is_full = waiting >= self.options.max_waiting_requests or total + words > self.options.max_waiting_words
            too_late = total + words > 0.7 * self.words_per_second * self.options.timeout  # speeds vary
            seconds = min(max(math.ceil(total / self.words_per_second), 1), 60)
        if waiting and (is_full or too_late):
            why = "The queue is full" if is_full else f"This would take more than {self.options.timeout:g} s"
            waits = f"{waiting:,} requests with {total:,} words"
            message = f"{why}: {waits} wait. Try again in about {seconds} s."
            raise ApiError(429, "queue_full", message, {"Retry-After": str(seconds)})

    def submit(self, items: Sequence[Item]) -> None:
        """Queue the texts of a request, or raise an ApiError."""
        words = sum(item.words for item in items)
        self.reject_if_full(words)
        with self.changed:
            self.waiting.append(deque(items))
            self.waiting_words += words
            self.changed.notify()

    def cancel(self, items: Sequence[Item]) -> None:
        """Drop those of the texts that still wait."""
        if not sum(item.future.cancel() for item in items):
            return
        with self.changed:
            before = sum(map(len, self.waiting))
            kept = [deque(item for item in request if not item.future.cancelled()) for request in self.waiting]
            self.waiting = deque(request for request in kept if request)
            self.waiting_words = sum(item.words for request in self.waiting for item in request)
            self.metrics.abandoned += before - sum(map(len, self.waiting))

    def close(self) -> None:
        """Predict what waits, and end the worker."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        if self.thread.is_alive():
            self.thread.join()  # also while it loads: a thread in native code would abort the end of the process

    # The worker thread

    def run(self) -> None:
        try:
            pipeline = self.load()
            if self.closed:
                return
            pipeline.warm_up()
            pipeline(WARM_UP * 200)
            started = time.perf_counter()
            pipeline(WARM_UP * 200)
            self.words_per_second = 1_000 / (time.perf_counter() - started)
        except Exception as error:
            self.load_error = error
            self.on_load_error()
            return
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.freeze()  # exempt the model from garbage collection, which would visit all of it repeatedly
        self.pipeline = pipeline
        log.info("ready: %r", pipeline)
        while batch := self.next_batch(self.options.batch_words or default_batch_words(pipeline.device)):
            started = time.perf_counter()
            try:
                self.predict(pipeline, batch)
            except Exception as error:  # not of one text: the others must not wait forever
                log.error("a batch failed: %s", type(error).__name__)
                for item in batch:
                    if not item.future.done():
                        item.future.set_exception(error)
            seconds, words = time.perf_counter() - started, sum(item.words for item in batch)
            self.metrics.batch_words.observe(words)
            self.metrics.batch_seconds.observe(seconds)
            if words >= MIN_SPEED_WORDS or words > seconds * self.words_per_second:
                self.words_per_second += 0.2 * (words / seconds - self.words_per_second)

    def next_batch(self, max_words: int) -> list[Item]:
        """The first texts that wait, up to so many words, or up to LONG_QUEUE_BATCHES times as many in a long queue.

        Waits for a text; an empty list once the queue is closed.
        """
        batch: list[Item] = []
        words = 0
        with self.changed:
            while not batch:
                self.changed.wait_for(lambda: self.waiting or self.closed)
                if not self.waiting:
                    break
                share = self.waiting_words // (2 * LONG_QUEUE_BATCHES)
                limit = max(max_words, min(share, LONG_QUEUE_BATCHES * max_words))
                while self.waiting and (not batch or words + self.waiting[0][0].words <= limit):
                    item = self.waiting[0].popleft()
                    if not self.waiting[0]:
                        self.waiting.popleft()
                    self.waiting_words -= item.words
                    if item.future.set_running_or_notify_cancel():
                        batch.append(item)
                        words += item.words
                    else:
                        self.metrics.abandoned += 1
        return batch

    def predict(self, pipeline: Pipeline, batch: Sequence[Item]) -> None:
        """Set the results of all futures; texts with equal options are predicted together."""

        def fail(item: Item, error: Exception) -> None:
            self.metrics.failed += 1
            item.future.set_exception(error)

        groups: list[list[Item]] = []
        for item in batch:
            for group in groups:
                if group[0].options == item.options:
                    group.append(item)
                    break
            else:
                groups.append([item])
        for items in groups:
            document_of, constraints_of = attrgetter("document"), attrgetter("constraints")
            batcher = Batcher(pipeline, document_of, items[0].options, fail, get_constraints=constraints_of)
            for item, document in batcher.predict([[(item, item.document) for item in items]]):
                item.future.set_result(document)
