"""Bad input: whatever is wrong with a file, one sentence says what and where, and nothing is left behind."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nestree.cli import app
from nestree.data.formats import FORMATS

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"
LINE = '{"tokens": ["Rome", "fell"], "entities": [{"start": 0, "end": 1, "label": "GPE"}]}\n'
GENIA = """<?xml version="1.0"?>
<!DOCTYPE set [%s]>
<set>
<article><articleinfo><bibliomisc>MEDLINE:1</bibliomisc></articleinfo>
<title><sentence>The <cons lex="IL-2" sem="G#protein_molecule">IL-2</cons> %s.</sentence></title>
</article>
</set>
"""
BOMB = '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">'
EXTERNAL = '<!ENTITY x SYSTEM "%s">'
REFUSED = ": this XML declares entities"
BIOC = (FIXTURES / "tools" / "bioc.xml").read_text(encoding="utf-8")


def bioc(declared: str, used: str) -> str:
    start = BIOC.index("<collection")
    page = f'<?xml version="1.0"?><!DOCTYPE collection [{declared}]>{BIOC[start:]}'
    return page.replace("</source>", f"{used}</source>", 1)


def characters(key: str, start: int, end: int, text: str = "Rome fell") -> str:
    span = {"start": start, "end": end, "label": "GPE"}
    shapes = {
        "jsonl": {"text": text, "entities": [span]},
        "prodigy": {"text": text, "spans": [span]},
        "doccano": {"text": text, "label": [[start, end, "GPE"]]},
    }
    return json.dumps(shapes[key]) + "\n"


def studio(start: int, end: int) -> str:
    value = {"start": start, "end": end, "text": "Rome", "labels": ["GPE"]}
    result = [{"value": value, "type": "labels", "from_name": "label", "to_name": "text"}]
    return json.dumps([{"id": 7, "data": {"text": "Rome fell"}, "annotations": [{"result": result}]}])


def ann(start: int, end: int) -> dict[str, bytes]:
    return {"a.txt": b"Rome fell", "a.ann": f"T1\tGPE 0 4\tRome\nT2\tGPE {start} {end}\tfell\n".encode()}


BAD: dict[str, tuple[str, str, bytes | dict[str, bytes], str]] = {
    # what is wrong: format, name, content, what the sentence says after the name
    "encoding, JSON lines": ("jsonl", "a.jsonl", LINE.encode() + b'{"tokens": ["caf\xe9"]}\n', ":2: byte 0xe9 is not"),
    "encoding, columns": ("columns", "a.iob2", b"a\tO\ncaf\xe9\tO\n", ":2: byte 0xe9 is not UTF-8"),
    "encoding, brat": ("brat", "a", {"a.txt": b"caf\xe9", "a.ann": b""}, "/a.txt:1: byte 0xe9 is not UTF-8"),
    "encoding, pubtator": ("pubtator", "a.txt", b"1|t|caf\xe9\n1|a|b\n", ":1: byte 0xe9 is not UTF-8"),
    "encoding, XML": ("genia", "a.xml", GENIA.encode() % (b"", b"caf\xe9"), ""),
    "cut off": ("jsonl", "a.jsonl.gz", gzip.compress(LINE.encode() * 999)[:-40], "cannot be unpacked"),
    "no gzip after all": ("jsonl", "a.jsonl.gz", b"\x1f\x8b rest", "cannot be unpacked"),
    "malformed JSON": ("jsonl", "a.jsonl", (LINE + LINE[:40] + "\n" + LINE).encode(), ":2: this is not JSON"),
    "malformed JSON, doccano": ("doccano", "a.jsonl", b'{"text": "a", "label": []}\n{"text": \n', ":2: "),
    "malformed JSON, prodigy": ("prodigy", "a.jsonl", b'{"text": "a", "spans": []}\n{"text": \n', ":2: "),
    "malformed JSON, label studio": ("label-studio", "a.json", b'[{"data": {"text": "a"}},\n{"data": ]', ":2: "),
    "malformed JSON, peers": ("peers", "a.jsonl", b'{"tokens": ["a"], "entity_mentions": []}\n{"tokens"\n', ":2: "),
    "malformed XML, genia": ("genia", "a.xml", (GENIA % ("", "<cons>")).encode(), ":5: "),
    "malformed XML, bioc": ("bioc", "a.xml", BIOC.replace("</collection>", "</set>").encode(), ":"),
    "beyond the text, jsonl": ("jsonl", "a.jsonl", characters("jsonl", 0, 99).encode(), ":1: entity 0-99 GPE ends"),
    "beyond the text, prodigy": ("prodigy", "a.jsonl", characters("prodigy", 0, 99).encode(), ":1: entity 0-99 GPE"),
    "beyond the text, doccano": ("doccano", "a.jsonl", characters("doccano", 0, 99).encode(), ":1: entity 0-99 GPE"),
    "beyond the text, label studio": ("label-studio", "a.json", studio(0, 99).encode(), ""),
    "beyond the text, brat": ("brat", "a", ann(5, 99), "/a.ann:2: entity 5-99 GPE ends after the text"),
    "beyond the text, pubtator": ("pubtator", "a.txt", b"1|t|Rome\n1|a|b\n1\t0\t99\tRome\tGPE\n", ":3: "),
    "beyond the sentence": ("jsonl", "a.jsonl", LINE.replace("1,", "9,").encode(), ":1: entity 0-9 GPE ends after"),
    "beyond the sentence, triplets": ("triplets", "a.data", b"Rome fell\n0,9 GPE\n\n", ":2: entity '0,9 GPE' ends"),
    "end before start, jsonl": ("jsonl", "a.jsonl", characters("jsonl", 4, 1).encode(), ":1: entity 4-1 GPE ends"),
    "end before start, prodigy": ("prodigy", "a.jsonl", characters("prodigy", 4, 1).encode(), ":1: entity 4-1 GPE"),
    "end before start, doccano": ("doccano", "a.jsonl", characters("doccano", 4, 1).encode(), ":1: entity 4-1 GPE"),
    "end before start, brat": ("brat", "a", ann(9, 5), "/a.ann:2: entity 9-5 GPE ends before it begins"),
    "end before start, triplets": ("triplets", "a.data", b"Rome fell\n2,1 GPE\n\n", ":2: entity '2,1 GPE' is empty"),
    "text that does not match": ("brat", "a", {"a.txt": b"Rome", "a.ann": b"T1\tGPE 0 4\tPisa\n"}, "/a.ann:1: "),
    "mixed formats, lines": ("jsonl", "a.jsonl", (LINE + '{"text": "a", "label": [[0, 1, "X"]]}\n').encode(), ":2: "),
    "mixed formats, columns": ("columns", "a.iob2", b"Rome\tB-GPE\nfell\tO\n\n" + LINE.encode(), ":4: "),
    "mixed formats, XML": ("jsonl", "a.jsonl", BIOC.encode(), ":1: this is not JSON"),
    "a line too long": ("jsonl", "a.jsonl", (LINE + LINE.replace("fell", "f" * 9999)).encode(), ":2: this line is"),
    "entity bomb, genia": ("genia", "a.xml", (GENIA % (BOMB, "&c;")).encode(), REFUSED),
    "external entity, genia": ("genia", "a.xml", (GENIA % (EXTERNAL, "&x;")).encode(), REFUSED),
    "entity bomb, bioc": ("bioc", "a.xml", bioc(BOMB, "&c;").encode(), REFUSED),
    "external entity, bioc": ("bioc", "a.xml", bioc(EXTERNAL, "&x;").encode(), REFUSED),
}  # fmt: skip


def refused(source: Path, format: str, folder: Path) -> str:
    """The sentence with which `convert` refuses a file."""
    done = CliRunner().invoke(
        app, ["convert", str(source), str(folder / "out.jsonl"), "--from", format, "--longest-line", "9000"]
    )
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    return done.stderr.removeprefix("Error: ")


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_a_sentence(tmp_path, what):
    format, name, content, said = BAD[what]
    source = tmp_path / name
    if isinstance(content, dict):
        source.mkdir()
        for each, data in content.items():
            (source / each).write_bytes(data)
    else:
        secret = tmp_path.parent / "secret.txt"
        secret.write_text("secret")
        source.write_bytes(content.replace(b"%s", str(secret).encode()) if "external" in what else content)
    sentence = refused(source, format, tmp_path)
    assert str(source) in sentence
    assert said in sentence
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_an_empty_file_is_called_empty(tmp_path, format):
    source = tmp_path / "a"
    source.write_bytes(b"")
    assert str(source) in refused(source, format, tmp_path)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_file_that_is_not_there(tmp_path, format):
    assert str(tmp_path / "a") in refused(tmp_path / "a", format, tmp_path)


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_folder_where_there_is_nothing_to_read(tmp_path, format):
    source = tmp_path / "a"
    source.mkdir()
    assert str(source) in refused(source, format, tmp_path)


def test_formats_that_are_not_named_and_cannot_be_told(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("just text")
    done = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "out.jsonl")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--from" in done.stderr
    done = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "out"), "--from", "triplets"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--to" in done.stderr
