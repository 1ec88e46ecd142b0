"""Bad input: whatever is wrong with a file, one sentence says what and where, and nothing is left behind."""

import gzip
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nestree.data.formats import FORMATS, write
from nestree.types import Document, Sentence
from tests.cli.run import COMMAND, nestree, refuse, succeed
from tests.data.formats.reading import FIXTURES
from tests.tiny import write_bytes, write_text

LINE = '{"tokens": ["Rome", "fell"], "entities": [{"start": 0, "end": 1, "label": "GPE"}]}\n'
GENIA = """<?xml version="1.0"?>
<!DOCTYPE set [%s]>
<set>
<article><articleinfo><bibliomisc>MEDLINE:1</bibliomisc></articleinfo>
<title><sentence>The <cons lex="IL-2" sem="G#protein_molecule">IL-2</cons> %s.</sentence></title>
</article>
</set>
"""
ENTITIES = (f'<!ENTITY {y} "{f"&{x};" * 50}">' for x, y in zip("abcdefgh", "bcdefghi", strict=True))
BOMB = '<!ENTITY a "ha">' + "".join(ENTITIES)
EXTERNAL = '<!ENTITY x SYSTEM "file:%s">'
PARAMETER = '<!ENTITY % x SYSTEM "file:%s"> %x;'
REFUSED = ": this XML declares entities or refers to other files"
BIOC = (FIXTURES / "tools" / "bioc.xml").read_text(encoding="utf-8")
# One of each kind: tests/data/formats/test_bad_records.py has many more records of each format.
BAD: dict[str, tuple[str, str, bytes, str]] = {
    # what is wrong: format, name, content, what the sentence says after the name
    "malformed JSON": ("jsonl", "a.jsonl", (LINE + LINE[:40] + "\n" + LINE).encode(), ":2: this is not JSON"),
    "cut off": ("jsonl", "a.jsonl.gz", gzip.compress(LINE.encode() * 999)[:-40], "cannot be decompressed"),
    "encoding, XML": ("genia", "a.xml", GENIA.encode() % (b"", b"caf\xe9"), ":5: "),
    "unknown encoding": ("genia", "a.xml", b'<?xml version="1.0" encoding="klingon"?><set></set>', "encoding"),
    "XML without articles": ("genia", "a.xml", b"<set></set>", "it is empty"),
    "malformed XML, bioc": ("bioc", "a.xml", BIOC.replace("</collection>", "</set>").encode(), ":"),
    "entity bomb, genia": ("genia", "a.xml", (GENIA % (BOMB, "&i;")).encode(), REFUSED),
    "external entity, genia": ("genia", "a.xml", (GENIA % (EXTERNAL, "&x;")).encode(), REFUSED),
    "external parameter, genia": ("genia", "a.xml", (GENIA % (PARAMETER, "")).encode(), REFUSED),
}  # fmt: skip


def convert_error(source: Path, format: str, folder: Path, *options: str) -> str:
    """The sentence with which `convert` refuses a file."""
    command = ["convert", source, folder / "out.jsonl", "--from", format, "--longest-line", 9000]
    sentence = refuse(*command, *options)
    assert "secret" not in sentence
    return sentence


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_a_sentence(tmp_path, what):
    format, name, content, said = BAD[what]
    secret = write_text(tmp_path.parent / "secret.txt", "secret")
    if "external" in what:
        content = content.replace(b"%s", bytes(secret))
    source = write_bytes(tmp_path / name, content)
    sentence = convert_error(source, format, tmp_path)
    assert str(source) in sentence
    assert said in sentence
    if what == "malformed XML, bioc":
        skipped = convert_error(source, format, tmp_path, "--skip-bad")
        assert "nothing is left, 1 record skipped" in skipped
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_nothing_to_read(tmp_path, format):
    """A file that does not exist, an empty directory, an empty file, a directory from standard input."""
    source, folder, empty = tmp_path / "absent", tmp_path / "folder", tmp_path / "empty"
    folder.mkdir()
    empty.write_bytes(b"")
    assert str(source) in convert_error(source, format, tmp_path)
    assert str(source) in convert_error(source, format, tmp_path, "--skip-bad")
    assert str(folder) in convert_error(folder, format, tmp_path)
    if format != "text":  # an empty text is a text
        sentence = convert_error(empty, format, tmp_path)
        assert str(empty) in sentence
        assert "it is empty" in sentence or format in ("brat", "ace")  # these miss the other file of a pair
        empty.write_bytes(b"\n\n")
        assert str(empty) in convert_error(empty, format, tmp_path)
    if format in ("brat", "ace", "nne", "datasets"):
        assert "cannot come from standard input" in refuse("stats", "-", "--from", format, stdin="x")


DOCCANO = '{"text": "Rome", "label": [[0, 4, "GPE"]]}\n'
COLUMNS = "Rome\tB-GPE\nfell\tO\n\n"
TRIPLETS = "Rome fell\n0,1 GPE\n\n"
PUBTATOR = "{0}|t|Rome\n{0}|a|fell\n{0}\t0\t4\tRome\tGPE\n\n"
CONLLU = "# sent_id = {0}\n1\tRome\t_\tPROPN\t_\t_\t0\troot\t_\tEntity=(1-place-new)\n\n"
RECORDS = {  # of each format: the first record, one with a byte that is not UTF-8, the last one
    "jsonl": [LINE, LINE.replace("fell", "f\udcff"), LINE],
    "doccano": [DOCCANO, DOCCANO.replace("Rome", "\udcff"), DOCCANO],
    "columns": [COLUMNS, COLUMNS.replace("fell", "f\udcff"), COLUMNS],
    "triplets": [TRIPLETS, TRIPLETS.replace("fell", "f\udcff"), TRIPLETS],
    "pubtator": [PUBTATOR.format(1), "2|t|\udcff\n\n", PUBTATOR.format(3)],
    "gum": [CONLLU.format(1), CONLLU.format(2).replace("Rome", "R\udcff"), CONLLU.format(3)],
}  # fmt: skip


def convert_skipping(source: Path, target: Path, format: str) -> dict[str, Any]:
    done = succeed("convert", source, target, "--from", format, "--skip-bad", "--format", "json")
    return json.loads(done.stdout)["read"]


@pytest.mark.parametrize("format", RECORDS)
def test_skip_bad_goes_on_after_a_line_that_is_not_utf8(tmp_path, format):
    first, bad, last = RECORDS[format]
    source = write_bytes(tmp_path / "a", (first + bad + last).encode("utf-8", "surrogateescape"))
    assert "is not UTF-8" in convert_error(source, format, tmp_path)
    read = convert_skipping(source, tmp_path / "out.jsonl", format)
    assert (read["entities"], len(read["skipped"])) == (2, 1)
    assert ": byte 0xff is not UTF-8" in read["skipped"][0]


@pytest.mark.parametrize("format", ["jsonl", "columns", "triplets"])
def test_skip_bad_keeps_what_a_file_has_before_it_is_cut_off(tmp_path, format):
    source = write_bytes(tmp_path / "a.gz", gzip.compress(RECORDS[format][0].encode() * 4_000)[:-40])
    read = convert_skipping(source, tmp_path / "out.jsonl", format)
    assert read["sentences"] == read["entities"] > 1000
    assert [error.startswith(f"{source} cannot be decompressed") for error in read["skipped"]] == [True]


def test_skip_bad_keeps_what_can_be_read(tmp_path):
    title = "a title\tand\tmore\tthan that\n\n"  # columns follow from all lines
    long = write_text(tmp_path / "a.jsonl", LINE + LINE.replace("fell", "f" * 9999) + LINE)
    files = long, write_text(tmp_path / "b.iob2", title + COLUMNS * 2)
    done = nestree("stats", *files, "--longest-line", "400", "--skip-bad", "--format", "json")
    parts = json.loads(done.stdout)
    assert (parts["a"]["sentences"], parts["b"]["sentences"]) == (2, 2)
    assert ":2: this line is longer than 400 bytes" in done.stderr


@pytest.mark.parametrize("digits", [4000, 4400])
def test_numbers_of_thousands_of_digits_are_shortened(tmp_path, digits):
    number = "9" * digits
    path = write_text(tmp_path / "a.jsonl", LINE.replace('"end": 1', f'"end": {number}'))
    train = ["train", "--train", path, "--out", tmp_path / "m"]
    settings = (f"training.epochs={number}", f"training.lr={number}", f"training.lr=0x{number}")
    stats = [["stats", path], ["stats", path, "--read", f"word={number}"]]
    for arguments in (*stats, *([*train, "--set", setting] for setting in settings)):
        assert len(refuse(*arguments)) < 400


def test_what_a_killed_conversion_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    def leftovers():
        return [path.name for path in tmp_path.iterdir() if path.name not in ("a.jsonl", "out.jsonl")]

    def convert(source, **options):
        command = [*COMMAND, "convert", source, str(tmp_path / "out.jsonl"), "--from", "jsonl"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)

    def begin():
        before = len(leftovers())
        process = convert("-", stdin=subprocess.PIPE)
        process.stdin.write(LINE.encode() * 2)
        process.stdin.flush()
        while len(leftovers()) == before:
            assert process.poll() is None
            time.sleep(0.02)
        return process

    (tmp_path / "a.jsonl").write_text(LINE)
    killed = begin()
    alive = begin()
    killed.kill()
    killed.communicate()
    assert len(leftovers()) == 2
    assert convert(str(tmp_path / "a.jsonl")).wait() == 0
    assert len(leftovers()) == 1
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 1
    alive.stdin.close()
    assert alive.wait() == 0
    assert leftovers() == []
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 2


def test_a_folder_that_only_looks_like_a_leftover_stays(tmp_path):
    own = tmp_path / ".out.jsonl.0.tmp"
    own.mkdir()
    (own / "notes").write_text("mine")
    write([Document([Sentence(["Rome"])])], tmp_path / "out.jsonl")
    assert (own / "notes").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [own.name, "out.jsonl"]
