"""Files that were damaged on their way: reading them gives data or a DataError, and nothing else, ever."""

import gzip
import random
import shutil
from pathlib import Path

import pytest

from nestree.data import formats
from nestree.data.formats import FORMATS
from nestree.data.io import ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence

from .reading import FIXTURES

COPIES = 500
# Bytes that mean something in one format or another.
MEANINGFUL = [
    *(bytes([byte]) for byte in b"\0\n\t \"'{}[]()<>&/|,;:-\\#O\xff"),
    *rb"\ud800 \u0000 null true NaN 1e999 -1 99999999999999999999 0.5 {} [] B- T1".split(),
    *b'"" </ <!-- ]]> &amp; &#0; &x; \xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8 \xef\xbb\xbf \x1f\x8b'.split(),
    b"\r\n",
    b"\n\n",
]


def corrupt(data: bytes, chance: random.Random) -> bytes:
    """One of: some bytes are others, the end or a piece is cut off, something is inserted, a piece is there twice."""
    data = data or b"\n"
    at, length = chance.randrange(len(data) + 1), chance.choice([1, 1, 2, 5, 40])
    match chance.randrange(6):
        case 0:
            changed = bytearray(data)
            for _ in range(length):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            return bytes(changed)
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + length :]
        case 3:
            return data[:at] + chance.randbytes(length) + data[at:]
        case 4:
            return data[:at] + chance.choice(MEANINGFUL) + data[at + chance.choice([0, length]) :]
        case _:
            start = chance.randrange(len(data) + 1)
            return data[:at] + data[start : start + length] + data[at:]


def put(path: Path, data: bytes) -> None:
    """Change what is in a file; much faster than to make it anew."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def write_example(path: Path, name: str) -> Path:
    """A small file of a format that can be written."""
    entities = [Entity(0, 4, "ORG", head=1, score=0.5), Entity(3, 4, "GPE"), Entity(2, 6, "X")]
    first = Sentence(["The", "bank", "of", "Rome", "&", "Söhne", "."], entities, id="s")
    documents = [[first, Sentence(["It", "rained", "."])], [Sentence(["Oslo"])]]
    given = [Document(sentences, id=str(k)) for k, sentences in enumerate(documents, 1)]
    formats.write(given, path, name)
    return path


FIXTURES_OF = {"genia": "genia.xml", "gum": "gum.conllu", "columns": "[lj]*.*io*", "triplets": "*.data"}
FIXTURES_OF |= {"research-json": "tools/peers*", "label-studio": "tools/label_studio*"}
FIXTURES_OF |= {name: f"tools/{name}*" for name in ("bioc", "doccano", "prodigy", "pubtator", "spacy")}
MADE = {"brat": ["brat"], "csv": ["a.csv", "a.tsv"], "datasets": ["a.parquet", "data"], "bioc": ["a.json"]}
MADE |= {name: [f"a.{name}"] for name in ("doccano", "prodigy", "pubtator", "spacy")}
MADE |= {"jsonl": ["a.jsonl.gz", "b.jsonl"]}


def originals(folder: Path, name: str) -> list[tuple[Path, dict[str, object]]]:
    """Small files of a format, in `folder`, and the options to read them with."""
    files = [Path(shutil.copy(file, folder)) for file in sorted(FIXTURES.glob(FIXTURES_OF.get(name, "none")))]
    files += [write_example(folder / file, name) for file in MADE.get(name, ())]
    match name:
        case "ace":
            files = [Path(shutil.copytree(FIXTURES / "ace" / "timex2norm", folder / "ace"))]
        case "nne":
            shutil.copytree(FIXTURES / "nne_standoff", folder / "nne")
            shutil.copytree(FIXTURES / "nne_trees", folder / "nne" / "trees")
            return [(folder / "nne" / "00", {"trees": str(folder / "nne" / "trees" / "00")})]
        case "text":
            (folder / "a.txt").write_text("I see Söhne & Oslo.\n\nIt rained.\n", encoding="utf-8")
            (folder / "b.txt.gz").write_bytes(gzip.compress(b"It rained.\n" * 9, mtime=0))
            whole = folder / "a.txt"
            return [(whole, {"documents": "lines"}), (whole, {"longest": 12}), (folder / "b.txt.gz", {})]
        case "jsonl":
            files.append(folder / "text.jsonl")
            files[-1].write_text('{"text": "An Oslo", "entities": [{"start": 3, "end": 7, "label": "X"}]}')
        case "csv":
            (folder / "1.txt").write_text("The bank of Rome & Söhne.\nIt rained.", encoding="utf-8")
    return [(file, {}) for file in files]


def outcome(path: Path, name: str, options: dict[str, object], chance: random.Random, folder: Path) -> str:
    """What comes of reading a damaged file; in half of the cases, bad records are passed over."""
    report = ConversionReport(skip_bad=chance.random() < 0.5)
    try:
        found = list(formats.read(path, name, report, **options))
    except formats.AllSkippedError:
        return "data"  # all of it was skipped
    except DataError as error:
        message = str(error)
    except BaseException:
        kept = {file.name: file.read_bytes() for file in ([path] if path.is_file() else path.rglob("*.*"))}
        print(f"{name}, {options}: {kept}")
        raise
    else:
        assert all(isinstance(document, Document) for document in found)
        return "data"
    assert str(folder) in message, f"there is no place in: {message}"
    assert len(message) < 600
    return "error"


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_data_or_a_data_error(tmp_path, name):
    chance = random.Random(f"damage to {name}")
    whole = originals(tmp_path, name)
    for path, options in whole:
        assert list(formats.read(path, name, **options)), f"{path} is readable as long as it is whole"
    outcomes = {"data": 0, "error": 0}
    for copy in range(COPIES):
        path, options = whole[copy % len(whole)]
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        file = chance.choice(inside)
        before = file.read_bytes()
        after = corrupt(before, chance)
        put(file, after)
        outcomes[outcome(path, name, options, chance, tmp_path)] += 1
        put(file, before)
    assert sum(outcomes.values()) >= 500
    assert min(outcomes.values()) > 10, outcomes
