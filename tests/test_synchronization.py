"""Scores, losses and gradients never synchronize with the device: on the meta device, reading a value raises."""

from contextlib import nullcontext

import pytest
import torch

import nestree.losses
from nestree.config import recipe_names
from nestree.model import Recognizer
from nestree.nn.bert import FAMILIES
from nestree.treecrf import LogPartition
from tests import tiny

WITHOUT_ENTROPY = [name for name in recipe_names() if name != "release"]  # the reference backend synchronizes


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """Autocast does not support the meta device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def on_meta(folder, recipe: str, *changes: str):
    """A model and a batch on the meta device."""
    settings = tiny.settings(recipe, "encoder.lstm_layers=0", *changes)  # cuDNN packs on the host
    model = Recognizer(settings, tiny.LABELS, folder)
    batch = model.collate(tiny.SENTENCES).to("meta")
    return model.to("meta"), batch


def meta_log_partitions(potentials_list, lengths, heads):
    """The shapes of `log_partitions`, which reads no value on a GPU either."""
    results = []
    for potentials, with_heads in zip(potentials_list, heads, strict=True):
        given = potentials._asdict().items()
        marginals = {name: None if t is None else torch.empty_like(t) for name, t in given}
        if "head" in marginals:
            batch, fenceposts = potentials.span.shape[:2]
            shape = batch, fenceposts, fenceposts, fenceposts - 1
            marginals["head"] = torch.empty(shape, device="meta") if with_heads else None
        log_z = sum(t.flatten(1).sum(1) for t in potentials if t is not None)
        results.append(LogPartition(log_z, type(potentials)(**marginals)))
    return results


@pytest.mark.parametrize("recipe", [*WITHOUT_ENTROPY, "default loss.hard_negatives=10"])
def test_losses_and_gradients(tiny_encoders, recipe, monkeypatch):
    monkeypatch.setattr(nestree.losses, "log_partitions", meta_log_partitions)
    model, batch = on_meta(tiny_encoders("bert"), *recipe.split())
    losses = model.losses(batch)
    (losses.total / losses.mentions).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    assert norm.device.type == "meta"
    assert sum(p.grad is not None for p in model.parameters()) > 20


@pytest.mark.parametrize("family", sorted(FAMILIES & set(tiny.FAMILIES)))
def test_encoders(tiny_encoders, family):
    model, batch = on_meta(tiny_encoders(family), "default")
    assert model.encoder(batch).words.device.type == "meta"
