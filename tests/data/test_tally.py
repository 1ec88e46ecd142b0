"""Counting what happens to data."""

import pytest

from nestree.data.io import PLACES, ConversionReport
from nestree.errors import DataError
from nestree.types import Document, Entity, Sentence


def test_things_are_counted_with_their_first_places():
    tally = ConversionReport()
    for number in range(8):
        tally.note("widened", f"a:{number}", times=2)
    assert tally.counts == {"widened": 16}
    assert tally.places == {"widened": [f"a:{number}" for number in range(PLACES)]}


def test_an_error_is_raised_or_written_down():
    with pytest.raises(DataError, match="a:1: wrong"):
        ConversionReport().bad(DataError("a:1: wrong"))
    tally = ConversionReport(skip_bad=True)
    tally.bad(DataError("a:1: wrong"))
    assert tally.skipped == ["a:1: wrong"]


def test_documents_are_counted_as_they_pass():
    tally = ConversionReport()
    one = Document([Sentence(["a"], [Entity(0, 1, "X"), Entity(0, 1, "Y")]), Sentence(["b"])])
    passing = tally.counted(iter([one, one]))
    assert next(passing) is one
    assert (tally.documents, tally.sentences, tally.entities) == (1, 2, 2)
    assert list(passing) == [one]
    assert (tally.documents, tally.sentences, tally.entities) == (2, 4, 4)
