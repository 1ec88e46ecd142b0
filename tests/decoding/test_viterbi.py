"""Decoding equals a search through all trees; from trees, entities never cross."""

from dataclasses import replace
from functools import partial

import pytest

from nestree.config import Settings, recipe_names
from nestree.decoding import decode
from nestree.nn.scorers import Scores
from nestree.types import Entity, crossing_pairs
from tests import test_losses
from tests.losses_by_hand import LABELS, tree_score, trees_of
from tests.test_losses import Table
from tests.tiny import sentence

SENTENCES = [sentence(" ".join("abcde"[:n])) for n in (1, 2, 3, 4, 5, 5)]
VARIANTS = {
    **{name: (name, []) for name in recipe_names() if name != "default"},  # which decodes by marginals
    "softmax": ("release", ["loss.label=softmax"]),
    "softmax of all spans": ("ablation/05-tree-two-stage", ["loss.label=softmax"]),
    "bias": ("ablation/12-joint", ["decoding.non_entity_bias=0.8"]),
    "one-stage bias": ("ablation/03-tree-one-stage", ["decoding.non_entity_bias=-0.8"]),
    "sharing": ("ablation/12-joint", ["decoding.head_sharing_penalty=1.5"]),
    "sharing is sought": ("ablation/12-joint", ["decoding.head_sharing_penalty=-2"]),
    "without parsing, with heads": ("ablation/12-joint", ["decoding.method=spans"]),
}


settings_of = partial(test_losses.settings_of, variants=VARIANTS)
random_scores = partial(test_losses.random_scores, learned=False)


def by_hand(b: int, scores: Scores, n: int, settings: Settings) -> set[Entity]:
    """The entities of one sentence, from all of its trees."""
    said = scores.mention[b].detach().clone()  # [n + 1, n + 1, C]
    one_score = settings.model.mention == "score"
    if not one_score:
        said[..., 0] += settings.decoding.non_entity_bias
    cells = [(i, j) for i in range(n) for j in range(i + 1, n + 1)]
    yes = {(i, j): one_score or bool(said[i, j, 1:].max() > said[i, j, 0]) for i, j in cells}
    if settings.model.structure == "none":
        kept = {(i, j, None) for (i, j), is_one in yes.items() if is_one}
    elif settings.decoding.method != "spans":
        kept = {span for span in best_tree(b, scores, said, yes, n, settings) if yes[span[:2]]}
    else:
        heads = likeliest_heads(b, scores, said, n)
        kept = {(i, j, heads[i, j]) for (i, j), is_one in yes.items() if is_one}
    found = set()
    for i, j, h in kept:
        if scores.labels is None:
            labels = [int(said[i, j, 1:].argmax())]
        else:
            each = scores.labels.score_spans(b, i, j, h if settings.model.labeling == "head" else None)
            labels = [l for l in range(len(LABELS)) if each[l] > 0]
            if settings.loss.label == "softmax" and labels:
                labels = [int(each.argmax())]
        found |= {Entity(i, j, LABELS[l], h) for l in labels}
    return found


def best_tree(b, scores, said, yes, n, settings):
    def value(tree):
        spans, arcs, root, lends = tree
        cost = 0.0 if settings.model.mention == "score" else settings.decoding.head_sharing_penalty
        said_of_spans = sum(float(said[i, j].max()) for i, j, _ in spans)
        return tree_score(scores, b, arcs, root) + said_of_spans - cost * sum(yes[s] for s in lends)

    return max(trees_of(n, settings.model.structure), key=value)[0]


def likeliest_heads(b, scores, said, n):
    weights = {}
    for spans, arcs, root, _ in trees_of(n, "lexical"):
        score = tree_score(scores, b, arcs, root) + sum(said[i, j].logsumexp(0) for i, j, _ in spans)
        for i, j, h in spans:
            by_head = weights.setdefault((i, j), {})
            by_head[h] = by_head.get(h, 0.0) + float(score.exp())
    return {span: max(by_head, key=by_head.get) for span, by_head in weights.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_equals_a_search_through_all_trees(variant):
    settings = settings_of(variant)
    scores = random_scores(SENTENCES, settings, seed=3 + len(variant), std=1.5)
    for b, entities in enumerate(decode(scores, settings, LABELS)):
        assert set(entities) == by_hand(b, scores, len(SENTENCES[b].words), settings)
        assert len(set(entities)) == len(entities)
        assert sorted(entities, key=lambda e: (e.start, -e.end)) == list(entities)
        if settings.decoding.method != "spans":
            assert crossing_pairs(entities) == []
    mention = scores.mention.detach().clone()
    mention[..., 0] = 50.0
    labels = None if scores.labels is None else Table(scores.labels.spans - 99, scores.labels.heads - 99)
    nothing = replace(scores, mention=mention, labels=labels)
    assert decode(nothing, settings, LABELS) == [()] * len(SENTENCES)


def test_with_a_head_prior_heads_are_chosen_after_the_entities():
    """The entities of the best tree, which pays nothing for sharing; each head is the word with the best prior."""
    settings = Settings.read("default").with_overrides(["decoding.method=viterbi", "decoding.threshold=0"])
    scores = random_scores(SENTENCES, settings, seed=3)

    def decoded(weight, penalty):
        changes = [f"decoding.head_prior_weight={weight}", f"decoding.head_sharing_penalty={penalty}"]
        return decode(scores, settings.with_overrides(changes), LABELS)

    without, usual, strong = decoded(0, 0), decoded(settings.decoding.head_prior_weight, 9), decoded(100, 0)
    for one, other in zip(without, usual, strict=True):
        assert {(e.span, e.label) for e in one} == {(e.span, e.label) for e in other}
    several = 0
    for b, found in enumerate(strong):
        for entity in found:
            prior = scores.head_prior[b, entity.start : entity.end]
            assert entity.head == entity.start + int(prior.argmax())
            several += len(prior) > 1
    assert several > 3
