"""The bundled model: installed with the package, small enough, and it finds entities."""

import gc
import tomllib
from itertools import islice
from pathlib import Path

import pytest
import torch

from nestree import checkpoint
from nestree.data import formats
from nestree.errors import ModelError
from nestree.evaluation import evaluate
from nestree.pipeline import load
from tests.conftest import ROOT

ALLOWED = 26_000_000  # bytes, all files together


@pytest.fixture(scope="module")
def bundled() -> Path:
    if not checkpoint.BUNDLED.is_dir():
        pytest.skip("there is no bundled model")
    return checkpoint.bundled_model()


def test_every_file_of_the_package_is_installed():
    """`pip install` copies the files that pyproject.toml lists: recipes, templates, the model."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["nestree"]
    listed = {path for pattern in patterns for path in (ROOT / "nestree").glob(pattern)}
    files = {path for path in (ROOT / "nestree").rglob("*") if path.is_file() and path.suffix != ".py"}
    assert {path for path in files if path.parent.name != "__pycache__"} <= listed


def test_it_is_small_and_whole_and_tells_nothing_of_a_machine(bundled):
    files = list(checkpoint.model_files(bundled))
    assert sum(path.stat().st_size for path in files) <= ALLOWED
    assert set(files) == {path for path in bundled.rglob("*") if path.is_file()}
    assert (bundled / checkpoint.MANIFEST).is_file()
    assert not Path(checkpoint.read_settings(bundled).encoder.path).is_absolute()
    card = (bundled / "README.md").read_text(encoding="utf-8")
    for heading in ("## Data", "## Scores", "## Licence and attribution", "## Weights"):
        assert heading in card
    assert "Nobody has stated a licence" not in card


def test_it_finds_nested_entities(bundled):
    ner = load(device="cpu")
    found = ner("The president of the University of California met Iraqi army leaders.").entities
    assert {"the University of California", "California", "Iraqi army leaders"} <= {e.text for e in found}
    assert all(e.head is not None and 0 < e.score <= 1 for e in found)
    assert max(e.depth for e in found) >= 1
    assert all(ner.labels.values())  # its card describes every label


@pytest.mark.parametrize("collecting", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(bundled, collecting, tmp_path):
    (gc.enable if collecting else gc.disable)()
    try:
        load(bundled, "cpu")
        assert gc.isenabled() is collecting
        with pytest.raises(ModelError):
            load(tmp_path, "cpu")
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_the_default_dtype_changes_nothing(bundled, precision):
    text = "Anna lives in Oslo."
    before = load(device="cpu", precision=precision)
    expected = before(text).to_dict()
    torch.set_default_dtype(torch.float64)
    try:
        assert before(text).to_dict() == load(device="cpu", precision=precision)(text).to_dict() == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_it_is_about_as_good_as_its_card_says(bundled, shared):
    """On fifty sentences only: a model that was damaged on its way would find next to nothing."""
    documents = formats.read(shared / "data" / "gum_open" / "dev.jsonl.gz")
    gold = list(islice((sentence for document in documents for sentence in document.sentences), 50))
    predicted = load(device="cpu").words(gold)
    assert evaluate(gold, predicted, resamples=0).entities.f1 > 0.6
