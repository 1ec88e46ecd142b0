"""Data sets of Hugging Face: folders made by `save_to_disk`, folders of parquet files, single parquet or arrow files.

A row is a sentence. Read are
- `tokens` (or `words`) with `entities` (or `ner`): a list of {start, end, label}, in words, ends exclusive. Written
  is this, with the keys of our JSON lines as columns;
- `tokens` with `ner_tags`: IOB2 and its kin, as strings or numbers that the data set has names for; a column
  `nested_ner_tags` is the second layer, and any other columns of tags can be named;
- `text` with `entities`, in characters.

Only Arrow and JSON are read: no scripts, no pickles, nothing from the hub. Parquet is read and written piece by
piece; a folder is mapped into memory, not loaded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nestree.data.formats import jsonl
from nestree.data.formats.columns import is_cell, spans_of
from nestree.data.io import STDIO, ConversionReport, atomic_path, optional_import
from nestree.data.lossiness import report_losses
from nestree.errors import DataError, InputError
from nestree.types import Document, Sentence

AT_ONCE = 1000  # rows
ENDS = ("exclusive", "inclusive")
TAGS = ("ner_tags", "nested_ner_tags")
SPLIT = re.compile(r"(.+?)(?:[-.]\d{5}-of-\d{5}.*)?\.parquet")
NOT_WRITTEN = (
    "further keys of entities",
    "further keys of sentences",
    "further keys of documents",
    "documents without sentences",
)


class Rows(NamedTuple):
    place: str
    features: Any
    batches: Iterator[Any]  # tables of Arrow


def read(
    path: Path,
    tally: ConversionReport,
    *,
    split: str = "",
    tags: str = "",
    names: str = "",
    ends: str = "exclusive",
    words: str = "treebank",
    sentences: str = "rules",
) -> Iterator[Document]:
    """The documents of a data set; rows with the same `doc_id` that follow each other are one.

    split: which one, such as "train"; a folder with several needs it. tags: the columns of tags, such as
    "ner_tags,fine_ner_tags". names: what the numbers in them stand for, such as "O,B-PER,I-PER", if the data set
    does not say it. ends: "exclusive" or "inclusive", for entities. words, sentences: how the text of rows
    without words is split (see nestree.text).
    """
    if ends not in ENDS:
        raise InputError(f"ends is one of {', '.join(ENDS)}, not {ends!r}.")
    optional_import("datasets", "a data set of Hugging Face", "formats")
    group: list[tuple[Sentence, dict[str, Any]]] = []
    for place, row, features in rows(path, split, tally):
        try:
            record = to_record(row, features, tags, names, ends, tally, place)
            if "tokens" not in record:
                document = jsonl.from_text(record, place, words, sentences, tally)
                yield from [jsonl.gathered(group)] if group else []
                group = []
                yield document
                continue
            sentence = to_sentence(record, tally, place)
        except DataError as error:
            tally.bad(error)
            continue
        if group and not jsonl.continues(record, group[-1][1]):
            yield jsonl.gathered(group)
            group = []
        group.append((sentence, record))
    if group:
        yield jsonl.gathered(group)


def rows(path: Path, split: str, tally: ConversionReport) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each row with its place and the features of its table."""
    number = 0
    try:
        for table in tables(path, split):
            number = 0
            for batch in table.batches:
                batch.validate(full=True)  # what is damaged must not be followed
                for row in batch.to_pylist():
                    number += 1
                    yield f"{table.place}, row {number}", row, table.features
    except InputError:
        raise
    except Exception as why:  # whatever Arrow and the library make of files that are no data sets
        tally.bad(
            DataError(
                f"{path}: this is no data set that can be read, after {number} rows: {type(why).__name__}: "
                f"{' '.join(str(why).split()):.100}. It may be cut off, or something else."
            )
        )


def tables(path: Path, split: str) -> Iterator[Rows]:
    """The tables of a file or a folder that belong to a split."""
    if path == STDIO:
        raise DataError("a data set cannot come from standard input. Give the name of a file or folder.")
    if not path.exists():
        raise DataError(f"{path} does not exist. Check the name and the directory.")
    if path.is_file():
        yield of_parquet(path) if path.suffix == ".parquet" else of_arrow(path)
        return
    found = splits(path)
    if not found:
        raise DataError(
            f"{path} holds no data set: no dataset_dict.json, state.json or parquet file. Make it with save_to_disk."
        )
    if not split and len(found) > 1:
        raise DataError(
            f"{path} holds several splits: {', '.join(found)}. Choose one with the option `split`, or split=all."
        )
    if split not in ("", "all", *found):
        raise DataError(f"{path} holds no split {split!r}. There are: {', '.join(found)}.")
    for name, files in found.items():
        if split in ("", "all", name):
            for file in files:
                yield of_folder(file) if file.is_dir() else of_parquet(file)


def splits(path: Path) -> dict[str, list[Path]]:
    """The folders or the parquet files of each split."""
    if (path / "state.json").exists():
        return {path.name: [path]}
    inside = sorted(folder for folder in path.iterdir() if (folder / "state.json").exists())
    if (path / "dataset_dict.json").exists() or inside:
        return {folder.name: [folder] for folder in inside}
    found: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*.parquet")):
        name = SPLIT.fullmatch(file.name)
        found.setdefault(name[1] if name else file.stem, []).append(file)
    return found


def of_folder(path: Path) -> Rows:
    if not json.loads((path / "state.json").read_text(encoding="utf-8"))["_data_files"]:
        return Rows(str(path), {}, iter(()))  # without rows, which the library saves and cannot load
    data = optional_import("datasets", "a data set of Hugging Face", "formats").load_from_disk(str(path))
    return Rows(str(path), data.features, data.with_format("arrow").iter(AT_ONCE))


def of_parquet(path: Path) -> Rows:
    datasets, parquet = (
        optional_import(name, "parquet", "formats") for name in ("datasets", "pyarrow.parquet")
    )
    file = parquet.ParquetFile(path)
    return Rows(str(path), datasets.Features.from_arrow_schema(file.schema_arrow), file.iter_batches(AT_ONCE))


def of_arrow(path: Path) -> Rows:
    datasets, arrow = (optional_import(name, "arrow", "formats") for name in ("datasets", "pyarrow"))
    with open(path, "rb") as file:
        table = arrow.ipc.open_file if file.read(6) == b"ARROW1" else arrow.ipc.open_stream
    found = table(arrow.memory_map(str(path))).read_all()
    return Rows(str(path), datasets.Features.from_arrow_schema(found.schema), iter(found.to_batches(AT_ONCE)))


def to_record(
    row: dict[str, Any], features: Any, tags: str, names: str, ends: str, tally: ConversionReport, place: str
) -> dict[str, Any]:
    """The row as a line of our JSON lines."""
    record = {key: value for key, value in row.items() if value is not None}
    if "tokens" not in record and "words" in record:
        record["tokens"] = record.pop("words")
    if "sent_id" not in record and "doc_id" not in record and "id" in record:
        record["sent_id"] = record.pop("id")
    held = next((key for key in ("entities", "ner") if key in record and not tags), None)
    if held:
        record["entities"] = [entity(value, ends, place) for value in listed(record.pop(held), place)]
        return record
    chosen = [name.strip() for name in tags.split(",")] if tags else [name for name in TAGS if name in record]
    if "tokens" not in record or not chosen or any(name not in record for name in chosen):
        raise DataError(
            f"{place}: {', '.join(tags.split(',')) or 'entities or ner_tags'} with tokens or a text are needed, and "
            f"the columns are {', '.join(record)[:80]}. Columns of tags can be named with the option `tags`."
        )
    record["entities"] = []
    for column in chosen:
        cells = tags_of(record.pop(column), column, features, names, place)
        if len(cells) != len(record["tokens"]):
            raise DataError(f"{place}: {len(record['tokens'])} tokens have {len(cells)} {column}.")
        spans, strays = spans_of(cells)
        record["entities"] += [{"start": i, "end": j, "label": label} for i, j, label in spans]
        if strays:
            tally.note("tags that continue no entity: taken as the beginning of one", place, len(strays))
    record["entities"].sort(key=lambda found: (found["start"], -found["end"]))
    return record


def listed(value: Any, place: str) -> list[dict[str, Any]]:
    """Objects; a list of objects may also be kept as an object of lists."""
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        value = [dict(zip(value, found, strict=False)) for found in zip(*value.values(), strict=False)]
    if not isinstance(value, list) or not all(isinstance(found, dict) for found in value):
        raise DataError(f"{place}: entities must be a list of start, end and label, and are {value!r:.60}.")
    return value


def entity(value: dict[str, Any], ends: str, place: str) -> dict[str, Any]:
    found = {key: field for key, field in value.items() if field is not None and field != []}
    for other in ("type", "entity_type"):
        if "label" not in found and other in found:
            found["label"] = found.pop(other)
    if ends == "inclusive" and type(found.get("end")) is int:
        found["end"] += 1
    return found


def tags_of(cells: Any, column: str, features: Any, names: str, place: str) -> list[str]:
    """The tags of a sentence; numbers are looked up."""
    if not isinstance(cells, list):
        raise DataError(f"{place}: {column} must be a list, one tag for each word, and is {cells!r:.40}.")
    known = (
        names.split(",") if names else getattr(getattr(features.get(column), "feature", None), "names", None)
    )
    found = []
    for cell in cells:
        if type(cell) is int:
            if known is None:
                raise DataError(
                    f"{place}: {column} holds numbers, and nothing says what they stand for. Give the option `names`, "
                    "such as O,B-PER,I-PER."
                )
            if not 0 <= cell < len(known):
                raise DataError(f"{place}: {column} holds {cell}, and there are only {len(known)} names.")
            cell = known[cell]
        if not isinstance(cell, str) or not is_cell(cell):
            raise DataError(f"{place}: {cell!r:.40} in {column} is no tag such as B-PER, I-PER or O.")
        found.append(cell)
    return found


def to_sentence(record: dict[str, Any], tally: ConversionReport, place: str) -> Sentence:
    """The sentence; a text in which its words cannot be found is left out."""
    if "text" not in record or "offsets" in record:
        return jsonl.from_record(record, place)
    try:
        return jsonl.from_record(record, place)
    except DataError:
        del record["text"]
        sentence = jsonl.from_record(record, place)
        tally.note("texts not kept: the words do not follow each other in them", place)
        return sentence


def write(documents: Iterable[Document], path: Path, tally: ConversionReport) -> None:
    """A folder as `save_to_disk` makes it or, if its name ends so, a parquet file."""
    arrow, parquet = (optional_import(name, "parquet", "formats") for name in ("pyarrow", "pyarrow.parquet"))
    datasets = optional_import("datasets", "a data set of Hugging Face", "formats")
    features = columns(datasets)
    schema = features.arrow_schema
    with atomic_path(path) as target:
        if path.suffix == ".parquet":
            with parquet.ParquetWriter(target, schema) as file:
                for batch in batches(documents, tally):
                    file.write_table(arrow.Table.from_pylist(batch, schema))
            return
        raw = target.with_name("rows.arrow")
        with arrow.ipc.new_stream(str(raw), schema) as file:
            for batch in batches(documents, tally):
                file.write_table(arrow.Table.from_pylist(batch, schema))
        with quiet(datasets):
            datasets.Dataset.from_file(str(raw)).save_to_disk(str(target))


def columns(datasets: Any) -> Any:
    value, many = datasets.Value, datasets.List
    entity = {
        "start": value("int32"),
        "end": value("int32"),
        "label": value("string"),
        "head": value("int32"),
    }
    entity |= {"heads": many(value("int32")), "score": value("float64")}
    found = {"tokens": many(value("string")), "entities": many(entity)}
    found |= {name: value("string") for name in ("doc_id", "sent_id", "text", "before", "after")}
    found |= {"offsets": many(many(value("int32"))), "complete": value("bool"), "continues": value("bool")}
    return datasets.Features(found)


def batches(documents: Iterable[Document], tally: ConversionReport) -> Iterator[list[dict[str, Any]]]:
    """Rows, many at once."""
    found: list[dict[str, Any]] = []
    for number, document in enumerate(documents, 1):
        report_losses(document, "datasets", NOT_WRITTEN, tally, document.id or f"document {number}")
        for k, (_, record) in enumerate(jsonl.records(document)):
            found.append({"complete": True, **record, "continues": k > 0})
        if len(found) >= AT_ONCE:
            yield found
            found = []
    if found:
        yield found


@contextmanager
def quiet(datasets: Any) -> Iterator[None]:
    """Within this, the library draws no progress bars."""
    drawn = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not drawn:
            datasets.enable_progress_bars()
