"""A tiny encoder, settings for a run of a second, and the eight sentences."""

import json
import shutil
from collections.abc import Callable

import pytest

from nestree.config import Settings
from nestree.training import Corpus, make_corpus
from tests import tiny

EPOCHS = 3


@pytest.fixture(scope="session")
def settings(tiny_encoder) -> Callable[..., Settings]:
    """Three epochs of several updates, with dropout, so that chance matters."""

    def make_settings(*changes: str) -> Settings:
        short = f"training.epochs={EPOCHS}", "training.batch_words=15", "encoder.dropout=0.1"
        return tiny.settings("default", f"encoder.path={tiny_encoder}", *short, *changes)

    return make_settings


@pytest.fixture(scope="session")
def without_chance(tiny_encoder, settings, tmp_path_factory) -> Callable[..., Settings]:
    """The same without any dropout, that of the encoder included."""
    folder = shutil.copytree(tiny_encoder, tmp_path_factory.mktemp("quiet") / "encoder")
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    (folder / "config.json").write_text(json.dumps(config))
    return lambda *changes: settings(f"encoder.path={folder}", "encoder.dropout=0", *changes)


@pytest.fixture(scope="session")
def data() -> Corpus:
    return make_corpus(tiny.DOCUMENTS, tiny.DOCUMENTS[:4], seed=1)
