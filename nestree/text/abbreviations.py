"""Abbreviations: whether a period is part of a word, and whether it may end a sentence."""

import re
from typing import NamedTuple

# Whether a sentence may end after a chunk; RARELY: only before a word that often begins sentences
NOT, PLAINLY, RARELY, NEVER, UNLESS_NUMBERED = range(5)


class Period(NamedTuple):
    """The role of a period after a word."""

    ending: int
    in_word: bool
    in_last_word: bool  # the same for the last word of a sentence


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
    """The role of a period after this text, which has no white space.

    >>> period_after("Mrs") == Period(NEVER, in_word=True, in_last_word=True)
    True
    """
    word = LAST_PART.split(text)[-1]
    low, capital = word.lower(), "A" <= word[:1] <= "Z"
    if len(word) == 1 and word.isalpha():
        if capital:  # J. Smith, but: type II-B.
            joined = text.endswith(("-" + word, "/" + word))
            return Period(PLAINLY if joined else RARELY, True, False)
        ending = NEVER if word == "v" else UNLESS_NUMBERED if word in "abcdnp" else PLAINLY  # after 24 h.
        return Period(ending, True, False)
    if low in BEFORE_MORE or (capital and low in TITLES):
        return Period(NEVER, True, True)
    if low in BEFORE_NUMBERS:
        return Period(UNLESS_NUMBERED, True, False)
    if low in SHORT_WORDS:
        return Period(PLAINLY if low == "etc" else RARELY, True, True)
    if (capital and low in SHORT_NAMES) or ACRONYM.fullmatch(word):
        return Period(RARELY, True, True)
    return Period(PLAINLY, is_item_number(text + "."), False)


def is_item_number(text: str) -> bool:
    """Whether this numbers an item of a list: 1. or (a)."""
    return len(text) < 20 and ENUMERATION.fullmatch(text) is not None
