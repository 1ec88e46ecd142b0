"""XML files as a stream of events with line numbers. Entity declarations are refused, and nothing is ever fetched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from nestree.data.io import current_limits, limit_remedy, line_too_long_error, open_file
from nestree.errors import DataError

CHUNK_BYTES = 2**16


class Event(NamedTuple):
    kind: str  # "start", "end" or "text"
    name: str  # of the element; the text itself
    attributes: dict[str, str]
    line: int


class EventTarget:
    """The target of an XMLParser: collects the events of the bytes that were fed last."""

    def __init__(self, path: Path) -> None:
        self.path, self.depth, self.max_depth = path, 0, current_limits.get().max_xml_depth
        self.events: list[Event] = []
        self.expat: Any = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > self.max_depth:
            raise DataError(
                f"{self.path}:{self.expat.CurrentLineNumber}: more than {self.max_depth:,} elements are nested in "
                f"each other. {limit_remedy('max_xml_depth')}"
            )
        self.events.append(Event("start", name, attributes, self.expat.CurrentLineNumber))

    def end(self, name: str) -> None:
        self.depth -= 1
        self.events.append(Event("end", name, {}, self.expat.CurrentLineNumber))

    def data(self, text: str) -> None:
        self.events.append(Event("text", text, {}, self.expat.CurrentLineNumber))


def parse_events(path: Path) -> Iterator[Event]:
    """The events of an XML file, which is read chunk by chunk."""
    target = EventTarget(path)
    parser = XMLParser(target=target, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    target.expat = parser.parser
    longest, line, length = current_limits.get().longest_line, 1, 0
    try:
        with open_file(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                line += chunk.count(b"\n")
                last_break = chunk.rfind(b"\n")
                length = length + len(chunk) if last_break < 0 else len(chunk) - last_break - 1
                if length > longest:
                    raise line_too_long_error(path, line, longest)
                parser.feed(chunk)
                yield from target.events
                target.events = []
            parser.close()
        yield from target.events
    except ParseError as why:
        line, column = why.position
        raise DataError(
            f"{path}:{line}: this is not well-formed XML, column {column + 1}: {str(why).partition(':')[0]}."
        ) from None
    except DefusedXmlException:
        raise DataError(
            f"{path}:{parser.parser.CurrentLineNumber}: this XML declares entities or refers to other files. "
            "Such files are not read; remove the declarations."
        ) from None
    except DataError:
        raise
    except (ValueError, LookupError) as why:
        raise DataError(f"{path}: this XML cannot be decoded: {why}. Convert it to UTF-8.") from None
