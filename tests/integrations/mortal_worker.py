"""A hook for the worker processes of Ray: a document with the word Killer kills the worker that gets it."""

import os
import signal
from collections.abc import Sequence
from typing import Any

from nestree.integrations.ray import Worker

predict, predict_jobs = Worker.predict, Worker.predict_jobs


def make_workers_mortal() -> None:
    Worker.predict, Worker.predict_jobs = mortal_predict, mortal_predict_jobs  # type: ignore[method-assign]


def mortal_predict(self: Worker, groups: Sequence[Any]) -> Any:
    if any("Killer" in document.words for group in groups for document in group):
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(self, groups)


def mortal_predict_jobs(self: Worker, jobs: Sequence[Any]) -> Any:
    if any(b"Killer" in job.source.read_bytes() for job, _ in jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return predict_jobs(self, jobs)
