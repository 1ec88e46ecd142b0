"""Bad records: each of tests/data/fixtures/bad_records.txt gives an error with its place, and only it is skipped."""

from collections.abc import Iterator

import pytest

from nestree.errors import DataError
from tests.tiny import write_text

from .reading import FIXTURES, documents

# entities of the records around it
GOOD = {"jsonl": 2, "brat": 2, "pubtator": 1, "columns": 1, "triplets": 1}


def bad_records() -> Iterator[tuple[str, str, str]]:
    """The format and the line of each bad record, the content of its file, and the message as a pattern."""
    for block in (FIXTURES / "bad_records.txt").read_text(encoding="utf-8").split("== ")[1:]:
        head, _, rest = block.partition("\n")
        content, _, message = rest.rpartition("\n-> ")
        yield head, content, message.rstrip("\n")


@pytest.mark.parametrize(("head", "content", "message"), list(bad_records()))
def test_a_bad_record_has_a_place_and_can_be_skipped(tmp_path, head, content, message):
    format, line = head.split()
    path = write_text(tmp_path / "a.ann", content + "\n")
    (tmp_path / "a.txt").write_text("Maya Ortiz spoke.")  # the text of brat's annotations
    with pytest.raises(DataError, match=rf"a\.ann:{line}\b.*{message}") as error:
        documents(path, format)
    assert str(error.value).count("a.ann") == 1
    left, report = documents(path, format, skip_bad=True)
    assert len(report.skipped) == 1
    around = sum(len(sentence.entities) for document in left for sentence in document.sentences)
    assert around == (GOOD.get(format, 0) if content.count("\n") else 0)
