"""An update: microbatches, SAM and FGM, out-of-memory errors, prefetching, learning rates."""

import threading
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from nestree.errors import ChartMemoryError, TrainingError
from nestree.model import Recognizer
from nestree.training import Callbacks
from nestree.training.optimizer import Perturbation, lr_schedule, make_optimizer, set_lr
from nestree.training.run_dir import Progress
from nestree.training.step import GradientStep, Prefetcher
from nestree.training.train import make_accelerator


def make_updater(settings, data) -> GradientStep:
    torch.manual_seed(1)
    model = Recognizer(settings, data.labels, settings.encoder.path).train()
    return GradientStep(model, data.train, make_accelerator("cpu"), settings, Progress(""))


@pytest.fixture(scope="module")
def updater(without_chance, data) -> GradientStep:
    return make_updater(without_chance(), data)


@pytest.fixture(autouse=True)
def whole(updater):
    updater.progress.microbatches = 1
    updater.callbacks = []


def gradients(updater: GradientStep, update: list[list[int]], number: int = 1) -> dict[str, torch.Tensor]:
    updater.gradients(update, number)
    return {name: p.grad.clone() for name, p in updater.model.named_parameters() if p.grad is not None}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], rtol=1e-4, atol=1e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=atol, msg=name)


def test_gradients_add_up_and_are_divided_by_all_mentions(updater):
    whole = gradients(updater, [list(range(8))])
    assert max(gradient.abs().max() for gradient in whole.values()) > 0.01
    for cut in (2, 3, 8):
        updater.progress.microbatches = cut
        assert_equal(gradients(updater, [list(range(8))]), whole)
    updater.progress.microbatches = 1
    assert_equal(gradients(updater, [[0, 1], [2, 3, 4], [5, 6, 7]]), whole)
    one = gradients(updater, [[0]])  # three mentions
    none = gradients(updater, [[4]])  # none: divided by 1, not by 0
    both = gradients(updater, [[0], [4]])
    assert_equal(both, {name: one[name] + none[name] / 3 for name in both})


class Full:
    """Replaces `losses` of a model: more than so many sentences at a time do not fit."""

    def __init__(self, model: Recognizer, most: int, error: Exception) -> None:
        self.losses, self.most, self.error, self.sizes = model.losses, most, error, []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        if len(batch) > self.most:
            raise self.error
        return self.losses(batch)


class Notes(Callbacks, list):
    def note(self, text: str, updates: int) -> None:
        self.append(text)


def real_error() -> Exception:
    """What PyTorch raises on this machine's CPU."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.int8)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        ChartMemoryError("a chart of 9 GB does not fit"),
        torch.AcceleratorError("CUDA error: out of memory"),
        real_error(),
    ],
)
def test_out_of_memory_halves_the_batch_and_changes_nothing(updater, monkeypatch, error):
    whole = gradients(updater, [list(range(8))])
    notes, full = Notes(), Full(updater.model, 3, error)
    updater.callbacks = [notes]
    monkeypatch.setattr(updater.model, "losses", full)
    assert_equal(gradients(updater, [list(range(8))]), whole)
    assert full.sizes[0] == 8
    assert max(full.sizes[-updater.progress.microbatches :]) <= 3
    assert "out of memory: in this epoch each batch is split into" in notes[-1]
    before = len(notes)
    gradients(updater, [list(range(8))])
    assert len(notes) == before  # it is reported once


def test_a_sentence_that_never_fits_is_named(updater, monkeypatch):
    monkeypatch.setattr(updater.model, "losses", Full(updater.model, 0, torch.OutOfMemoryError("full")))
    with pytest.raises(TrainingError, match="memory for a sentence of 10 words alone: fans of the club"):
        updater.gradients([list(range(8))], 1)
    monkeypatch.setattr(updater, "split", lambda update: [])  # without a share: zeros of one sentence
    with pytest.raises(TrainingError, match=r"not enough memory for a sentence of 7 words alone"):
        updater.gradients([[0, 1]], 1)


@pytest.mark.parametrize("moves", ["fgm", "sam"])
def test_sam_and_fgm_add_the_gradient_at_perturbed_weights(updater, without_chance, monkeypatch, moves):
    encoder = updater.model.encoder.transformer
    weights = [encoder.get_input_embeddings().weight] if moves == "fgm" else [*encoder.parameters()]
    before, plain = [weight.detach().clone() for weight in weights], gradients(updater, [[0, 1, 2]])
    slopes = [weight.grad.clone() for weight in weights]
    settings = without_chance("training.rho=0.1", f"training.perturbation={moves}").training
    monkeypatch.setattr(updater, "perturbation", Perturbation(encoder, updater.parameters, settings))
    hardened = gradients(updater, [[0, 1, 2]])
    assert all(map(torch.equal, weights, before))  # nothing is left of it
    monkeypatch.setattr(updater, "perturbation", None)
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight.add_(0.1 * slope / norm)
    try:
        moved = gradients(updater, [[0, 1, 2]])
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
    assert_equal(hardened, {name: plain[name] + moved[name] for name in plain}, atol=1e-5)
    assert any((moved[name] - plain[name]).norm() > 1e-3 * plain[name].norm() for name in plain)


def test_sam_does_not_depend_on_microbatches(updater, without_chance, monkeypatch):
    settings, encoder = without_chance("training.rho=0.5").training, updater.model.encoder.transformer
    monkeypatch.setattr(updater, "perturbation", Perturbation(encoder, updater.parameters, settings))
    whole = gradients(updater, [[0, 1, 2, 3], [4, 5, 6, 7]])
    updater.progress.microbatches = 3
    assert_equal(gradients(updater, [[0, 1, 2, 3], [4, 5, 6, 7]]), whole)
    assert_equal(gradients(updater, [list(range(8))]), whole)


def test_dropout_follows_from_seed_and_update(settings, data):
    updater = make_updater(settings("encoder.dropout=0.5"), data)
    first = float(updater.gradients([[0, 1]], 1)["joint"])
    torch.rand(7)
    assert float(updater.gradients([[0, 1]], 1)["joint"]) == first
    assert float(updater.gradients([[0, 1]], 2)["joint"]) != first


def test_prefetched_batches_are_the_same(updater, monkeypatch, record_calls):
    first, second = [[0, 1, 2], [3]], [[4, 5], [6, 7, 0]]
    expected = [updater.gradients(first, 1), updater.gradients(second, 2)]
    gradients = [p.grad.clone() for p in updater.parameters]
    calls = record_calls(updater.model, "collate", lambda sentences: (len(sentences), threading.get_ident()))
    ahead = Prefetcher(updater.model, updater.sentences, torch.device("cpu"), background=True)
    monkeypatch.setattr(updater, "prefetcher", ahead)
    found = [updater.gradients(first, 1, second), updater.gradients(second, 2)]
    assert found == expected
    assert all(torch.equal(p.grad, before) for p, before in zip(updater.parameters, gradients, strict=True))
    sizes, threads = zip(*calls, strict=True)
    assert threading.get_ident() not in threads  # never two at once
    assert sizes == (3, 3, 1, 2, 3)  # the first is wanted again, as no one could know
    assert set(ahead.futures) == {(4, 5), (6, 7, 0)}  # nothing older is kept


def test_a_failed_prefetch_is_raised_or_repeated(updater, monkeypatch):
    """Memory that was short for a moment is no reason to give up a sentence."""
    collate, errors = updater.model.collate, [ValueError("one"), MemoryError()]

    def failing(sentences):
        if len(sentences) == 1 and errors:
            raise errors.pop(0)
        return collate(sentences)

    expected = gradients(updater, [[3], [0, 1]])
    monkeypatch.setattr(updater.model, "collate", failing)
    ahead = Prefetcher(updater.model, updater.sentences, torch.device("cpu"), background=True)
    monkeypatch.setattr(updater, "prefetcher", ahead)
    updater.gradients([[4, 5]], 1, [[3], [0, 1]])
    with pytest.raises(ValueError, match="one"):
        updater.gradients([[3], [0, 1]], 2)
    assert_equal(gradients(updater, [[3], [0, 1]]), expected)
    assert not errors
    assert updater.progress.microbatches == 2


@pytest.fixture
def training(settings):
    values = {"epochs": 10, "warmup_epochs": 2.0, "encoder_lr": 0.1, "lr": 1.0, "weight_decay": 0.5}
    return replace(settings().training, **values)


@pytest.mark.parametrize(("epochs", "factor"), [(0, 0), (0.5, 0.25), (2, 1), (6, 0.5), (9, 0.125), (10, 0), (11, 0)])
def test_linear_warmup_and_decay(training, epochs, factor):
    assert lr_schedule(epochs, training) == pytest.approx(factor)
    assert lr_schedule(0, replace(training, warmup_epochs=0.0)) == 1


def test_encoder_lr_and_no_weight_decay_of_biases(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = make_optimizer(model, model[0], training)
    set_lr(optimizer, 0.5)
    groups = optimizer.param_groups
    rates = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert [rates[id(p)] for p in model.parameters()] == [(0.05, 0.5), (0.05, 0), (0.5, 0.5), (0.5, 0)]


def test_training_on_another_device_than_before():
    """accelerate keeps the device and the precision of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    Accelerator(cpu=True, mixed_precision="bf16")
    accelerator = make_accelerator("cpu")
    assert (accelerator.device.type, accelerator.mixed_precision) == ("cpu", "no")
