"""A pipeline of a tiny model, and the application that serves it."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import nestree
from nestree.pipeline import Pipeline

pytest.importorskip("fastapi")
from starlette.testclient import TestClient

from nestree.serve import ServeOptions, create_app

Serve = Callable[..., AbstractContextManager[TestClient]]


@pytest.fixture(scope="session")
def pipeline(tiny_model: Path) -> Pipeline:
    return nestree.load(tiny_model, device="cpu")


@pytest.fixture(scope="session")
def serve(pipeline: Pipeline) -> Serve:
    """A function that serves the tiny model, with options, and returns a client."""

    @contextmanager
    def start(**options) -> Iterator[TestClient]:
        app = create_app(pipeline, ServeOptions(model_name="tiny", **options))
        with TestClient(app, base_url="http://localhost:8000", raise_server_exceptions=True) as client:
            until(lambda: client.get("/ready").status_code == 200)
            yield client

    return start


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[TestClient]:
    with serve() as client:
        yield client


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition; raise if it does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def same(documents: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Whether these are the same entities; probabilities depend on the batch in their last digits."""

    def values(document: dict[str, Any]) -> tuple[Any, list[float]]:
        entities = [{**entity, "score": None, "labels": None} for entity in document["entities"]]
        labels = [label for entity in document["entities"] for label in entity["labels"]]
        names, scores = [x["label"] for x in labels], [x["score"] for x in labels]
        return [document["text"], entities, names], scores

    pairs = [(values(a), values(b)) for a, b in zip(documents, expected, strict=True)]
    return all(a[0] == b[0] and a[1] == pytest.approx(b[1], abs=1e-4) for a, b in pairs)
