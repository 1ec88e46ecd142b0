"""Offsets in UTF-16 units and graphemes, against what an encoder and a reader of graphemes say."""

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.alignment import UNITS, to_code_points
from nestree.errors import InputError

TEXTS = st.text(st.sampled_from("aé\u0301🙂👨\u200d👩🇮🇹\r\n "), max_size=20)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_every_border_is_found_again(text):
    units = to_code_points(text, "utf-16")
    graphemes = to_code_points(text, "graphemes")
    for at in range(len(text) + 1):
        assert units(len(text[:at].encode("utf-16-le")) // 2) == at
    starts = [found.start() for found in regex.finditer(r"\X", text)] + [len(text)]
    assert [graphemes(k) for k in range(len(starts))] == starts


@pytest.mark.parametrize("unit", UNITS)
def test_what_lies_outside_stays_outside(unit):
    count = to_code_points("a🙂", unit)
    assert count(-1) < 0
    assert count(9) > 2
    assert to_code_points("", unit)(1) == 1


def test_another_unit_is_refused():
    with pytest.raises(InputError, match="Choose one of characters, utf-16, graphemes"):
        to_code_points("a", "bytes")
