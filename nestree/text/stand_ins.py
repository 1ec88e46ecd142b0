"""Stand-ins: each character beyond ASCII is seen as one that behaves alike, so that rules need few characters."""

import re
from unicodedata import category

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


def stand_in(character: str) -> str:
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


class StandIns(dict[int, str]):
    """A table for `str.translate` that finds the stand-in of a character when it is first asked for.

    >>> "Él dijo: «sí»…".translate(STAND_INS)
    'Xl dijo: “sx”…'
    """

    def __missing__(self, code: int) -> str:
        self[code] = found = stand_in(chr(code))
        return found


STAND_INS = StandIns({ord(other): one for one, others in SAME.items() for other in others})
