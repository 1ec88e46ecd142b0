"""Results that a refactoring must not change, compared with stored ones.

`python -m tests.test_golden SHARED SCRATCH` writes the stored results anew: only after a change that is meant to alter
them.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nestree
from nestree.config import Settings, recipe_names
from nestree.data.formats import read
from nestree.model import Recognizer
from nestree.nn.int8 import unavailable_reason
from nestree.treecrf import LexicalPotentials, best_trees, entropy, log_partition, marginals
from tests import tiny

GOLDEN = Path(__file__).parent / "golden"
SENTENCES = 300  # of GUM-open's test data


def bundled_entities(shared: Path, precision: Any) -> list[list[Any]]:
    """[start, end, label, head, score] of each entity that the bundled model finds, sentence by sentence."""
    documents = read(shared / "data" / "gum_open" / "test.jsonl.gz")
    words = [list(s.words) for document in documents for s in document.sentences][:SENTENCES]
    pipeline = nestree.load(device="cpu", precision=precision)
    return [
        [[e.start, e.end, e.label, e.head, round(e.score or 0.0, 5)] for e in sentence.entities]
        for sentence in pipeline.words(words)
    ]


def recipe_results(folder: Path, recipe: str) -> dict[str, Any]:
    """Losses and gradient norms of one batch, with parameters filled by a fixed generator."""
    path = tiny.encoder(folder)
    settings = tiny.settings(recipe, f"encoder.path={path}")
    torch.manual_seed(0)
    model = Recognizer(settings, tiny.LABELS, path)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    torch.manual_seed(1)
    losses = model.eval().losses(model.collate(tiny.SENTENCES))
    (losses.total / losses.mentions).backward()
    norms = [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]
    return {
        "losses": sorted(float(part.detach()) for part in losses.parts.values()),
        "gradient_norms": sorted(norms),
    }


def engine_results() -> list[dict[str, Any]]:
    """log Z, marginals, entropy and best trees of random potentials, 1 to 12 words."""
    generator = torch.Generator().manual_seed(3)
    results = []
    for n in range(1, 13):
        shapes = [(n + 1, n + 1), (n, n), (n,), (n + 1, n + 1), (n + 1, n + 1, n)]
        parts = [torch.randn(1, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
        potentials = LexicalPotentials(*parts)
        probabilities = marginals(potentials, [n])
        tree = best_trees(potentials, [n])[0]
        results.append(
            {
                "log_partition": log_partition(potentials, [n]).item(),
                "entropy": entropy(potentials, [n]).item(),
                "marginals": [float((p**2).sum()) for p in (probabilities.span, probabilities.arc, probabilities.root)],
                "spans": [list(span) for span in tree.spans],
                "score": tree.score,
            }
        )
    return results


def load_golden(name: str) -> Any:
    return json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))


def test_bundled_model(shared: Path) -> None:
    found, expected = bundled_entities(shared, "float32"), load_golden("bundled-float32")
    assert [[e[:4] for e in entities] for entities in found] == [[e[:4] for e in es] for es in expected]
    scores, expected_scores = ([e[4] for entities in sentences for e in entities] for sentences in (found, expected))
    assert scores == pytest.approx(expected_scores, abs=2e-4)


def test_bundled_model_in_int8(shared: Path) -> None:
    """Processors round float32 differently in the last bit, and with it, now and then, a number of 8 bits."""
    if why := unavailable_reason():
        pytest.skip(why)
    found, expected = (
        {(number, *entity[:4]): entity[4] for number, entities in enumerate(sentences) for entity in entities}
        for sentences in (bundled_entities(shared, "int8"), load_golden("bundled-int8"))
    )
    both = found.keys() & expected.keys()
    assert len(both) >= 0.998 * max(len(found), len(expected))
    differences = sorted(abs(found[entity] - expected[entity]) for entity in both)
    assert differences[len(both) // 2] < 2e-4
    assert differences[-1] < 0.05


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipes(tmp_path: Path, recipe: str) -> None:
    assert Settings.read(recipe)
    expected = load_golden("recipes")[recipe]
    found = recipe_results(tmp_path / "encoder", recipe)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-4, abs=1e-6)


def test_engine() -> None:
    for found, expected in zip(engine_results(), load_golden("engine"), strict=True):
        assert found.pop("spans") == expected.pop("spans")
        assert found.pop("marginals") == pytest.approx(expected.pop("marginals"), rel=1e-9)
        assert found == pytest.approx(expected, rel=1e-9)


def write(shared: Path, scratch: Path) -> None:
    results = {
        "engine": engine_results(),
        "recipes": {r: recipe_results(scratch / r.replace("/", "-"), r) for r in recipe_names()},
        "bundled-float32": bundled_entities(shared, "float32"),
        "bundled-int8": bundled_entities(shared, "int8"),
    }
    for name, value in results.items():
        text = json.dumps(value, separators=(",", ":"))
        (GOLDEN / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
