"""Every loss of every variant equals what follows from writing down all trees."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from nestree.config import Settings, recipe_names
from nestree.losses import compute_losses, label_losses, negatives
from nestree.model import Recognizer
from nestree.nn.batch import Collator, Gold
from nestree.nn.scorers import Scores
from nestree.treecrf.potentials import cell_masks
from nestree.types import Sentence
from tests import tiny
from tests.losses_by_hand import LABELS, by_hand
from tests.tiny import sentence

SENTENCES = [
    sentence("a"),
    sentence("a", "0-1 A"),
    sentence("a b", "0-2@0 A", "1-2 B"),
    sentence("a b c", "0-2 A", "0-2 B", "2-3 C"),
    sentence("a b c d", "1-3@2 B", "0-4@3 C"),
    sentence("a b c d e", "1-4@3 A", "2-4@3 C", "3-4 A"),
    sentence("a b c"),
    replace(sentence("a b c d", "1-3 B"), complete=False),
    replace(sentence("a b c d", "1-3 B"), complete=False, forbidden=[(0, 1), (1, 4), (2, 4)]),
    replace(sentence("a b c"), complete=False, forbidden=[(0, 2), (1, 3), (0, 3)]),
    sentence("a b c d", "0-2 A", "1-3 B"),  # crossing: no tree can hold them
]
VARIANTS = {
    **{name: (name, []) for name in recipe_names()},
    "sigmoid": ("ablation/11-both", ["loss.label=sigmoid"]),
    "joint sigmoid": ("ablation/12-joint", ["loss.label=sigmoid"]),
    "softmax": ("ablation/11-both", ["loss.label=softmax"]),
    "joint softmax": ("ablation/12-joint", ["loss.label=softmax"]),
    "softmax of all spans": ("ablation/06-lexical-two-stage", ["loss.label=softmax"]),
    "release for GENIA": ("release", ["loss.label=softmax", "loss.head_sharing_penalty=0"]),
    "gold space": ("ablation/11-both", ["loss.regularization_space=gold"]),
    "joint gold space": ("ablation/12-joint", ["loss.regularization_space=gold"]),
    "negatives": ("ablation/07-lexical-yes-no", ["loss.hard_negatives=4"]),
    "head-aware negatives": ("ablation/11-both", ["loss.hard_negatives=3"]),
    "unstructured negatives": ("ablation/02-unstructured-two-stage", ["loss.hard_negatives=10"]),
    "one-stage regularised": ("ablation/04-lexical-one-stage", ["loss.head_sharing_penalty=0.7"]),
    "forms and gold space": ("default", ["loss.label=sigmoid", "loss.regularization_space=gold"]),
    "forms and negatives": ("default", ["loss.hard_negatives=3"]),
    "forms of one stage": ("ablation/04-lexical-one-stage", ["model.head_prior=true"]),
    "gold heads": ("default", ["loss.gold_heads=true"]),
    "gold heads without joint likelihood": ("ablation/11-both", ["loss.gold_heads=true"]),
    "gold heads of one stage": ("ablation/04-lexical-one-stage", ["loss.gold_heads=true"]),
    "forms without head-aware labels": ("ablation/09-head-regularisation", ["model.head_prior=true"]),
}


@dataclass
class Table:
    """Label scores that are looked up."""

    spans: Tensor  # [B, n + 1, n + 1, L]
    heads: Tensor  # [B, n + 1, n + 1, n, L]

    def score_spans(self, b, i, j, h):
        return self.spans[b, i, j] if h is None else self.heads[b, i, j, h]

    def chart(self):
        return self.spans


def settings_of(variant: str, variants: dict[str, tuple[str, list[str]]] = VARIANTS) -> Settings:
    recipe, changes = variants[variant]
    undrawn = ["loss.negative_sampling_rate=0", *changes]
    return Settings.read(recipe).with_overrides(undrawn)


def gold_of(sentences: list[Sentence], settings: Settings) -> Gold:
    collator = Collator(None, LABELS, trees=settings.model.structure != "none")
    return collator.gold(sentences)


def random_scores(
    sentences: list[Sentence], settings: Settings, seed: int = 0, std: float = 1.0, learned: bool = True
) -> Scores:
    """Scores in float64; `learned`: they require gradients."""
    lengths = [len(s.words) for s in sentences]
    batch, n = len(lengths), max(lengths)
    channels = {"score": 1, "yes-no": 2, "labels": 1 + len(LABELS)}[settings.model.mention]
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        values = std * torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.requires_grad_(learned)

    lexical = settings.model.structure == "lexical"
    table = Table(normal(batch, n + 1, n + 1, len(LABELS)), normal(batch, n + 1, n + 1, n, len(LABELS)))
    return Scores(
        torch.tensor(lengths),
        normal(batch, n + 1, n + 1, channels),
        normal(batch, n, n) if lexical else None,
        normal(batch, n) if lexical else None,
        None if settings.model.labeling == "none" else table,
        head_prior=normal(batch, n) if settings.model.head_prior else None,
    )


def leaves(scores: Scores) -> list[Tensor]:
    found = [scores.mention, scores.arc, scores.root, scores.head_prior]
    if scores.labels is not None:
        found += [scores.labels.spans, scores.labels.heads]
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_those_by_hand(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES, settings, seed=len(variant))
    gold = gold_of(SENTENCES, settings)
    found, expected = compute_losses(scores, gold, settings), by_hand(scores, SENTENCES, settings)
    assert set(found.parts) | set(found.metrics) == set(expected)
    for name, value in {**found.parts, **found.metrics}.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9, msg=name)
    total = sum(expected[name] for name in found.parts)
    torch.testing.assert_close(found.total, total, rtol=1e-9, atol=1e-9)
    ours = torch.autograd.grad(found.total, leaves(scores), materialize_grads=True)
    theirs = torch.autograd.grad(total, leaves(scores), materialize_grads=True)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-9)


def test_losses_are_not_negative_and_fall_to_zero_for_perfect_scores():
    changes = ["loss.head_sharing_penalty=0", "loss.negative_sampling_rate=0", "model.head_prior=false"]
    settings = Settings.read("default").with_overrides(changes)
    gold = gold_of(SENTENCES[:-1], settings)
    scores = random_scores(SENTENCES[:-1], settings)
    assert compute_losses(scores, gold, settings).total > 0
    b, i, j = gold.spans.unbind(1)
    mention = torch.zeros_like(scores.mention)
    mention[..., 0] = 200
    mention[b, i, j] = torch.tensor([0.0, 400.0]).double()
    right = torch.full_like(scores.labels.heads, -99)
    right[b, i, j] = torch.where(gold.labels, 99.0, -99.0).double()[:, None]
    perfect = replace(scores, mention=mention, labels=Table(scores.labels.spans, right))
    assert float(compute_losses(perfect, gold, settings).total.detach()) < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_without_entities_has_losses_and_gradients(variant):
    settings = settings_of(variant)
    sentences = [sentence("a b c"), sentence("a")]
    scores = random_scores(sentences, settings)
    found = compute_losses(scores, gold_of(sentences, settings), settings)
    assert found.mentions == 0
    for gradient in torch.autograd.grad(found.total, leaves(scores), materialize_grads=True):
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    "variant", ["ablation/12-joint", "ablation/01-unstructured-one-stage", "ablation/05-tree-two-stage"]
)
def test_where_all_spans_are_guessed_an_incomplete_sentence_counts_as_complete(variant):
    settings = settings_of(variant)
    incomplete = [replace(s, complete=False) for s in SENTENCES]
    scores = random_scores(SENTENCES, settings)
    always = settings.with_overrides(["loss.negative_sampling_rate=100"])
    everywhere = compute_losses(scores, gold_of(incomplete, settings), always)
    complete = gold_of([replace(s, complete=True) for s in SENTENCES], settings)
    expected = compute_losses(scores, complete, settings)
    nowhere = compute_losses(scores, gold_of(incomplete, settings), settings)
    for name, value in expected.parts.items():
        torch.testing.assert_close(everywhere.parts[name], value)
    assert float(nowhere.total.detach()) < float(expected.total.detach())


def test_as_many_spans_are_guessed_as_asked_for():
    settings = settings_of("default").with_overrides(["loss.negative_sampling_rate=0.5"])
    sentences = [replace(sentence("a b c d e"), complete=False), replace(sentence("a b"), complete=False)]
    scores, gold = random_scores(sentences, settings), gold_of(sentences, settings)
    cells = cell_masks(scores.lengths, 5).span
    torch.manual_seed(1)
    drawn = [(negatives(scores, gold, settings) & cells).sum((1, 2)) for _ in range(2000)]
    found = torch.stack(drawn).double()
    assert found.mean(0).tolist() == pytest.approx([2.5, 1.0], abs=0.1)  # standard errors: 0.03, 0.02
    complete = gold_of([replace(s, complete=True) for s in sentences], settings)
    before = torch.get_rng_state()
    assert negatives(scores, complete, settings).all()
    assert torch.equal(torch.get_rng_state(), before)  # nothing is drawn for complete sentences


def test_huge_label_scores_stay_finite():
    scores = torch.tensor([[3e4, -3e4, 3e4]], requires_grad=True)
    right = torch.tensor([[False, True, False]])
    for kind in ("ranking", "sigmoid", "softmax"):
        value = label_losses(scores, right, kind)
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())


@pytest.mark.filterwarnings("ignore::UserWarning")  # of bfloat16 on a CPU that has none
@pytest.mark.parametrize("recipe", ["default", "paper", "ablation/02-unstructured-two-stage"])
def test_losses_are_never_in_half_precision(recipe, tmp_path):
    """Even if the encoder is, and label scores are asked for while losses are computed."""
    settings = tiny.settings(recipe)
    model = Recognizer(settings, tiny.LABELS, tiny.encoder(tmp_path))
    batch = model.eval().collate(tiny.SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(batch)
        inside = compute_losses(scores, batch.gold, settings)
    outside = compute_losses(scores, batch.gold, settings)
    for name, value in outside.parts.items():
        assert value.dtype == inside.parts[name].dtype == torch.float32
        assert torch.equal(value, inside.parts[name]), name
