"""JSON objects one by one: lists, lines, and what is neither."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestree.data.io import ConversionReport, json_records, limits
from nestree.errors import DataError


def found(folder: Path, text: str, tally: ConversionReport | None = None) -> list[tuple[str, dict]]:
    path = folder / "a.json"
    path.write_text(text, encoding="utf-8")
    return [
        (place.removeprefix(str(path)), value)
        for place, value in json_records(path, tally or ConversionReport())
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"a": 1}\n\n{"a": 2}\n', [":1", ":3"]),
        ('\ufeff{"a": 1}\r\n{"a": 2}', [":1", ":2"]),
        ('[{"a": 1}, {"a": 2}]', [":1, record 1", ":1, record 2"]),
        ('\n[\n {"a":\n 1},\n\n {"a": 2}\n]\n', [":3, record 1", ":6, record 2"]),
        ('{\n "a": 1\n}\n{\n "a": 2\n}\n', [":1, record 1", ":4, record 2"]),
        ('{"a":\n1} {"a": 2}', [":1, record 1", ":2, record 2"]),
    ],
)
def test_lists_and_lines_give_the_same_objects(tmp_path, text, places):
    assert found(tmp_path, text) == [(places[0], {"a": 1}), (places[1], {"a": 2})]


@pytest.mark.parametrize("text", ["", "\n  \n", "[]", "[\n]\n"])
def test_nothing_is_nothing(tmp_path, text):
    assert found(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}\n{"a": 2}]', ':2: a comma or ] is missing before \'{"a": 2}]'),
        ('[{"a": 1},\n{"a": 2}', ":2: a comma or ] is missing. The file may be cut off."),
        ('[{"a": 1}] {"a": 2}', ':1: the list has ended, and more follows before \'{"a": 2}'),
        ('[{"a": 1},\n{"a"', ":2: this is not JSON: Expecting ':' delimiter"),
        ('[{"a": 1},\n\n{"a": tru}]', ":3: this is not JSON: Expecting value"),
        ('[{"a": 1},]', ":1: this is not JSON: Expecting value"),
        ('[{"a": NaN}]', ":1: this is not JSON that can be read: NaN is not a number"),
        ('[{"a": "\\ud800"}]', ":1: one half of a surrogate pair"),
        ("[1]", ":1, record 1: an object {...} is meant here, and this is 1."),
        ('{"a": 1}\n[2]', ":2: an object {...} is meant here, and this is [2]."),
        ('{"a": 1}\n{"a"', ":2: this is not JSON"),
        ("[" * 100_000, ":1: this is not JSON that can be read: maximum recursion"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError) as error:
        found(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "a.json") + message)


def test_skipping_goes_on_where_the_next_object_can_be_found(tmp_path):
    tally = ConversionReport(skip_bad=True)
    assert found(tmp_path, '{"a": 1}\n{"a"\n{"a": 3}', tally) == [(":1", {"a": 1}), (":3", {"a": 3})]
    assert len(tally.skipped) == 1
    tally = ConversionReport(skip_bad=True)
    assert found(tmp_path, '[{"a": 1}, 5, {"a": 3}, {"a" 4}]', tally) == [
        (":1, record 1", {"a": 1}),
        (":1, record 3", {"a": 3}),
    ]
    assert "an object {...} is meant" in tally.skipped[0]
    assert "not JSON" in tally.skipped[1]
    assert len(tally.skipped) == 2


def test_an_object_beyond_the_limit_is_refused_before_it_is_held_whole(tmp_path):
    long = '[{"a":\n' + "\n" * 3000 + "1}]"
    with limits(longest_line=1000), pytest.raises(DataError, match="longer than 1,000 characters"):
        found(tmp_path, long)
    assert found(tmp_path, long) == [(":1, record 1", {"a": 1})]


objects = st.lists(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(objects, st.sampled_from([None, 0, 2]), st.booleans(), st.booleans())
def test_any_objects_come_back(tmp_path_factory, values, indent, ascii_only, as_list):
    folder = tmp_path_factory.mktemp("records")
    if as_list:
        text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    else:
        text = "\n".join(json.dumps(value, ensure_ascii=ascii_only) for value in values)
    assert [value for _, value in found(folder, text)] == values
