"""Trouble with characters: real trouble is found, and whatever is only unusual is left alone."""

import pytest

from nestree.data.checks import encoding_problems, is_composed


@pytest.mark.parametrize(
    "word",
    [
        "café",
        "Müller",
        "naïve",
        "Ångström",
        "“quoted”",
        "don’t",
        "5°",
        "Ærø",
        "Über",
        "straße",
        "…",
        "€5",
        "São",
        "2×",
    ],
)
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_text_decoded_wrongly_is_found_and_mended(word, wrong):
    data = word.encode()
    broken = "".join(bytes([b]).decode(wrong, errors="ignore") or chr(b) for b in data)
    found = [message for kind, message in encoding_problems(f"a {broken} b") if kind == "mojibake"]
    assert found == [f"{broken} (should be {word})"]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "café Müller “quoted” don’t 5°",
        "a MAÇÔ no MAÇÃ” e a IRMÃ…",  # capitals before a quotation mark
        "Âge âgé Ão",
        "«CAFÉ» »Ä« Ñ»",
        "שלום مرحبا 你好 👩‍👩‍👧 नमस्ते",
        "a\tb\r\nc",
    ],
)
def test_what_is_only_unusual_is_left_alone(text):
    assert list(encoding_problems(text)) == []


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("a b\ufffdc d", "replacement", "'b\\ufffdc' has U+FFFD"),
        ("a b\x07c d", "control", "'b\\x07c' has U+0007"),
        ("a\x00", "control", "'a\\x00' has U+0000"),
        ("zero\u200bwidth", "control", "'zero\\u200bwidth' has U+200B"),
        ("soft\u00adhyphen", "control", "'soft\\xadhyphen' has U+00AD"),
    ],
)
def test_characters_that_are_lost_or_cannot_be_seen(text, kind, said):
    assert list(encoding_problems(text)) == [(kind, said)]


def test_normal_forms():
    assert [is_composed(w) for w in ("é", "e\u0301", "e", "ש", "\u212b")] == [True, False, None, None, False]
