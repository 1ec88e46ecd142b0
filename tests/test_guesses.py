"""Names that a newcomer guesses: they work, or the error says what to write instead."""

import pickle

import pytest

import nestree
from nestree.errors import InputError

TEXT = "The mayor of Lisbon met the president. Police in Oslo arrested two members of the group!"
ATTRIBUTES = [  # some of each class; types.py, pipeline.py and __init__.py have more
    ("doc.ents", "Document has no ents; use entities"),
    ("doc[0].label_", "TextEntity has no label_; use label"),
    ("doc[0].anything", "TextEntity has no anything"),
    ("doc.sentences[0].tokens", "Sentence has no tokens; use words"),
    ("nestree.evaluate(doc, doc).to_dict", r"use nestree.report.to_json\(evaluation\)"),
    ("ner.cuda", r'use to\("cuda"\)'),
    ("nestree.NER", r"nestree.load\(\) returns a Pipeline"),
    ("doc.sentences[0].entities[0].text", r"Entity has no text; use sentence.phrase\(entity\)"),
    ("ner.predict", r"Pipeline has no predict; call it with a text or a list of texts: ner\(text\)"),
    ("nestree.predict", r"nestree has no predict; nestree.load\(\)\(text\) finds entities"),
    ("nestree.convert", r"nestree.write\(nestree.read\(source\), target\)"),
    ("nestree.anything", "nestree has no anything; it has load, train"),
]
CALLS = [
    ("ner(doc)", "this is of type nestree.types.Document: .* Give its .text"),
    ("ner({'text': 'a'})", "a text must be a string, and this is of type dict"),
    ("ner([['a', 'list']])", "`words` takes lists of words"),
    ("ner.words(['Ann', 'left'])", "each sentence must be a list of words, and one is a string"),
    ("doc.to_json('a.json')", r"it must be a number. `nestree.write\(document, path\)` writes files"),
    ("nestree.Document.from_dict([])", "from_dict takes what to_dict returns, and this is"),
    ("nestree.Document.from_json('{')", "from_json takes the JSON of one document, not '{'"),
    ("nestree.Document.from_dict({'txt': 'a'})", "needs `tokens` or a `text`, and has txt"),
    ("nestree.Recognizer('bert')", "settings are 'bert'; a new model needs Settings, labels and an encoder"),
    ("nestree.Recognizer(folder)", "Recognizer.from_pretrained"),
    ("nestree.Pipeline('gum-minilm')", "must be a Recognizer. `nestree.load` takes names"),
    ("nestree.train('a', output='b')", "output='b': did you mean out?"),
    ("nestree.evaluate(ner, doc)", r"takes gold data first, and this is a Pipeline: evaluate\(data, model=ner\)"),
    ("nestree.write('a.jsonl', doc)", "takes the documents first, then the path, and 'a.jsonl' comes first"),
    ("nestree.write(doc, 'a.html')", r"pages are written by document.to_html\(path\)"),
    ("ner.model('a text')", r"this is 'a text'. nestree.Pipeline\(model\)\(text\) finds entities"),
    ("nestree.train('a')", "name a new directory with out=DIR"),
]


@pytest.fixture(scope="module")
def names(tiny_model):
    ner = nestree.load(tiny_model, device="cpu")
    doc = ner(TEXT)
    assert doc.entities
    return {"nestree": nestree, "ner": ner, "doc": doc, "folder": str(tiny_model)}


@pytest.mark.parametrize(("expression", "message"), ATTRIBUTES + CALLS)
def test_names_and_arguments_of_other_libraries(names, expression, message):
    error = AttributeError if (expression, message) in ATTRIBUTES else InputError
    with pytest.raises(error, match=message):
        eval(expression, names)


def test_a_document_comes_back_from_its_json(names):
    doc = names["doc"]
    assert nestree.Document.from_json(doc.to_json()).to_dict() == doc.to_dict()
    for words in ("whitespace", "split-hyphens"):  # entities and heads stay, whatever the words are
        assert nestree.Document.from_dict(doc.to_dict(), words=words).to_dict() == doc.to_dict()
    odd = {"text": "the U.S.-led 😀 plant", "entities": [
        {"start": 0, "end": 20, "label": "A", "head": {"start": 4, "end": 12}}, {"start": 5, "end": 7, "label": "B"}
    ]}  # fmt: skip
    entities = nestree.Document.from_dict(odd, words="split-hyphens").entities
    assert [(e.text, e.head and e.head.text) for e in entities] == [
        ("the U.S.-led 😀 plant", "U.S.-led"), ("U.S.-led", None),
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(doc)) == doc
    assert (doc[0].span, doc[0].text) == ((doc[0].start, doc[0].end), TEXT[slice(*doc[0].span)])
    with pytest.raises(TypeError, match=r"document.entities; or document.to_dict\(\)\['entities'\]"):
        doc["entities"]


def test_a_document_is_shown_and_saved(names, capsys, tmp_path):
    doc = names["doc"]
    doc.show(tree=True)
    assert "root" in capsys.readouterr().out
    page = doc.to_html(tmp_path / "a.html", title="My <title>")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page
    assert "<title>My &lt;title&gt;</title>" in page


def test_a_document_of_spacy(names):
    """Its ents are the outermost entities."""
    spacy = pytest.importorskip("spacy")
    doc, nlp = names["doc"], spacy.blank("en")
    of_spacy = doc.to_spacy(nlp.vocab)
    assert (of_spacy.text, of_spacy.vocab) == (TEXT, nlp.vocab)
    outermost = [(e.start, e.end, e.label) for e in doc.entities if e.depth == 0]
    assert [(e.start_char, e.end_char, e.label_) for e in of_spacy.ents] == outermost
    nlp.add_pipe("nestree")  # knows the attributes of spans
    spans = [(s.start_char, s.end_char, s.label_, s._.nestree_score) for s in of_spacy.spans["nestree"]]
    scored = [(e.start, e.end, *pair) for e in doc for pair in zip(e.labels, e.scores, strict=True)]
    assert sorted(spans) == sorted(scored)
    assert len(scored) > len(outermost)
    message = r'Give its .text, or add the component .* nlp.add_pipe\("nestree"\)'
    with pytest.raises(InputError, match=message):
        names["ner"](spacy.blank("en")(TEXT))


def test_an_evaluation_prints_a_table_and_warns_if_no_label_is_shared(names, caplog):
    doc = names["doc"]
    lines = str(nestree.evaluate(doc, doc)).splitlines()
    assert nestree.evaluate(doc, names["ner"]).f1 == nestree.evaluate(doc, model=names["ner"]).f1 == 1
    assert lines[0].split() == ["precision", "recall", "F1", "gold", "predicted"]
    assert lines[1].split()[:4] == ["all", "100.00", "100.00", "100.00"]
    assert {line.split()[0] for line in lines[2:]} == {label for e in doc for label in e.labels}
    assert max(map(len, lines)) <= 80
    labels = "GPE", "place"
    gold, predicted = (nestree.Sentence(["Rome"], [nestree.Entity(0, 1, label)]) for label in labels)
    assert nestree.evaluate([gold], [predicted]).f1 == 0
    assert "no label in common, so all scores are 0: gold has GPE; predicted are place." in caplog.text
    caplog.clear()
    assert nestree.evaluate([gold], [gold]).f1 == 1
    assert not caplog.text


def test_a_known_label_is_the_only_one(names):
    ner, doc = names["ner"], names["doc"]
    for entity in doc:
        other = next(label for label in ner.labels if label != entity.label)
        known = {(e.start, e.end): e.labels for e in ner(TEXT, known=[(entity.start, entity.end, other)])}
        assert known[entity.start, entity.end] == (other,)
        both = [(entity.start, entity.end, label) for label in (other, entity.label)]
        known = {(e.start, e.end): e.labels for e in ner(TEXT, known=both)}
        assert set(known[entity.start, entity.end]) == {other, entity.label}
