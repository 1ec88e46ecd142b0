"""Files as they are met in the wild: other line ends, partial corpora, other keys, folders of files, tables."""

import csv
import gzip
import json
import os
import shutil

import pytest

import nestree
from nestree.data import formats
from nestree.data.checks import check
from nestree.data.convert import convert
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence
from tests.tiny import write_text

from .reading import FIXTURES, assert_refused, documents, phrases, spans, write


def test_nne_with_a_flat_folder_of_trees_for_some_sections(tmp_path):
    for file in (FIXTURES / "nne_trees").rglob("*.mrg"):
        shutil.copy(file, tmp_path)
    nested, _ = documents("nne_standoff", trees=str(FIXTURES / "nne_trees"))
    flat, _ = documents("nne_standoff", trees=str(tmp_path))
    assert flat == nested
    (tmp_path / "wsj_0201.mrg").unlink()
    some, report = documents("nne_standoff", trees=str(tmp_path))
    assert [d.id for d in some] == [d.id for d in nested if d.id != "wsj_0201"]
    assert report.counts["documents without trees left out"] == 1
    for file in tmp_path.iterdir():
        file.unlink()
    assert_refused("has no trees, and no other file has", "nne_standoff", trees=str(tmp_path))


def test_json_of_pyramid(tmp_path):
    record = {"tokens": list("abcde"), "entities": [{"span": [2, 4], "entity_type": "X"}], "relations": []}
    (document,), _ = documents(write_text(tmp_path / "a.json", json.dumps([record])))
    assert spans(document.sentences[0]) == [(2, 4, "X")]


def test_ragged_columns(tmp_path):
    text = "the\tB-ORG\nbank\tI-ORG\nof\tI-ORG\nRome\tI-ORG\tB-GPE\n\nHe\tO\n"
    found, report = documents(write_text(tmp_path / "a.iob2", text))
    assert [spans(d.sentences[0]) for d in found] == [[(0, 4, "ORG"), (3, 4, "GPE")], []]
    assert report.counts == {"sentences with fewer tags in some lines: the missing ones read as O": 1}


@pytest.mark.parametrize(("name", "content"), [("a.iob2", "a\tO\n\nb\tO\n"), ("a.data", "a\n\n\nb\n\n\n")])
def test_files_without_documents_count_none(tmp_path, name, content):
    said = convert(write_text(tmp_path / name, content), tmp_path / "b.jsonl").as_text()
    assert said.startswith("read     2 sentences, 0 entities from")
    path = write_text(tmp_path / "c.iob2", "-DOCSTART- O\n\na O\n\nb O\n\n-DOCSTART- O\n\nc O\n")
    assert "read     2 documents, 3 sentences" in convert(path, tmp_path / "c.jsonl").as_text()


BIONNE = "document_id\ttext\tentity_type\tspans\tUMLS_CUI\nd1\told army\tORG\t11-14,20-24\tC1\nd1\tarmy\tORG\t20-24\t\n"


def test_tables_of_bionne(tmp_path):
    path = write_text(tmp_path / "train.tsv", BIONNE)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "d1.txt").write_text("He left an old, big army.")
    (document,), report = documents(path, words="whitespace")
    assert phrases(document.sentences[0]) == [("old, big army.", "ORG"), ("army.", "ORG")]
    assert document.sentences[0].entities[0].extra == {"UMLS_CUI": "C1"}
    assert report.counts["fragments joined: the entity holds what is between them, too"] == 1
    header, _, rows = BIONNE.partition("\n")
    quoted = "\t".join(f'"{name}"' for name in header.title().split("\t"))
    assert documents(write_text(tmp_path / "quoted.tsv", f"{quoted}\n{rows}"), words="whitespace")[0] == [document]
    assert_refused(r"d1.txt does not exist. Name the folder", path, texts=str(tmp_path / "none"))
    path.write_text(BIONNE.replace("20-24", "x"))
    assert_refused(r"train.tsv:2: '11-14,x' are not offsets such as 10-14", path)
    path.write_text(BIONNE.replace("C1", "C1\tC2"))
    assert_refused(r"train.tsv:2: this row has 6 cells, and the header 5. Put cells that hold", path)


def test_texts_of_a_table_are_found_by_their_paths(tmp_path):
    def texts(*ids, **options):
        path = write_text(tmp_path / "t.csv", "doc_id,start,end,label\n" + "".join(f"{id},0,1,X\n" for id in ids))
        return [document.text for document in documents(path, **options)[0]]

    for name in ("x/a", "x/b", "y/a", "x/y/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(name)
    assert texts("y/a", "b", "x/a", "y/c") == ["y/a", "x/b", "x/a", "x/y/c"]
    assert texts("a", texts=str(tmp_path / "y")) == ["y/a"]
    with pytest.raises(DataError, match=r"'a' has several texts: .*/x/a.txt and .*/y/a.txt. Name the folder"):
        texts("a")
    (tmp_path / "a.txt").write_text("nearest")
    assert texts("a") == ["nearest"]


def test_csv_has_a_row_for_each_entity_and_is_read_with_its_texts(tmp_path):
    text = "leaders of the army, no"
    entities = [Entity(0, 4, "person", 0, 0.9), Entity(2, 4, "org", 2), Entity(2, 4, "group", 3, 0.25)]
    entities.append(Entity(2, 4, "org", 2, extra={"text": "not this"}))
    sentence = Sentence(text.split(), entities).with_text()
    document = Document([sentence], text, "d")
    write([document], tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["start"], r["end"], r["text"], r["label"], r["score"], r["head"]) for r in rows] == [
        ("0", "20", "leaders of the army,", "person", "0.9", "leaders"),
        ("11", "20", "the army,", "group", "0.25", "army,"),
        ("11", "20", "the army,", "org", "", "the"),
        ("11", "20", "the army,", "org", "", "the"),
    ]
    first, second = ([r["doc_id"], r["entity"], r["depth"], r["parent"]] for r in rows[:2])
    assert (first, second) == (["d", "0", "0", ""], ["d", "1", "1", "0"])
    (tmp_path / "d.txt").write_text(text)
    (back,) = nestree.read(tmp_path / "a.csv", words="whitespace")
    assert sorted(back.sentences[0].entities, key=str) == sorted(entities, key=str)
    report = write([Document([Sentence(text.split(), entities)])], tmp_path / "b.csv")
    assert report.counts["texts not written: csv cannot hold them"] == 1  # made of the words
    assert "documents joined: csv cannot tell apart those of one id" not in report.counts
    report = write([document, document], tmp_path / "b.csv")
    assert report.counts["documents joined: csv cannot tell apart those of one id"] == 1
    write([Document([Sentence(["no"])], id="d")], tmp_path / "header.csv")  # no row
    assert list(nestree.read(tmp_path / "header.csv")) == []


def test_the_head_of_a_table_may_be_a_text(tmp_path):
    (tmp_path / "d.txt").write_text("the cats and the dogs")
    rows = [f"d,0,21,X,{head}" for head in ("dogs", "the", "og", "")]
    path = write_text(tmp_path / "a.csv", "\n".join(["doc_id,start,end,label,head", *rows]))
    (document,), report = documents(path)
    heads = [(entity.head, entity.heads) for entity in document.sentences[0].entities]
    assert heads == [(4, ())] + [(None, ())] * 3
    assert report.counts == {"heads not kept: their text is not in the entity once": 2}


def test_a_folder_of_files_is_read_like_a_file(tmp_path):
    for part, count in (("train", 3), ("dev", 1), ("test", 2)):
        with gzip.open(tmp_path / f"{part}.jsonl.gz", "wt") as file:
            file.write(f'{{"tokens": ["{part}", "a", "b", "c", "d"]}}\n' * count)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.jsonl").write_text("wrong")
    assert [d.sentences[0].words[0] for d in nestree.read(tmp_path)] == ["train"] * 3 + ["dev"] + ["test"] * 2
    assert [path.name.split(".")[0] for path in formats.data_files(tmp_path)] == ["train", "dev", "test"]
    report = check([tmp_path])
    assert (report.files, report.sentences) == (3, 6)
    for name in ("train.jsonl.gz", "dev.jsonl.gz"):
        (tmp_path / name).rename(tmp_path / f"my-{name}")
    assert len(nestree.read(tmp_path)) == 6
    assert formats.data_files(tmp_path / "test.jsonl.gz") == [tmp_path / "test.jsonl.gz"]
    assert formats.data_files(FIXTURES / "brat") == [FIXTURES / "brat"]


def test_all_files_of_a_large_folder_are_read(tmp_path):
    for number in range(10_001):
        (tmp_path / f"{number}.jsonl").touch()
    (tmp_path / "0.jsonl").write_text('{"tokens": ["a"]}\n')
    assert len(formats.data_files(tmp_path)) == 10_001


@pytest.mark.parametrize(
    ("format", "suffixes"), [("text", [".txt"]), ("brat", [".txt", ".ann"]), ("jsonl", [".jsonl"])]
)
def test_linked_folders_are_read_once_and_hidden_files_are_not(tmp_path, format, suffixes):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / ".hidden").mkdir(parents=True)
    for suffix in suffixes:
        content = {".txt": "Rome", ".ann": "", ".jsonl": '{"tokens": ["Rome"]}\n'}[suffix]
        for name in ("data/a", "elsewhere/b", "data/.hidden/c"):
            (tmp_path / (name + suffix)).write_text(content)
        (tmp_path / "data" / f"._a{suffix}").write_bytes(b"\0\5\x16\7\xff")  # as macOS leaves in archives
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "data")
    assert len(nestree.read(tmp_path / "data", format)) == 2
    (tmp_path / "data" / f"missing{suffixes[-1]}").symlink_to(tmp_path / "nowhere")  # as of data that is not fetched
    with pytest.raises(DataError, match="missing"):
        nestree.read(tmp_path / "data", format)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_files_of_a_folder_that_may_be_listed_only_cannot_be_read(tmp_path):
    (tmp_path / "in").mkdir()
    write_text(tmp_path / "in" / "a.txt", "Rome")
    (tmp_path / "in").chmod(0o444)
    try:
        with pytest.raises(DataError, match=r"a.txt cannot be read: Permission denied"):
            nestree.read(tmp_path / "in", "text")
    finally:
        (tmp_path / "in").chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_other_folders_beside_a_table_and_its_texts_do_not_matter(tmp_path):
    write_text(tmp_path / "d.txt", "Rome")
    table = write_text(tmp_path / "a.csv", "doc_id,start,end,label\nd,0,4,city\n")
    (tmp_path / "secret").mkdir(0)
    assert len(nestree.read(table)) == 1


def test_masked_words_of_gum_are_reported(tmp_path):
    line = "{0}\t_\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
    path = write_text(tmp_path / "a.conllu", "# newdoc id = d\n" + line.format(1) + line.format(2) + "\n")
    assert "1  sentences whose words are underscores" in convert(path, tmp_path / "b.jsonl").as_text()
    (finding,) = check([path]).findings
    assert "words are underscores" in finding.message


def test_a_word_style_is_suggested_where_widening_is_common(tmp_path):
    text = "IL-2-dependent NF-kappaB " * 10
    entities = [{"start": k * 25, "end": k * 25 + 4, "label": "X"} for k in range(10)]
    path = write_text(tmp_path / "a.jsonl", json.dumps({"text": text, "entities": entities}))
    assert documents(path)[1].counts["of the widened entities fit other words: choose --words ud"] == 10
    assert not documents(path, words="ud")[1].counts
