"""The command split: by shares or lists, by sentence or document."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nestree.cli import app
from nestree.data.formats import read


def nestree(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, ["split", *(str(each) for each in arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def source(tmp_path) -> Path:
    """Twenty documents of two sentences; the first of each has an entity."""
    path = tmp_path / "all.jsonl"
    lines = [
        {
            "tokens": [f"w{n}"],
            "entities": [{"start": 0, "end": 1, "label": "AB"[n % 2]}] * (k == 0),
            "doc_id": f"d{n}",
            "sent_id": f"d{n}-{k}",
        }
        for n in range(20)
        for k in range(2)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ids(path: Path) -> list[str | None]:
    return [document.id for document in read(path)]


def test_documents_stay_whole_by_default(source, tmp_path):
    out = tmp_path / "out"
    done = nestree(source, out)
    assert done.exit_code == 0, done.stderr
    found = {part: ids(out / f"{part}.jsonl") for part in ("train", "dev", "test")}
    assert [len(found[part]) for part in found] == [16, 2, 2]
    assert done.stdout.splitlines()[0].split() == ["train", "dev", "test", "all"]
    assert sorted(id or "" for part in found.values() for id in part) == sorted(f"d{n}" for n in range(20))
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    assert rows["sentences"][-1] == "40"


def test_the_same_seed_gives_the_same_files(source, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert nestree(source, tmp_path / name, "--seed", seed, "-q").exit_code == 0
    a, b, c = ((tmp_path / name / "train.jsonl").read_bytes() for name in "abc")
    assert a == b != c


def test_in_order_by_sentence_with_parts_of_ones_own(source, tmp_path):
    out = tmp_path / "out"
    done = nestree(
        source, out, "--in-order", "--by", "sentence", "--parts", "first=3,rest=1", "--format", "json"
    )
    assert {name: part["sentences"] for name, part in json.loads(done.stdout).items()} == {
        "first": 30,
        "rest": 10,
    }
    assert ids(out / "rest.jsonl") == [f"d{n}" for n in range(15, 20)]


def test_stratified(source, tmp_path):
    done = nestree(source, tmp_path / "out", "--stratify", "--parts", "a=1,b=1", "--format", "json")
    assert all(part["labels"] == {"A": 5, "B": 5} for part in json.loads(done.stdout).values())


def test_by_lists(source, tmp_path):
    (tmp_path / "dev.txt").write_text("d3\n\nd5\n")
    (tmp_path / "test.txt").write_text("d7\r\n")
    lists = ["--list", f"dev={tmp_path / 'dev.txt'}", "--list", f"test={tmp_path / 'test.txt'}"]
    assert nestree(source, tmp_path / "out", *lists).exit_code == 0
    assert ids(tmp_path / "out" / "dev.jsonl") == ["d3", "d5"]
    assert ids(tmp_path / "out" / "test.jsonl") == ["d7"]
    assert len(ids(tmp_path / "out" / "train.jsonl")) == 17
    assert nestree(source, tmp_path / "other", *lists, "--rest", "left").exit_code == 0
    assert len(ids(tmp_path / "other" / "left.jsonl")) == 17
    (tmp_path / "test.txt").write_text("\nd7\nzzz\n")
    done = nestree(source, tmp_path / "third", *lists)
    said = f"{tmp_path / 'test.txt'}:3: 'zzz' is not in the data. Take it out, or say with --by what the ids name."
    assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n")


def test_into_another_format(source, tmp_path):
    assert nestree(source, tmp_path / "out", "--to", "columns", "--parts", "a=1,b=1").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.iob2", "b.iob2"]
    assert nestree(source, tmp_path / "folders", "--to", "brat", "--parts", "a=1,b=1").exit_code == 0
    assert (tmp_path / "folders" / "a").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "train"], "write NAME=SHARE"),
        (["--parts", "train=8,dev="], "write NAME=SHARE"),
        (["--parts", "train=8,dev=0"], "part dev has the share 0.0"),
        (["--parts", "train=1000,dev=1"], "part dev would get nothing: there are only 20 units"),
        (["--parts", "train=8,dev=1,dev=1"], "dev is named twice"),
        (["--by", "page"], "not by 'page'"),
        (["--stratify", "--in-order"], "--stratify does not go with it"),
        (["--rest", "train"], "--rest goes with --list"),
        (["--list", "dev=missing.txt"], "missing.txt does not exist"),
        (["--list", "dev"], "--list NAME=FILE"),
        (["--list", "dev=missing.txt", "--parts", "a=1"], "do not go with it"),
        (["--parts", "../x=1,b=1"], "cannot be the name of a part"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_written(source, tmp_path, arguments, said):
    done = nestree(source, tmp_path / "out", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]


def test_a_folder_with_something_in_it_is_not_touched(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.jsonl").write_text("mine")
    done = nestree(source, out)
    assert done.exit_code == 2
    assert "not empty" in done.stderr
    assert (out / "train.jsonl").read_text() == "mine"


def test_real_documents(shared, tmp_path):
    source = shared / "data" / "gum_open" / "dev.jsonl.gz"
    done = nestree(
        source, tmp_path / "out", "--stratify", "--parts", "train=50,dev=25,test=25", "--format", "json"
    )
    found = json.loads(done.stdout)
    assert list(found) == ["train", "dev", "test"]
    assert [part["documents"] for part in found.values()] == [10, 5, 5]
    assert sum(part["entities"] for part in found.values()) == 5133
    parts = [ids(tmp_path / "out" / f"{part}.jsonl.gz") for part in found]
    assert sorted(id or "" for part in parts for id in part) == sorted(id or "" for id in ids(source))
