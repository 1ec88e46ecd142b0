"""Distillation equals what follows from writing down every labelled tree of teacher and student."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nestree import checkpoint, training
from nestree.decoding import Temperatures
from nestree.errors import TrainingError
from nestree.evaluation import evaluate
from nestree.losses import compute_losses
from nestree.model import Recognizer
from nestree.nn.scorers import Scores
from nestree.pipeline import predict
from nestree.training import Corpus, distill
from nestree.training.distill import Teachers
from nestree.treecrf import LexicalPotentials, entropy, kl_divergence
from nestree.types import Entity, Sentence
from tests import tiny
from tests.test_losses import Table
from tests.treecrf.enumeration import lexical_trees

LABELS = ["GPE", "PER"]
TEXTS = [Sentence(text.split()) for text in ("Lisbon", "she left", "the Lisbon mayor")]
TEMPERATURES = Temperatures(mention=0.7, label=1.3, tree=0.8, label_logit_offset=0.2)


def teacher(folder, seed: int, labels: list[str], *changes: str) -> Recognizer:
    torch.manual_seed(seed)
    model = Recognizer(tiny.settings("default", "model.normalize=false", *changes), labels, folder).eval()
    with torch.no_grad():
        for weight in model.scorer.parameters():
            weight.mul_(2)  # scores that differ
    model.temperatures = TEMPERATURES
    return model


def teachers_of_texts(teachers: list[Recognizer], texts: list[Sentence] = TEXTS) -> Teachers:
    size = len(texts)
    return Teachers(tuple(teachers), tuple(LABELS), texts, [False] * size, [True] * size, 0.0)


def student_scores(texts: list[Sentence]) -> Scores:
    """Random ones, in float64, that want gradients."""
    generator = torch.Generator().manual_seed(7)
    batch, n = len(texts), max(len(text.words) for text in texts)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    table = Table(torch.zeros(()), normal(batch, n + 1, n + 1, n, len(LABELS)))
    lengths = torch.tensor([len(text.words) for text in texts])
    return Scores(lengths, normal(batch, n + 1, n + 1, 2), normal(batch, n, n), normal(batch, n), table)


def log_probabilities(scores: Scores, b: int, labels: Tensor, temperatures: Temperatures, softmax: bool) -> Tensor:
    """[labelled trees] of sentence b: each tree, what each of its spans says, and the labels of those that say yes.

    `labels`: scores of all spans and heads [n + 1, n + 1, n, L].
    """
    n, trees = int(scores.lengths[b]), []
    for tree in lexical_trees(n):
        spans = sorted(tree.spans)
        arcs = [scores.arc[b, h, m] for h, m in tree.arcs]
        shares = [scores.mention[b, i, j].logsumexp(-1) for i, j, _ in spans]
        whole = torch.stack([scores.root[b, tree.root], *arcs, *shares]).sum() / temperatures.tree
        outcomes = []  # of each span: no, then yes with each set of labels
        for i, j, h in spans:
            no, yes = (scores.mention[b, i, j] / temperatures.mention).log_softmax(-1)
            each = labels[i, j, h] / temperatures.label - temperatures.label_logit_offset
            if softmax:
                sets = torch.cat([torch.zeros(1), each]).log_softmax(-1)
            else:
                subsets = torch.cartesian_prod(*[torch.tensor([False, True])] * len(LABELS))
                sets = torch.where(subsets, logsigmoid(each), logsigmoid(-each)).sum(-1)
            outcomes.append(torch.cat([no[None], yes + sets]))
        said = torch.cartesian_prod(*outcomes).reshape(-1, len(spans)).sum(-1)
        trees.append(whole + said)
    found = torch.cat(trees)
    return found - found.logsumexp(0)


def table_of(model: Recognizer, scores: Scores, b: int, n: int) -> Tensor:
    cells = torch.cartesian_prod(torch.arange(n + 1), torch.arange(n + 1), torch.arange(n))
    found = scores.labels.score_spans(torch.full((len(cells),), b), *cells.unbind(1))
    return found[:, [model.labels.index(label) for label in LABELS]].view(n + 1, n + 1, n, -1).double()


@pytest.mark.parametrize(("kind", "teachers"), [("sigmoid", 2), ("ranking", 1), ("softmax", 2)])
def test_cross_entropy_and_gradient_equal_those_over_all_labelled_trees(tiny_encoder, kind, teachers):
    orders = {1: LABELS, 2: LABELS[::-1]}
    models = [teacher(tiny_encoder, k + 1, orders[k + 1], f"loss.label={kind}") for k in range(teachers)]
    settings = tiny.settings("default", f"loss.label={kind}", "model.head_prior=false")
    scores = student_scores(TEXTS)
    given = teachers_of_texts(models)
    batch = given.attach(models[0].collate(TEXTS), range(len(TEXTS)))
    losses = compute_losses(scores, batch.gold, settings, given.soft_targets(batch))
    expected = torch.zeros((), dtype=torch.float64)
    for b in range(len(TEXTS)):
        softmax, n = kind == "softmax", len(TEXTS[b].words)
        own = log_probabilities(scores, b, scores.labels.heads[b], Temperatures(), softmax)
        for model in models:
            with torch.no_grad():
                said = model(model.collate_words(TEXTS))
                true = log_probabilities(said, b, table_of(model, said, b, n), TEMPERATURES, softmax).exp()
            expected = expected - (true * own).sum() / teachers
    assert all(float(value.detach()) == 0 for name, value in losses.parts.items() if name != "distillation")
    torch.testing.assert_close(losses.parts["distillation"], expected, rtol=1e-5, atol=1e-5)
    leaves = [scores.mention, scores.arc, scores.root, scores.labels.heads]
    ours = torch.autograd.grad(losses.total, leaves)
    theirs = torch.autograd.grad(expected, leaves)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)


def test_trees_alone_diverge_by_what_treecrf_says(tiny_encoder):
    """Without labels, the cross-entropy is a divergence of trees, and of what their spans say."""
    model = teacher(tiny_encoder, 3, LABELS)
    model.temperatures = Temperatures()
    texts = [Sentence(["the", "mayor", "of", "Lisbon", "met", "police", "in", "Oslo"]), TEXTS[2]]
    given = teachers_of_texts([model], texts)
    batch = given.attach(model.collate(texts), range(len(texts)))
    targets = given.soft_targets(batch)
    zeros = {name: torch.zeros_like(getattr(targets, name)) for name in ("weights", "labels")}
    targets = replace(targets, **zeros)
    scores = student_scores(texts)
    with torch.no_grad():
        said = model(model.collate_words(texts))
    both = [trees_of(said, said.mention.double()), trees_of(scores, scores.mention)]
    found = compute_losses(scores, batch.gold, tiny.settings("default", "model.head_prior=false"), targets)
    mentions = (said.mention.double().log_softmax(-1), scores.mention.log_softmax(-1))
    yes_no = (torch.stack([targets.no, targets.yes], -1) * mentions[1]).sum()
    expected = (kl_divergence(*both, said.lengths) + entropy(both[0], said.lengths)).sum() - yes_no
    torch.testing.assert_close(found.parts["distillation"], expected, rtol=1e-5, atol=1e-5)


def trees_of(scores: Scores, mention: Tensor) -> LexicalPotentials:
    span = mention.logsumexp(-1)
    return LexicalPotentials(span, scores.arc.double(), scores.root.double(), torch.zeros_like(span))


# From teacher to student


EIGHT = tuple(tiny.SENTENCES)
CORPUS = Corpus(EIGHT, EIGHT, tuple(tiny.LABELS))


@pytest.fixture(scope="module")
def master(tiny_encoder):
    return tiny.learned(tiny_encoder, updates=60)


@pytest.mark.parametrize("hard", [False, True])
def test_a_student_finds_in_texts_what_its_teacher_finds_there(tiny_encoder, master, tmp_path, hard):
    labelled = Corpus(EIGHT[:1], EIGHT, ("PER", "GPE"))
    texts = [replace(sentence, entities=()) for sentence in EIGHT] * 4
    as_they_are = {"labeled_copies": 1, "augmentation_rate": 0}
    corpus, given = distill.make_teachers(labelled, texts, [master], hard=hard, **as_they_are)
    assert (given is None) == hard
    short = ["training.epochs=20", "training.batch_words=60"]
    settings = tiny.settings("default", f"encoder.path={tiny_encoder}", *short)
    result = training.fit(settings, corpus, tmp_path / "student", device="cpu", teachers=given)
    assert f"- train: 1 sentences, {len(EIGHT[0].entities)} entities" in (result.folder / "README.md").read_text()
    student = checkpoint.load(result.folder)
    expected = predict(master, tiny.SENTENCES)
    assert sum(len(sentence.entities) for sentence in expected) > 15
    assert evaluate(expected, predict(student, tiny.SENTENCES), resamples=0).entities.f1 > 0.9


def test_copies_of_labelled_sentences_and_other_forms_that_teachers_read_as_written(master):
    corpus, given = distill.make_teachers(CORPUS, EIGHT, [master], labeled_copies=9, augmentation_rate=1)
    assert corpus.train[:8] == EIGHT  # the first copy stays as it is
    assert given.labeled == [True] * 72 + [False] * 8
    assert not any(sentence.entities for sentence in corpus.train[72:])
    written = {word for sentence in tiny.SENTENCES for word in sentence.words} | {"."}
    seen = set()
    for student, original, taught in zip(corpus.train, given.originals, given.has_soft_targets, strict=True):
        assert [word.lower() for word in student.words] == [word.lower() for word in original.words]
        assert set(original.words) <= written
        seen |= {*student.words}
        if not taught:  # a name alone
            assert any(entity.start == 0 for entity in student.entities)
    assert {"LISBON", "Lisbon", "lisbon"} <= seen
    assert not all(given.has_soft_targets)


def test_without_punctuation_entities_and_heads_move_along():
    words = ["``", "Ann", ",", "the", "mayor", "''", "."]
    found = distill.without_punctuation(Sentence(words, [Entity(1, 6, "PER", head=4), Entity(2, 3, "X")]))
    assert found.words == ("Ann", "the", "mayor")
    assert [(e.start, e.end, e.label, e.head) for e in found.entities] == [(0, 3, "PER", 2)]
    partly = Sentence(words, complete=False, forbidden=[(3, 5), (4, 5), (1, 4)])
    assert distill.without_punctuation(partly).forbidden == ((1, 3), (2, 3))  # `Ann, the` had a comma


@pytest.mark.parametrize(
    ("labels", "changes", "number", "message"),
    [
        (["GPE"], [], 1, "labels that the teacher does not know: LOC, ORG, PER"),
        (tiny.LABELS, ["model.labeling=span", "loss.joint=false"], 1, 'its model.labeling is "span"'),
        (tiny.LABELS, [], 2, "--hard takes what one teacher finds, and 2"),
    ],
)
def test_what_cannot_be_distilled(tiny_encoder, labels, changes, number, message):
    teachers = [teacher(tiny_encoder, 1, labels, *changes)] * number
    with pytest.raises(TrainingError, match=message):
        distill.make_teachers(CORPUS, [], teachers, hard=number > 1)


def test_a_student_of_one_label_per_span_learns_only_from_such_teachers(tiny_encoder, master, tmp_path):
    corpus, given = distill.make_teachers(CORPUS, [], [master])
    settings = tiny.settings("default", f"encoder.path={tiny_encoder}", "loss.label=softmax")
    with pytest.raises(TrainingError, match="a teacher gives several"):
        training.fit(settings, corpus, tmp_path / "student", teachers=given)
