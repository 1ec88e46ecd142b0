"""Files with something wrong in them: bytes changed, cut out, put in, or the end missing."""

import random
from collections.abc import Iterator

SPECIAL = b'{}[]():;,.|-"<>&/\\ \t\r\n0123456789aeBIOT'  # what may mean something


def damaged(data: bytes, copies: int, seed: int = 1) -> Iterator[bytes]:
    """Copies of these bytes, each with one to three things wrong."""
    chance = random.Random(seed)
    for _ in range(copies):
        copy = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at, length = chance.randrange(len(copy) + 1), chance.randint(1, 8)
            how = chance.choice(["change", "cut", "insert", "repeat", "end"])
            if how == "change" and at < len(copy):
                copy[at] ^= 1 << chance.randrange(8)
            elif how == "cut":
                del copy[at : at + length]
            elif how == "insert":
                some = chance.choice([SPECIAL, SPECIAL, bytes(range(256))])
                copy[at:at] = bytes(chance.choice(some) for _ in range(length))
            elif how == "repeat":
                copy[at:at] = copy[at : at + length]
            elif chance.random() < 0.3:
                del copy[at:]
        yield bytes(copy)
