"""Data sets of Hugging Face, made by the library itself and by us. Nothing here may use a network or a pickle."""

import json
import pickle
import socket

import datasets
import dill
import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from nestree.data import formats
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import assert_refused, documents, phrases, spans


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No network, no pickles, no progress bars; a failure if something is fetched or unpickled after all."""

    def refuse(*_, **__):
        raise AssertionError("a test tried to use the network or a pickle")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for module in (pickle, dill):
        for name in ("load", "loads"):
            monkeypatch.setattr(module, name, refuse)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
WORDS = ["The", "mayor", "of", "Rome", "left"]


def tagged(**columns):
    tags = List(ClassLabel(names=NAMES))
    features = {"id": Value("string"), "tokens": List(Value("string"))} | dict.fromkeys(columns, tags)
    rows = {"id": ["r1"], "tokens": [WORDS]} | {name: [column] for name, column in columns.items()}
    return Dataset.from_dict(rows, features=Features(features))


def test_tags_of_several_layers_are_read_with_their_names(tmp_path):
    tagged(ner_tags=[1, 2, 2, 2, 0], nested_ner_tags=[0, 0, 0, 3, 0]).save_to_disk(tmp_path / "d")
    (document,), report = documents(tmp_path / "d")
    assert spans(document.sentences[0]) == [(0, 4, "PER"), (3, 4, "LOC")]
    assert document.sentences[0].id == "r1"
    assert report.counts == {}


def test_tags_in_json_are_read(tmp_path):
    tags = ["O", "B-ORG", "I-ORG", "I-ORG", "O"]
    path = write_text(tmp_path / "a.jsonl", json.dumps({"tokens": WORDS, "ner_tags": tags}))
    (document,), _ = documents(path)
    assert spans(document.sentences[0]) == [(1, 4, "ORG")]
    assert_refused("has no `entities`, but `ner_tags`, as datasets has", path, "jsonl")
    path = write_text(tmp_path / "tner.jsonl", json.dumps({"tokens": WORDS, "tags": tags}))
    assert_refused("but `tags` of words. Read it as datasets, with the option tags=tags", path, "jsonl")
    (document,), _ = documents(path, format="datasets", tags="tags")
    assert spans(document.sentences[0]) == [(1, 4, "ORG")]
    path = write_text(tmp_path / "b.json", json.dumps([{"tokens": 5, "ner_tags": tags}]))
    assert_refused("b.json:1, record 1: `tokens` must be a list, and is 5", path)


def test_columns_of_tags_can_be_named_and_their_numbers_too(tmp_path):
    rows = {"words": [WORDS], "a": [[0, 0, 0, 3, 4]], "b": [["O", "S-X", "O", "B-Y", "E-Y"]]}
    Dataset.from_dict(rows).to_parquet(tmp_path / "d.parquet")
    (document,), report = documents(tmp_path / "d.parquet", tags="a, b", names=",".join(NAMES))
    assert spans(document.sentences[0]) == [(1, 2, "X"), (3, 5, "LOC"), (3, 5, "Y")]
    assert report.counts == {}
    for message, options in {
        "row 1: a holds numbers, and nothing says what they stand for": {"tags": "a"},
        "a holds 3, and there are only 2 names": {"tags": "a", "names": "O,B-X"},
        "row 1: 'PER' in a is not a tag": {"tags": "a", "names": "O,B-X,O,PER,O"},
        "entities or ner_tags with tokens or a text are needed, and": {},
    }.items():
        assert_refused(message, tmp_path / "d.parquet", **options)


def test_a_tag_that_continues_nothing_begins_an_entity(tmp_path):
    tagged(ner_tags=[0, 2, 2, 3, 0]).save_to_disk(tmp_path / "d")
    (document,), report = documents(tmp_path / "d")
    assert spans(document.sentences[0]) == [(1, 3, "PER"), (3, 4, "LOC")]
    assert report.counts == {"tags that continue no entity: taken as the beginning of one": 1}


@pytest.mark.parametrize("column", ["entities", "ner"])
@pytest.mark.parametrize("as_lists", [False, True])
def test_lists_of_entities_are_read_however_they_are_kept(tmp_path, column, as_lists):
    found = [{"start": 0, "end": 3, "type": "PER"}, {"start": 3, "end": 3, "type": "LOC"}]
    kept = {key: [e[key] for e in found] for key in found[0]} if as_lists else found
    Dataset.from_list([{"tokens": WORDS, column: kept, "pos": ["X"] * 5}]).save_to_disk(tmp_path / "d")
    (document,), _ = documents(tmp_path / "d", ends="inclusive")
    assert spans(document.sentences[0]) == [(0, 4, "PER"), (3, 4, "LOC")]
    assert document.sentences[0].extra == {"pos": ["X"] * 5}
    assert_refused("row 1: entity 3-3 LOC is empty", tmp_path / "d")


def test_a_text_is_split_and_left_out_where_it_lacks_the_words(tmp_path):
    entity = {"start": 12, "end": 16, "label": "GPE"}
    rows = [{"text": "He left. In Rome, 🙂.", "entities": [entity], "doc_id": "a"}]
    Dataset.from_list(rows).to_parquet(tmp_path / "d.parquet")
    (document,), _ = documents(tmp_path / "d.parquet")
    assert [phrases(s) for s in document.sentences] == [[], [("Rome", "GPE")]]
    assert document.id == "a"
    rows = [{"text": "someone else", "tokens": WORDS, "entities": [{"start": 3, "end": 4, "label": "LOC"}]}]
    Dataset.from_list(rows).to_parquet(tmp_path / "d.parquet")
    (document,), report = documents(tmp_path / "d.parquet")
    assert (document.sentences[0].text, spans(document.sentences[0])) == (None, [(3, 4, "LOC")])
    assert report.counts == {"texts not kept: the words do not follow each other in them": 1}


def test_a_split_has_to_be_chosen_where_there_are_several(tmp_path):
    one, two = tagged(ner_tags=[1, 0, 0, 0, 0]), tagged(ner_tags=[0, 0, 0, 3, 0])
    DatasetDict(train=one, test=two).save_to_disk(tmp_path / "d")
    assert_refused(r"holds several splits: test, train. Choose one with .* `split`", tmp_path / "d")
    assert spans(documents(tmp_path / "d", split="test")[0][0].sentences[0]) == [(3, 4, "LOC")]
    assert spans(documents(tmp_path / "d" / "train")[0][0].sentences[0]) == [(0, 1, "PER")]
    assert len(documents(tmp_path / "d", split="all")[0]) == 2
    assert_refused(r"holds no split 'dev'. There are: test, train.", tmp_path / "d", split="dev")


def test_a_folder_of_parquet_files_has_the_splits_of_their_names(tmp_path):
    folder = tmp_path / "d" / "data"
    folder.mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001-abc"):
        tagged(ner_tags=[1, 0, 0, 0, 0]).to_parquet(folder / f"{name}.parquet")
    (folder / "._train-00000-of-00002.parquet").write_bytes(b"\0\5\x16\7")  # as macOS leaves in archives
    (folder / "test-00000-of-00001-abc.parquet").rename(tmp_path / "test.parquet")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "test.parquet").rename(tmp_path / "elsewhere" / "test.parquet")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert len(documents(tmp_path / "d", split="train")[0]) == 2
    assert len(documents(tmp_path / "d", split="test")[0]) == 1


def test_arrow_files_are_read_in_both_kinds(tmp_path):
    table = tagged(ner_tags=[1, 0, 0, 0, 0]).data.table
    for name, kind in (("a", pyarrow.ipc.new_file), ("b", pyarrow.ipc.new_stream)):
        with kind(str(tmp_path / f"{name}.arrow"), table.schema) as file:
            file.write_table(table)
        (document,), _ = documents(tmp_path / f"{name}.arrow")
        assert spans(document.sentences[0]) == [(0, 1, "PER")]


TEXT = "In Rome 🙂.\r\n So."
ENTITIES = Entity(0, 4, "X", head=1, score=0.1), Entity(1, 2, "GPE"), Entity(1, 3, "Y", heads=(1, 2))
OFFSETS = (0, 2), (3, 7), (8, 9), (9, 10)
SOME = [
    Document(
        (
            Sentence(("In", "Rome", "🙂", "."), ENTITIES, "In Rome 🙂.", OFFSETS, 0, "s1"),
            Sentence(("So", "."), (), "So.", ((0, 2), (2, 3)), 13, None, False),
        ),
        TEXT,
        "d1",
    ),
    Document((Sentence(("a",), id="x"), Sentence(("b",), (Entity(0, 1, "B"),))), None, None),
    Document((Sentence(("a",)),), None, "d2"),
]


def test_the_library_reads_what_is_written(tmp_path):
    formats.write(SOME, tmp_path / "folder", "datasets")
    formats.write(SOME, tmp_path / "file.parquet", "datasets")
    found = datasets.load_from_disk(str(tmp_path / "folder"))
    assert found[0]["tokens"] == ["In", "Rome", "🙂", "."]
    first = {"start": 0, "end": 4, "label": "X", "head": 1, "heads": None, "score": 0.1}
    assert found[0]["entities"][0] == first
    schema = pyarrow.parquet.read_schema(tmp_path / "file.parquet")
    assert found.features == Features.from_arrow_schema(schema)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.parquet", "folder"]


def test_no_documents_make_an_empty_data_set(tmp_path):
    for name in ("folder", "file.parquet"):
        formats.write([], tmp_path / name, "datasets")
        assert_refused("holds no datasets data: it is empty", tmp_path / name, "datasets")


def test_other_files_and_folders_are_no_data_sets(tmp_path):
    for name, data in (("a.parquet", b"nonsense"), ("c.arrow", b"ARROW1 and no more")):
        (tmp_path / name).write_bytes(data)
        assert_refused(f"{name}: this is not a data set that can be read, after 0 rows", tmp_path / name, "datasets")
    (tmp_path / "folder").mkdir()
    assert_refused("folder holds no data set", tmp_path / "folder", "datasets")
    with pytest.raises(DataError, match="cannot go to standard output"):
        formats.write(SOME, "-", "datasets")


def test_a_folder_that_lies_about_its_files_is_refused(tmp_path):
    tagged(ner_tags=[1, 0, 0, 0, 0]).save_to_disk(tmp_path / "d")
    state = tmp_path / "d" / "state.json"
    lie = json.loads(state.read_text()) | {"_data_files": [{"filename": "gone.arrow"}]}
    state.write_text(json.dumps(lie))
    assert_refused("this is not a data set that can be read", tmp_path / "d", "datasets")
