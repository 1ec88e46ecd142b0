"""One word a line and its tags in columns after it: IOB2 (also called BIO), IOB1, BIOES, BILOU. A blank line ends a
sentence. Nested entities stand in columns of their own, one per layer, or together in one cell:

    the     B-ORG  O                the     B-ORG
    bank    I-ORG  O                bank    I-ORG
    of      I-ORG  O                of      I-ORG
    Rome    I-ORG  B-GPE            Rome    I-ORG|B-GPE

Columns are separated by a tab or, in a line without any, by spaces. Where a line has fewer tags than others of its
sentence, the missing ones are O.

GUM, and other CoNLL-U with `Entity=` in its last column:

    # global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
    1  Emperor  ...  Entity=(1-person-new-sssss-cf1-1,2-coref-Emperor_Norton
    2  Norton   ...  Entity=1)

The head of an entity comes from the tree: the word of its span, punctuation aside, whose own head lies outside. If
several do, `head` is None and `heads` has all of them. Sentences keep their tree in `extra` (`dep_heads` with -1 for
the root, `deprel`, `upos`), entities `min`, `infstat`, `named` and `identity`.
"""

import itertools
import re
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nestree.data.alignment import FRAGMENTS_JOINED, AnnotatedText
from nestree.data.formats import common
from nestree.data.formats.common import Item, group_sentences
from nestree.data.io import ConversionReport, check_nesting, optional_import
from nestree.errors import DataError, InputError
from nestree.types import Document, Entity, Sentence

LabelledSpan = tuple[int, int, str]
TAG = re.compile(r"([BIESLUM])-(.+)", re.DOTALL)
BETWEEN_TAGS = re.compile(r"\|(?=[BIESLUM]-|O\Z|O\|)")
OUTSIDE = ("O", "")
NEW_DOCUMENT = "-DOCSTART-"
MAX_TAG_LIKE_WORDS = 0.9  # if more of the words look like tags, the column is probably wrong


def read_columns(
    path: Path, report: ConversionReport, *, word: int = 1, tags: str = ""
) -> Iterator[Document | AnnotatedText]:
    """The sentences of a file, each a document; in a file with -DOCSTART- lines, the documents between these.

    word: the column of the words, from 1. tags: the columns of the tags, such as "4" or "3,4"; if it is not
    given, all columns after the word.
    """
    try:
        tag_columns = [int(number) - 1 for number in tags.split(",")] if tags else []
    except ValueError:
        tag_columns = [-1]
    if word < 1 or any(column < 0 for column in tag_columns):
        raise InputError(f"columns are counted from 1, such as word 2 and tags 3,4; not word {word}, tags {tags!r}.")

    def parse_sentences() -> Iterator[Item]:
        continues: bool | None = None  # None: there was no -DOCSTART- line yet
        word_count = tag_like = 0
        for numbers, words, layers in parse_blocks(path, word, tag_columns, report):
            if words == [NEW_DOCUMENT]:
                continues = False
                continue
            word_count += len(words)
            tag_like += sum(is_cell(word) for word in words)
            entities: list[Entity] = []
            for layer in layers:
                spans, strays = decode_tags(layer)
                entities += [Entity(*span) for span in spans]
                for k in strays:
                    report.note(common.STRAY_TAGS, f"{path}:{numbers[k]}")
            entities.sort(key=lambda entity: (entity.start, -entity.end))
            report.bare_sentences += continues is None
            yield Sentence(tuple(words), tuple(entities)), {"continues": bool(continues)}
            continues = None if continues is None else True
        if tag_like > MAX_TAG_LIKE_WORDS * word_count:
            if word > 1 or tag_columns:
                raise DataError(
                    f"{path}: {tag_like:,} of {word_count:,} words look like tags such as O and B-PER, so column "
                    f"{word} does not hold the words. Name the one that does, such as --read "
                    f"word={1 if word > 1 else 2}."
                )
            # No column is left for words.
            report.note("words look like tags such as O and B-PER", str(path), tag_like)

    return group_sentences(parse_sentences(), report)


def parse_blocks(
    path: Path, word: int, tag_columns: list[int], report: ConversionReport
) -> Iterator[tuple[list[int], list[str], list[tuple[str, ...]]]]:
    """The line numbers, the words and the columns of tags of each sentence. One with a bad line is skipped."""
    for lines in common.line_blocks(path, report):
        rows = []
        with common.skip_bad(report):
            for number, line in lines:
                place = f"{path}:{number}"
                fields = line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]
                cells = [fields[k] for k in tag_columns if k < len(fields)] if tag_columns else fields[word:]
                wrong_cell = next((cell for cell in cells if not is_cell(cell)), None)
                if line.startswith("#") and (wrong_cell is not None or not cells):
                    report.note("comments not read", place)
                    continue
                if len(fields) < word or not fields[word - 1]:
                    raise DataError(f"{place}: there is no word in column {word}.")
                if not cells or len(cells) < len(tag_columns):
                    raise DataError(
                        f"{place}: there is no tag, only {len(fields)} columns. Expected: word<tab>B-PER or O."
                    )
                if wrong_cell is not None:
                    raise DataError(
                        f"{place}: {wrong_cell!r:.40} is not a tag such as B-PER, I-PER or O. If it stands in another "
                        "column, say which columns hold the word and the tags."
                    )
                rows.append((number, fields[word - 1], cells))
            if rows:
                numbers, words, cell_rows = zip(*rows, strict=True)
                width = max(map(len, cell_rows))
                if min(map(len, cell_rows)) < width:
                    report.note("sentences with fewer tags in some lines: the missing ones read as O", place)
                padded = (cells + ["O"] * (width - len(cells)) for cells in cell_rows)
                yield list(numbers), list(words), list(zip(*padded, strict=True))


def is_cell(cell: str) -> bool:
    return cell in OUTSIDE or all(tag == "O" or TAG.fullmatch(tag) for tag in BETWEEN_TAGS.split(cell))


def decode_tags(cells: Sequence[str]) -> tuple[list[LabelledSpan], list[int]]:
    """The spans of one column, and the words whose tag continues an entity that did not begin.

    Of several open entities with one label, the innermost ends first.

    >>> decode_tags(["B-ORG", "I-ORG|B-ORG", "I-ORG", "I-PER"])
    ([(1, 2, 'ORG'), (0, 3, 'ORG'), (3, 4, 'PER')], [3])
    """
    spans: list[LabelledSpan] = []
    strays = []
    open_spans: list[tuple[int, str]] = []  # start and label, the outermost first
    for k, cell in enumerate([*cells, "O"]):
        if cell in OUTSIDE and not open_spans:
            continue
        tags = [] if cell in OUTSIDE else [TAG.fullmatch(tag) for tag in BETWEEN_TAGS.split(cell)]
        by_label: defaultdict[str, deque[int]] = defaultdict(deque)  # open spans without a tag so far
        for place, (_, label) in enumerate(open_spans):
            by_label[label].append(place)
        continued: list[tuple[int, str]] = []
        ending: list[tuple[int, str]] = []
        begun: list[tuple[int, str]] = []
        for kind, label in (match.groups() for match in tags if match):
            if kind in "BSU":
                (begun if kind == "B" else ending).append((k, label))
            elif not by_label[label]:
                strays.append(k)
                (ending if kind in "EL" else begun).append((k, label))
            elif kind in "EL":
                ending.append(open_spans[by_label[label].pop()])
            else:
                continued.append(open_spans[by_label[label].popleft()])
        not_continued = sorted(itertools.chain(*by_label.values()), reverse=True)
        spans += [(open_spans[place][0], k, open_spans[place][1]) for place in not_continued]
        spans += [(start, k + 1, label) for start, label in ending]
        open_spans = sorted(continued, key=lambda span: span[0]) + begun
    return spans, strays


def write_columns(
    documents: Iterable[Document],
    path: Path,
    report: ConversionReport,
    *,
    scheme: Literal["iob2", "bioes"] = "iob2",
    joined: bool = False,
) -> None:
    """One word a line, and a column for each layer that the data needs, the outermost entities in the first.

    scheme: "iob2" or "bioes". joined: one column of tags, such as I-ORG|B-GPE, instead of layers.
    """
    widest = 1
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as rows:
        for document in common.report_dropped(documents, "columns", report):
            for sentence in document.sentences:
                if sentence.words == (NEW_DOCUMENT,):
                    report.note(f"a sentence of the word {NEW_DOCUMENT} alone: read as the boundary of a document")
                layers = encode_tags(sentence, scheme, joined, report)
                widest = max(widest, len(layers))
                words = (clean(word, "words", report) for word in sentence.words)
                for cells in zip(words, *layers, strict=True):
                    rows.write("\t".join(cells) + "\n")
                rows.write("\n")
        rows.seek(0)
        lines = (line.rstrip("\n") for line in rows)
        padded = (line + "\tO" * (widest - line.count("\t")) if line else "" for line in lines)
        common.write_rows(padded, path)


def clean(text: str, kind: str, report: ConversionReport) -> str:
    change = f"{kind} changed: columns has no place for tabs and line ends in them"
    return common.replace_characters(text, r"[\t\r\n]", change, report)


def encode_tags(sentence: Sentence, scheme: str, joined: bool, report: ConversionReport) -> Sequence[Iterable[str]]:
    """The columns of tags of a sentence."""
    spans = []
    for entity in sentence.entities:
        parts = entity.label.split("|") if joined else BETWEEN_TAGS.split(entity.label)
        if len(parts) > 1:
            report.note("labels changed: columns cannot hold | in them")
        spans.append((entity.start, entity.end, clean("_".join(parts), "labels", report)))
    layers = [layer_tags(layer, len(sentence.words), scheme) for layer in assign_layers(spans)]
    if not joined:
        return layers
    cells = ["|".join(tag for tag in tags if tag != "O") or "O" for tags in zip(*layers, strict=True)]
    if lost := Counter(spans) - Counter(decode_tags(cells)[0]):
        change = "entities of one label that cross changed: joined tags cannot tell them apart"
        report.note(change, times=lost.total())
    return [cells]


def assign_layers(spans: Sequence[LabelledSpan]) -> list[list[LabelledSpan]]:
    """The spans in layers without overlap, filled greedily from left to right and outside to inside.

    >>> assign_layers([(0, 1, "A"), (0, 4, "B"), (1, 3, "C"), (4, 5, "D")])
    [[(0, 4, 'B'), (4, 5, 'D')], [(0, 1, 'A'), (1, 3, 'C')]]
    """
    layers: list[list[LabelledSpan]] = [[]]
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        layer = next((layer for layer in layers if not layer or layer[-1][1] <= span[0]), None)
        if layer is None:
            layers.append(layer := [])
        layer.append(span)
    return layers


def layer_tags(layer: Sequence[LabelledSpan], length: int, scheme: str) -> Iterator[str]:
    """The tags of one layer, lazily: the layers of a long sentence are never held at once."""
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


# GUM, CoNLL-U

MASKED = "sentences whose words are underscores: the file withholds the text; restore it with the corpus's own script"
ENTITY_FIELDS = "GRP-etype-infstat-salience-centering-minspan-link-identity"
NEWDOC = re.compile(r"^#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*$", re.M)
BRACKET = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
FRAGMENT = re.compile(r"(.*)\[(\d+)/(\d+)\]")


class ConlluWord(NamedTuple):
    form: str
    upos: str
    head: int  # a word of the sentence, from 0; -1: the root
    deprel: str
    entity: str


def read_gum(path: Path, report: ConversionReport) -> Iterator[Document | AnnotatedText]:
    """The documents of a `.conllu` file, or of a folder (and the folders in it) in the order of their names."""
    for file in common.find_files(path, "*.conllu", "GUM is one such file, or a folder of them."):
        with common.skip_bad(report):
            yield from group_sentences(parse_conllu_file(file, report), report)


def parse_conllu_file(path: Path, report: ConversionReport) -> Iterator[Item]:
    """The sentences of a file. A document goes from one `# newdoc` to the next; without any, each sentence is one."""
    id: str | None = None
    has_newdoc, continues = False, False
    fields = ENTITY_FIELDS.split("-")
    for lines in common.line_blocks(path, report):
        block = "\n".join(line for _, line in lines)
        newdoc = NEWDOC.search(block)  # also of a sentence that cannot be read
        if newdoc or not has_newdoc:
            id, continues, has_newdoc = newdoc and newdoc[1], False, has_newdoc or bool(newdoc)
        with common.skip_bad(report, f"{path}:{lines[0][0]}"):
            metadata, words = parse_conllu(block, report)
            fields = metadata.get("global.Entity", "-".join(fields)).split("-")
            sentence = conllu_to_sentence(metadata, words, fields, report)
            if not "".join(sentence.words).strip("_"):
                report.note(MASKED)
            starts_paragraph = "newpar" in metadata or "newpar id" in metadata
            before = "" if not continues else "\n\n" if starts_paragraph else " "
            yield sentence, {"doc_id": id, "before": before, "continues": continues}
            continues = True


def parse_conllu(block: str, report: ConversionReport) -> tuple[dict[str, str], list[ConlluWord]]:
    """The comments and the words of a sentence; empty nodes are counted, and multi-word tokens are their words."""
    conllu = optional_import("conllu", "CoNLL-U", "formats")
    words: list[ConlluWord] = []
    try:
        (sentence,) = conllu.parse(block + "\n\n")
        for token in sentence:
            if not isinstance(token["id"], int):
                if token["id"][1] == ".":
                    report.note("empty nodes not read")
                continue
            if token["id"] != len(words) + 1:
                raise DataError(f"word {len(words) + 1} of this sentence has the number {token['id']}.")
            misc = token["misc"] if isinstance(token["misc"], dict) else {}
            head = -1 if token["head"] is None else token["head"] - 1
            upos, deprel = token["upos"] or "_", token["deprel"] or "_"
            words.append(ConlluWord(token["form"], upos, head, deprel, misc.get("Entity") or ""))
        columns = ("lemma", "xpos", "feats", "deps")
        if any(token[column] not in (None, "_") for token in sentence for column in columns):
            report.note("lemmas, fine tags, features and enhanced trees not read")
    except DataError:
        raise
    except KeyError:
        raise DataError("this sentence is not CoNLL-U: a word has fewer than ten columns.") from None
    except (conllu.exceptions.ParseException, TypeError, ValueError, IndexError) as why:
        reason = str(why)[:120].removesuffix(".") or type(why).__name__
        raise DataError(f"this sentence is not CoNLL-U: {reason}.") from None
    if not words:
        raise DataError("this sentence has no words.")
    return {key: value or "" for key, value in sentence.metadata.items()}, words


def conllu_to_sentence(
    metadata: dict[str, str], words: list[ConlluWord], fields: list[str], report: ConversionReport
) -> Sentence:
    forms, upos, heads, deprels, _ = zip(*words, strict=True)
    text, offsets = metadata.get("text") or None, None
    if text:
        with suppress(DataError):
            offsets = common.locate_words(forms, text)
        if offsets is None or text[offsets[-1][1] :].strip():
            report.note(common.TEXT_NOT_KEPT)
            text = offsets = None
    entities = parse_gum_entities(words, fields, report)
    trees = {"dep_heads": list(heads), "deprel": list(deprels), "upos": list(upos)}
    return Sentence(forms, tuple(entities), text, offsets, id=metadata.get("sent_id"), extra=trees)


def parse_gum_entities(words: list[ConlluWord], fields: list[str], report: ConversionReport) -> list[Entity]:
    """The entities of a sentence, the outer first."""
    entities: list[Entity] = []
    open_entities: list[tuple[int, list[str]]] = []  # start, values; the first value is the group
    fragment_starts: dict[str, int] = {}
    for k, word in enumerate(words):
        if BRACKET.sub("", word.entity):
            raise DataError(f"word {k + 1} has brackets that cannot be read: Entity={word.entity:.60}.")
        for opened, is_closed, closed in BRACKET.findall(word.entity):
            if opened:
                open_entities.append((k, opened.split("-", len(fields) - 1)))
                check_nesting([(start, k + 1) for start, _ in open_entities], report.place)
            if not (is_closed or closed):
                continue
            group = closed or open_entities[-1][1][0]
            last = max((x for x, (_, values) in enumerate(open_entities) if values[0] == group), default=None)
            if last is None:
                raise DataError(f"word {k + 1} closes entity {group:.40}, which was not opened.")
            start, values = open_entities.pop(last)
            if fragment := FRAGMENT.fullmatch(group):
                name, number, count = fragment.groups()
                start = fragment_starts.setdefault(name, start)
                if number != count:
                    continue
                del fragment_starts[name]
                report.note(FRAGMENTS_JOINED)
            entities.append(gum_to_entity(start, k + 1, dict(zip(fields, values, strict=False)), words))
    if entities and "GRP" in fields:
        report.note("coreference not read")
    if open_entities or fragment_starts:
        group = open_entities[0][1][0] if open_entities else next(iter(fragment_starts))
        raise DataError(f"entity {group:.40} is not closed in this sentence.")
    return sorted(entities, key=lambda entity: (entity.start, -entity.end))


def gum_to_entity(start: int, end: int, values: dict[str, str], words: list[ConlluWord]) -> Entity:
    if not values.get("etype"):
        raise DataError(f"entity {start}-{end} has no type: {'-'.join(values.values()):.60}.")
    heads = [k for k in range(start, end) if words[k].upos != "PUNCT" and not start <= words[k].head < end]
    extra: dict[str, Any] = {"identity": values["identity"]} if "identity" in values else {}
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", values.get("minspan", "")):
        extra["min"] = [start + int(number) - 1 for number in values["minspan"].split(",")]
    if "infstat" in values:
        extra["infstat"] = values["infstat"]
    if "GRP" in values:
        extra["named"] = "identity" in values
    head, several = (heads[0], ()) if len(heads) == 1 else (None, tuple(heads))
    return Entity(start, end, values["etype"], head, None, several, extra)
