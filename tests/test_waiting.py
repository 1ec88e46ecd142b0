"""Scores, losses and gradients never wait for a device: where tensors have no values, asking for one raises."""

from contextlib import nullcontext

import pytest
import torch

import nestree.losses
from nestree.config import recipes
from nestree.model import Recognizer
from nestree.nn.bert import FAMILIES
from nestree.treecrf import LogPartition
from tests import tiny

WITHOUT_ENTROPY = [name for name in recipes() if name != "release"]  # the reference backend waits for itself


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """It does not know the device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    place = tmp_path_factory.mktemp("encoders")
    return {family: tiny.encoder(place / family, family) for family in FAMILIES & set(tiny.FAMILIES)}


def nowhere(folder, recipe: str, *changes: str):
    """A model and a batch without values."""
    settings = tiny.settings(recipe, "encoder.lstm_layers=0", *changes)  # cuDNN packs on the host
    model = Recognizer(settings, tiny.LABELS, folder)
    batch = model.collate(tiny.SENTENCES).to("meta")
    return model.to("meta"), batch


def trees_nowhere(several, lengths, heads):
    """What the engine would give; on a GPU it looks at no value either."""
    return [sums_nowhere(potentials, asked) for potentials, asked in zip(several, heads, strict=True)]


def sums_nowhere(potentials, heads):
    batch, posts = potentials.span.shape[:2]
    head = torch.empty(batch, posts, posts, posts - 1, device="meta") if heads else None
    made = {name: None if t is None else torch.empty_like(t) for name, t in potentials._asdict().items()}
    if "head" in made:
        made["head"] = head
    log_z = sum(t.flatten(1).sum(1) for t in potentials if t is not None)
    return LogPartition(log_z, type(potentials)(**made))


def test_what_waits_raises_here():
    with pytest.raises(Exception, match=r"meta"):
        torch.empty(3, device="meta").sum().item()
    with pytest.raises(Exception, match=r"meta"):
        torch.empty(3, device="meta").nonzero()


@pytest.mark.parametrize("recipe", [*WITHOUT_ENTROPY, "default loss.hard_negatives=10"])
def test_losses_and_gradients(encoders, recipe, monkeypatch):
    monkeypatch.setattr(nestree.losses, "log_partitions", trees_nowhere)
    model, batch = nowhere(encoders["bert"], *recipe.split())
    losses = model.losses(batch)
    (losses.total / losses.mentions).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    assert norm.device.type == "meta"
    assert sum(p.grad is not None for p in model.parameters()) > 20


@pytest.mark.parametrize("family", sorted(FAMILIES & set(tiny.FAMILIES)))
def test_encoders(encoders, family):
    model, batch = nowhere(encoders[family], "default")
    assert model.encoder(batch).words.device.type == "meta"
