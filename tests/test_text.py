"""Words and sentences of plain text: nothing lost, rules by example, gold words where real data is there."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nestree.errors import InputError
from nestree.text import (
    MAX_CHUNK,
    SENTENCE_RULES,
    WORD_STYLES,
    SentenceSplit,
    analyze_chunk,
    detect_word_style,
    split,
    split_words,
)

GUM_WORDS, GUM_SENTENCES = 0.99, 0.95  # F1 to reach

PIECES = [
    *"aZ09_ \n\r\t\v\f.,;:!?'\"-()[]{}<>/@#$%&*+=~`^|\\\x00\x1c\x85\xa0\u2028\u2029\u3000",
    *"éÉßאشक字カกⅣ½²１…—–“”‘’«»„。！？،؟।·•€©×😀👩🏽🇩🇪",
    *"\u0301\u200d\u200b\u200f\ufe0f\ufeff\xad\ud800\udfff\ue000\uffff",
    *["n't", "'s", "cannot", "gonna", "'tis", "Mr.", "U.S.", "e.g.", "No.", "1.", "re-", "..", "&amp;", ":-)"],
    *["www.", "http://", "doi:10.1/x", "a@b.co", "12:30pm", "5km", "US$", "The", "he", "\r\n", "\n\n", "\n- "],
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TEXTS |= st.text(st.characters(exclude_categories=()), max_size=40)


def words(text: str, style: str = "treebank") -> str:
    """All words, with one blank between two, and a bar between sentences."""
    return " | ".join(" ".join(text[i:j] for i, j in sentence.words) for sentence in split(text, style))


def sentences(text: str, rule: str = "rules") -> list[str]:
    return [text[sentence.start : sentence.end] for sentence in split(text, sentences=rule)]


def check_nothing_is_lost(text: str, found: list[SentenceSplit]) -> None:
    last = 0
    for sentence in found:
        assert sentence.words
        assert (sentence.start, sentence.end) == (sentence.words[0][0], sentence.words[-1][1])
        for start, end in sentence.words:
            assert last <= start < end
            assert text[last:start].strip() == ""
            assert not any(character.isspace() for character in text[start:end])
            last = end
    assert text[last:].strip() == ""


@pytest.mark.parametrize("style", WORD_STYLES)
@pytest.mark.parametrize("rule", SENTENCE_RULES)
@settings(max_examples=150)
@example("")
@example(" \n\n\t")
@example("\u0301\u200d")
@example("\ud83d\ude00")
@given(TEXTS)
def test_every_character_that_is_no_white_space_is_in_one_word(style, rule, text):
    found = split(text, style, rule)
    check_nothing_is_lost(text, found)
    assert split(text, style, rule) == found


@settings(max_examples=300)
@given(TEXTS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=3), st.sampled_from(WORD_STYLES))
def test_no_sentence_ends_inside_a_span_to_keep(text, pairs, style):
    keep = [(min(pair), max(pair)) for pair in pairs]
    for rule in SENTENCE_RULES:
        found = split(text, style, rule, keep)
        check_nothing_is_lost(text, found)
        for one, two in pairwise(found):
            assert not any(start < one.end and end > two.start for start, end in keep)
        free = {(one.end, two.start) for one, two in pairwise(split(text, style, rule))}
        kept = {(one.end, two.start) for one, two in pairwise(found)}
        assert kept <= free
        assert all(any(i < gap[0] and j > gap[1] for i, j in keep) for gap in free - kept)


def test_spans_to_keep_join_sentences_and_periods_of_abbreviations():
    text = "He met J. The rest left. Then all. Then none."
    assert words(text) == "He met J . | The rest left . | Then all . | Then none ."
    kept = split(text, keep=[(26, 36), (7, 11)])
    assert [text[s.start : s.end] for s in kept] == ["He met J. The rest left.", "Then all. Then none."]
    assert [text[i:j] for i, j in kept[0].words[:3]] == ["He", "met", "J."]
    for at_a_border in [(10, 24), (25, 34), (24, 25), (23, 25), (24, 26)]:
        assert split(text, keep=[at_a_border]) == split(text)


@pytest.mark.parametrize("style", ["treebank", "ud", "split-hyphens"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cafe\u0301 nai\u0308ve", "cafe\u0301 nai\u0308ve"),
        ("👩‍🚀👍🏽🇩🇪🇫🇷", "👩‍🚀 👍🏽 🇩🇪 🇫🇷"),
        ("❤\ufe0f!", "❤\ufe0f !"),
        ("שלום, עולם", "שלום , עולם"),
        ("\u202bשלום\u202c", "\u202bשלום\u202c"),
        ("हिन्दी है।", "हिन्दी है ।"),
        ("ข้าว", "ข้ า ว"),
        ("我爱你。他走了！好", "我 爱 你 。 | 他 走 了 ！ | 好"),
        ("co\xadop\u200b", "co\xadop\u200b"),
        ("a\x00b", "a \x00 b"),
        ("\ud83d\ude00", "\ud83d\ude00"),
        ("１２ ½", "１２ ½"),
    ],
)
def test_any_unicode(text, expected, style):
    assert words(text, style) == expected


@pytest.mark.parametrize(
    ("text", "treebank", "ud"),
    [
        ("I don't, can't and WON'T.", "I do n't , ca n't and WO N'T .", None),
        ("Ann's, they'll've, I'd", "Ann 's , they 'll 've , I 'd", None),
        ("It’s Ann’s; isn’t it?", "It ’s Ann ’s ; is n’t it ?", None),
        ("cannot Gonna dunno 'tis y'all", "can not Gon na du n no 't is y' all", None),
        ("the states' 'em o'clock O'Brien's", "the states ' 'em o'clock O'Brien 's", None),
        ("'quoted' rock 'n' roll in the '90s", "' quoted ' rock 'n' roll in the '90s", None),
        ("well-known U.S.-led re-entry", "well-known U.S.-led re-entry", "well - known U.S. - led re-entry"),
        ("mother-in-law's nation-wise", "mother-in-law 's nation-wise", "mother - in - law 's nation-wise"),
        ("10-15 555-1234 2018-09-11", "10-15 555-1234 2018-09-11", "10 - 15 555-1234 2018-09-11"),
        ("a wo- word--cut", "a wo- word -- cut", None),
        ("$1,000.50 .5 -5 12:30 1/2 5% 1:1", "$ 1,000.50 .5 -5 12:30 1/2 5 % 1 : 1", None),
        ("US$5 at 8am, 5km", "US$ 5 at 8am , 5km", "US $ 5 at 8 am , 5 km"),
        ("A&M AT&amp;T &lt; C++ person(s) iron(III)", "A&M AT&amp;T &lt; C++ person(s) iron(III)", None),
        ("(see e.g., Fig. 5; Cal., etc.)", "( see e.g. , Fig. 5 ; Cal. , etc. )", None),
        ("and/or n/a", "and / or n/a", None),
        ("ended.Then node.js", "ended . Then node.js", None),
        ("Wait... what?! [...] --- ***", "Wait ... what ?! | [...] | --- ***", None),
        ("a—b 3–4 “hi” «oh»", "a — b 3 – 4 “ hi ” « oh »", None),
        ("(http://a.org/b_(D).) www.x.com, a.b@b-c.org.", "( http://a.org/b_(D) . ) www.x.com , a.b@b-c.org .", None),
        ("doi:10.1/a-b; a.org/x-y: @me #nested :-) <3", "doi:10.1/a-b ; a.org/x-y : @me #nested :-) <3", None),
    ],
)  # fmt: skip
def test_words_by_example(text, treebank, ud):
    assert words(text, "treebank") == treebank
    assert words(text, "ud") == (ud or treebank)


def test_split_hyphens_and_whitespace():
    hyphens = words("IL-2/CD28 (10(-9) M), 2,250 don't.", "split-hyphens")
    assert hyphens == "IL - 2 / CD28 ( 10 ( - 9 ) M ) , 2 , 250 don ' t ."
    whitespace = words("Don't stop (re-read). 他走了。好 Go!", "whitespace")
    assert whitespace == "Don't stop (re-read). | 他走了。好 Go!"


@pytest.mark.parametrize("style", ["treebank", "ud"])
def test_words_that_are_already_apart_stay_as_they_are(style):
    text = "He did n't say , `` It 's Mrs. Li 's '' ; can not they ' gon na ' ... -- do 't is U.S. , no ?"
    assert words(text, style).replace(" | ", " ") == text


@pytest.mark.parametrize(
    "text",
    [
        "Mr. J. R. Li met Gen. Lee of Duffy Inc. Ohio.|He left.",
        "It is in the U.S.|The U.S. Senate voted.",
        "At 5 p.m. Monday she left.|At 6 p.m.|She was back.",
        "See No. 5, p. 7 and Fig. S1.|No.|Not now.",
        "Roe v. Wade, c. 1900, et al. Smith.|After 24 h.|Cells died.",
        "“Stop!”|He said: “Why?” and left.|(He ran.)|Then [he fell.]",
        '" He left . "|She said : " No . "|So it ended .',
        "Really?|Yes!!|Well...|Maybe.|(credit: Ann)",
        "Wait!|Yahoo! is here. approx. five",
        "At 5 p.m. EST.|Yahoo! Inc. rose.|Co-stars came.",
        "It ended.[1][2]|Then more.",
        "1. First item.|2. Second, a. b. c.",
        "It was 1990.|25 came.",
        "Ends in B.|Interestingly, type I-B.|Cells of C. Brown came.",
    ],
)
def test_sentences_by_rules(text):
    assert sentences(text.replace("|", " ")) == text.split("|")


def test_text_without_capitals_has_sentences_too():
    assert sentences("i went home. then i slept! why?") == ["i went home.", "then i slept!", "why?"]
    assert len(sentences("I went home. then i slept.")) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\x85", "\v"])
def test_lines(end):
    text = f"One.{end}{end} Two. Two!{end}\tthree{end}"
    assert sentences(text, "lines") == ["One.", "Two. Two!", "three"]


@pytest.mark.parametrize("end", ["\n\n", "\r\n \r\n", "\r\r", "\n\t\n", "\f", "\u2029", "\n\n\n"])
def test_blank_lines_end_sentences(end):
    assert sentences(f"A title{end}and more{end}") == ["A title", "and more"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\n ", " \n\t", "\r", "\u2028"])
def test_one_line_end_ends_none(end):
    assert sentences(f"A title{end}and{end}More.") == [f"A title{end}and{end}More."]


def test_wrapped_lines():
    first, last = "The president of Smith & Sons,", "Both left for Rome."
    wrapped = f"{first}\nAnn O'Neil, met the chief of a rival company; \n{last}"
    assert sentences(wrapped) == [wrapped]
    unwrapped = wrapped.replace("Sons,", "Sons")
    assert sentences(unwrapped) == unwrapped.split("\n", 1)
    wrapped = "The first line of this paragraph is\nJohn's and the second is shorter, and\nMary has none."
    assert sentences(wrapped) == [wrapped]
    heading = "A heading\nThe line below it is the longest of these three lines here\nand goes on."
    assert sentences(heading) == ["A heading", heading.removeprefix("A heading\n")]
    assert sentences("New\nYork and\nall of it") == ["New\nYork and\nall of it"]  # too narrow to tell


def test_items_of_lists_begin_sentences():
    assert sentences("Things:\n- one\n* two\n• three\n1) four\n12. five") == [
        "Things:", "- one", "* two", "• three", "1) four", "12. five",
    ]  # fmt: skip


def test_names_of_styles_and_rules():
    with pytest.raises(InputError, match=r"'penn'\. There are: treebank, ud, split-hyphens, whitespace"):
        split("a", words="penn")
    with pytest.raises(InputError, match=r"'paragraphs'\. There are: rules, lines"):
        split("a", sentences="paragraphs")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("x" * 10_000_000, 1),
        ("é" * 10_000_000, 1),
        ("." * 10_000_000, 1),
        ("n't." * 50_000, 200_000),
        ("\n" * 1_000_000, 0),
        (" \n" * 1_000_000, 0),
        (("http://" * 140 + " ") * 1_000, 1_000),
        (("x.-" * 333 + " ") * 100, 66_600),
    ],
    ids=["letters", "beyond-ascii", "periods", "mixed", "line-ends", "blank-lines", "addresses", "hyphens"],
)
def test_huge_texts_come_to_an_end(text, count):
    found = split(text, "ud")
    assert sum(len(sentence.words) for sentence in found) == count


@pytest.mark.parametrize("style", ["treebank", "ud", "split-hyphens"])
def test_long_runs_are_cut_at_punctuation_only(style):
    text = "don't-" * MAX_CHUNK
    found = split(text, style)
    check_nothing_is_lost(text, found)
    assert [text[i:j] for i, j in found[0].words[:5]] == ["don", "'", "t", "-", "don"]


def test_a_file_written_as_text_is_one_word():
    coded = "iVBORw0KGgo/+AAA" * 500 + "=="
    text = f"![a](data:image/png;base64,{coded}) and so on"
    check_nothing_is_lost(text, split(text))
    assert words(text) == f"! [ a ] ( data : image / png ; base64 , {coded} ) and so on"


@settings(max_examples=200)
@given(st.text("ab'.-)\"]@s\u0300", min_size=1, max_size=12), st.sampled_from(WORD_STYLES))
def test_words_at_the_end_of_a_sentence_are_found_once_or_twice(run, style):
    """They are looked for again only where they may differ, and nothing is missed by that."""
    assert analyze_chunk(run, style).last_words == split_words(run, style, last=True)


def test_gold_words_and_sentences(shared: Path):
    from benchmarks.text import genia, gum, litbank, sentences_found, words_found

    documents = list(gum(shared))
    assert len(documents) == 10
    assert words_found(documents, "ud").f1 >= GUM_WORDS
    whole, boundaries = sentences_found(documents)
    assert whole.f1 >= GUM_SENTENCES
    assert boundaries.f1 >= GUM_SENTENCES
    assert words_found(genia(shared), "split-hyphens").f1 == 1
    assert words_found(litbank(shared), "treebank").f1 >= 0.999


ODD = ["I", "can't", "pay", "$5", "caf\u00c3\u00a9"]


@pytest.mark.parametrize(
    ("sentences", "style"),
    [
        ([["Ann", "left", ",", "and", "did", "n't", "pay", "."]] * 40 + [ODD], "treebank"),
        ([["A", "well", "-", "known", "man", "did", "n't", "pay", "."]] * 40 + [ODD], "ud"),
        ([["Ann", "left,", "and", "didn't", "pay."]] * 40, "whitespace"),
    ],
)
def test_a_few_odd_words_do_not_change_the_style_of_data(sentences, style):
    assert detect_word_style(sentences) == style
