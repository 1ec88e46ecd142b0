"""One word a line and its tags in columns after it: IOB2 (also called BIO), IOB1, BIOES, BILOU. A blank line ends a
sentence. Nested entities stand in columns of their own, one per layer, or together in one cell:

    the     B-ORG  O                the     B-ORG
    bank    I-ORG  O                bank    I-ORG
    of      I-ORG  O                of      I-ORG
    Rome    I-ORG  B-GPE            Rome    I-ORG|B-GPE

Columns are parted by a tab or, in a line without any, by blanks.
"""

import itertools
import re
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path

from nestree.data.io import ConversionReport, atomic_writer, kept_mark, lines_or_errors
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence

TAG = re.compile(r"([BIESLUM])-(.+)", re.DOTALL)
BETWEEN_TAGS = re.compile(r"\|(?=[BIESLUM]-|O\Z|O\|)")
NOTHING = ("O", "")
NEW_DOCUMENT = "-DOCSTART-"
TAGS_AS_WORDS = 0.9  # of the words of a file look like tags: they are
NOT_WRITTEN = (
    "heads",
    "scores",
    "further keys of entities",
    "further keys of sentences",
    "further keys of documents",
    "ids of sentences",
    "ids of documents",
    "marks of incomplete sentences",
    "texts",
    "borders of documents",
    "documents without sentences",
)
Row = tuple[int, str, list[str]]  # the number of a line, its word, its tags


def read(path: Path, tally: ConversionReport, *, word: int = 1, tags: str = "") -> Iterator[Document]:
    """The sentences of a file, each a document; in a file with -DOCSTART- lines, the documents between these.

    word: the column of the words, from 1. tags: the columns of the tags, such as "4" or "3,4"; if it is not
    given, all columns after the word.
    """
    chosen = columns(tags, word)
    document: list[Sentence] | None = None
    words = like_tags = 0
    for rows in blocks(path, word, chosen, tally):
        if rows[0][1] == NEW_DOCUMENT and len(rows) == 1:
            if document:
                yield Document(tuple(document))
            document = []
            continue
        words += len(rows)
        like_tags += sum(is_cell(row[1]) for row in rows)
        sentence = Sentence(tuple(row[1] for row in rows), tuple(entities(rows, path, tally)))
        if document is None:
            yield Document((sentence,))
        else:
            document.append(sentence)
    if like_tags > TAGS_AS_WORDS * words:
        tally.note(
            f"words look like tags such as O and B-PER: if column {word} does not hold the words, name the one "
            f"that does, such as --read word={1 if word > 1 else 2}",
            str(path),
            like_tags,
        )
    if document:
        yield Document(tuple(document))


def columns(tags: str, word: int) -> list[int]:
    """The numbers in `tags`, from 0."""
    try:
        chosen = [int(number) - 1 for number in tags.split(",")] if tags else []
    except ValueError:
        chosen = [-1]
    if word < 1 or any(number < 0 for number in chosen):
        raise InputError(
            f"columns are counted from 1, such as word 2 and tags 3,4; not word {word}, tags {tags!r}."
        )
    return chosen


def blocks(path: Path, word: int, chosen: list[int], tally: ConversionReport) -> Iterator[list[Row]]:
    """The rows of each sentence; of one with a bad row, none."""
    rows: list[Row] = []
    good, width = True, 0
    for number, line in lines_or_errors(path):
        if isinstance(line, DataError):
            if good:
                tally.bad(line)
            good = False
            continue
        if not line.strip():
            if rows and good:
                yield rows
            rows, good = [], True
            continue
        fields = line.split("\t") if "\t" in line else line.split(" ")
        fields = fields if "\t" in line else [field for field in fields if field]
        cells = [fields[k] for k in chosen if k < len(fields)] if chosen else fields[word:]
        wrong = next((cell for cell in cells if not is_cell(cell)), None)
        if line.startswith("#") and (wrong is not None or not cells):
            tally.note("comments not read", f"{path}:{number}")
            continue
        try:
            check_row(fields, cells, wrong, width or len(fields), word, chosen, f"{path}:{number}")
            rows.append((number, fields[word - 1], cells))
            width = len(fields)
        except DataError as error:
            if good:
                tally.bad(error)
            good = False
    if rows and good:
        yield rows


def check_row(
    fields: list[str],
    cells: list[str],
    wrong: str | None,
    width: int,
    word: int,
    chosen: list[int],
    place: str,
) -> None:
    if len(fields) != width:
        raise DataError(f"{place}: this line has {len(fields)} columns, and the first one has {width}.")
    if len(fields) < word or not fields[word - 1]:
        raise DataError(f"{place}: there is no word in column {word}.")
    if not cells or (chosen and len(cells) != len(chosen)):
        raise DataError(
            f"{place}: there is no tag, only {len(fields)} columns. Expected: word<tab>B-PER or O."
        )
    if wrong is not None:
        raise DataError(
            f"{place}: {wrong!r:.40} is no tag such as B-PER, I-PER or O. If it stands in another column, say "
            "which columns hold the word and the tags."
        )


def is_cell(cell: str) -> bool:
    return cell in NOTHING or all(tag == "O" or TAG.fullmatch(tag) for tag in BETWEEN_TAGS.split(cell))


def entities(rows: list[Row], path: Path, tally: ConversionReport) -> list[Entity]:
    """The entities of all layers, the outer first."""
    found: list[Entity] = []
    for layer in range(len(rows[0][2])):
        spans, strays = spans_of([cells[layer] for _, _, cells in rows])
        found.extend(Entity(*span) for span in spans)
        for k in strays:
            tally.note("tags that continue no entity: taken as the beginning of one", f"{path}:{rows[k][0]}")
    return sorted(found, key=lambda entity: (entity.start, -entity.end))


def spans_of(cells: Sequence[str]) -> tuple[list[tuple[int, int, str]], list[int]]:
    """The spans of one column, and the words whose tag continues what never began.

    Of several open entities with one label, the innermost ends first.

    >>> spans_of(["B-ORG", "I-ORG|B-ORG", "I-ORG", "I-PER"])
    ([(1, 2, 'ORG'), (0, 3, 'ORG'), (3, 4, 'PER')], [3])
    """
    found: list[tuple[int, int, str]] = []
    strays = []
    running: list[tuple[int, str]] = []  # start and label, the outermost first
    for k, cell in enumerate([*cells, "O"]):
        if cell in NOTHING and not running:
            continue
        tags = [] if cell in NOTHING else [TAG.fullmatch(tag) for tag in BETWEEN_TAGS.split(cell)]
        still: defaultdict[str, deque[int]] = defaultdict(deque)  # the places in `running` of each label
        for place, (_, label) in enumerate(running):
            still[label].append(place)
        going: list[tuple[int, str]] = []
        ending: list[tuple[int, str]] = []
        begun: list[tuple[int, str]] = []
        for kind, label in (match.groups() for match in tags if match):
            if kind in "BSU":
                (begun if kind == "B" else ending).append((k, label))
                continue
            if not still[label]:
                strays.append(k)
                (ending if kind in "EL" else begun).append((k, label))
                continue
            if kind in "EL":
                ending.append(running[still[label].pop()])
            else:
                going.append(running[still[label].popleft()])
        left = sorted(itertools.chain(*still.values()), reverse=True)
        found.extend((running[place][0], k, running[place][1]) for place in left)
        found.extend((start, k + 1, label) for start, label in ending)
        running = sorted(going, key=lambda pair: pair[0]) + begun
    return found, strays


def write(
    documents: Iterable[Document],
    path: Path,
    tally: ConversionReport,
    *,
    scheme: str = "iob2",
    joined: bool = False,
) -> None:
    """One word a line, and a column for each layer that the data needs, the outermost entities in the first.

    scheme: "iob2" or "bioes". joined: one column of tags, such as I-ORG|B-GPE, instead of layers.
    """
    if scheme not in ("iob2", "bioes"):
        raise InputError(f"there is no scheme {scheme!r}. Choose iob2 or bioes.")
    widest = 1
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as held:
        for number, document in enumerate(documents, 1):
            place = document.id or f"document {number}"
            report_losses(document, "columns", NOT_WRITTEN, tally, place)
            for sentence in document.sentences:
                if sentence.words == (NEW_DOCUMENT,):
                    tally.note(
                        f"a sentence of the word {NEW_DOCUMENT} alone: read as the border of a document",
                        place,
                    )
                layers = cells_of(sentence, scheme, joined, tally, place)
                widest = max(widest, len(layers))
                words = [plain(word, "words", tally, place) for word in sentence.words]
                for cells in zip(words, *layers, strict=True):
                    held.write("\t".join(cells) + "\n")
                held.write("\n")
        held.seek(0)
        with atomic_writer(path) as file:
            for number, line in enumerate(held):
                row = line.rstrip("\n")
                file.write("" if number else kept_mark(row))
                file.write(row + "\tO" * (widest - row.count("\t")) + "\n" if row else "\n")


def cells_of(
    sentence: Sentence, scheme: str, joined: bool, tally: ConversionReport, place: str
) -> Sequence[Iterable[str]]:
    """The columns of tags of a sentence."""
    renamed = [(e.start, e.end, safe_label(e.label, joined, tally, place)) for e in sentence.entities]
    layers = [tag_row(layer, len(sentence.words), scheme) for layer in layered(renamed)]
    if not joined:
        return layers
    cells = ["|".join(tag for tag in tags if tag != "O") or "O" for tags in zip(*layers, strict=True)]
    lost = Counter(renamed) - Counter(spans_of(cells)[0])
    if lost:
        tally.note(
            "entities of one label that cross changed: joined tags cannot tell them apart",
            place,
            lost.total(),
        )
    return [cells]


def layered(spans: Sequence[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """The spans in as few layers without overlap as going from left to right and outside to inside gives.

    >>> layered([(0, 1, "A"), (0, 4, "B"), (1, 3, "C"), (4, 5, "D")])
    [[(0, 4, 'B'), (4, 5, 'D')], [(0, 1, 'A'), (1, 3, 'C')]]
    """
    layers: list[list[tuple[int, int, str]]] = [[]]
    free = [0]  # a heap of layers, the outermost first
    busy: list[tuple[int, int]] = []  # a heap of (end, layer), the next to end first
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        while busy and busy[0][0] <= span[0]:
            heappush(free, heappop(busy)[1])
        if not free:
            free.append(len(layers))
            layers.append([])
        layer = heappop(free)
        layers[layer].append(span)
        heappush(busy, (span[1], layer))
    return layers


def tag_row(layer: Sequence[tuple[int, int, str]], length: int, scheme: str) -> Iterator[str]:
    """The tags of one layer, word by word: many layers of a long sentence are never held at once."""
    at = 0
    for start, end, label in layer:
        first, last = ("B", "I") if scheme == "iob2" else ("S" if end - start == 1 else "B", "E")
        yield from itertools.repeat("O", start - at)
        yield f"{first}-{label}"
        yield from itertools.repeat(f"I-{label}", end - start - 2)
        if end - start > 1:
            yield f"{last}-{label}"
        at = end
    yield from itertools.repeat("O", length - at)


def safe_label(label: str, joined: bool, tally: ConversionReport, place: str) -> str:
    parts = label.split("|") if joined else BETWEEN_TAGS.split(label)
    if len(parts) > 1:
        tally.note("labels changed: columns has no place for | in them", place)
    return plain("_".join(parts), "labels", tally, place)


def plain(text: str, what: str, tally: ConversionReport, place: str) -> str:
    """The text without tabs and line ends."""
    changed = re.sub(r"[\t\r\n]", "_", text)
    if changed != text:
        tally.note(f"{what} changed: columns has no place for tabs and line ends in them", place)
    return changed
