"""Data sets of Hugging Face: folders made by `save_to_disk` or of parquet files; single parquet, arrow or JSON files.

A row is a sentence. These columns are read:
- `tokens` (or `words`) with `entities` (or `ner`): a list of {start, end, label}, in words, ends exclusive. It is
  also written so, with the keys of our JSON lines as columns;
- `tokens` with `ner_tags`: IOB2 and similar schemes, as strings or numbers that the data set has names for; a column
  `nested_ner_tags` is the second layer, and any other columns of tags can be named;
- `text` with `entities`, in characters.

Only Arrow and JSON are read: no scripts, no pickles, nothing from the hub. Parquet is read and written in batches of
rows; a folder is mapped into memory, not loaded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nestree.data.alignment import AnnotatedText
from nestree.data.formats import common, jsonl
from nestree.data.formats.columns import decode_tags, is_cell
from nestree.data.formats.common import Record
from nestree.data.io import STDIO, ConversionReport, atomic_path, json_records, list_files, optional_import
from nestree.errors import DataError, InputError
from nestree.types import Document, Sentence

BATCH_ROWS = 1000
TAG_COLUMNS = ("ner_tags", "nested_ner_tags")
JSON_SUFFIXES = {".json", ".jsonl"}
PARQUET_NAME = re.compile(r"(.+?)(?:[-.]\d{5}-of-\d{5}.*)?\.parquet")


def read_datasets(
    path: Path,
    report: ConversionReport,
    *,
    split: str = "",
    tags: str = "",
    names: str = "",
    ends: common.Ends = "exclusive",
) -> Iterator[Document | AnnotatedText]:
    """The documents of a data set; rows with the same `doc_id` that follow each other are one.

    split: which one, such as "train"; a folder with several needs it. tags: the columns of tags, such as
    "ner_tags,fine_ner_tags". names: what the numbers in them stand for, such as "O,B-PER,I-PER", if the data set
    does not say it. ends: "exclusive" or "inclusive", for entities.
    """

    def parse_rows() -> Iterator[common.Item]:
        is_json = not JSON_SUFFIXES.isdisjoint(path.suffixes)
        json_rows: Iterator[tuple[str, Record, Any]] = ((place, row, {}) for place, row in json_records(path, report))
        for place, row, features in json_rows if is_json else read_rows(path, split, report):
            with common.skip_bad(report, place):
                record = to_record(row, features, tags, names, ends, report)
                if "tokens" in record:
                    yield parse_sentence(record, report), record
                else:
                    yield jsonl.parse_text(record, report)

    yield from common.group_sentences(parse_rows(), report)


def read_rows(path: Path, split: str, report: ConversionReport) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Each row with its place and the features of its table."""
    optional_import("datasets", "a data set of Hugging Face", "formats")
    number = 0
    try:
        for file in find_tables(path, split):
            number = 0
            features, batches = open_table(file)
            for batch in batches:
                batch.validate(full=True)  # following damaged offsets would read outside of the buffers
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row, features
    except InputError:
        raise
    except Exception as why:  # whatever Arrow and the library make of files that are no data sets
        report.bad(
            DataError(
                f"{path}: this is not a data set that can be read, after {number} rows: {type(why).__name__}: "
                f"{' '.join(str(why).split()):.100}. It may be cut off, or something else."
            )
        )


def find_tables(path: Path, split: str) -> list[Path]:
    """The file itself, or the files and folders in a folder that belong to a split."""
    if path == STDIO:
        raise DataError("a data set cannot come from standard input. Give the name of a file or folder.")
    if path.is_file():
        return [path]
    splits = find_splits(path)
    if not splits:
        raise DataError(
            f"{path} holds no data set: no dataset_dict.json, state.json or parquet file. Make it with save_to_disk."
        )
    if not split and len(splits) > 1:
        raise DataError(
            f"{path} holds several splits: {', '.join(splits)}. Choose one with the option `split`, or split=all."
        )
    if split not in ("", "all", *splits):
        raise DataError(f"{path} holds no split {split!r}. There are: {', '.join(splits)}.")
    return [file for name, files in splits.items() if split in ("", "all", name) for file in files]


def find_splits(path: Path) -> dict[str, list[Path]]:
    """The folders or the parquet files of each split."""
    if (path / "state.json").exists():
        return {path.name: [path]}
    folders = sorted(folder for folder in path.iterdir() if (folder / "state.json").exists())
    if (path / "dataset_dict.json").exists() or folders:
        return {folder.name: [folder] for folder in folders}
    splits: dict[str, list[Path]] = {}
    for file in [file for file in list_files(path) if file.suffix == ".parquet"]:
        name = PARQUET_NAME.fullmatch(file.name)
        splits.setdefault(name[1] if name else file.stem, []).append(file)
    return splits


def open_table(path: Path) -> tuple[Any, Iterator[Any]]:
    """The features and the batches of Arrow of a folder of `save_to_disk`, a parquet file or an arrow file."""
    datasets = optional_import("datasets", "a data set of Hugging Face", "formats")
    if path.is_dir():
        if not json.loads((path / "state.json").read_text(encoding="utf-8"))["_data_files"]:
            return {}, iter(())  # without rows, which the library saves and cannot load
        data = datasets.load_from_disk(str(path))
        return data.features, data.with_format("arrow").iter(BATCH_ROWS)
    if path.suffix == ".parquet":
        parquet = optional_import("pyarrow.parquet", "parquet", "formats").ParquetFile(path)
        schema, batches = parquet.schema_arrow, parquet.iter_batches(BATCH_ROWS)
    else:
        arrow = optional_import("pyarrow", "arrow", "formats")
        with open(path, "rb") as file:
            open_arrow = arrow.ipc.open_file if file.read(6) == b"ARROW1" else arrow.ipc.open_stream
        table = open_arrow(arrow.memory_map(str(path))).read_all()
        schema, batches = table.schema, iter(table.to_batches(BATCH_ROWS))
    return datasets.Features.from_arrow_schema(schema), batches


def to_record(row: dict[str, Any], features: Any, tags: str, names: str, ends: str, report: ConversionReport) -> Record:
    """The row as a line of our JSON lines."""
    record = {key: value for key, value in row.items() if value is not None}
    if "tokens" not in record and "words" in record:
        record["tokens"] = record.pop("words")
    if "sent_id" not in record and "doc_id" not in record and "id" in record:
        record["sent_id"] = record.pop("id")
    for key in ("entities", "ner"):
        if key in record and not tags:
            record["entities"] = list(to_entity_records(record.pop(key), ends))
            return record
    columns = [name.strip() for name in tags.split(",") if tags] or [k for k in TAG_COLUMNS if k in record]
    if "tokens" not in record or not columns or any(column not in record for column in columns):
        raise DataError(
            f"{', '.join(tags.split(',')) or 'entities or ner_tags'} with tokens or a text are needed, and the columns "
            f"are {', '.join(record)[:80]}. Columns of tags can be named with the option `tags`."
        )
    record["entities"] = []
    for column in columns:
        cells = parse_tags(record.pop(column), column, features, names)
        if len(cells) != (length := len(common.require(record, "tokens", list, []))):
            raise DataError(f"{length} tokens have {len(cells)} {column}.")
        spans, strays = decode_tags(cells)
        record["entities"] += [{"start": i, "end": j, "label": label} for i, j, label in spans]
        if strays:
            report.note(common.STRAY_TAGS, times=len(strays))
    record["entities"].sort(key=lambda entity: (entity["start"], -entity["end"]))
    return record


def to_entity_records(value: Any, ends: str) -> Iterator[dict[str, Any]]:
    """Entities with the keys of our JSON lines. A list of objects may also be stored as an object of lists."""
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        value = [dict(zip(value, fields, strict=False)) for fields in zip(*value.values(), strict=False)]
    if not common.is_list_of(value, dict):
        raise DataError(f"entities must be a list of start, end and label, and are {value!r:.60}.")
    for fields in value:
        entity = {key: field for key, field in fields.items() if field is not None and field != []}
        for key in ("type", "entity_type"):
            if "label" not in entity and key in entity:
                entity["label"] = entity.pop(key)
        if ends == "inclusive" and type(entity.get("end")) is int:
            entity["end"] += 1
        yield entity


def parse_tags(cells: Any, column: str, features: Any, names: str) -> list[str]:
    """The tags of a sentence; numbers are replaced by their names."""
    if not isinstance(cells, list):
        raise DataError(f"{column} must be a list, one tag for each word, and is {cells!r:.40}.")
    stored_names = getattr(getattr(features.get(column), "feature", None), "names", None)
    known = names.split(",") if names else stored_names
    tags = []
    for cell in cells:
        if type(cell) is int:
            if known is None:
                raise DataError(
                    f"{column} holds numbers, and nothing says what they stand for. Give the option `names`, such as "
                    "O,B-PER,I-PER."
                )
            if not 0 <= cell < len(known):
                raise DataError(f"{column} holds {cell}, and there are only {len(known)} names.")
            cell = known[cell]
        if not isinstance(cell, str) or not is_cell(cell):
            raise DataError(f"{cell!r:.40} in {column} is not a tag such as B-PER, I-PER or O.")
        tags.append(cell)
    return tags


def parse_sentence(record: Record, report: ConversionReport) -> Sentence:
    """The sentence of a row; a text without offsets in which the words do not follow each other is left out."""
    try:
        return jsonl.parse_sentence(record)
    except DataError:
        if "text" not in record or "offsets" in record:
            raise
        del record["text"]
        sentence = jsonl.parse_sentence(record)
        report.note(common.TEXT_NOT_KEPT)
        return sentence


def write_datasets(documents: Iterable[Document], path: Path, report: ConversionReport) -> None:
    """A folder as `save_to_disk` makes it or, if its name ends so, a parquet file."""
    arrow, parquet = (optional_import(name, "parquet", "formats") for name in ("pyarrow", "pyarrow.parquet"))
    datasets = optional_import("datasets", "a data set of Hugging Face", "formats")
    integer, string, many = datasets.Value("int32"), datasets.Value("string"), datasets.List
    entity = {"start": integer, "end": integer, "label": string, "head": integer}
    entity |= {"heads": many(integer), "score": datasets.Value("float64")}
    columns = {"tokens": many(string), "entities": many(entity)}
    columns |= dict.fromkeys(("doc_id", "sent_id", "text", "before", "after"), string)
    columns |= {"offsets": many(many(integer))}
    columns |= dict.fromkeys(("complete", "continues"), datasets.Value("bool"))
    schema = datasets.Features(columns).arrow_schema
    rows = (
        {"complete": True, **record, "continues": number > 0}
        for document in common.report_dropped(documents, "datasets", report)
        for number, (_, record) in enumerate(jsonl.sentence_records(document))
    )
    chunks = iter(lambda: list(islice(rows, BATCH_ROWS)), [])
    batches = (arrow.Table.from_pylist(chunk, schema) for chunk in chunks)
    with atomic_path(path) as target:
        if path.suffix == ".parquet":
            with parquet.ParquetWriter(target, schema) as file:
                for batch in batches:
                    file.write_table(batch)
            return
        raw = target.with_name("rows.arrow")
        with arrow.ipc.new_stream(str(raw), schema) as file:
            for batch in batches:
                file.write_table(batch)
        were_disabled = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            datasets.Dataset.from_file(str(raw)).save_to_disk(str(target))
        finally:
            if not were_disabled:
                datasets.enable_progress_bars()
