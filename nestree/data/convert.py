"""Conversion from one format to another, with a report of what was read, written, changed and left out."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestree.data.formats import detect_format, read, write
from nestree.data.io import ConversionReport

log = logging.getLogger(__name__)
SHOWN_PLACES = 2  # of each change


@dataclass
class Conversion:
    """The result of a conversion, with a report for each side."""

    source: Path
    source_format: str
    target: Path
    target_format: str
    reading: ConversionReport = field(default_factory=ConversionReport)
    writing: ConversionReport = field(default_factory=ConversionReport)

    def _sides(self) -> list[tuple[str, Path, str, ConversionReport]]:
        return [
            ("read", self.source, self.source_format, self.reading),
            ("written", self.target, self.target_format, self.writing),
        ]

    def as_text(self) -> str:
        """The sizes of both sides, then a line for each change, with its first places."""
        lines = []
        for verb, path, format, report in self._sides():
            sizes = [
                f"{report.documents:,} document{'s' * (report.documents != 1)}",
                f"{report.sentences:,} sentence{'s' * (report.sentences != 1)}",
                f"{report.entities:,} entit{'y' if report.entities == 1 else 'ies'}",
            ]
            preposition = "from" if verb == "read" else "to"
            lines.append(f"{verb:<8} {', '.join(sizes)} {preposition} {path} ({format})")
        return "\n".join([*lines, *conversion_summary(self.reading, self.writing)])

    def as_json(self) -> dict[str, Any]:
        return {
            verb: {
                "path": str(path),
                "format": format,
                "documents": report.documents,
                "sentences": report.sentences,
                "entities": report.entities,
                "changes": [
                    {"what": what, "times": times, "places": report.places[what]}
                    for what, times in report.counts.items()
                ],
                "skipped": report.skipped,
            }
            for verb, path, format, report in self._sides()
        }


def conversion_summary(*reports: ConversionReport) -> list[str]:
    """A line for each change to the data, and for each record that was skipped."""
    lines = []
    for report in reports:
        for what, times in report.counts.items():
            places = report.places[what]
            dots = ", ..." if len(places) > SHOWN_PLACES else ""
            lines.append(f"{times:7,}  {what} ({', '.join(places[:SHOWN_PLACES])}{dots})")
    if skipped := [error for report in reports for error in report.skipped]:
        lines.append(f"{len(skipped):7,}  skipped:")
        lines += [f"         {error}" for error in skipped]
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
    conversion = Conversion(
        source,
        source_format or detect_format(source),
        target,
        target_format or detect_format(target, to_write=True),
        ConversionReport(skip_bad),
        ConversionReport(skip_bad),
    )
    log.info("%s is read as %s, options %s", source, conversion.source_format, read_options or "as usual")
    log.info("%s is written as %s, options %s", target, conversion.target_format, write_options or "as usual")
    documents = read(source, conversion.source_format, conversion.reading, **(read_options or {}))
    write(
        conversion.writing.count(documents),
        target,
        conversion.target_format,
        conversion.writing,
        **(write_options or {}),
    )
    return conversion
