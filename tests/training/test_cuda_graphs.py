"""CUDA graphs, simulated on a CPU by functions that compute everything again; test_cuda.py has real ones."""

import copy
from types import SimpleNamespace

import pytest
import torch

from nestree.errors import ChartMemoryError
from nestree.model import Recognizer
from nestree.training import cuda_graphs, loop
from nestree.training.distill import Teachers
from nestree.training.run_dir import Progress
from nestree.training.step import GradientStep
from nestree.training.train import make_accelerator
from tests.training.test_step import Notes, assert_equal, gradients

CLOSE = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Replays compute everything again, from the same tensors into the same tensor."""

    def capture(run, cache):
        values = run()
        return SimpleNamespace(replay=lambda: values.copy_(run())), values

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 0)


@pytest.fixture(params=["gold", "teacher"])
def both(request, without_chance, data, monkeypatch):
    """Two steps of equal models: one without graphs, the other with them; from gold, or from a teacher, too."""
    changes = ["training.rho=0.5", "training.perturbation=sam", "training.cuda_graphs=true"]
    quiet = without_chance(*changes)
    torch.manual_seed(1)
    model = Recognizer(quiet, data.labels, quiet.encoder.path).train()

    lessons = None
    if request.param == "teacher":
        teacher, size = Recognizer(quiet, data.labels, quiet.encoder.path), len(data.train)
        half = [k % 2 == 0 for k in range(size)]
        lessons = Teachers((teacher,), data.labels, data.train, half, [True] * (size - 1) + [False], 0.3)

    def updater(some: Recognizer) -> GradientStep:
        return GradientStep(some, data.train, make_accelerator("cpu"), quiet, Progress(""), teachers=lessons)

    plain = updater(model)
    assert plain.graphs is None  # without a GPU nothing is captured
    monkeypatch.setattr("nestree.training.step.can_capture", lambda model: True)
    return plain, updater(copy.deepcopy(model))


@pytest.mark.parametrize("pieces", [1, 2])
def test_graphs_give_the_same_gradients(both, pieces):
    plain, captured = both
    for updater in both:
        updater.progress.microbatches = pieces
    for number, update in enumerate([[[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1], [2, 3, 4]], [[5]], [[1, 2, 3]]], 1):
        assert_equal(*(updater.gradients(update, number) for updater in both), 1e-4, 1e-4)
        assert_equal(*(gradients(updater, update, number) for updater in both), **CLOSE)
        with torch.no_grad():  # as an optimiser does
            for one, two in zip(plain.parameters, captured.parameters, strict=True):
                one -= 0.05 * one.grad
                two -= 0.05 * two.grad
    assert 1 <= len(captured.graphs.graphs) <= 7


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("CUDA error: not permitted\nwhile")])
def test_a_failed_capture_is_reported_once_unless_memory_was_short(both, monkeypatch, error):
    def fail(run, cache):
        run()  # it had begun
        raise error

    _, captured = both
    expected = gradients(captured, [[0, 1, 2]])
    notes = Notes()
    captured.callbacks = [notes]
    monkeypatch.setattr(cuda_graphs, "capture", fail)
    captured.graphs.graphs.clear()
    for _ in range(2):
        assert_equal(gradients(captured, [[0, 1, 2]]), expected, **CLOSE)
    assert captured.graphs.max_graphs == 0
    assert len(notes) == (0 if isinstance(error, torch.OutOfMemoryError) else 1)
    assert all("cannot be captured" in note and note.endswith("CUDA error: not permitted)") for note in notes)


def test_graphs_are_dropped_before_batches_are_split(both, monkeypatch):
    _, captured = both
    expected = gradients(captured, [[0, 1, 2]])
    add, full = captured.graphs.add_gradients, [True]

    def full_at_first(batch, scale):
        if full:
            raise torch.OutOfMemoryError(f"full: {full.pop()}")
        return add(batch, scale)

    monkeypatch.setattr(captured.graphs, "add_gradients", full_at_first)
    assert_equal(gradients(captured, [[0, 1, 2]]), expected, **CLOSE)
    assert captured.graphs is None
    assert captured.progress.microbatches == 1


def test_graphs_are_dropped_for_an_evaluation(both):
    _, captured = both
    gradients(captured, [[0, 1, 2]])
    run, calls = SimpleNamespace(model=captured.model, step=captured), []

    def predict():
        calls.append(captured.graphs)
        if len(calls) == 1:
            raise ChartMemoryError("full")
        return ["found"]

    assert loop.retry_without_graphs(run, predict) == ["found"]
    assert calls[0] is not None
    assert calls[1] is None
    calls.clear()
    with pytest.raises(ChartMemoryError):
        loop.retry_without_graphs(run, predict)  # there is nothing left to give up
