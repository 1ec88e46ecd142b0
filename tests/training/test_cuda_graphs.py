"""CUDA graphs, simulated on a CPU by functions that compute everything again; test_cuda.py has real ones."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator

from nestree.errors import ChartMemoryError
from nestree.model import Recognizer
from nestree.training import cuda_graphs, loop
from nestree.training.cuda_graphs import GraphCache
from nestree.training.distill import Teachers
from nestree.training.run_dir import Progress
from nestree.training.step import GradientStep
from nestree.treecrf.memory import is_out_of_memory


class SimulatedGraph:
    """Its replays compute everything again, from the same tensors into the same tensor."""

    def __init__(self, run):
        self.run, self.values = run, run()

    def replay(self):
        self.values.copy_(self.run())


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    def capture(run, cache):
        graph = SimulatedGraph(run)
        return graph, graph.values

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
        return GradientStep(some, data.train, Accelerator(cpu=True), quiet, Progress(""), teachers=lessons)

    plain = updater(model)
    assert plain.graphs is None  # without a GPU nothing is recorded
    monkeypatch.setattr("nestree.training.step.can_capture", lambda model: True)
    return plain, updater(copy.deepcopy(model))


def gradients(updater, update, number=1):
    sums = updater.gradients(update, number)
    named = updater.model.named_parameters()
    return (
        {name: float(value) for name, value in sums.items()},
        {name: p.grad.clone() for name, p in named if p.grad is not None},
    )


@pytest.mark.parametrize("pieces", [1, 2])
def test_graphs_give_the_same_gradients(both, pieces):
    plain, recorded = both
    for updater in both:
        updater.progress.microbatches = pieces
    for number, update in enumerate([[[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1], [2, 3, 4]], [[5]], [[1, 2, 3]]], 1):
        (sums, right), (others, found) = (gradients(updater, update, number) for updater in both)
        assert others == pytest.approx(sums, rel=1e-4, abs=1e-4)
        assert right.keys() == found.keys()
        for name in right:
            torch.testing.assert_close(found[name], right[name], rtol=1e-3, atol=1e-5, msg=name)
        with torch.no_grad():  # as an optimiser does
            for one, two in zip(plain.parameters, recorded.parameters, strict=True):
                one -= 0.05 * one.grad
                two -= 0.05 * two.grad
    assert 1 <= len(recorded.graphs.graphs) <= 7


def test_gradients_stay_where_they_are(both):
    _, recorded = both
    before = [parameter.grad for parameter in recorded.parameters]
    recorded.gradients([[0, 1, 2]], 1)
    recorded.gradients([[3, 4]], 2)
    assert all(p.grad is held for p, held in zip(recorded.parameters, before, strict=True))


def test_without_a_graph_the_batch_is_computed(both, monkeypatch):
    _, recorded = both
    monkeypatch.setattr(recorded.graphs, "max_graphs", 0)
    (sums, right), (others, found) = (gradients(updater, [[0, 1, 2]]) for updater in both)
    assert not recorded.graphs.graphs
    assert others == pytest.approx(sums, rel=1e-4, abs=1e-4)
    for name in right:
        torch.testing.assert_close(found[name], right[name], rtol=1e-3, atol=1e-5, msg=name)


def test_out_of_memory_in_a_capture(both, monkeypatch):
    _, recorded = both

    def full(run, recorder):
        run()  # it had begun
        raise torch.OutOfMemoryError("full")

    _, right = gradients(recorded, [[0, 1, 2]])
    monkeypatch.setattr(cuda_graphs, "capture", full)
    recorded.graphs.graphs.clear()
    _, found = gradients(recorded, [[0, 1, 2]])
    assert recorded.graphs.max_graphs == 0
    for name in right:
        torch.testing.assert_close(found[name], right[name], rtol=1e-3, atol=1e-5, msg=name)


def test_a_failed_capture_is_reported_once(both, monkeypatch):
    def cannot(run, recorder):
        raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    _, recorded = both
    _, right = gradients(recorded, [[0, 1, 2]])
    told = []
    recorded.callbacks = [SimpleNamespace(note=lambda text, updates: told.append(text))]
    monkeypatch.setattr(cuda_graphs, "capture", cannot)
    recorded.graphs.graphs.clear()
    _, found = gradients(recorded, [[0, 1, 2]])
    for name in right:
        torch.testing.assert_close(found[name], right[name], rtol=1e-3, atol=1e-5, msg=name)
    gradients(recorded, [[0, 1, 2]])
    assert [text for text in told if "cannot be captured" in text and "not permitted" in text] == told
    assert len(told) == 1


def test_other_errors_pass(both, monkeypatch):
    def broken(batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(both[1].model, "losses", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        both[1].gradients([[0, 1, 2]], 1)


def test_incomplete_sentences_have_graphs_of_their_own(both, data):
    model = both[1].model
    complete = model.collate(data.train[:2])
    partial = model.collate([data.train[0], replace(data.train[1], complete=False)])
    assert cuda_graphs.shape_key(complete) != cuda_graphs.shape_key(partial)
    assert cuda_graphs.shape_key(complete) == cuda_graphs.shape_key(model.collate(data.train[:2]))
    assert isinstance(both[1].graphs, GraphCache)


def test_graphs_are_dropped_before_batches_are_split(both, monkeypatch):
    _, recorded = both
    _, right = gradients(recorded, [[0, 1, 2]])
    assert recorded.graphs.graphs
    add, full = recorded.graphs.add_gradients, [True]

    def first_full(batch, scale):
        if full.pop() if full else False:
            raise torch.OutOfMemoryError("full")
        return add(batch, scale)

    monkeypatch.setattr(recorded.graphs, "add_gradients", first_full)
    _, found = gradients(recorded, [[0, 1, 2]])
    assert not full
    assert recorded.graphs is None
    assert recorded.progress.microbatches == 1
    for name in right:
        torch.testing.assert_close(found[name], right[name], rtol=1e-3, atol=1e-5, msg=name)


def test_rare_shapes_are_not_captured(both, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 2)
    _, recorded = both
    counts = []
    for number, update in enumerate([[[0, 1, 2]], [[5]], [[0, 1, 2]]], 1):
        recorded.gradients(update, number)  # two passes, as there is an adversary
        counts.append(len(recorded.graphs.graphs))
    assert counts == [0, 0, 1]


def test_where_memory_is_short_nothing_is_padded(both, monkeypatch):
    """A device with room for one sentence, not for two: what is added to a batch must not be what is too much."""
    _, recorded = both
    computed = recorded.model.losses

    def losses(batch):
        if len(batch.lengths) > 1:
            raise torch.OutOfMemoryError("full")
        return computed(batch)

    monkeypatch.setattr(recorded.model, "losses", losses)
    told = []
    recorded.callbacks = [SimpleNamespace(note=lambda text, updates: told.append(text))]
    gradients(recorded, [[6]])
    assert recorded.progress.microbatches == 1
    assert [text for text in told if "not used any more" in text] == told != []


def test_a_capture_leaves_the_random_state(data, settings, monkeypatch):
    monkeypatch.setattr("nestree.training.step.can_capture", lambda model: True)
    monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", 2)
    changes = ["training.rho=1e-9", "training.perturbation=sam", "training.cuda_graphs=true"]
    chosen = settings("encoder.dropout=0.3", "model.dropout=0.3", *changes)
    torch.manual_seed(1)
    model = Recognizer(chosen, data.labels, chosen.encoder.path).train()
    updater = GradientStep(model, data.train, Accelerator(cpu=True), chosen, Progress(""))
    seen, add = [], updater.add_gradients

    def watched(piece, scale):
        found = add(piece, scale)
        seen.append(float(found["joint"]))
        return found

    monkeypatch.setattr(updater, "add_gradients", watched)
    for _ in range(4):
        updater.gradients([[0, 1, 2], [3, 4]], 7)
    assert len(updater.graphs.graphs) == 2
    assert len(seen) == 16
    assert seen == pytest.approx(seen[:2] * 8, rel=1e-5)  # both pieces, in both passes, each time
    updater.gradients([[0, 1, 2], [3, 4]], 8)
    assert seen[-1] != pytest.approx(seen[1], rel=1e-5), "there is something to draw"


def test_graphs_are_dropped_for_an_evaluation(both):
    _, recorded = both
    gradients(recorded, [[0, 1, 2]])
    run, calls = SimpleNamespace(model=recorded.model, step=recorded), []

    def predict():
        calls.append(recorded.graphs)
        if len(calls) == 1:
            raise ChartMemoryError("full")
        return ["found"]

    assert loop.retry_without_graphs(run, predict) == ["found"]
    assert calls[0] is not None
    assert calls[1] is None
    calls.clear()
    with pytest.raises(ChartMemoryError):
        loop.retry_without_graphs(run, predict)  # there is nothing left to give up


def test_out_of_memory_as_the_context_of_another_error():
    def captured():
        try:
            raise torch.OutOfMemoryError("full")
        finally:
            raise RuntimeError("the recording was ended")

    with pytest.raises(RuntimeError, match="ended") as caught:
        captured()
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("the recording was ended"))
