"""Losses by hand: every tree is listed, and what the losses mean is spelt out. The oracle of test_losses.py."""

import functools
import math

import torch
from torch import Tensor

from nestree.config import Settings
from nestree.losses import HEAD_PRIOR_WEIGHT
from nestree.nn.scorers import Scores
from nestree.types import Sentence
from tests.treecrf.enumeration import lexical_trees, plain_trees

LABELS = ["A", "B", "C"]


@functools.cache
def trees_of(n: int, structure: str) -> list[tuple]:
    """(spans with heads, arcs, root, spans that lend their heads) of all trees; without structure, of all spans."""
    if structure == "lexical":
        return [(tree.spans, tree.arcs, tree.root, tree.lends) for tree in lexical_trees(n)]
    all_spans = {(i, j) for i in range(n) for j in range(i + 1, n + 1)}
    listed = plain_trees(n) if structure == "plain" else [all_spans]
    return [({(*span, None) for span in tree}, (), None, ()) for tree in listed]


def tree_score(scores: Scores, b: int, arcs, root: int | None) -> Tensor | float:
    """The score of the arcs and the root of a tree of sentence b; 0 for plain trees."""
    if root is None:
        return 0.0
    head, modifier = [h for h, _ in arcs], [m for _, m in arcs]
    return scores.root[b, root] + scores.arc[b, head, modifier].sum()


def label_loss(s: Tensor, right: set[int], kind: str) -> Tensor:
    if kind == "sigmoid":
        return sum(torch.log(1 + torch.exp(-s[l] if l in right else s[l])) for l in range(len(s)))
    if kind == "softmax":
        right_ones = sum((s[l].exp() for l in right), torch.zeros(()).double()) if right else 1.0
        return -torch.log(right_ones / (1 + s.exp().sum()))
    wrong = 1 + sum((s[l].exp() for l in range(len(s)) if l not in right), torch.zeros(()).double())
    missed = 1 + sum(((-s[l]).exp() for l in right), torch.zeros(()).double())
    return wrong.log() + missed.log()


class ByHand:
    """The losses of one sentence from all of its trees."""

    def __init__(self, b: int, scores: Scores, sentence: Sentence, settings: Settings):
        self.b, self.scores, self.settings, self.n = b, scores, settings, len(sentence.words)
        self.complete, self.forbidden = sentence.complete, sentence.forbidden
        self.gold: dict[tuple[int, int], set[int]] = {}
        for entity in sentence.entities:
            self.gold.setdefault(entity.span, set()).add(LABELS.index(entity.label))
        observed = [(*e.span, e.head) for e in sentence.entities if e.head is not None]
        self.headed_spans = set(observed) if settings.loss.gold_heads else set()
        self.trees = trees_of(self.n, settings.model.structure)
        self.free, self.fixed = functools.cache(self.free), functools.cache(self.fixed)
        self.wrong = functools.cache(self.wrong)

    def free(self, i: int, j: int) -> Tensor:
        return self.scores.mention[self.b, i, j].exp().sum().log()

    def fixed(self, i: int, j: int) -> Tensor:
        said = self.scores.mention[self.b, i, j]
        kind = self.settings.model.mention
        if kind == "score":
            return said[0]
        if (i, j) in self.gold:
            return said[1] if kind == "yes-no" else said[[l + 1 for l in self.gold[i, j]]].exp().sum().log()
        return said[0] if self.complete or (i, j) in self.forbidden else self.free(i, j)

    def distribution(self, agree: bool, cost: float = 0.0, evidence: bool = False) -> Tensor:
        """[trees] their scores."""
        values = []
        for spans, arcs, root, lends in self.trees:
            bare = {(i, j) for i, j, _ in spans}
            if agree and not (set(self.gold) <= bare and self.headed_spans <= set(spans)):
                values.append(torch.tensor(-math.inf).double())
                continue
            value = torch.stack([(self.fixed if agree else self.free)(i, j) for i, j in bare]).sum()
            value = value + tree_score(self.scores, self.b, arcs, root)
            value = value - cost * len(set(self.gold) & set(lends))
            if evidence:
                held = [span for span in spans if span[:2] in self.gold]
                value = value - sum(self.wrong(*span) for span in held)
            values.append(value)
        return torch.stack(values)

    def wrong(self, i: int, j: int, h: int | None) -> Tensor:
        if self.settings.model.labeling == "span":
            h = None
        s = self.scores.labels.score_spans(self.b, i, j, h)
        return label_loss(s, self.gold.get((i, j), set()), self.settings.loss.label)

    def wrong_forms(self, probabilities: Tensor) -> Tensor:
        """Which words head gold spans, by the trees, held constant; forms should tell so."""
        heads = [torch.zeros(()).double() for _ in range(self.n)]
        for p, (spans, *_) in zip(probabilities.detach(), self.trees, strict=True):
            for i, j, h in spans:
                if (i, j) in self.gold:
                    heads[h] = heads[h] + p
        total = torch.zeros(()).double()
        for h, expected in enumerate(heads):
            right, said = min(expected, torch.ones(()).double()), self.scores.head_prior[self.b, h].sigmoid()
            total = total - right * said.log() - (1 - right) * (1 - said).log()
        return HEAD_PRIOR_WEIGHT * total * self.complete

    def expected_wrong(self, probabilities: Tensor) -> Tensor:
        """Label losses of the spans of a tree, its probability held constant."""
        total = torch.zeros(()).double()
        for p, (spans, *_) in zip(probabilities.detach(), self.trees, strict=True):
            for i, j, h in spans:
                absent = self.complete or (i, j) in self.forbidden
                if (i, j) in self.gold or (self.settings.model.mention == "score" and absent):
                    total = total + p * self.wrong(i, j, h)
        return total

    def negatives(self, free: Tensor | None) -> Tensor:
        if not self.complete:
            return torch.zeros(()).double()
        yes = lambda i, j: self.scores.mention[self.b, i, j].softmax(-1)[1].detach()  # noqa: E731
        weights: dict[tuple[int, int], dict[int | None, Tensor]] = {}
        if free is None:
            weights = {(i, j): {None: yes(i, j)} for i in range(self.n) for j in range(i + 1, self.n + 1)}
        else:
            for p, (spans, *_) in zip(free.softmax(0).detach(), self.trees, strict=True):
                for i, j, h in spans:
                    by_head = weights.setdefault((i, j), {})
                    by_head[h] = by_head.get(h, 0.0) + p * yes(i, j)
        listed = sorted(set(weights) - set(self.gold), key=lambda span: -sum(weights[span].values()))
        lacking = max(0, self.settings.loss.hard_negatives - len(self.gold))
        total = torch.zeros(()).double()
        for span in listed[:lacking]:
            for h, weight in weights[span].items():
                total = total + weight * self.wrong(*span, h)
        return total

    def losses(self) -> dict[str, Tensor]:
        settings, found = self.settings, {}
        if settings.model.structure == "none":
            cells = [(i, j) for i in range(self.n) for j in range(i + 1, self.n + 1)]
            found["mention"] = sum(self.free(i, j) - self.fixed(i, j) for i, j in cells)
            if settings.model.labeling == "span":
                found["label"] = sum((self.wrong(i, j, None) for i, j in self.gold), torch.zeros(()).double())
            if settings.loss.hard_negatives:
                found["hard_negatives"] = self.negatives(None)
            return found
        loss, c = settings.loss, settings.loss.head_sharing_penalty
        free, agreed = self.distribution(False), self.distribution(True, evidence=loss.joint)
        found["joint" if loss.joint else "tree"] = free.logsumexp(0) - agreed.logsumexp(0)
        if settings.model.labeling != "none" and not loss.joint:
            found["label"] = self.expected_wrong(agreed.softmax(0))
        if self.scores.head_prior is not None:
            found["head_prior"] = self.wrong_forms(agreed.softmax(0))
        if loss.hard_negatives:
            found["hard_negatives"] = self.negatives(free)
        if c:
            gold = loss.regularization_space == "gold"
            base = agreed if gold else free
            dear = self.distribution(gold, c, loss.joint and gold)
            found["head_regularization"] = base.logsumexp(0) - dear.logsumexp(0)
            p = dear.softmax(0)
            possible = p > 0
            found["kl"] = (p[possible] * (dear.log_softmax(0)[possible] - base.log_softmax(0)[possible])).sum()
        if loss.entropy_weight:
            log_p = agreed[agreed > -math.inf].log_softmax(0)
            found["entropy"] = -loss.entropy_weight * -(log_p.exp() * log_p).sum()
        return found


def by_hand(scores: Scores, sentences: list[Sentence], settings: Settings) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    mentions = words = 0
    for b, each in enumerate(sentences):
        words += len(each.words)
        if settings.model.structure != "none" and b == len(sentences) - 1:
            continue  # its entities cross
        reference = ByHand(b, scores, each, settings)
        mentions += len(reference.gold)
        for name, value in reference.losses().items():
            total[name] = total.get(name, 0.0) + value
    if "entropy" in total:
        total["entropy"] = total["entropy"] * mentions / words
    return total
