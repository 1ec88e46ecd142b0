"""The words of a chunk, by rules on character classes, and the role of a period after a word.

A character beyond ASCII becomes one that behaves alike.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import category

from nestree.types import Span

LETTER_WITHOUT_CASE = "ª"
SYLLABLE = "字"  # of a script that puts no blanks between words
MARK = "\u0300"  # belongs to what is before it: accents, vowel signs, skin tones, invisible characters
JOINER = "\u200d"  # makes one emoji of two
FLAG = "⚑"  # two of these letters make a flag
SYMBOL = "¤"
DASH = "—"
STOP = "。"  # ends a sentence without a blank after it

EQUIVALENT = {
    "'": "’‛ʼ＇′׳״",
    "‘": "‚‹",
    '"': "″＂‟",
    "“": "„«「『《〈",
    "”": "»」』》〉",
    "-": "‐‑−－",
    DASH: "–―‒",
    "…": "⋯",
    STOP: "！？．｡",
    "!": "।॥۔።",
    "?": "؟",
    ",": "，、،",
    "(": "（",
    ")": "）",
}
UNCHANGED = "“”‘—…。" + JOINER
WITHOUT_BLANKS = re.compile(  # Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def char_class(character: str) -> str:
    kind = category(character)
    if character.isascii() or character.isspace() or character in UNCHANGED:
        return character
    if kind[0] == "M" or kind == "Cf" or "\U0001f3fb" <= character <= "\U0001f3ff":
        return MARK
    if "\U0001f1e6" <= character <= "\U0001f1ff":
        return FLAG
    if kind[0] == "N":
        return "0"
    if kind[0] == "L" and WITHOUT_BLANKS.match(character):
        return SYLLABLE
    if kind[0] == "L" or kind in ("Co", "Cs"):
        return "X" if kind in ("Lu", "Lt") else "x" if kind == "Ll" else LETTER_WITHOUT_CASE
    return SYMBOL


class CharClasses(dict[int, str]):
    """A table for `str.translate`, filled when a character is first seen.

    >>> "Él dijo: «sí»…".translate(CHAR_CLASSES)
    'Xl dijo: “sx”…'
    """

    def __missing__(self, code: int) -> str:
        self[code] = char_class(chr(code))
        return self[code]


CHAR_CLASSES = CharClasses({ord(other): to for to, others in EQUIVALENT.items() for other in others})


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


WORD_STYLES = ("treebank", "ud", "split-hyphens", "whitespace")
MAX_CHUNK = 1000  # characters
CLOSERS = "\"'”“)]}>" + MARK

LETTERS = f"A-Za-z0-9_{LETTER_WITHOUT_CASE}"
MARKS = f"[{MARK}{JOINER}]"
INNER = f"[{LETTERS}{MARK}{JOINER}]"
EMOJI = rf"{FLAG}{FLAG} | {SYMBOL}{MARK}*+(?:{JOINER}{SYMBOL}{MARK}*+)*+"
CORE = rf"""
    {INNER}++
    (?:(?:
        '(?=[{LETTERS}])                                       # o'clock, don't
      | [.](?=[{LETTERS}])(?!(?<=[a-z][a-z][.])[A-Z][a-z])     # U.S, 3.5; but not end.Then
      | (?<=[0-9])(?:[,/](?=[0-9])|:(?=[0-9][0-9]))            # 1,000 1/2 12:30
      | (?<=[A-Z])&(?:amp;)?(?=[A-Z])                          # AT&T
      | [.]?-(?=[{LETTERS}])                                   # well-known, U.S.-led
    ){INNER}++)*+
    (?:\((?:s|es|[IVX]++)\)(?![{LETTERS}]))?+                  # word(s), iron(II)
"""
TOKEN = re.compile(
    rf"""{MARKS}*+(?:
    (?P<word>
        '(?i:s|re|ve|ll|d|m|t|n'?+|em|tis|twas|twere|til|cause|cos|bout|round|\d\ds?)(?![{LETTERS}])
      | (?<![^(\[<>=~$])[-+](?=[.]?\d)[.]?+{CORE}              # -5
      | (?<!{INNER})[.](?=\d){CORE}                            # .5
      | [#@](?=[{LETTERS}]){CORE}
      | (?=[A-Za-z{LETTER_WITHOUT_CASE}]){CORE}[+]{{1,2}}(?![{LETTERS}])   # C++
      | (?i:w/o|c/o|n/a|s/he)(?![{LETTERS}])
      | {CORE}(?:-(?![-{LETTERS}]))?+                          # a wo- word cut short
    )
    | (?: [.]{{2,}}+ | --++ | {DASH}++ | [!?]++ | …[.…]*+ | `` | '' | \[(?:[.]{{3}}|…)\] | {EMOJI}
      | &(?:amp|lt|gt|quot|apos|nbsp|[#]\d{{1,6}}); | ([*=~#+<>|^%$/\\,;:&])\2*+ | [^{MARK}{JOINER}]
      ){MARKS}*+
    ) | {MARKS}++""",
    re.VERBOSE | re.DOTALL,
)
LETTER_OR_DIGIT = f"[A-Za-z0-9{LETTER_WITHOUT_CASE}]"
SEPARATED = (
    rf"{MARKS}*+(?: {LETTER_OR_DIGIT}(?:{LETTER_OR_DIGIT}|{MARKS})*+ | (?:{EMOJI}|%s){MARKS}*+ ) | {MARKS}++"
)
BY_CHARACTER = re.compile(SEPARATED % f"[^{MARK}{JOINER}]", re.VERBOSE | re.DOTALL)
BASE64 = r"[A-Za-z0-9+/]{200,}+=*+"
LONG_CHUNK = re.compile(
    f"{BASE64} | " + SEPARATED % rf"(?:([\x00-\x7f])\1*+|[^{MARK}{JOINER}])", re.VERBOSE | re.DOTALL
)
ADDRESS = re.compile(
    rf"""(?<![{LETTERS}])(?:
      (?: (?:https?|ftp)://(?=[{LETTERS}]) | www[.](?=[{LETTERS}]) | doi:(?=10[.])
        | (?:[A-Za-z0-9-]{{1,63}}[.]){{1,4}}(?:com|org|net|edu|gov|info|io|[a-z][a-z])/(?=[{LETTERS}])
      )(?:[^()<>"“”]|\([^()<>"“”]*+\))++
    | [{LETTERS}.+-]{{1,64}}+@[A-Za-z0-9-]++(?:[.][A-Za-z0-9-]++)++ )""",
    re.VERBOSE,
)
AFTER_ADDRESS = ".,;:!?…\"'”“]}>" + MARK
EMOTICON = re.compile(r"[<>]?[:;=][-o^']?[()\[\]DPpOoSs/\\|*3]+|:'[()]+|<3+|\^_*\^")
CLITICS = ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m")
FUSED = {  # the lengths of their parts
    form.replace("|", ""): [len(part) for part in form.split("|")]
    for form in closed_class(
        "can|not gon|na wan|na got|ta lem|me gim|me du|n|no 't|is 't|was 't|were d'|ye more|'n y'|all i|'m|a"
    )
}
DOLLARS = closed_class("A C HK NZ R S US")
PREFIXES = closed_class(
    """ante anti bi bio co counter cross cyber de e ex extra hyper inter intra macro mega meta micro mid mini mono
    multi non para peri poly post pre pro proto pseudo re semi socio sub super supra tri ultra un uni vice"""
)
SUFFIXES = closed_class("esque fest ish rama wise")
UNSPLIT_HYPHENS = re.compile(
    r"\d{3}-\d{4}|\d{3}-\d{3}-\d{4}|\d{4}-\d\d-\d\d|(?i:n?uh-u?h+|uh-oh|m+-?h?m+|hm-m+)"
)
MEASURE = re.compile(r"\d[\d.,:]*(?=(?:[ap]\.?m|km|kg|cm|mm|ft|lbs?|mph|GB|MB)\Z)")
INNER_HYPHEN = re.compile(rf"(?<=[^-+])-(?=[{LETTERS}])")


def split_words(chunk: str, style: str, last: bool) -> tuple[Span, ...]:
    """The spans of the words of a chunk; `last`: it ends a sentence."""
    if style == "whitespace":
        return ((0, len(chunk)),)
    if len(chunk) > MAX_CHUNK:
        return tuple(match.span() for match in LONG_CHUNK.finditer(chunk))
    if style == "split-hyphens":
        return tuple(match.span() for match in BY_CHARACTER.finditer(chunk))
    if EMOTICON.fullmatch(chunk):
        return ((0, len(chunk)),)
    words: list[Span] = []
    start = 0
    if "@" in chunk or "/" in chunk or "www." in chunk or "doi:" in chunk:
        for match in ADDRESS.finditer(chunk):
            end = match.start() + len(match[0].rstrip(AFTER_ADDRESS))
            words += split_tokens(chunk, start, match.start(), style, False)
            words.append((match.start(), end))
            start = end
    words += split_tokens(chunk, start, len(chunk), style, last)
    return tuple(words)


def split_tokens(chunk: str, start: int, end: int, style: str, last: bool) -> Iterator[Span]:
    """Yield the words between two positions of a chunk; addresses are elsewhere."""
    before_closers = len(chunk.rstrip(CLOSERS))
    while start < end:
        match = TOKEN.match(chunk, start, end)
        assert match is not None  # it takes any character
        first, stop = match.span()
        start = stop  # where the word ends, with its period
        if match.lastgroup != "word":
            yield first, stop
            continue
        if chunk.startswith(".", stop) and not chunk.startswith("..", stop):
            period = period_after(chunk[first:stop])
            belongs = period.in_last_word if last and stop + 1 >= before_closers else period.in_word
            start += belongs or chunk[stop + 1 : stop + 2] in (",", ";", ":")
        elif style == "treebank" and chunk.startswith("$", stop) and chunk[first:stop] in DOLLARS:
            start += 1
        parts = [(first, stop)] if style == "treebank" else list(split_hyphens(chunk, first, stop))
        words = [word for part in parts for word in split_contraction(chunk, *part)]
        words[-1] = words[-1][0], start
        yield from words


def split_hyphens(chunk: str, start: int, stop: int) -> Iterator[Span]:
    """Yield the parts of a word and the hyphens between them; a prefix and what follows are one part."""
    word = chunk[start:stop]
    if "-" in word and not UNSPLIT_HYPHENS.fullmatch(word):
        hyphens = [start + match.start() for match in INNER_HYPHEN.finditer(word)]
        for hyphen, end in zip(hyphens, [*hyphens[1:], stop], strict=False):
            prefix, suffix = chunk[start:hyphen].lower(), chunk[hyphen + 1 : end].lower()
            if prefix not in PREFIXES and suffix not in SUFFIXES:
                yield start, hyphen
                yield hyphen, hyphen + 1
                start = hyphen + 1
    if measure := MEASURE.match(chunk, start, stop):
        yield measure.span()
        start = measure.end()
    yield start, stop


def split_contraction(chunk: str, start: int, stop: int) -> list[Span]:
    """The parts of a word such as don't or cannot."""
    lower = chunk[start:stop].lower()
    if lengths := FUSED.get(lower):
        return [(start + sum(lengths[:k]), start + sum(lengths[: k + 1])) for k in range(len(lengths))]
    if "'" not in lower:
        return [(start, stop)]
    clitics: list[Span] = []
    while clitic := next((c for c in CLITICS if lower.endswith(c) and len(c) < len(lower)), ""):
        clitics.append((stop - len(clitic), stop))
        lower, stop = lower[: -len(clitic)], stop - len(clitic)
    return [(start, stop), *reversed(clitics)]
