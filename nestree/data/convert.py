"""Conversion from one format to another, with a report of what was read, written, changed and left out."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nestree.data.formats import detect_format, detect_output_format, read, write
from nestree.data.formats.common import WITHOUT_TEXT
from nestree.data.io import ConversionReport, check_output_is_not_input, list_files, real_path
from nestree.errors import escape_newlines, plural

log = logging.getLogger(__name__)
SHOWN_PLACES = 2  # of each change


@dataclass
class Conversion:
    """The result of a conversion, with a report for each side."""

    source: Path
    source_format: str
    target: Path
    target_format: str
    reading: ConversionReport
    writing: ConversionReport

    def as_json(self) -> dict[str, Any]:
        """The sizes and changes of both sides. Documents are counted as the files have them."""
        documents = self.reading.documents - self.reading.bare_sentences
        has_documents = self.target_format not in WITHOUT_TEXT
        written = max(0, documents - self.writing.unwritten_documents) if has_documents else 0
        sides = {
            "read": (self.source, self.source_format, documents, self.reading),
            "written": (self.target, self.target_format, written, self.writing),
        }
        return {
            verb: {
                "path": str(path),
                "format": format,
                "documents": count,
                "sentences": report.sentences - report.unwritten_sentences,
                "entities": report.entities,
                "changes": [
                    {"what": what, "times": times, "places": report.places[what]}
                    for what, times in report.counts.items()
                ],
                "skipped": report.skipped,
            }
            for verb, (path, format, count, report) in sides.items()
        }

    def as_text(self) -> str:
        """The sizes of both sides, then a line for each change, with its first places."""
        lines = []
        for verb, side in self.as_json().items():
            nouns = {"documents": "document"} if side["documents"] else {}
            nouns |= {"sentences": "sentence", "entities": "entity"}
            sizes = [plural(side[key], noun) for key, noun in nouns.items()]
            preposition = "from" if verb == "read" else "to"
            lines.append(f"{verb:<8} {', '.join(sizes)} {preposition} {side['path']} ({side['format']})")
        return "\n".join([*lines, *conversion_summary(self.reading, self.writing)])


def conversion_summary(*reports: ConversionReport) -> list[str]:
    """A line for each change to the data, and for each record that was skipped."""
    lines = []
    for report in reports:
        for what, times in report.counts.items():
            places = report.places[what]
            dots = ", ..." if len(places) > SHOWN_PLACES else ""
            lines.append(escape_newlines(f"{times:7,}  {what} ({', '.join(places[:SHOWN_PLACES])}{dots})"))
    if skipped := [error for report in reports for error in report.skipped]:
        lines.append(f"{len(skipped):7,}  skipped:")
        lines += [escape_newlines(f"         {error}") for error in skipped]
    return lines


def convert(
    source: Path,
    target: Path,
    source_format: str | None = None,
    target_format: str | None = None,
    *,
    skip_bad: bool = False,
    read_options: Mapping[str, Any] | None = None,
    write_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Read a file or folder and write all of it, or nothing, in another format.

    Formats are detected unless they are named. `skip_bad`: skip and list invalid records.
    """
    same_name = (file for file in list_files(source) if file.name == real_path(target).name)
    check_output_is_not_input(target, [source, *same_name])
    source_format = source_format or detect_format(source)
    target_format = target_format or detect_output_format(target)
    reading, writing = ConversionReport(skip_bad), ConversionReport(skip_bad)
    log.info("%s is read as %s, options %s", source, source_format, read_options or "as usual")
    log.info("%s is written as %s, options %s", target, target_format, write_options or "as usual")
    documents = read(source, source_format, reading, **(read_options or {}))
    write(writing.count(documents), target, target_format, writing, **(write_options or {}))
    return Conversion(source, source_format, target, target_format, reading, writing)
