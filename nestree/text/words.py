"""Stand-ins: each character beyond ASCII is seen as one that behaves alike, so that rules need few characters."""

import re
from collections.abc import Iterator
from unicodedata import category

from nestree.text.abbreviations import closed_class, period_after
from nestree.types import Span

LETTER_WITHOUT_CASE = "ª"
SYLLABLE = "字"  # of a script that puts no blanks between words
MARK = "\u0300"  # belongs to what is before it: accents, vowel signs, skin tones, invisible characters
JOINER = "\u200d"  # makes one emoji of two
FLAG = "⚑"  # two of these letters make a flag
SYMBOL = "¤"
DASH = "—"
STOP = "。"  # ends a sentence without a blank after it

SAME = {
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
ITSELF = "“”‘—…。" + JOINER
NO_BLANKS = re.compile(  # Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def char_class(character: str) -> str:
    kind = category(character)
    if character.isascii() or character.isspace() or character in ITSELF:
        return character
    if kind[0] == "M" or kind == "Cf" or "\U0001f3fb" <= character <= "\U0001f3ff":
        return MARK
    if "\U0001f1e6" <= character <= "\U0001f1ff":
        return FLAG
    if kind[0] == "N":
        return "0"
    if kind[0] == "L" and NO_BLANKS.match(character):
        return SYLLABLE
    if kind[0] == "L" or kind in ("Co", "Cs"):
        return "X" if kind in ("Lu", "Lt") else "x" if kind == "Ll" else LETTER_WITHOUT_CASE
    return SYMBOL


class CharClasses(dict[int, str]):
    """A table for `str.translate` that finds the stand-in of a character when it is first asked for.

    >>> "Él dijo: «sí»…".translate(CHAR_CLASSES)
    'Xl dijo: “sx”…'
    """

    def __missing__(self, code: int) -> str:
        self[code] = found = char_class(chr(code))
        return found


CHAR_CLASSES = CharClasses({ord(other): one for one, others in SAME.items() for other in others})


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
PIECE = re.compile(
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
SEPARATE = (
    rf"{MARKS}*+(?: {LETTER_OR_DIGIT}(?:{LETTER_OR_DIGIT}|{MARKS})*+ | (?:{EMOJI}|%s){MARKS}*+ ) | {MARKS}++"
)
BY_CHARACTER = re.compile(SEPARATE % f"[^{MARK}{JOINER}]", re.VERBOSE | re.DOTALL)
CODED = r"[A-Za-z0-9+/]{200,}+=*+"  # files written as text: no language has such words
LONG = re.compile(
    f"{CODED} | " + SEPARATE % rf"(?:([\x00-\x7f])\1*+|[^{MARK}{JOINER}])", re.VERBOSE | re.DOTALL
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
FUSED = {
    "".join(parts): [len(part) for part in parts]
    for parts in (
        ("can", "not"),
        ("gon", "na"),
        ("wan", "na"),
        ("got", "ta"),
        ("lem", "me"),
        ("gim", "me"),
        ("du", "n", "no"),
        ("'t", "is"),
        ("'t", "was"),
        ("'t", "were"),
        ("d'", "ye"),
        ("more", "'n"),
        ("y'", "all"),
        ("i", "'m", "a"),
    )
}
DOLLARS = closed_class("A C HK NZ R S US")
PREFIXES = closed_class(
    """ante anti bi bio co counter cross cyber de e ex extra hyper inter intra macro mega meta micro mid mini mono
    multi non para peri poly post pre pro proto pseudo re semi socio sub super supra tri ultra un uni vice"""
)
SUFFIXES = closed_class("esque fest ish rama wise")
UNCUT = re.compile(r"\d{3}-\d{4}|\d{3}-\d{3}-\d{4}|\d{4}-\d\d-\d\d|(?i:n?uh-u?h+|uh-oh|m+-?h?m+|hm-m+)")
MEASURE = re.compile(r"\d[\d.,:]*(?=(?:[ap]\.?m|km|kg|cm|mm|ft|lbs?|mph|GB|MB)\Z)")


def split_words(run: str, style: str, last: bool) -> tuple[Span, ...]:
    """Where the words of a run are in it; `last`: of a sentence."""
    if style == "whitespace":
        return ((0, len(run)),)
    if len(run) > MAX_CHUNK:
        return tuple(match.span() for match in LONG.finditer(run))
    if style == "split-hyphens":
        return tuple(match.span() for match in BY_CHARACTER.finditer(run))
    if EMOTICON.fullmatch(run):
        return ((0, len(run)),)
    found: list[Span] = []
    at = 0
    if "@" in run or "/" in run or "www." in run or "doi:" in run:
        for match in ADDRESS.finditer(run):
            end = match.start() + len(match[0].rstrip(AFTER_ADDRESS))
            found += split_affixes(run, at, match.start(), style, False)
            found.append((match.start(), end))
            at = end
    found += split_affixes(run, at, len(run), style, last)
    return tuple(found)


def split_affixes(run: str, at: int, end: int, style: str, last: bool) -> Iterator[Span]:
    before_closers = len(run.rstrip(CLOSERS))
    while at < end:
        match = PIECE.match(run, at, end)
        assert match is not None  # it takes any character
        start, at = match.span()
        if match.lastgroup != "word":
            yield start, at
            continue
        stop = at
        if run.startswith(".", at) and not run.startswith("..", at):
            period = period_after(run[start:at])
            final = last and at + 1 >= before_closers
            if run[at + 1 : at + 2] in (",", ";", ":") or (period.in_last_word if final else period.in_word):
                at += 1
        elif style == "treebank" and run.startswith("$", at) and run[start:at] in DOLLARS:
            at += 1
        parts = [(start, stop)] if style == "treebank" else list(split_hyphens(run, start, stop))
        cuts = [span for part in parts for span in contraction(run, *part)]
        cuts[-1] = cuts[-1][0], at
        yield from cuts


def split_hyphens(run: str, start: int, stop: int) -> Iterator[Span]:
    """The parts of a word and the hyphens between them; a prefix and what follows are one part."""
    word = run[start:stop]
    if "-" in word and not UNCUT.fullmatch(word):
        inner = [start + match.start() for match in INNER_HYPHEN.finditer(word)]
        for hyphen, after in zip(inner, [*inner[1:], stop], strict=False):
            if run[start:hyphen].lower() not in PREFIXES and run[hyphen + 1 : after].lower() not in SUFFIXES:
                yield start, hyphen
                yield hyphen, hyphen + 1
                start = hyphen + 1
    measure = MEASURE.match(run, start, stop)
    if measure:
        yield measure.span()
        start = measure.end()
    yield start, stop


INNER_HYPHEN = re.compile(rf"(?<=[^-+])-(?=[{LETTERS}])")


def contraction(run: str, start: int, stop: int) -> list[Span]:
    """The parts of a word such as don't or cannot."""
    low = run[start:stop].lower()
    lengths = FUSED.get(low)
    if lengths:
        return [(start + sum(lengths[:k]), start + sum(lengths[: k + 1])) for k in range(len(lengths))]
    if "'" not in low:
        return [(start, stop)]
    found: list[Span] = []
    while clitic := next((c for c in CLITICS if low.endswith(c) and len(c) < len(low)), ""):
        found.append((stop - len(clitic), stop))
        low, stop = low[: -len(clitic)], stop - len(clitic)
    return [(start, stop), *reversed(found)]
