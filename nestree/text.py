"""Text -> sentences and words with character offsets. Nothing is ever lost or altered.

Every character that is not white space belongs to exactly one word, and every word to exactly one sentence; a
word never contains white space. The rules are those of English, and accept any Unicode: combining marks stay with their
character, emoji are whole, and in scripts without spaces between words each character is a word.

>>> text = "Mr. Li doesn't re-open the U.S.-led plant. He left!"
>>> [[text[i:j] for i, j in sentence.words] for sentence in split(text)]
[['Mr.', 'Li', 'does', "n't", 're-open', 'the', 'U.S.-led', 'plant', '.'], ['He', 'left', '!']]

First, each character beyond ASCII is replaced by one of its class, which keeps the rules short and all offsets valid.
The text is then cut into chunks at white space. The analysis of a chunk (its words, and how it may begin or end a
sentence) is cached; sentence boundaries follow from neighbouring chunks and from lines.

Time is linear in the length of the text, whatever is in it: patterns are possessive (`++`, `*+`), and a chunk longer
than MAX_CHUNK is cut at its punctuation only, except for base64, which is one word.
"""

import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import NamedTuple
from unicodedata import category

from nestree.errors import InputError
from nestree.types import Span

# Character classes: one character stands for all that the rules treat alike

LETTER_WITHOUT_CASE = "ª"
SYLLABLE = "字"  # of a script without spaces between words
MARK = "\u0300"  # belongs to what is before it: accents, vowel signs, skin tones, invisible characters
JOINER = "\u200d"  # makes one emoji of two
FLAG = "⚑"  # two of these letters make a flag
SYMBOL = "¤"
DASH = "—"
STOP = "。"  # ends a sentence without a space after it

EQUIVALENT = {
    "'": "’‛ʼ＇′׳״", "‘": "‚‹", '"': "″＂‟", "“": "„«「『《〈", "”": "»」』》〉", "-": "‐‑−－", DASH: "–―‒",
    "…": "⋯", STOP: "！？．｡", "!": "।॥۔።", "?": "؟", ",": "，、،", "(": "（", ")": "）",
}  # fmt: skip
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


# Whether a sentence ends after a chunk. USUALLY: unless a word in lower case follows
NEVER, USUALLY, BEFORE_STARTER, NOT_BEFORE_NUMERAL = range(4)


class Period(NamedTuple):
    """The role of a period after a word."""

    ending: int  # whether a sentence ends after it
    in_word: bool  # it is part of the word, as in an abbreviation
    in_last_word: bool  # the same for the last word of a sentence


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


TITLES = word_set(  # with a capital, before a name
    """adm amb atty capt cdr cmdr col comdr cpl cpt dr fr ft gen gov hon insp lt maj messrs mlle mme mr mrs ms msgr mt
    mx pres prof pvt rep rev sen sgt supt"""
)
MID_SENTENCE = word_set("approx ca cf e.g eg esp i.e ie incl resp viz vs")
BEFORE_NUMBERS = word_set("art ch eq eqs est fig figs no nos op par pp sec vol vols")
ABBREVIATIONS = word_set("al dept ed eds etc ext govt hr hrs lb lbs oz tel")
NAME_ABBREVIATIONS = word_set(  # with a capital
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
            return Period(USUALLY if joined else BEFORE_STARTER, True, False)
        ending = NEVER if word == "v" else NOT_BEFORE_NUMERAL if word in "abcdnp" else USUALLY  # after 24 h.
        return Period(ending, True, False)
    if low in MID_SENTENCE or (capital and low in TITLES):
        return Period(NEVER, True, True)
    if low in BEFORE_NUMBERS:
        return Period(NOT_BEFORE_NUMERAL, True, False)
    if low in ABBREVIATIONS:
        return Period(USUALLY if low == "etc" else BEFORE_STARTER, True, True)
    if (capital and low in NAME_ABBREVIATIONS) or ACRONYM.fullmatch(word):
        return Period(BEFORE_STARTER, True, True)
    return Period(USUALLY, is_item_number(text + "."), False)


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
SEPARATED = rf"{MARKS}*+(?: {LETTER_OR_DIGIT}(?:{LETTER_OR_DIGIT}|{MARKS})*+ | (?:{EMOJI}|%s){MARKS}*+ ) | {MARKS}++"
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
    for form in word_set(
        "can|not gon|na wan|na got|ta lem|me gim|me du|n|no 't|is 't|was 't|were d'|ye more|'n y'|all i|'m|a"
    )
}
DOLLARS = word_set("A C HK NZ R S US")
PREFIXES = word_set(
    """ante anti bi bio co counter cross cyber de e ex extra hyper inter intra macro mega meta micro mid mini mono
    multi non para peri poly post pre pro proto pseudo re semi socio sub super supra tri ultra un uni vice"""
)
SUFFIXES = word_set("esque fest ish rama wise")
UNSPLIT_HYPHENS = re.compile(r"\d{3}-\d{4}|\d{3}-\d{3}-\d{4}|\d{4}-\d\d-\d\d|(?i:n?uh-u?h+|uh-oh|m+-?h?m+|hm-m+)")
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


# Sentence boundaries: from single chunks, from neighbouring chunks, and from lines

SENTENCE_RULES = ("rules", "lines")

# How a chunk begins; LOWER: as sentences do not
LOWER, UPPER, NUMERAL, STARTER, OTHER = range(5)

OPENERS = "\"'“‘([{<`"
CHUNK = re.compile(rf"[^\s{STOP}]++(?:{STOP}++[{re.escape(CLOSERS)}]*+)?+|{STOP}++[{re.escape(CLOSERS)}]*+")
NON_SPACE = re.compile(r"\S++")
MAX_CACHED_LENGTH = 40  # characters
MAX_CACHED = 2**16  # chunks, most of which recur
FOOTNOTES = re.compile(r"(?:\[\d{1,3}\])++\Z")
NUMERALS = re.compile(r"[A-Z]?\d[\dA-Za-z.-]*|[IVXLC]+")
STARTERS = word_set(  # words that begin sentences more often than names do
    """a according additionally after all although an and another as at because before both but by despite during each
    every finally first for from furthermore he hence her here his how however i if in instead interestingly it
    its many meanwhile moreover most my nevertheless no not of on one or our she since so some such that the
    their then there therefore these they this those though through thus to under until we what when where which
    while who why with within without yet you your"""
)
ENDS_OF_NAMES = word_set("Co Corp Inc Jr Ltd Plc Sr")  # Yahoo! Inc. is one name
LONGEST_STARTER = max(map(len, STARTERS)) + 1


class Chunk(NamedTuple):
    """The analysis of a chunk, whatever stands beside it."""

    length: int
    words: tuple[Span, ...]
    last_words: tuple[Span, ...]  # at the end of a sentence, where a period is less often part of a word
    beginning: int
    plain: bool  # all fields below are false or zero
    ending: int
    quotes: int  # quotation marks that may open or close
    is_item_number: bool
    closes: bool  # only brackets and quotation marks that belong to the chunk before


NO_CHUNK = Chunk(0, (), (), OTHER, True, NEVER, 0, False, False)


class SentenceSplit(NamedTuple):
    """A sentence and its words, in characters of the whole text."""

    start: int
    end: int
    words: list[Span]


def split(
    text: str, words: str = "treebank", sentences: str = "rules", keep: Iterable[Span] = ()
) -> list[SentenceSplit]:
    """The sentences of a text; no sentence ends inside one of the spans to `keep`.

    Word styles:
        treebank        do n't, Ann 's, can not; abbreviations keep their period, hyphens join
        ud              the same, but hyphens separate, except after prefixes: well - known, non-profit
        split-hyphens   letters and digits together, every other character by itself: IL - 2, 1 , 5
        whitespace      what stands between white space
    Sentences:
        rules           end at . ! ? and the like, at blank lines, and at line ends that wrapping does not explain
        lines           one per line
    """
    if words not in WORD_STYLES:
        raise InputError(f"no word style is called {words!r}. There are: {', '.join(WORD_STYLES)}.")
    if sentences not in SENTENCE_RULES:
        raise InputError(f"no sentence rule is called {sentences!r}. There are: {', '.join(SENTENCE_RULES)}.")
    classes = text if text.isascii() else text.translate(CHAR_CLASSES)
    kept = sorted(keep, reverse=True)
    kept_end = 0  # the furthest end of the spans to keep that begin before the current chunk
    result: list[SentenceSplit] = []
    spans: list[Span] = []  # of the words of the current sentence
    previous, offset = NO_CHUNK, 0
    for start, chunk, begins in chain(chunks(classes, words, sentences), [(sys.maxsize, NO_CHUNK, True)]):
        if begins:
            while kept and kept[-1][0] < offset + previous.length:
                kept_end = max(kept_end, kept.pop()[1])
            begins = kept_end <= start
        if begins:
            spans += [(offset + i, offset + j) for i, j in previous.last_words]
            if spans:
                result.append(SentenceSplit(spans[0][0], spans[-1][1], spans))
            spans = []
        elif len(previous.words) == 1:
            spans.append((offset, offset + previous.length))
        else:
            spans += [(offset + i, offset + j) for i, j in previous.words]
        previous, offset = chunk, start
    return result


def split_at_boundaries(words: Sequence[Span], keep: Iterable[Span]) -> list[Span]:
    """The words, split where one of the spans to keep begins or ends.

    >>> split_at_boundaries([(0, 3), (4, 11)], [(4, 9)])
    [(0, 3), (4, 9), (9, 11)]
    """
    boundaries = sorted({boundary for span in keep for boundary in span})
    result: list[Span] = []
    for i, j in words:
        inner = boundaries[bisect_right(boundaries, i) : bisect_left(boundaries, j)]
        result += pairwise([i, *inner, j])
    return result


def chunks(classes: str, words: str, sentences: str) -> Iterator[tuple[int, Chunk, bool]]:
    """Yield the start of each chunk, the chunk, and whether a sentence begins with it."""
    by_rules = sentences == "rules"
    starts = line_starts(classes) if by_rules else {end.end(): False for end in LINE_END.finditer(classes)}
    lower_may_begin = by_rules and not re.search("[A-Z]", classes)
    ending, quotes, begins = NEVER, 0, True
    for match in (NON_SPACE if words == "whitespace" else CHUNK).finditer(classes):
        start, text = match.start(), match[0]
        chunk = (analyze_chunk if len(text) <= MAX_CACHED_LENGTH else analyze_chunk.__wrapped__)(text, words)
        if start in starts:
            begins, quotes = True, 0 if starts[start] else quotes
        elif ending:
            if chunk.closes or (quotes % 2 and match[0] == '"'):
                quotes += chunk.quotes
                yield start, chunk, False
                continue
            begins = sentence_ends(ending, chunk.beginning, lower_may_begin)
        yield start, chunk, begins
        if chunk.plain:
            ending = NEVER
        else:
            quotes += chunk.quotes
            ending = chunk.ending if by_rules and not (begins and chunk.is_item_number) else NEVER
        begins = False


def sentence_ends(ending: int, beginning: int, lower_may_begin: bool) -> bool:
    """Whether a sentence ends between two chunks."""
    if beginning == LOWER and not lower_may_begin:
        return False
    if ending == BEFORE_STARTER:
        return beginning == STARTER
    return ending == USUALLY or (ending == NOT_BEFORE_NUMERAL and beginning != NUMERAL)


@lru_cache(MAX_CACHED)
def analyze_chunk(text: str, style: str) -> Chunk:
    words = last_words = split_words(text, style, last=False)
    if len(text) <= MAX_CHUNK and text.rstrip(CLOSERS).endswith("."):
        last_words = split_words(text, style, last=True)
    ending, quotes, item_number = classify_ending(text), text.count('"'), is_item_number(text)
    plain = not (ending or quotes or item_number)
    closes = not text.strip(CLOSERS) and text not in ('"', "“")
    beginning = classify_beginning(text)
    return Chunk(len(text), words, last_words, beginning, plain, ending, quotes, item_number, closes)


def classify_ending(text: str) -> int:
    core = (FOOTNOTES.sub("", text) if text[-1] == "]" else text).rstrip(CLOSERS)
    if not core.endswith("."):
        return USUALLY if core.endswith(("!", "?", "…", STOP)) else NEVER
    return USUALLY if core.endswith(("..", "….")) else period_after(core[:-1]).ending


def classify_beginning(text: str) -> int:
    bare = text.lstrip(OPENERS)
    first = bare[:1]
    if "a" <= first <= "z":
        return OTHER if text[0] in "([" else LOWER
    if not "A" <= first <= "Z":
        return NUMERAL if first.isdigit() else OTHER
    prefix = bare[:LONGEST_STARTER]
    word = re.split("[^A-Za-z]", prefix, maxsplit=1)[0]
    following = bare[len(word) : len(word) + 1]
    if word in ENDS_OF_NAMES and following in ("", ".", ","):
        return LOWER
    if word.lower() in STARTERS and following != ".":
        return STARTER
    return NUMERAL if NUMERALS.fullmatch(prefix.rstrip(".,;:)")) else UPPER


LINE_END = re.compile(r"[\n\r\v\f\x85\u2028\u2029]\s*+")
PARAGRAPH_END = re.compile(r"[\f\u2029]|(?>\r\n|[\n\r\v\x85\u2028])[^\n\r\v\f\x85\u2028\u2029]*+.", re.DOTALL)
MIN_WRAP_WIDTH = 40  # characters: shorter lines do not tell where others would be wrapped
ITEM = re.compile(rf"[-*+{SYMBOL}]\s|\(?\d{{1,3}}[.)]\s")


def line_starts(char_classes: str) -> dict[int, bool]:
    """Where sentences begin because of lines: True after a blank line, False if wrapping does not explain the line."""
    starts: dict[int, bool] = {}
    lines: list[Span] = []
    start = 0
    for line_end in LINE_END.finditer(char_classes):
        lines.append((start, line_end.start()))
        start = line_end.end()
        if PARAGRAPH_END.match(line_end[0]):
            starts.update(dict.fromkeys(unwrap_lines(char_classes, lines), False))
            starts[start] = True
            lines = []
    starts.update(dict.fromkeys(unwrap_lines(char_classes, [*lines, (start, len(char_classes))]), False))
    return starts


def unwrap_lines(char_classes: str, lines: list[Span]) -> Iterator[int]:
    """Yield the starts of lines that wrapping does not explain: list items, words that fit on the line before."""
    width = max(end - start for start, end in lines)
    for (before, end), (start, _) in pairwise(lines):
        continues = char_classes[before:end].rstrip().endswith((",", ";"))  # however it was wrapped
        room = width - (end - before) - 1 if width >= MIN_WRAP_WIDTH and not continues else 0
        word = CHUNK.match(char_classes, start) if room > 0 else None
        if ITEM.match(char_classes, start) or (word and len(word[0]) <= room and classify_beginning(word[0]) != LOWER):
            yield start


FINEST_FIRST = ("split-hyphens", "ud", "treebank")
MAX_SPLIT = 0.03  # of the words, by the best style; English split at white space only has a tenth and more
MAX_EXTRA_SPLIT = 0.005  # of the words, by a finer style than the best
SAMPLE_WORDS = 50_000


def detect_word_style(sentences: Iterable[Sequence[str]]) -> str:
    """The finest style that splits (almost) none of these words any further.

    >>> detect_word_style([["a", "well", "-", "known", "man", "does", "n't"]])
    'ud'
    >>> detect_word_style([["a", "well-known", "man", "does", "n't"]])
    'treebank'
    >>> detect_word_style([["a", "well-known", "man,", "isn't", "he?"]])
    'whitespace'
    """
    words = list(islice(chain.from_iterable(sentences), SAMPLE_WORDS))
    # Without a single hyphen, hyphens may just be rare, which is no sign of the styles that separate them.
    styles = FINEST_FIRST if "-" in words else FINEST_FIRST[2:]
    counts = Counter(word for word in words if word.split() == [word])
    split_words = {
        style: sum(count for word, count in counts.items() if len(split(word, style, "lines")[0].words) != 1)
        for style in styles
    }
    fewest = min(split_words.values())  # words that no style leaves whole say nothing
    if fewest > MAX_SPLIT * len(words):
        return "whitespace"
    return next(style for style in styles if split_words[style] - fewest <= MAX_EXTRA_SPLIT * len(words))
