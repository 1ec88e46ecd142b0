"""Selecting from a pool: order, budget, duplicates, exclusion, diversity, questions, formats, bounded memory."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import nestree
from nestree import acquisition
from nestree.acquisition import BoundedHeap, Scored, Unit, choose, select
from nestree.decoding.uncertainty import uncertainty
from nestree.errors import InputError
from nestree.pipeline import Pipeline
from nestree.types import Document, Entity, Sentence
from tests.cli.run import nestree as run
from tests.tiny import write_text

POOL = "the mayor of Lisbon met police in Oslo and fans sang all night at the Bank of Portugal"
WORDS = POOL.split()


@pytest.fixture(scope="module")
def model(learned):
    return Pipeline(learned)


@pytest.fixture(scope="module")
def pool():
    generator = random.Random(3)
    lengths = [generator.randint(2, 14) for _ in range(60)]
    return [Sentence(generator.choices(WORDS, k=n), id=f"s{k}") for k, n in enumerate(lengths)]


def by_itself(model, sentence, by):
    """The uncertainty of a sentence in a batch of its own."""
    with torch.inference_mode():
        scores = model.model(model.model.collate_words([sentence]))
        return float(uncertainty(scores, model.model.settings, model.model.temperatures, by))


@pytest.mark.parametrize("by", ["f1-loss", "entity-entropy", "mnlp", "tree-entropy"])
def test_the_most_uncertain_come_first_until_the_budget_is_spent(model, pool, by):
    found = select(pool, model=model, budget=50, by=by)
    costs = {s.id: by_itself(model, s, by) / (len(s.words) + acquisition.EXTRA_WORDS) for s in pool}
    values = [document.extra["uncertainty"] for document in found.documents]
    assert values == pytest.approx([costs[d.sentences[0].id] for d in found.documents], abs=1e-4)
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(max(costs.values()), abs=1e-4)
    assert 50 - 14 < found.words <= 50  # a sentence has up to 14 words
    assert found.words == sum(len(d.words) for d in found.documents)
    assert (found.pool_sentences, found.pool_words) == (60, sum(len(s.words) for s in pool))
    for document in found.documents:
        expected = model.words([document.sentences[0].words])[0]
        assert [e.span for e in document.sentences[0].entities] == [e.span for e in expected.entities]


def test_random_depends_on_the_words_and_the_seed_alone(model, pool):
    first, again, other = (
        [d.words for d in select(chosen, model=model, budget=80, by="random", seed=seed).documents]
        for chosen, seed in ((pool, 1), (pool[::-1], 1), (pool, 2))
    )
    assert first == again != other


def test_duplicates_excluded_and_unknown_labels_are_handled_and_said(model, pool, tmp_path):
    nestree.write([Document((pool[0],))], tmp_path / "done.jsonl")
    unknown = replace(pool[6], entities=(Entity(0, 1, "PLANET"),), id="new")
    twice = [*pool, replace(pool[5], id="again"), unknown]
    found = select(twice, model=model, budget=10_000, exclude=[tmp_path / "done.jsonl", [pool[1]]])
    words = [d.words for d in found.documents]
    assert len(words) == len(set(words)) == len({s.words for s in pool}) - 2
    assert not {pool[0].words, pool[1].words} & set(words)
    assert found.excluded >= 2
    assert found.duplicates >= 2
    notes = " ".join(found.notes)
    assert "as the data to exclude has their words: 2 sentences" in notes
    assert "as another one has the same words: 2 sentences" in notes
    assert "labels that the model does not know, PLANET" in notes
    assert "all the rest is selected" in notes


def test_nothing_is_left_or_nothing_fits(model, pool):
    found = select(pool, model=model, budget=1)
    assert found.documents == []
    assert "nothing fits into a budget of 1 word." in found.notes[0]
    whole = Sentence(["It", "rained", ".", "She", "left", "."])
    annotated = Document((Sentence(["It", "rained", "."]), Sentence(["She", "left", "."])))
    for budget in (5, 10):
        found = select([whole], model=model, budget=budget, exclude=[[annotated]])
        assert (found.documents, found.notes[-1]) == ([], "the whole pool is excluded.")


@pytest.mark.parametrize("by", ["f1-loss", "random"])
def test_sentences_that_cannot_fit_do_not_crowd_out_others(model, pool, by):
    long = [Sentence(list(sentence.words) * 8) for sentence in pool if len(sentence.words) > 9]
    short = [sentence for sentence in pool if len(sentence.words) < 6]
    found = select([*long, *short], model=model, budget=30, by=by)
    assert 25 <= found.words <= 30


@pytest.mark.parametrize("diversity", ["none", "k-center", "k-means"])
def test_diverse_candidates_come_from_all_clusters(diversity):
    generator = np.random.default_rng(2)
    centers = np.eye(8)[:5]
    cluster = [0] * 10 + [k % 5 for k in range(40)]  # the best ten are alike
    vectors = centers[cluster] + 0.05 * generator.normal(size=(50, 8))
    units = [Unit(Document(()), [Sentence(["w", "w"])], str(k)) for k in range(50)]
    candidates = [Scored(unit, 1.0 - k / 50, vectors[k]) for k, unit in enumerate(units)]
    found = [int(one.unit.key) for one in choose(candidates, 10, diversity)]
    assert len(found) == 5
    assert {cluster[k] for k in found} == ({0} if diversity == "none" else set(range(5)))
    if diversity == "k-means":  # the best of each
        assert found == [min(k for k in range(50) if cluster[k] == c) for c in (0, 1, 2, 3, 4)]


@pytest.mark.parametrize("diversity", ["k-center", "k-means"])
def test_candidates_have_the_means_of_their_words(model, pool, diversity, monkeypatch):
    kept = []

    def keep(candidates, *rest):
        kept.extend(candidates)
        return candidates[:1]

    monkeypatch.setattr(acquisition, "choose", keep)
    select(pool, model=model, budget=60, diversity=diversity)
    for one in kept:
        with torch.inference_mode():
            words = model.model.encoder(model.model.collate_words(one.unit.sentences)).words[0, 1:]
        assert one.mean == pytest.approx(words.mean(0).numpy(), abs=1e-5)


def test_greedy_k_center_is_what_its_definition_says():
    vectors = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    units = [Unit(Document(()), [Sentence(["w"] * (1 + k % 3))], str(k)) for k in range(30)]
    candidates = [Scored(unit, 0.0, vector) for unit, vector in zip(units, vectors, strict=True)]
    found = [int(one.unit.key) for one in choose(candidates, 20, "k-center")]
    assert found[0] == 0
    left = 20 - candidates[0].unit.words
    for done, k in enumerate(found[1:], 1):
        distances = {
            o: min(1 - float(vectors[o] @ vectors[c]) for c in found[:done])
            for o in range(30)
            if o not in found[:done] and candidates[o].unit.words <= left
        }
        assert distances[k] == pytest.approx(max(distances.values()), abs=1e-6)
        left -= candidates[k].unit.words


def test_the_best_are_kept_in_bounded_memory():
    generator = random.Random(5)
    items = [(generator.random(), generator.randint(1, 20)) for _ in range(5000)]
    best: BoundedHeap[int] = BoundedHeap(100)
    largest = 0
    for k, (order, cost) in enumerate(items):
        best.add(str(k), order, cost, k)
        largest = max(largest, len(best.heap), len(best.keys))
    expected, total = [], 0
    for k in sorted(range(5000), key=lambda k: -items[k][0]):
        if total >= 100:
            break
        expected.append(k)
        total += items[k][1]
    assert best.values() == expected
    assert largest <= 101
    best.add(str(expected[0]), 0.5, 3, -1)
    assert best.duplicates == 1
    assert best.values() == expected


def test_a_pool_is_read_as_a_stream(model, pool, monkeypatch):
    """Buffers of few words give the same result, and the pool is not read ahead."""
    whole = [d.words for d in select(pool, model=model, budget=60).documents]
    monkeypatch.setattr(acquisition, "BUFFERED_BATCHES", 0.005)  # of 4,000 words
    done, ahead = [0], []

    def stream():
        for number, sentence in enumerate(pool):
            ahead.append(sum(len(s.words) for s in pool[:number]) - done[0])
            yield sentence

    found = select(stream(), model=model, budget=60, on_progress=lambda words: done.__setitem__(0, words))
    assert [d.words for d in found.documents] == whole
    assert max(ahead) < 40


def test_documents_are_ranked_as_a_whole(model, pool):
    documents = [Document(tuple(pool[k : k + 3]), id=f"d{k}") for k in range(0, 60, 3)]
    found = select(documents, model=model, budget=80, unit="document")
    assert {d.id for d in found.documents} <= {d.id for d in documents}
    assert all(len(d.sentences) == 3 for d in found.documents)
    values = [d.extra["uncertainty"] for d in found.documents]
    for document, value in zip(found.documents, values, strict=True):
        total = sum(by_itself(model, Sentence(s.words), "f1-loss") for s in document.sentences)
        assert value == pytest.approx(total / (len(document.words) + 3 * acquisition.EXTRA_WORDS), abs=1e-4)


def test_a_file_of_text_is_a_pool(model, tmp_path):
    text = write_text(tmp_path / "pool.txt", "She left Oslo.\n\nHe met the mayor of Lisbon.\n")
    found = select(text, model=model, budget=100)
    assert sorted(d.text for d in found.documents) == ["He met the mayor of Lisbon.", "She left Oslo."]


def test_long_sentences_are_measured_in_windows(model):
    long = Sentence([WORDS[k % len(WORDS)] for k in range(300)])
    short = Sentence(["Lisbon"])
    found = select([long, short], model=model, budget=1000, partial=False, diversity="k-center")
    assert len(found.documents) == 2
    asked = select([long], model=model, budget=5, partial=True)
    assert asked.questions == 5


def test_questions_are_the_spans_with_the_smallest_margins(model, pool):
    found = select(pool, model=model, budget=12, partial=True)
    assert found.questions == sum(len(d.sentences[0].entities) for d in found.documents) == 12
    assert found.words == sum(len(d.words) for d in found.documents)
    everything = select(pool, model=model, budget=10_000, partial=True)
    assert "all of them are asked" in everything.notes[0]
    margins = sorted(1 - d.extra["uncertainty"] for d in everything.documents)
    assert next(1 - d.extra["uncertainty"] for d in found.documents) == pytest.approx(margins[0], abs=1e-6)
    for document in found.documents:
        (sentence,) = document.sentences
        assert not sentence.complete
        spans = [sentence.characters(entity) for entity in sentence.entities]
        assert [(q["start"], q["end"]) for q in document.extra["questions"]] == spans


def test_answered_questions_are_not_asked_again(model, pool):
    first = select(pool, model=model, budget=12, partial=True).documents
    answers = {d.sentences[0].id: d.sentences[0] for d in first}
    for name, s in answers.items():
        answers[name] = replace(s, entities=s.entities[:1], forbidden=[e.span for e in s.entities[1:]])
    again = select([answers.get(s.id, s) for s in pool], model=model, budget=12, partial=True).documents
    others = select(pool, model=model, budget=12, partial=True, exclude=[answers.values()]).documents
    chosen = ([document.sentences[0] for document in each] for each in (first, again, others))
    asked, *more = ({(s.id, e.span) for s in sentences for e in s.entities} for sentences in chosen)
    assert len(asked) == len(more[0]) == 12
    assert not asked & more[0]
    assert more[1] == more[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget is 0; it must be a whole number"),
        ({"budget": 5, "by": "f2"}, "there is no criterion 'f2'. Choose one of f1-loss, entity-entropy"),
        ({"budget": 5, "diversity": "much"}, "there is no diversity 'much'. Choose one of none"),
        ({"budget": 5, "diversity": "k-means", "partial": True}, "k-means is for whole sentences"),
        ({"budget": 5, "by": "random", "partial": True}, "the criterion random is for whole sentences"),
        ({"budget": 5, "unit": "word"}, "there is no unit 'word'. Choose one of sentence, document"),
    ],
)
def test_wrong_options(model, options, message):
    with pytest.raises(InputError, match=message):
        select([Sentence(["a"])], model=model, **options)
    with pytest.raises(InputError, match="the pool has no sentence"):
        select([], model=model, budget=5)
    with pytest.raises(InputError, match="a pool has documents, sentences or texts"):
        select([3], model=model, budget=5)


@pytest.mark.parametrize("value", [None, 5, Sentence(["a"]), Document((Sentence(["a"]),))])
def test_what_is_no_pool_is_named(model, value):
    remedy = "it must be a file, or a list or iterator of documents, sentences or texts"
    with pytest.raises(InputError, match=rf"^pool is {re.escape(repr(value))[:20]}.*; {remedy}"):
        select(value, model=model, budget=5)
    for exclude in (value, [value]):
        with pytest.raises(InputError, match=f"^a source in exclude is .*; {remedy}"):
            select(["a"], model=model, budget=5, exclude=exclude)


@pytest.mark.parametrize("target", ["label-studio", "prodigy", "doccano", "brat", "jsonl"])
def test_every_format_holds_the_tasks(target, tmp_path):
    text = tmp_path / "pool.txt"
    text.write_text("The mayor of Lisbon met police in Oslo.\n\nShe left.\n\nThe Bank of Portugal closed.\n")
    out = tmp_path / ("tasks" + {"label-studio": ".json", "brat": ""}.get(target, ".jsonl"))
    done = run("select", text, "--budget", "9", "--to", target, "-o", out)
    assert done.exit_code == 0, done.output
    assert "of 3 sentences, 18 words" in done.stderr
    read = nestree.read(out, target, **({"part": "predictions"} if target == "label-studio" else {}))
    assert read
    assert sum(len(d.words) for d in read) <= 9
    if target in ("label-studio", "prodigy", "doccano"):
        assert all("uncertainty" in document.extra for document in read)
    if target == "label-studio":
        predictions = [p for task in json.loads(out.read_text()) for p in task["predictions"]]
        assert all(region["score"] == round(region["score"], 6) for p in predictions for region in p["result"])


def test_wrong_targets_are_refused(tmp_path):
    text = write_text(tmp_path / "pool.txt", "She left.")
    refused = run("select", text, "--budget", "9", "--to", "prodigy", "--partial")
    assert refused.exit_code == 2
    assert "--partial writes questions as label-studio or jsonl, not as prodigy" in refused.stderr
    refused = run("select", text, "--budget", "9", "-o", tmp_path / "tasks.json")
    assert (refused.exit_code, "several formats end in .json" in refused.stderr) == (2, True)
    refused = run("select", text, "--budget", "9", "--to", "jsonl", "-o", text)
    assert (refused.exit_code, "is the input. Write to another file." in refused.stderr) == (2, True)
    refused = run("select", text, "--budget", "9", "--to", "spacy")
    assert refused.exit_code == 2
    assert "Choose one of these" in refused.stderr
    refused = run("select", text, "--budget", "9", "--partial", "--by", "random")  # which Python calls by="random"
    message = "Error: the criterion random is for whole sentences, and spans are asked about. Leave it out.\n"
    assert (refused.exit_code, refused.stderr) == (2, message)
