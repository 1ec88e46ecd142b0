"""JSON objects one by one, whether a file is a list of them, `[{...}, {...}]`, or has one a line.

A list is not read whole: only as much of it is held as the object at hand needs.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nestree.data.files import STRICT, around, json_value, lines_or_errors
from nestree.data.limits import current, remedy
from nestree.data.tally import Tally
from nestree.errors import DataError

BLANK = " \t\n\r"
Numbered = tuple[int, str | DataError]  # a line, or why it cannot be read


def records(path: Path, tally: Tally) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a file with its place. What is no object goes through `tally.bad`."""
    numbered = lines_or_errors(path)
    found: Iterator[tuple[str, Any]] = iter(())
    for number, line in numbered:
        if isinstance(line, DataError):
            tally.bad(line)
        elif line and not line.isspace():
            rest = itertools.chain([(number, line)], numbered)
            several_lines = line.lstrip()[0] == "[" or line.rstrip()[-1] in "{[,:"
            found = spread(path, number, rest, tally) if several_lines else one_a_line(path, rest, tally)
            break
    for place, value in found:
        if isinstance(value, dict):
            yield place, value
        else:
            tally.bad(DataError(f"{place}: an object {{...}} is meant here, and this is {value!r:.40}."))


def one_a_line(path: Path, rest: Iterator[Numbered], tally: Tally) -> Iterator[tuple[str, Any]]:
    for number, line in rest:
        if isinstance(line, DataError):
            tally.bad(line)
            continue
        if not line or line.isspace():
            continue
        place = f"{path}:{number}"
        try:
            value = json_value(line, place)
        except DataError as error:
            tally.bad(error)
            continue
        yield place, value


def spread(path: Path, first: int, rest: Iterator[Numbered], tally: Tally) -> Iterator[tuple[str, Any]]:
    """The objects of a list, or those that follow each other, each on several lines.

    Once something is wrong, nobody knows where the next object begins: the rest is not read.
    """
    text = Window(path, first, rest)
    try:
        listed = text.take("[")
        for count in itertools.count(1):
            if text.next() is None or (listed and count == 1 and text.next() == "]"):
                break
            place = f"{text.place()}, record {count}"
            yield place, text.value()
            if listed and not text.take(","):
                break
        if listed and not text.take("]"):
            raise DataError(
                f"{text.place()}: a comma or ] is missing{text.ahead()}. The file may be cut off."
            )
        if text.next() is not None:
            raise DataError(f"{text.place()}: the list has ended, and more follows{text.ahead()}.")
    except DataError as error:
        tally.bad(error)


class Window:
    """The part of a JSON file that is looked at: whole lines."""

    def __init__(self, path: Path, first: int, rest: Iterator[Numbered]):
        self.path, self.rest = path, rest
        self.text, self.at = "", 0
        self.line, self.counted = first, 0  # the line of `counted`, a place in `text`
        self.last = first  # the last line that was read

    def more(self, characters: int = 1) -> bool:
        """Further lines, with at least so many characters if there are; what was read before is let go."""
        self.place()
        parts, size = [self.text[self.at :]], 0
        while size < characters and (following := next(self.rest, None)):
            self.last, line = following
            if isinstance(line, DataError):
                raise line
            parts.append(line + "\n")
            size += len(parts[-1])
        self.text, self.at, self.counted = "".join(parts), 0, 0
        return size > 0

    def next(self) -> str | None:
        """The next character that is not blank."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in BLANK:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return None

    def take(self, character: str) -> bool:
        """Go past this character, if it comes next."""
        found = self.next() == character
        self.at += found
        return found

    def value(self) -> Any:
        """The JSON value that comes next."""
        self.next()
        while True:
            try:
                value, end = STRICT.raw_decode(self.text, self.at)
                break
            except json.JSONDecodeError as why:
                held, longest = len(self.text) - self.at, current.get().longest_line
                cut = why.pos >= len(self.text.rstrip())  # no word of JSON goes on in the next line
                if cut and held <= longest and self.more(held):
                    continue  # with twice as much each time
                if cut and held > longest:
                    raise DataError(
                        f"{self.place()}: this object is longer than {longest:,} characters. "
                        + remedy("longest_line")
                    ) from None
                line = self.line_of(why.pos)
                raise DataError(
                    f"{self.path}:{line}: this is not JSON: {why.msg}: {around(self.text, why.pos)}."
                ) from None
            except (ValueError, RecursionError) as why:
                raise DataError(f"{self.place()}: this is not JSON that can be read: {why}.") from None
        if self.text.find("\\u", self.at, end) >= 0:
            json_value(self.text[self.at : end], self.place())  # no half of a pair of surrogates
        self.at = end
        return value

    def line_of(self, at: int) -> int:
        self.place()
        return min(self.last, self.line + self.text.count("\n", self.counted, at))

    def place(self) -> str:
        """The file and the line that was come to."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        return f"{self.path}:{min(self.last, self.line)}"

    def ahead(self) -> str:
        return f" before {self.text[self.at : self.at + 30]!r}" if self.at < len(self.text) else ""


def objects(record: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    """The list of objects under this key; none, if there is no such key."""
    found = record.get(key) or []
    if not isinstance(found, list) or not all(isinstance(value, dict) for value in found):
        raise DataError(f"{place}: `{key}` must be a list of objects, and is {found!r:.60}.")
    return found


def short_regions(record: dict[str, Any]) -> list[str]:
    """The keys of the short export of Label Studio that hold regions: named after the controls.

    >>> short_regions({"text": "Rome", "ner": [{"start": 0, "end": 4, "labels": ["GPE"]}]})
    ['ner']
    """
    return [
        key
        for key, values in record.items()
        if isinstance(values, list)
        and values
        and all(isinstance(value, dict) and value.keys() >= {"start", "end", "labels"} for value in values)
    ]


def probability(score: Any, tally: Tally, place: str) -> float | None:
    """A score, if it is one; any other is counted."""
    if score is None:
        return None
    if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1:
        return float(score)
    tally.note("scores left out: no probability", place)
    return None
