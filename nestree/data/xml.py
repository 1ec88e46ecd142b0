"""XML as a stream of events with their lines. Entity declarations are refused, and nothing is ever fetched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from nestree.data.io import current, open_file, remedy, too_long
from nestree.errors import DataError

AT_ONCE = 2**16  # bytes


class Event(NamedTuple):
    kind: str  # "start", "end" or "text"
    name: str  # of the element; the text itself
    attributes: dict[str, str]
    line: int


class Events:
    """Collects what the parser tells."""

    def __init__(self, path: Path) -> None:
        self.path, self.depth, self.max_depth = path, 0, current.get().max_xml_depth
        self.waiting: list[Event] = []
        self.expat: Any = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > self.max_depth:
            raise DataError(
                f"{self.path}:{self.expat.CurrentLineNumber}: more than {self.max_depth:,} elements stand inside "
                f"each other. {remedy('max_xml_depth')}"
            )
        self.waiting.append(Event("start", name, attributes, self.expat.CurrentLineNumber))

    def end(self, name: str) -> None:
        self.depth -= 1
        self.waiting.append(Event("end", name, {}, self.expat.CurrentLineNumber))

    def data(self, text: str) -> None:
        self.waiting.append(Event("text", text, {}, self.expat.CurrentLineNumber))

    def taken(self) -> list[Event]:
        found, self.waiting = self.waiting, []
        return found


def events(path: Path) -> Iterator[Event]:
    """What an XML file says, piece by piece."""
    target = Events(path)
    parser = XMLParser(target=target, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    target.expat = parser.parser
    try:
        with open_file(path) as file:
            for part in short_lines(file, path):
                parser.feed(part)
                yield from target.taken()
            parser.close()
        yield from target.taken()
    except ParseError as why:
        line, column = why.position
        raise DataError(
            f"{path}:{line}: this is not well-formed XML, column {column + 1}: {str(why).partition(':')[0]}."
        ) from None
    except DefusedXmlException:
        raise DataError(
            f"{path}:{parser.parser.CurrentLineNumber}: this XML declares entities or refers to other files. "
            "Such files are not read; take the declarations out."
        ) from None
    except (ValueError, LookupError) as why:  # an encoding that is not known
        if isinstance(why, DataError):
            raise
        raise DataError(f"{path}: this XML cannot be decoded: {why}. Convert it to UTF-8.") from None


def short_lines(file: Any, path: Path) -> Iterator[bytes]:
    """The bytes of a file, as long as no line is too long."""
    longest, line, length = current.get().longest_line, 1, 0
    while part := file.read(AT_ONCE):
        line += part.count(b"\n")
        end = part.rfind(b"\n")
        length = length + len(part) if end < 0 else len(part) - end - 1
        if length > longest:
            raise too_long(path, line, longest)
        yield part
