"""nestree in spaCy: on its words and sentences, in batches, to disk and bytes and back."""

import subprocess
import sys
from pathlib import Path

import pytest

spacy = pytest.importorskip("spacy")
import srsly  # noqa: E402
from spacy.tokens import Doc, DocBin, Span  # noqa: E402

from nestree import checkpoint  # noqa: E402
from nestree.data import formats  # noqa: E402
from nestree.errors import InputError, ModelError  # noqa: E402
from nestree.model import Recognizer  # noqa: E402
from nestree.pipeline import Pipeline  # noqa: E402
from nestree.types import Sentence  # noqa: E402
from tests import tiny  # noqa: E402

TEXTS = [" ".join(sentence.words) for sentence in tiny.SENTENCES]


@pytest.fixture
def nlp(tiny_model):
    language = spacy.blank("en")
    language.add_pipe("nestree", config={"model": str(tiny_model), "device": "cpu"})
    return language


@pytest.fixture(scope="module")
def expected(tiny_model) -> list[Sentence]:
    """What nestree finds itself."""
    return Pipeline(checkpoint.load(tiny_model)).words(sentence.words for sentence in tiny.SENTENCES)


def span_tuples(doc: Doc) -> list[tuple]:
    return [
        (span.start, span.end, span.label_, span._.nestree_head.i, round(span._.nestree_score, 4))
        for span in doc.spans["nestree"]
    ]


def expected_tuples(sentence: Sentence, tokens_before: int = 0) -> list[tuple]:
    return [
        (e.start + tokens_before, e.end + tokens_before, e.label, e.head + tokens_before, round(e.score, 4))
        for e in sentence.entities
    ]


def test_a_new_process_knows_the_component_without_importing_nestree(tmp_path):
    script = "import sys, spacy; spacy.blank('en').add_pipe('nestree'); assert 'nestree.pipeline' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_spans_are_what_nestree_finds(nlp, expected):
    docs = [nlp(text) for text in TEXTS]
    assert sum(len(doc.spans["nestree"]) for doc in docs) > 5
    assert any(doc.spans["nestree"].has_overlap for doc in docs)
    for doc, sentence in zip(docs, expected, strict=True):
        assert [token.text for token in doc] == list(sentence.words)
        assert span_tuples(doc) == expected_tuples(sentence)
        for span in doc.spans["nestree"]:
            assert span._.nestree_head.doc is doc
            assert span.start <= span._.nestree_head.i < span.end
            assert 0 < span._.nestree_score <= 1


def test_sentences_of_the_doc_count_and_else_our_rule(nlp, expected):
    text = "the mayor of Lisbon met the president police in Oslo arrested two members of the group"
    whole = nlp(text)
    nlp.add_pipe("sentencizer", first=True)
    words = whole.text.split()
    starts = [k in (0, 7) for k in range(len(words))]
    given = nlp.get_pipe("nestree")(Doc(nlp.vocab, words=words, sent_starts=starts))
    assert span_tuples(given) == expected_tuples(expected[0]) + expected_tuples(expected[1], 7)
    assert span_tuples(given) != span_tuples(whole)
    ours = spacy.blank("en")
    ours.add_pipe("nestree", config={"model": nlp.get_pipe("nestree").source, "device": "cpu"})
    two = ours("she left\n\nLisbon")  # blank lines are tokens of spaCy, and no words
    assert [token.text for token in two] == ["she", "left", "\n\n", "Lisbon"]
    assert span_tuples(two) == expected_tuples(expected[2]) + expected_tuples(expected[5], 3)


def test_streams_are_batched_across_documents_and_keep_their_order(nlp, record_calls):
    alone = [span_tuples(nlp(text)) for text in TEXTS]
    sizes = record_calls(Recognizer, "collate_words", lambda _, sentences: len(sentences))
    assert [span_tuples(doc) for doc in nlp.pipe(TEXTS)] == alone
    assert sizes == [8]
    assert [span_tuples(doc) for doc in nlp.pipe(TEXTS, batch_size=3)] == alone
    assert sizes == [8, 3, 3, 2]


def test_nothing_in_nothing(nlp):
    for text in ("", " ", "\n\n"):
        assert list(nlp(text).spans["nestree"]) == []
    assert [len(doc.spans["nestree"]) for doc in nlp.pipe(["", "Lisbon", " "])] == [0, 1, 0]


def test_errors_go_to_the_error_handler(nlp, monkeypatch):
    collate = Recognizer.collate_words

    def fail(self, sentences):
        if any("rained" in sentence.words for sentence in sentences):
            raise RuntimeError("rain")
        return collate(self, sentences)

    monkeypatch.setattr(Recognizer, "collate_words", fail)
    with pytest.raises(RuntimeError, match="rain"):
        list(nlp.pipe(TEXTS))
    heard = []
    nlp.set_error_handler(lambda name, proc, docs, error: heard.append((name, [doc.text for doc in docs])))
    assert [doc.text for doc in nlp.pipe(TEXTS)] == [text for text in TEXTS if "rained" not in text]
    assert heard == [("nestree", ["it rained all night"])]


def test_to_disk_and_back(nlp, tmp_path, tiny_model):
    before = [span_tuples(doc) for doc in nlp.pipe(TEXTS)]
    nlp.to_disk(tmp_path / "pipeline")
    config = (tmp_path / "pipeline" / "config.cfg").read_text()
    (tmp_path / "pipeline" / "config.cfg").write_text(config.replace(str(tiny_model), "/gone"))
    loaded = spacy.load(tmp_path / "pipeline")
    assert loaded.get_pipe("nestree").labels == tuple(tiny.LABELS)
    assert [span_tuples(doc) for doc in loaded.pipe(TEXTS)] == before
    loaded.to_disk(tmp_path / "pipeline")  # onto itself
    (tmp_path / "pipeline").rename(tmp_path / "moved")
    loaded.to_disk(tmp_path / "again")
    assert [span_tuples(doc) for doc in spacy.load(tmp_path / "again").pipe(TEXTS)] == before
    names = {path.name for path in (tmp_path / "again" / "nestree").iterdir()}
    assert {"weights.safetensors", "config.toml", "encoder"} <= names


def test_to_bytes_and_back(nlp, tmp_path, small_model):
    for model in (nlp.get_pipe("nestree").source, small_model):
        here, there = spacy.blank("en"), spacy.blank("en")
        here.add_pipe("nestree", config={"model": str(model), "device": "cpu"})
        there.add_pipe("nestree", config={"model": "/gone", "device": "cpu"})
        there.from_bytes(here.to_bytes())
        data = here.get_pipe("nestree").to_bytes()
        assert span_tuples(there(TEXTS[0])) == span_tuples(here(TEXTS[0])) != []
        assert len(data) < 1.1 * sum(path.stat().st_size for path in checkpoint.model_files(Path(model)))
    with pytest.raises(ModelError, match=r"they name the file '../evil'"):
        nlp.get_pipe("nestree").from_bytes(srsly.msgpack_dumps({"../evil": b""}))


def test_documents_keep_scores_and_heads_wherever_spacy_keeps_span_groups(nlp, tmp_path, expected):
    doc = nlp(TEXTS[0])
    before = span_tuples(doc)
    again = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    assert span_tuples(again) == before
    DocBin(docs=[doc]).to_disk(tmp_path / "docs.spacy")
    (packed,) = DocBin().from_disk(tmp_path / "docs.spacy").get_docs(spacy.blank("en").vocab)
    assert span_tuples(packed) == before
    [document] = formats.read(tmp_path / "docs.spacy")  # and `nestree convert` reads them
    assert expected_tuples(document.sentences[0]) == before


def test_attributes_of_spans_that_are_not_ours(nlp):
    doc = nlp(TEXTS[0])
    assert doc[0:1]._.nestree_score is None
    assert doc[0:1]._.nestree_head is None
    first, *_ = doc.spans["nestree"]
    same = Span(doc, first.start, first.end, label=first.label_)
    assert same._.nestree_score == first._.nestree_score
    other = Span(doc, first.start, first.end, label="other")
    assert other._.nestree_score is None
    score = first._.nestree_score
    doc.spans["sc"] = [first]
    doc.spans["sc"].attrs["scores"] = [0.123]  # as spaCy's span categoriser has it
    assert first._.nestree_score == score
    doc.spans["nestree"].append(doc[0:1])  # scores are out of step now
    assert first._.nestree_score is None


@pytest.mark.parametrize("threshold", [0.9, {"PER": 0.9}])
def test_a_threshold_and_a_key(nlp, threshold):
    few = spacy.blank("en")
    config = {"model": nlp.get_pipe("nestree").source, "device": "cpu", "threshold": threshold}
    few.add_pipe("nestree", config={**config, "spans_key": "found"})
    spans = [span for doc in few.pipe(TEXTS) for span in doc.spans["found"]]
    assert all(span._.nestree_score >= 0.9 for span in spans if threshold == 0.9 or span.label_ == "PER")
    assert len(spans) < sum(len(doc.spans["nestree"]) for doc in nlp.pipe(TEXTS))


def test_a_wrong_threshold_is_an_error_where_it_is_set(nlp):
    for wrong in (1, -0.5, {"PER": 2.0}):
        with pytest.raises(InputError, match=r"threshold.* is .*; it must be a number"):
            spacy.blank("en").add_pipe("nestree", config={"threshold": wrong})
    component = nlp.get_pipe("nestree")
    with pytest.raises(InputError, match="threshold is 7; it must be a number"):
        component.threshold = 7
    nlp(TEXTS[0])
    with pytest.raises(InputError, match="the model has no label 'NO'"):
        component.threshold = {"NO": 0.5}
    assert component.threshold is None


def test_a_model_that_is_not_there(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("nestree", config={"model": str(tmp_path / "absent")})
    with pytest.raises(ModelError, match=r"absent does not exist\. Name a directory"):
        nlp("Lisbon")
