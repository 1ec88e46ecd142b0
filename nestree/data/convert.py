"""From one format to another, with an account of what was read, written, changed and left out."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nestree.data.formats import detect_format, read, write
from nestree.data.io import ConversionReport

log = logging.getLogger(__name__)
PLACES = 2  # of each thing that was done are shown


@dataclass
class Conversion:
    """What became of the data: one tally for each side."""

    source: Path
    source_format: str
    target: Path
    target_format: str
    reading: ConversionReport = field(default_factory=ConversionReport)
    writing: ConversionReport = field(default_factory=ConversionReport)

    def as_text(self) -> str:
        """Line by line what was done, with the first places of each thing."""
        lines = [
            f"read     {sizes(self.reading)} from {self.source} ({self.source_format})",
            f"written  {sizes(self.writing)} to {self.target} ({self.target_format})",
        ]
        return "\n".join([*lines, *conversion_summary(self.reading, self.writing)])

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "read": side(self.source, self.source_format, self.reading),
            "written": side(self.target, self.target_format, self.writing),
        }


def conversion_summary(*tallies: ConversionReport) -> list[str]:
    """What was done to the data, and what was skipped, a line each."""
    lines = []
    for tally in tallies:
        for what, times in tally.counts.items():
            places = tally.places[what]
            dots = ", ..." if len(places) > PLACES else ""
            lines.append(f"{times:7,}  {what} ({', '.join(places[:PLACES])}{dots})")
    skipped = [error for tally in tallies for error in tally.skipped]
    if skipped:
        lines.append(f"{len(skipped):7,}  skipped:")
        lines += [f"         {error}" for error in skipped]
    return lines


def sizes(tally: ConversionReport) -> str:
    named = {"document": tally.documents, "sentence": tally.sentences}
    counted = [f"{n:,} {what}{'s' * (n != 1)}" for what, n in named.items()]
    return ", ".join([*counted, f"{tally.entities:,} entit{'y' if tally.entities == 1 else 'ies'}"])


def side(path: Path, format: str, tally: ConversionReport) -> dict[str, Any]:
    return {
        "path": str(path),
        "format": format,
        "documents": tally.documents,
        "sentences": tally.sentences,
        "entities": tally.entities,
        "changes": [
            {"what": what, "times": times, "places": tally.places[what]}
            for what, times in tally.counts.items()
        ],
        "skipped": tally.skipped,
    }


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
    """Read a file or folder and write it in another format, whole or not at all.

    A format that is not named is guessed. `skip_bad`: go on after what cannot be read, and list it.
    """
    done = Conversion(
        source,
        source_format or detect_format(source),
        target,
        target_format or detect_format(target, to_write=True),
        ConversionReport(skip_bad),
        ConversionReport(skip_bad),
    )
    log.info("%s is read as %s, options %s", source, done.source_format, read_options or "as usual")
    log.info("%s is written as %s, options %s", target, done.target_format, write_options or "as usual")
    documents = read(source, done.source_format, done.reading, **(read_options or {}))
    counted = done.writing.counted(documents)
    write(counted, target, done.target_format, done.writing, **(write_options or {}))
    return done
