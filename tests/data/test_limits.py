"""Small files that would take much memory or time: refused in a sentence, in a process with little memory."""

import gzip
import json
import resource
import subprocess
import sys
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import pytest

from nestree.data.formats import read, write
from nestree.data.io import ConversionReport
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence, crossing_pairs, depths
from tests.cli.run import refuse, succeed
from tests.tiny import write_bytes, write_text

READ = "import sys; from nestree.data.formats import read; print(sum(1 for _ in read(*sys.argv[1:])))"


def read_within(path: Path, format: str, memory: int) -> tuple[int, str]:
    """Read a file in a process with so many bytes of address space."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (memory, memory))
    command = [sys.executable, "-c", READ, str(path), format]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    return done.returncode, (done.stderr.splitlines() or [""])[-1]


def nested_line(depth: int) -> str:
    entities = [{"start": k, "end": depth, "label": "X"} for k in range(depth)]
    return json.dumps({"tokens": ["a"] * depth, "entities": entities}) + "\n"


def gaps(count: int) -> str:
    passages = (f"<passage><offset>{k * 900_000}</offset><text>a</text></passage>" for k in range(count))
    return f"<collection><document>{''.join(passages)}</document></collection>"


def deep(depth: int, first: str, last: str) -> str:
    return "".join([first, '<cons sem="G#protein">a ' * depth, "</cons>" * depth, last])


DEEP_GENIA = deep(300_000, "<set><article><sentence>", "</sentence></article></set>")
DEEP_BIOC = deep(50_000, "<collection><document>", "</document></collection>")
BOMBS = {
    "nested JSON lines": ("jsonl", nested_line(16_000), "16,000 entities share a word.*max-nesting"),
    "deep GENIA": ("genia", DEEP_GENIA, r"bomb:1: more than 1,000 elements.*--max-xml-depth"),
    "deep BioC": ("bioc", DEEP_BIOC, "more than 1,000 elements"),
    "gaps in BioC": ("bioc", gaps(1000), "more than 1,000,000 characters of this document are missing"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_small_files_do_not_fill_the_memory(tmp_path, what):
    format, content, expected = BOMBS[what]
    code, error = read_within(write_text(tmp_path / "bomb", content), format, 700 * 2**20)
    assert code == 1
    assert error.startswith("nestree.errors.DataError")
    with pytest.raises(DataError, match=expected):
        raise DataError(error)


DOCBINS = {
    "zeros": {"tokens": b"\0" * (12 * 2**20)},
    "documents": {"lengths": b"\0" * 2**20},
    "a long document": {"lengths": (200_000).to_bytes(4, "little"), "tokens": b"\0" * 1_600_000},
    "flags": {"flags": [{}] * 200_000},
}


@pytest.mark.parametrize("what", DOCBINS)
def test_what_a_docbin_expands_to_is_counted_before_spacy_sees_it(tmp_path, what):
    srsly, _ = pytest.importorskip("srsly"), pytest.importorskip("spacy")
    empty = dict.fromkeys(("tokens", "spaces", "lengths"), b"") | {"attrs": [65]}
    empty |= {name: [] for name in ("strings", "cats", "flags")}
    (tmp_path / "a.spacy").write_bytes(zlib.compress(srsly.msgpack_dumps({**empty, **DOCBINS[what]}), 1))
    with pytest.raises(DataError, match=r"expands to more than 10,000,000 bytes.*--max-docbin-bytes"):
        list(read(tmp_path / "a.spacy", "spacy", max_docbin_bytes=10_000_000))


def test_a_docbin_is_counted_in_little_memory(tmp_path):
    srsly, spacy = pytest.importorskip("srsly"), pytest.importorskip("spacy")
    data = srsly.msgpack_dumps({"tokens": b"\0" * (40 * 2**20)})
    (tmp_path / "a.spacy").write_bytes(zlib.compress(data, 1))
    spacy.blank("xx")  # not to be measured
    tracemalloc.start()
    with pytest.raises(DataError, match="expands to more than 30,000,000 bytes"):
        list(read(tmp_path / "a.spacy", "spacy", max_docbin_bytes=30_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_limits_are_options_of_read_and_of_the_command_line(tmp_path):
    path = write_bytes(tmp_path / "a.jsonl.gz", gzip.compress((nested_line(3) * 9).encode()))
    size = len(nested_line(3) * 9)
    for option, low, enough in (("max_bytes", size - 1, size), ("max_nesting", 2, 3)):
        with pytest.raises(DataError, match=option):
            list(read(path, **{option: low}))
        assert len(list(read(path, **{option: enough}))) == 9
        flag = f"--{option.replace('_', '-')}"
        assert flag in refuse("stats", path, flag, low)
        succeed("stats", path, flag, enough)
    with pytest.raises(InputError, match="max_bytes is 0"):
        read(path, max_bytes=0)


def test_limits_of_a_reader(tmp_path):
    path = write_text(tmp_path / "a.jsonl", nested_line(3) * 2)
    strict, lenient = read(path, max_nesting=3), read(path)
    assert next(strict) == next(lenient)
    path.write_text(nested_line(5))
    assert len(list(read(path))) == 1
    path, report = tmp_path / "a.jsonl", ConversionReport(skip_bad=True)
    path.write_text(nested_line(101) + nested_line(100))
    assert [len(document.sentences[0].words) for document in read(path, report=report)] == [100]
    assert len(report.skipped) == 1


def test_sixteen_thousand_nested_entities_stay_small(tmp_path):
    """In columns, each row is written when it is made: the table of all layers is never held."""
    n = 16_000
    entities = [Entity(k, n, "X") for k in range(n)]
    assert depths(entities) == list(range(n))
    assert crossing_pairs(entities) == []
    nested = Sentence(["a"] * 1000, [Entity(k, 1000, "X") for k in range(1000)])
    tracemalloc.start()
    write([Document([nested])], tmp_path / "a.iob2", "columns")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20  # 1,000 x 1,000 cells would take twice as much
    (back,) = read(tmp_path / "a.iob2", "columns", max_nesting=1000)
    assert back.sentences[0].entities == nested.entities
