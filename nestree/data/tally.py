"""What happened to the data on its way: nothing is changed, dropped or skipped without being counted here."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from nestree.errors import DataError
from nestree.sentence import Document

PLACES = 5  # of each kind are kept, to be shown


@dataclass
class Tally:
    """Counts of what was read, and of each thing that was done to it, with the first places of each.

    >>> tally = Tally()
    >>> tally.note("widened to word borders", "a.ann:3")
    >>> tally.counts["widened to word borders"], tally.places["widened to word borders"]
    (1, ['a.ann:3'])
    """

    skip_bad: bool = False
    documents: int = 0
    texts: int = 0  # documents that came as a text, without words
    sentences: int = 0
    entities: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # the sentence of each error that was passed over

    def note(self, what: str, place: str, times: int = 1) -> None:
        """Something was done to the data: a short phrase, always the same for the same thing, and where."""
        self.counts[what] += times
        places = self.places.setdefault(what, [])
        if len(places) < PLACES and place not in places:
            places.append(place)

    def bad(self, error: DataError) -> None:
        """Stop with this error or, if so wished, write it down and go on with what comes next."""
        if not self.skip_bad:
            raise error
        self.skipped.append(str(error))

    def counted(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The same documents, counted as they pass."""
        for document in documents:
            self.documents += 1
            self.sentences += len(document.sentences)
            self.entities += sum(len(sentence.entities) for sentence in document.sentences)
            yield document
