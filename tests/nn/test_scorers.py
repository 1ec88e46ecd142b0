"""Scores: products by hand, normalisation over the cells of a sentence only."""

import pytest
import torch

from nestree.config import Settings
from nestree.errors import ModelError
from nestree.nn.encoder import Vectors
from nestree.nn.scorers import (
    Biaffine,
    FullTriaffine,
    LowRankTriaffine,
    RotaryEmbedding,
    Scorer,
    SpanLabels,
    arc_cells,
    normalize_scores,
)
from nestree.treecrf.potentials import cell_masks


def vectors_of(*shape) -> Vectors:
    words, posts = torch.randn(shape), torch.randn(shape)
    return Vectors(words, posts, words, posts)


def one(x):
    return torch.cat([x, torch.ones(1)])


def test_biaffine_and_triaffine_by_hand(monkeypatch):
    torch.manual_seed(0)
    pairs = Biaffine(4, 3)
    left, right = torch.randn(2, 5, 4), torch.randn(2, 6, 4)
    scores = pairs(left, right)
    assert scores.shape == (2, 5, 6, 3)
    expected = one(left[1, 2]) @ pairs.weight[2] @ one(right[1, 3])
    torch.testing.assert_close(scores[1, 2, 3, 2], expected)
    torch.testing.assert_close(pairs.score_pairs(left[:, 2], right[:, 3]), scores[:, 2, 3])
    torch.manual_seed(0)
    triples = FullTriaffine(3, 2)
    left, right, head = (torch.randn(7, 3) for _ in range(3))
    scores = triples(*triples.prepare(left, right, head))
    assert scores.shape == (7, 2)
    expected = torch.einsum("x,y,xycz,z->c", one(left[4]), one(right[4]), triples.weight, one(head[4]))
    torch.testing.assert_close(scores[4], expected)
    monkeypatch.setattr(FullTriaffine, "MAX_NUMBERS", 32)  # two rows at a time
    torch.testing.assert_close(triples(*triples.prepare(left, right, head)), scores)
    spread = triples(*triples.prepare(left[:, None], right[:, None], head[None].expand(7, 7, 3)))
    torch.testing.assert_close(spread[torch.arange(7), torch.arange(7)], scores)
    assert triples(*triples.prepare(left[:0], right[:0], head[:0])).shape == (0, 2)
    torch.manual_seed(0)
    triples = LowRankTriaffine(3, 5, 2)
    left, right, head = (torch.randn(3) for _ in range(3))
    pairs = zip(triples.sides, (left, right, head), strict=True)
    factors = [side.weight @ x + side.bias for side, x in pairs]
    expected = triples.out.weight @ (factors[0] * factors[1] * factors[2]) + triples.out.bias
    torch.testing.assert_close(triples(*triples.prepare(left, right, head)), expected)


def test_the_cells_of_arcs_and_roots():
    lengths = torch.tensor([1, 4, 3])
    cells = cell_masks(lengths, 4)
    assert torch.equal(arc_cells(lengths, 4), torch.cat([cells.root[:, None], cells.arc], 1))


def test_normalization_sees_the_cells_of_a_sentence_only():
    torch.manual_seed(0)
    lengths = torch.tensor([4, 2, 1])
    cells = cell_masks(lengths, 4).span[..., None]
    scores = 40 * torch.randn(3, 5, 5, 2) + 7
    found = normalize_scores(scores, cells)
    for b, n in enumerate(lengths.tolist()):
        inside = found[b][cells[b, ..., 0]]
        assert len(inside) == n * (n + 1) // 2
        assert float(inside.mean()) == pytest.approx(0, abs=1e-5)
        assert float(inside.std(correction=0)) == pytest.approx(1, rel=0.02)
    assert bool((found.masked_select(~cells) == 0).all())
    changed = normalize_scores(torch.where(cells, scores, 1e6), cells)
    assert torch.equal(changed, found)


def test_normalization_of_few_cells():
    cells = torch.ones(1, 1, 2, dtype=torch.bool)
    found = normalize_scores(torch.tensor([[[-30.0, 50.0]]]), cells)
    torch.testing.assert_close(found, torch.tensor([[[-1.0, 1.0]]]), rtol=0.01, atol=0)
    scores = torch.tensor([[[0.3, -0.2]]], requires_grad=True)
    normalize_scores(scores, cells)[0, 0, 1].backward()
    assert float(scores.grad[0, 0, 1]) > 0.1
    for cells in (1, 5):
        scores = torch.full((1, cells), 3.0, requires_grad=True)
        found = normalize_scores(scores, torch.ones(1, cells, dtype=torch.bool))
        assert found.tolist() == [[0.0] * cells]
        found.sum().backward()
        assert bool(scores.grad.isfinite().all())
    nothing = normalize_scores(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool))
    assert nothing.tolist() == [[0.0] * 3]


def test_bos_governs_the_root():
    torch.manual_seed(0)
    changes = ["model.mlp_size=5", "model.normalize=false", "model.dropout=0", "model.rotary=false"]
    settings = Settings.read("default").with_overrides(changes)
    scorer = Scorer(6, settings.model, 3)
    vectors = vectors_of(2, 4, 6)
    scores = scorer(vectors, torch.tensor([3, 2]))
    assert scores.arc.shape == (2, 3, 3)
    heads, modifiers = scorer.head(vectors.words), scorer.modifier(vectors.words)
    torch.testing.assert_close(scores.root[1, 0], scorer.arcs.score_pairs(heads[1, 0], modifiers[1, 1])[0])
    torch.testing.assert_close(scores.arc[1, 0, 2], scorer.arcs.score_pairs(heads[1, 1], modifiers[1, 3])[0])


def test_labels_of_spans_and_of_heads():
    torch.manual_seed(0)
    vectors = vectors_of(2, 4, 6)
    lengths = torch.tensor([3, 3])
    spans = Scorer(6, Settings.read("ablation/07-lexical-yes-no").model, 3)(vectors, lengths).labels
    b, i, j, h = torch.tensor([[0, 1], [0, 1], [2, 3], [1, 2]])
    chart = spans.chart()
    assert chart.shape == (2, 4, 4, 3)
    torch.testing.assert_close(spans.score_spans(b, i, j, None), chart[b, i, j], rtol=1e-4, atol=1e-5)
    heads = Scorer(6, Settings.read("default").model, 3)(vectors, lengths).labels
    assert heads.score_spans(b, i, j, h).shape == (2, 3)
    assert not torch.equal(heads.score_spans(b, i, j, h), heads.score_spans(b, i, j, i))
    with pytest.raises(ModelError, match="no chart of spans alone"):
        heads.chart()


def test_rotary_by_hand():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    found = RotaryEmbedding()(x)
    for position in range(5):
        for d, speed in enumerate((1.0, 0.01)):  # size 4: two planes, of dimensions 0 and 2, 1 and 3
            angle = torch.tensor(position * speed, dtype=torch.float64)
            a, b = x[1, position, d], x[1, position, d + 2]
            torch.testing.assert_close(found[1, position, d], a * angle.cos() - b * angle.sin())
            torch.testing.assert_close(found[1, position, d + 2], a * angle.sin() + b * angle.cos())


@pytest.mark.parametrize("recipe", ["release", "ablation/07-lexical-yes-no", "ablation/03-tree-one-stage"])
def test_rotary_scores_of_equal_words_depend_on_their_places(recipe):
    """All words look the same here: without positions, all scores of a kind would be equal."""
    torch.manual_seed(0)
    lengths = torch.tensor([4])
    same = torch.randn(6).expand(1, 5, 6)
    for rotary in (True, False):
        sizes = ["model.mlp_size=64", "model.label_mlp_size=16"]
        changes = [f"model.rotary={str(rotary).lower()}", "model.normalize=false", "encoder.lstms=1", *sizes]
        settings = Settings.read(recipe).with_overrides(changes).model
        scores = Scorer(6, settings, 3).eval()(Vectors(same, same, same, same), lengths)
        kinds = [scores.mention[..., 0], scores.arc, scores.root]
        kinds.append(scores.labels.chart()[..., 0] if settings.labeling == "span" else None)
        assert all((kind.detach().std().item() > 1e-3) == rotary for kind in kinds if kind is not None)


def test_gradients_through_all_of_release_equal_finite_differences():
    torch.manual_seed(0)
    changes = ["model.mlp_size=4", "model.label_mlp_size=3", "model.dropout=0"]
    scorer = Scorer(6, Settings.read("release").with_overrides(changes).model, 2).double()
    lengths = torch.tensor([3, 2])
    b, i, j, h = torch.tensor([[0, 1], [0, 1], [2, 2], [1, 1]])
    given = [torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    def scored(*vectors):
        scores = scorer(Vectors(*vectors), lengths)
        return scores.mention, scores.arc, scores.root, scores.labels.score_spans(b, i, j, h)

    assert torch.autograd.gradcheck(scored, given)


def test_each_score_sees_its_own_vectors():
    torch.manual_seed(0)
    settings = Settings.read("release").with_overrides(["model.mlp_size=4", "model.label_mlp_size=3"])
    scorer = Scorer(6, settings.model, 2).eval()
    lengths, place = torch.tensor([3]), [torch.tensor([k]) for k in (0, 0, 2, 1)]
    base = [torch.randn(1, 4, 6) for _ in range(4)]

    def seen(vectors):
        scores = scorer(Vectors(*vectors), lengths)
        return scores.arc, scores.mention, scores.labels.score_spans(*place)

    before = seen(base)
    after = [seen([*base[:k], base[k] + 1, *base[k + 1 :]]) for k in range(4)]
    changed = [[not torch.equal(x, y) for x, y in zip(before, each, strict=True)] for each in after]
    assert changed == [[True, False, False], [False, True, False], [False, False, True], [False, False, True]]


def test_gradients_of_labels_are_the_same_in_each_run():
    """Several threads that add up the gradients of one vector would do so in any order."""
    torch.manual_seed(0)
    parts = [torch.randn(4, 40, 256, requires_grad=True) for _ in range(3)]
    rows = torch.randint(4, (2000,)), *torch.randint(40, (3, 2000)).unbind()
    torch.set_num_threads(4)
    weights = torch.randn(2000, 256)

    def gradients():
        scores = SpanLabels(parts, lambda *vectors: sum(vectors)).score_spans(*rows)
        return torch.autograd.grad(scores, parts, weights)

    first = gradients()
    for _ in range(20):
        assert all(map(torch.equal, gradients(), first))
    expected = torch.zeros(4, 40, 256, dtype=torch.float64).index_put(rows[:2], weights.double(), accumulate=True)
    torch.testing.assert_close(first[0].double(), expected, rtol=1e-5, atol=1e-4)
