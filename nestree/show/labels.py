"""Which label has which colour: the same everywhere on a page, and mostly the same on the next one."""

from zlib import crc32

COLOURS = 12  # on a page and in a terminal


class Colours:
    """Gives each label the number of a colour, from 0 on, when it is first asked for.

    A label likes one colour everywhere. If that is taken, it gets the next; labels share colours when all are taken.

    >>> colours = Colours()
    >>> [colours[label] for label in ("PER", "ORG", "GPE", "PER")]
    [10, 11, 0, 10]
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, label: str) -> int:
        if label not in self.numbers:
            liked = crc32(label.encode("utf-8", "surrogatepass")) % COLOURS
            taken = set(self.numbers.values())
            order = [(liked + k) % COLOURS for k in range(COLOURS)]
            self.numbers[label] = next((number for number in order if number not in taken), liked)
        return self.numbers[label]
