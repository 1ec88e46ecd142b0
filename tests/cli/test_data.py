"""The commands convert, check, stats, formats and split."""

import gzip
import json
from pathlib import Path

import pytest

from nestree.cli.options import parse_options
from nestree.data.formats import FORMATS, read
from tests.cli.run import nestree, refuse, succeed
from tests.data.formats.reading import COUNTED
from tests.tiny import write_bytes, write_text

GOOD = '{"tokens": ["Rome"], "entities": [{"start": 0, "end": 1, "label": "GPE"}]}\n'
BAD = '{"tokens": ["Rome"], "entities": [{"start": 0, "end": 2, "label": "GPE"}]}\n'


def test_convert_detects_formats_and_prints_a_summary(tmp_path):
    done = nestree("convert", COUNTED, tmp_path / "out.iob2")
    assert (done.exit_code, done.stdout) == (0, "")
    first, second, *losses = done.stderr.splitlines()
    assert first == f"read     3 documents, 5 sentences, 12 entities from {COUNTED} (jsonl)"
    assert second == f"written  5 sentences, 12 entities to {tmp_path / 'out.iob2'} (columns)"
    assert any(line.split()[:4] == ["3", "ids", "of", "documents"] for line in losses)
    done = nestree("convert", COUNTED, "-o", tmp_path / "out.jsonl.gz", "--format", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    sides = json.loads(done.stdout)
    assert [(sides[k]["format"], sides[k]["entities"]) for k in ("read", "written")] == [("jsonl", 12)] * 2
    assert list(read(tmp_path / "out.jsonl.gz")) == list(read(COUNTED))


def test_convert_splits_text_as_asked(tmp_path):
    source = write_text(tmp_path / "a.jsonl", json.dumps({"text": "in well-known cafés\nAnn left", "entities": []}))

    def words(*options: str) -> list[tuple[str, ...]]:
        succeed("convert", source, tmp_path / "b.jsonl", *options)
        return [sentence.words for d in read(tmp_path / "b.jsonl") for sentence in d.sentences]

    lines = [("in", "well-known", "cafés"), ("Ann", "left")]
    assert words("--words", "whitespace", "--sentences", "lines") == lines
    assert words("--read", "words=whitespace", "--read", "sentences=lines") == lines
    assert ("in", "well", "-", "known", "cafés") in words("--words", "split-hyphens", "--sentences", "lines")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--write", "end=inclusive"], "end=inclusive: triplets has no such option. Did you mean ends?"),
        (["--write", "zzz=1"], "triplets has no such option. It has ends."),
        (["--write", "ends"], "--write ends has no value: write --write ends=VALUE."),
        (["--write", "ends=open"], "not 'open'"),
        (["--read", "ends=inclusive"], "jsonl has no such option."),
        (["--to", "genia"], "genia can be read, not written."),
        (["--from", "jsnol"], "there is no format 'jsnol'."),
        (["--from", "columns", "--words", "ud"], "--words ud: columns data has its own words."),
        (["--words", "uds"], "--words uds: choose one of treebank, ud, split-hyphens, whitespace."),
        (["--sentences", "line"], "--sentences line: choose one of rules, lines."),
        (["--longest-line", "10"], "longer than 10 bytes"),
        (["--longest-line", "0"], "--longest-line"),
    ],
)
def test_invalid_options(tmp_path, arguments, message):
    assert message in refuse("convert", COUNTED, tmp_path / "out.data", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_option_values_have_the_type_of_the_option():
    assert parse_options(["word=2", "tags=3,4"], "columns", "read") == {"word": 2, "tags": "3,4"}
    values = {"columns": ("word=two", "a whole number"), "genia": ("coordinations=2", "true or")}
    for format, (argument, meant) in values.items():
        sentence = refuse("stats", COUNTED, "--from", format, "--read", argument)
        assert f"--read {argument}: the value must be {meant}" in sentence
    described = json.loads(nestree("formats", "--format", "json").stdout)
    assert list(described) == list(FORMATS)
    for name, about in described.items():
        for verb in ("read", "write") if about["write"] is not None else ("read",):
            for option, default in about[verb].items():
                value = "true" if isinstance(default, bool) else str(default or "")
                assert option in parse_options([f"{option}={value}"], name, verb)


def test_formats_are_listed_and_described():
    lines = [line.split() for line in nestree("formats").stdout.splitlines()]
    assert [line[0] for line in lines] == list(FORMATS)
    assert ["genia", "read"] in [line[:2] for line in lines]
    description = nestree("formats", "triplets").stdout
    assert "--read ends=exclusive" in description
    assert "inclusive" in description
    assert nestree("formats", "tripels").exit_code == 2


def test_skip_bad_lists_skipped_records(tmp_path):
    source, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    source.write_text(GOOD + BAD + GOOD + "{\n")
    assert refuse("convert", source, out).startswith(f"{source}:2: entity 0-2 GPE ends after the sentence")
    assert not out.exists()
    done = succeed("convert", source, out, "--skip-bad")
    assert f"{source}:2: " in done.stderr
    assert f"{source}:4: " in done.stderr
    assert sum(len(d.sentences) for d in read(out)) == 2
    assert "2  skipped:" in nestree("stats", source, "--skip-bad").stderr


def test_standard_output_gets_all_or_nothing_and_standard_input_may_be_gzip(tmp_path):
    source = write_text(tmp_path / "a.jsonl", GOOD * 100 + BAD)
    for format in ("jsonl", "brat"):
        done = nestree("convert", source, "-", "--to", format)
        assert (done.exit_code, done.stdout) == (2, "")
    packed = gzip.compress(COUNTED.read_bytes())
    done = nestree("stats", "-", "--from", "jsonl", "--format", "json", stdin=packed)
    assert json.loads(done.stdout)["-"]["entities"] == 12


def test_exit_codes_of_check(tmp_path):
    lines = {"good": GOOD * 2, "bad": GOOD + BAD, "odd": GOOD}  # odd: a label seen once
    good, bad, odd = (write_text(tmp_path / f"{name}.jsonl", text) for name, text in lines.items())
    assert (nestree("check", good).exit_code, nestree("check", odd).exit_code) == (0, 0)
    assert nestree("check", odd, "--strict").exit_code == 1
    done = nestree("check", bad)
    assert done.exit_code == 1
    assert f"{bad}:2: entity 0-2 GPE ends after the sentence" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 error and 1 warning in 1 file, 1 sentence, 1 entity."
    done = nestree("check", tmp_path / "none.jsonl", bad)
    assert (done.exit_code, f"  {tmp_path / 'none.jsonl'}: does not exist. Check" in done.stdout) == (2, True)
    assert nestree("check", "-q", bad).stdout == "1 error and 1 warning in 1 file, 1 sentence, 1 entity.\n"
    report = json.loads(nestree("check", bad, "--format", "json").stdout)
    assert (report["errors"], report["findings"][0]["kind"]) == (1, "out-of-range")


def test_stats_as_text_markdown_and_json():
    rows = [line.split() for line in nestree("stats", COUNTED).stdout.splitlines()]
    assert rows[:3] == [["counted"], ["documents", "3"], ["sentences", "5"]]
    assert "| sentences | 5 |" in nestree("stats", COUNTED, "--format", "markdown").stdout
    numbers = json.loads(nestree("stats", COUNTED, "--format", "json").stdout)["counted"]
    assert (numbers["entities"], numbers["nested_entities"], numbers["labels"]["GPE"]) == (12, 8, 5)


@pytest.fixture
def source(tmp_path) -> Path:
    """Twenty documents of two sentences; the first of each has an entity."""
    path = tmp_path / "all.jsonl"
    with open(path, "w") as file:
        for n in range(20):
            for k in range(2):
                entities = [{"start": 0, "end": 1, "label": "AB"[n % 2]}] * (k == 0)
                line = {"tokens": [f"w{n}"], "entities": entities, "doc_id": f"d{n}", "sent_id": f"d{n}-{k}"}
                file.write(json.dumps(line) + "\n")
    return path


def ids(path: Path) -> list[str | None]:
    return [document.id for document in read(path)]


@pytest.mark.parametrize(
    ("options", "sentences"),
    [
        ([], {"train": 32, "dev": 4, "test": 4}),  # whole documents
        (["--stratify", "--parts", "a=1,b=1"], {"a": 20, "b": 20}),
        (["--parts", "c=3,b=1,a=1"], {"c": 24, "b": 8, "a": 8}),
        (["--in-order", "--by", "sentence", "--parts", "first=3,rest=1"], {"first": 30, "rest": 10}),
    ],
)
def test_split(source, tmp_path, options, sentences):
    out = tmp_path / "out"
    parts = json.loads(nestree("split", source, "--out", out, *options, "--format", "json").stdout)
    assert {name: part["sentences"] for name, part in parts.items()} == sentences
    assert list(parts) == list(sentences)
    found = {name: ids(out / f"{name}.jsonl") for name in parts}
    assert sorted(id or "" for part in found.values() for id in part) == sorted(f"d{n}" for n in range(20))
    if "--stratify" in options:
        assert all(part["labels"] == {"A": 5, "B": 5} for part in parts.values())
    if "--in-order" in options:
        assert found["rest"] == [f"d{n}" for n in range(15, 20)]


def test_a_folder_of_parts_is_data(source, tmp_path):
    out = tmp_path / "out"
    parts = nestree("split", source, out, "--seed", "1").stdout
    assert parts.split()[:4] == ["train", "dev", "test", "all"]
    (out / "notes.md").write_text("Not data.")
    assert nestree("stats", out).stdout == parts
    assert "in 3 files, 40 sentences, 20 entities" in nestree("check", out, "-q").stdout
    assert nestree("evaluate", out, out, "-q").stdout == "P 100.00  R 100.00  F1 100.00\n"
    assert "20 entities in 40 sentences" in nestree("show", out).stderr
    nestree("split", source, tmp_path / "other", "--seed", "2")
    a, b = ((tmp_path / name / "train.jsonl").read_bytes() for name in ("out", "other"))
    assert a != b


def test_split_by_lists(source, tmp_path):
    (tmp_path / "dev.txt").write_text("d3\n\nd5\n")
    (tmp_path / "test.txt").write_text("d7\r\n")
    lists = ["--list", f"dev={tmp_path / 'dev.txt'}", "--list", f"test={tmp_path / 'test.txt'}"]
    succeed("split", source, tmp_path / "out", *lists)
    assert ids(tmp_path / "out" / "dev.jsonl") == ["d3", "d5"]
    assert ids(tmp_path / "out" / "test.jsonl") == ["d7"]
    assert len(ids(tmp_path / "out" / "train.jsonl")) == 17
    succeed("split", source, tmp_path / "other", *lists, "--rest", "left")
    assert len(ids(tmp_path / "other" / "left.jsonl")) == 17
    (tmp_path / "test.txt").write_text("\nd7\nzzz\n")
    message = f"{tmp_path / 'test.txt'}:3: 'zzz' is not in the data. Take it out, or say with --by what the ids name."
    assert refuse("split", source, tmp_path / "third", *lists) == message


def test_split_into_another_format_and_only_into_an_empty_folder(source, tmp_path):
    succeed("split", source, tmp_path / "out", "--to", "columns", "--parts", "a=1,b=1")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.iob2", "b.iob2"]
    succeed("split", source, tmp_path / "folders", "--to", "brat", "--parts", "a=1,b=1")
    assert (tmp_path / "folders" / "a").is_dir()
    packed = write_bytes(tmp_path / "all.jsonl.gz", gzip.compress(source.read_bytes()))
    succeed("split", packed, tmp_path / "packed", "--parts", "a=1,b=1")
    assert len(ids(tmp_path / "packed" / "a.jsonl.gz")) == 10
    assert "not empty" in refuse("split", source, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.iob2", "b.iob2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "train"], "write NAME=SHARE"),
        (["--parts", "train=8,dev="], "write NAME=SHARE"),
        (["--parts", "train=8,dev=0"], "part dev has the share 0.0"),
        (["--parts", "train=1000,dev=1"], "part dev would get nothing of 20 units"),
        (["--parts", "train=8,dev=1,dev=1"], "dev is named twice"),
        (["--by", "page"], "not by 'page'"),
        (["--stratify", "--in-order"], "Leave out --stratify"),
        (["--rest", "train"], "--rest needs --list"),
        (["--list", "dev=missing.txt"], "missing.txt does not exist"),
        (["--list", "dev"], "--list NAME=FILE"),
        (["--list", "dev=missing.txt", "--parts", "a=1"], "Leave out --parts"),
        (["--parts", "../x=1,b=1"], "cannot be the name of a part"),
    ],
)
def test_invalid_splits_write_nothing(source, tmp_path, arguments, message):
    assert message in refuse("split", source, tmp_path / "out", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]
