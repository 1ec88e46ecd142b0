"""JSON lines: everything is kept, and every mistake has a place."""

import contextlib
import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestree.data import formats
from nestree.data.alignment import AnnotatedText, Mention, align
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence, Tree
from tests.tiny import write_text

from .reading import converted, documents, phrases, write

GOOD = '{"tokens": ["Mount", "Rainier"], "entities": [{"start": 0, "end": 2, "label": "LOC"}]}'


def read(tmp_path, *lines, **options):
    return documents(write_text(tmp_path / "a.jsonl", "\n".join(lines) + "\n"), **options)


def test_sentences_with_one_document_id_are_one_document(tmp_path):
    lines = [
        json.dumps({"tokens": ["a"], "doc_id": id, "sent_id": n} if id is not None else {"words": ["a"]})
        for n, id in enumerate(["x", "x", None, None, "", "", "y", 5])
    ]
    found, _ = read(tmp_path, *lines, "")
    assert [(d.id, len(d.sentences)) for d in found] == [("x", 2), *[(None, 1)] * 4, ("y", 1), ("5", 1)]
    assert found[0].sentences[1].id == "1"


def test_everything_a_document_can_say_is_kept(tmp_path):
    text = "\tHi.\n\n Don't  go.\n"
    tree = Tree(((0, 4, 2), (0, 1, 0), (1, 4, 2)), ((2, 0),), 2, (1.0, 1, 0.25))
    plain = Tree(((0, 2, None), (0, 1, None)))  # of a model without heads
    first = Sentence(("Hi", "."), (), "Hi.", ((0, 2), (2, 3)), 1, "s1", False, {"speaker": "A"}, plain)
    entities = Entity(0, 3, "X", head=2, score=0.25, extra={"min": [1]}), Entity(0, 3, "X")
    entities += (Entity(1, 4, "Y", heads=(1, 2)),)
    offsets = (0, 2), (2, 5), (7, 9), (9, 10)
    sentences = [first, Sentence(("Do", "n't", "go", "."), entities, "Don't  go.", offsets, 7, tree=tree)]
    given = [
        Document(sentences, text, "d", {"source": "x"}),
        Document(sentences, text, "d"),  # the same id again, and not the same document
        Document([Sentence(["a"]), Sentence(["b"])]),  # no id, and two sentences
        Document([Sentence(["c"])]),
        Document([], " \n", "d", {"error": "why"}),
        Document([], ""),
        Document([Sentence(["e"])], id="d"),
    ]
    path = tmp_path / "a.jsonl.gz"
    assert write(given, path).counts == {}
    found, _ = documents(path)
    assert found == given
    first = found[0]
    assert first.extra == {"source": "x"}
    assert first.sentences[0].extra == {"speaker": "A"}
    assert first.sentences[1].entities[0].extra == {"min": [1]}
    assert [sentence.tree for sentence in first.sentences] == [plain, tree]
    assert b"speaker" in gzip.decompress(path.read_bytes())
    write([Document([], "")], path)
    assert documents(path)[0] == [Document([], "")]
    write([Document([], "He left.", extra={"error": "why"})], path)  # on which a model has failed
    (failed,), _ = documents(path)
    assert (failed.text, failed.extra, failed.sentences[0].complete) == ("He left.", {"error": "why"}, False)


def test_a_text_without_words_is_split_and_its_entities_count_characters(tmp_path):
    entities = [{"start": 8, "end": 12, "label": "GPE", "head": [8, 12], "score": 0.5, "by": "me"}]
    line = json.dumps({"text": "I like Oslo. Very much.", "entities": entities, "doc_id": "d", "year": 1900})
    for key, wrong in [("head", 8), ("heads", "8"), ("heads", [8]), ("heads", [[8, 99]])]:
        with pytest.raises(DataError, match="head"):
            read(tmp_path, line.replace('"head": [8, 12]', f'"{key}": {json.dumps(wrong)}'))
    ((document,), report) = read(tmp_path, line.replace("8", "7").replace("12", "11"))
    assert [sentence.text for sentence in document.sentences] == ["I like Oslo.", "Very much."]
    (entity,) = document.sentences[0].entities
    assert phrases(document.sentences[0]) == [("Oslo", "GPE")]
    assert (entity.head, entity.score, entity.extra, document.extra) == (2, 0.5, {"by": "me"}, {"year": 1900})
    ((document,), report) = read(tmp_path, line.replace("8", "7").replace("12", "9"), words="whitespace")
    assert phrases(document.sentences[0]) == [("Oslo.", "GPE")]
    assert report.counts["widened to word boundaries"] == 1


def test_a_text_may_be_incomplete_or_without_offsets(tmp_path):
    entities = [{"start": 7, "end": 11, "label": "GPE"}]
    line = json.dumps({"text": "I like Oslo. Very much.", "entities": entities, "complete": False})
    ((document,), report) = read(tmp_path, line)
    assert [sentence.complete for sentence in document.sentences] == [False, False]
    assert (document.extra, report.counts) == ({}, {})
    with pytest.raises(DataError, match="`complete` must be true or false, and is 'no'"):
        read(tmp_path, line.replace("false", '"no"'))
    _, report = read(tmp_path, GOOD[:-1] + ', "offsets": [[0, 5], [6, 13]]}')
    assert report.counts == {"offsets not kept: the line has no text": 1}
    line = '{"tokens": ["Do", "n\'t", "go"], "text": "Don\'t  go", "entities": []}'
    ((document,), _) = read(tmp_path, line)
    assert document.sentences[0].offsets == ((0, 2), (2, 5), (7, 9))
    with pytest.raises(DataError, match=r"word 'go' does not come next in `text`: '  stay, go'. Give the"):
        read(tmp_path, line.replace("  go", "  stay, go"))


def test_an_empty_text_of_an_entity_is_not_compared(tmp_path):
    line = '{"text": "in Oslo", "entities": [{"start": 3, "end": 7, "label": "GPE", "text": ""}]}'
    ((document,), _) = read(tmp_path, line)
    assert [entity.text for entity in document] == ["Oslo"]


scalars = st.none() | st.booleans() | st.integers(-2, 4) | st.floats(0, 2)
scalars |= st.sampled_from(["a", "b", "X", ""])
keys = st.sampled_from(["start", "end", "label"])
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner), max_leaves=6)
span = {"start": st.integers(-1, 3) | anything, "end": st.integers(0, 4) | anything}
entity = st.fixed_dictionaries(
    {**span, "label": st.just("X") | anything}, optional=dict.fromkeys(("head", "heads", "score", "more"), anything)
)
record = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.just(["a", "b", "a"]) | anything,
        "entities": st.lists(entity, max_size=2) | anything,
        "text": st.just("a b a") | anything,
        **dict.fromkeys(("words", "offsets", "doc_id", "sent_id", "complete", "before", "after"), anything),
        **dict.fromkeys(("continues", "document", "more", "tree"), anything),
    },
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(record, min_size=1, max_size=3))
def test_any_json_gives_data_or_a_data_error(tmp_path, found):
    path = write_text(tmp_path / "a.jsonl", "\n".join(map(json.dumps, found)))
    given, report = [], ConversionReport(skip_bad=True)
    with contextlib.suppress(DataError):
        given.extend(formats.read(path, "jsonl", report))
    assert sum(len(document.sentences) for document in given) == report.sentences
    if given:
        write(given, tmp_path / "b.jsonl")
        assert documents(tmp_path / "b.jsonl", "jsonl")[0] == given


@pytest.mark.parametrize("value", [{1}, float("inf"), float("-inf"), float("nan")])
def test_what_json_cannot_hold_is_not_written(tmp_path, value):
    with pytest.raises(DataError, match="`extra` holds what JSON cannot"):
        write([Document([Sentence(["a"], extra={"x": value})])], tmp_path / "a.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_real_files_come_back_as_they_are(shared, tmp_path):
    path = shared / "data" / "gum_open" / "dev.jsonl.gz"
    given, _ = converted(shared, "gum_open", "dev")
    write(given, tmp_path / "a.jsonl")
    assert documents(tmp_path / "a.jsonl")[0] == given
    with gzip.open(path, "rt") as before, open(tmp_path / "a.jsonl") as after:
        assert [json.loads(line) for line in before] == [json.loads(line) for line in after]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("genia", [(15022, 45903), (1669, 4336), (1855, 5476)]),
        ("genia_paper", [(15022, 46379), (1669, 4460), (1855, 5596)]),
        ("litbank", [(6892, 11164), (852, 1422), (818, 1326)]),
        ("gum_open", [(7425, 36789), (1022, 5133), (937, 5141)]),
    ],
)
def test_every_sentence_of_the_real_sets_is_read(shared, name, counts):
    for part, expected in zip(("train", "dev", "test"), counts, strict=True):
        _, report = converted(shared, name, part)
        assert (report.sentences, report.entities) == expected


def test_by_characters_a_line_is_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    text = "Dr. Li left. The bank of Rome stayed."
    mentions = [Mention(0, 6, "PER", (4, 6), 0.5), Mention(25, 29, "GPE")]
    mentions.insert(1, Mention(13, 29, "ORG", heads=[(17, 21), (25, 29)]))
    document = align(AnnotatedText(text, mentions, "", "d", {"url": "x"}))
    report = write([document], path, by="characters")
    expected = {**document.to_dict(), "url": "x"}
    heads = [{"start": 17, "end": 21, "text": "bank"}, {"start": 25, "end": 29, "text": "Rome"}]
    expected["entities"][1]["heads"] = heads
    assert json.loads(path.read_text()) == expected
    lost = "{} boundaries not written: jsonl by characters cannot hold them"
    assert set(report.counts) == {lost.format(what) for what in ("word", "sentence")}
    assert documents(path)[0] == [document]
