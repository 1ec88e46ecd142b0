"""The cases on which every backend is checked: kinds of potentials, by name."""

from dataclasses import dataclass

import torch

from nestree.treecrf import observe
from tests.treecrf.cases import Potentials, lexical, plain, to


@dataclass(frozen=True)
class Case:
    """A batch of random potentials."""

    lengths: tuple[int, ...]
    std: float = 1.0
    n: int | None = None  # padded to this many words; None: the longest
    kind: str = "lexical"
    head: bool = True
    inherit: bool = True  # False: zero everywhere
    observed: bool = False
    whole: bool = False  # scores are small whole numbers: many trees have the same
    dtype: torch.dtype = torch.float32
    mute: bool = True  # in each sentence of more than two words, one word never governs another

    def potentials(self, device: str = "cpu", seed: int = 0) -> Potentials:
        """In the type of the case; NaN in the padding."""
        make = lexical if self.kind == "lexical" else plain
        made = make(self.lengths, self.n, std=self.std, seed=sum(self.lengths) + seed)
        if self.kind == "lexical":
            made = made if self.head else made._replace(head=None)
            made = made if self.inherit else made._replace(inherit=made.inherit * 0)
            for b, length in enumerate(self.lengths):
                if self.mute and length > 2:
                    made.arc[b, length // 2] = -torch.inf
        if self.whole:
            made = type(made)(*(None if t is None else t.round() for t in made))
        made = to(made, device, self.dtype)
        if self.observed:
            spans = [nested(length) for length in self.lengths]
            made = to(observe(made, spans, self.lengths), self.dtype)
        return made


def nested(length: int) -> list[tuple[int, int]]:
    """Some spans of a sentence that do not cross."""
    third = length // 3
    spans = [(third, length), (third, length - third), (third + 1, length - third), (0, third)]
    return [(i, j) for i, j in spans if i < j]


RAGGED = (17, 1, 9, 2, 16, 3)

CASES = {
    "n=1": Case((1,)),
    "n=2": Case((2, 1)),
    "n=3": Case((3, 1, 3, 2)),
    "n=17, batch of one": Case((17,)),
    "n=32": Case((32, 31)),
    "n=33": Case((33, 1)),
    "n=63": Case((63, 40)),
    "n=130": Case((130,)),
    "many short": Case((5, 1, 7, 2, 6, 3, 4, 5) * 8),
    "padded far beyond": Case((4, 2), n=20),
    "no head": Case(RAGGED, head=False),
    "no inherit": Case(RAGGED, inherit=False),
    "neither": Case(RAGGED, head=False, inherit=False),
    "forbidden spans": Case(RAGGED, observed=True),
    "forbidden spans, std 60": Case(RAGGED, 60.0, observed=True),
    "std 0.01": Case(RAGGED, 0.01),
    "std 1": Case(RAGGED, 1.0),
    "std 15": Case(RAGGED, 15.0),
    "std 60": Case(RAGGED, 60.0),
    "n=63, std 0.01": Case((63,), 0.01, head=False),
    "n=63, std 15": Case((63,), 15.0, head=False),
    "n=63, std 60": Case((63, 50), 60.0),
    "n=130, std 60": Case((130,), 60.0, head=False),
    "every word may govern": Case(RAGGED, mute=False),
    "every word may govern, n=32": Case((32, 31), head=False, mute=False),
    "every word may govern, n=63": Case((63, 40), mute=False),
    "every word may govern, n=130": Case((130,), head=False, mute=False),
    "every word may govern, std 0.01": Case(RAGGED, 0.01, mute=False),
    "every word may govern, std 15": Case(RAGGED, 15.0, mute=False),
    "every word may govern, forbidden spans": Case(RAGGED, observed=True, mute=False),
    "every word may govern, n=63, forbidden spans": Case((63, 60), head=False, observed=True, mute=False),
    "plain, n=1": Case((1,), kind="plain"),
    "plain, n=2": Case((2, 1), kind="plain"),
    "plain, n=3": Case((3, 1, 3, 2), kind="plain"),
    "plain, std 0.01": Case(RAGGED, 0.01, kind="plain"),
    "plain, std 1": Case(RAGGED, 1.0, kind="plain"),
    "plain, std 15": Case(RAGGED, 15.0, kind="plain"),
    "plain, std 60": Case(RAGGED, 60.0, kind="plain"),
    "plain, forbidden spans": Case(RAGGED, kind="plain", observed=True),
    "plain, n=63": Case((63, 40), kind="plain"),
    "plain, n=130": Case((130, 77), kind="plain"),
    "plain, n=130, std 60": Case((130, 129), 60.0, kind="plain"),
}

SHAPES = {
    "ragged": Case(RAGGED),
    "n=40": Case((40, 33)),
    "n=33, std 60": Case((33, 20), 60.0),
    "n=1": Case((1,)),
    "plain": Case(RAGGED, kind="plain"),
}  # for things that must not matter

# For Triton's interpreter, which takes seconds where a GPU takes microseconds.
SMALL_CASES = {
    "n=1": Case((1,)),
    "n=2": Case((2, 1)),
    "n=3": Case((3, 1, 2)),
    "std 0.01": Case((6, 9), 0.01),
    "std 1": Case((9, 4)),
    "std 15": Case((8, 5), 15.0),
    "std 60": Case((9, 7), 60.0),
    "padded far beyond": Case((4, 2), n=9),
    "no head": Case((7, 5), head=False),
    "neither": Case((7, 5), head=False, inherit=False),
    "forbidden spans": Case((9, 6), observed=True),
    "every word may govern": Case((9, 4), mute=False),
    "every word may govern, std 15": Case((9, 4), 15.0, head=False, mute=False),
    "every word may govern, forbidden spans": Case((9, 6), observed=True, mute=False),
    "plain, n=1": Case((1,), kind="plain"),
    "plain, n=3": Case((3, 1, 2), kind="plain"),
    "plain, std 1": Case((9, 6), kind="plain"),
    "plain, std 60": Case((8, 9), 60.0, kind="plain"),
    "plain, forbidden spans": Case((9, 6), kind="plain", observed=True),
}

HALVES = {
    f"{dtype}, {kind}".removeprefix("torch."): Case((12, 7, 1), kind=kind, dtype=dtype)
    for dtype in (torch.float16, torch.bfloat16)
    for kind in ("lexical", "plain")
}

TIES = {
    f"{kind}, std {std:g}": Case((11, 2, 9, 1), std, kind=kind, whole=True)
    for kind in ("lexical", "plain")
    for std in (0.0, 0.7, 2.0)
}
