"""Abbreviations: whether a period is part of a word, and whether it may end a sentence."""

import re
from typing import NamedTuple

# How what stands at its end may end a sentence:
NOT, PLAINLY, RARELY, NEVER, UNLESS_NUMBERED = range(5)


class Period(NamedTuple):
    """What a period after a word is."""

    ending: int
    in_word: bool
    in_last_word: bool  # of a sentence


def closed_class(words: str) -> frozenset[str]:
    return frozenset(words.split())


TITLES = closed_class(  # with a capital, before a name
    """adm amb atty capt cdr cmdr col comdr cpl cpt dr fr ft gen gov hon insp lt maj messrs mlle mme mr mrs ms msgr mt
    mx pres prof pvt rep rev sen sgt supt"""
)
BEFORE_MORE = closed_class("approx ca cf e.g eg esp i.e ie incl resp viz vs")
BEFORE_NUMBERS = closed_class("art ch eq eqs est fig figs no nos op par pp sec vol vols")
SHORT_WORDS = closed_class("al dept ed eds etc ext govt hr hrs lb lbs oz tel")
SHORT_NAMES = closed_class(  # with a capital
    """acad ala apr ariz ark assn aug ave biol bldg blvd bros cal calif chem co colo conn corp cos dec dept dist esq
    feb fla ga hwy inc jan jr jul jun kan ky ltd mar mass md mich minn mont mtn natl neb nev nov oct okla penn
    proc rd sep sept sr st ste tenn tex univ va vt wis wyo"""
)
ACRONYM = re.compile(r"\d*[A-Za-z][a-z]?(?:\.[A-Za-z][a-z]?)+")
ENUMERATION = re.compile(r"[(\[]?(?:\d{1,3}(?:\.\d{1,3})*+|[A-Za-z]|[ivx]{1,5}|[IVX]{1,5})[.)\]]{1,2}")
LAST_PART = re.compile("[-/—([\"'“‘]")


def period_after(text: str) -> Period:
    """What a period would be after this text without white space.

    >>> period_after("Mrs") == Period(NEVER, in_word=True, in_last_word=True)
    True
    """
    word = LAST_PART.split(text)[-1]
    low, capital = word.lower(), "A" <= word[:1] <= "Z"
    if len(word) == 1 and word.isalpha():
        return Period(after_letter(word, joined=text.endswith(("-" + word, "/" + word))), True, False)
    if low in BEFORE_MORE or (capital and low in TITLES):
        return Period(NEVER, True, True)
    if low in BEFORE_NUMBERS:
        return Period(UNLESS_NUMBERED, True, False)
    if low in SHORT_WORDS:
        return Period(PLAINLY if low == "etc" else RARELY, True, True)
    if (capital and low in SHORT_NAMES) or ACRONYM.fullmatch(word):
        return Period(RARELY, True, True)
    return Period(PLAINLY, enumerates(text + "."), False)


def after_letter(letter: str, joined: bool) -> int:
    """J. Smith, but: type II-B. and after 24 h."""
    if "A" <= letter <= "Z":
        return PLAINLY if joined else RARELY
    return NEVER if letter == "v" else UNLESS_NUMBERED if letter in "abcdnp" else PLAINLY


def enumerates(text: str) -> bool:
    """Whether this is the number of an item: 1. or (a)."""
    return len(text) < 20 and ENUMERATION.fullmatch(text) is not None
