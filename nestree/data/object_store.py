"""Output to an object store, or to another file system that pyarrow reaches: s3://, gs://, abfs://, hdfs://, file://.

An object appears when it is complete, so that a file is there whole or not at all, as `atomic_path` guarantees for
files. Credentials, region and endpoint come from the environment, as pyarrow documents them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from nestree.data.io import optional_import
from nestree.errors import DataError

OBJECT_STORES = (
    "s3",
    "gcs",
    "abfs",
)  # whose objects appear when they are closed, and which have no directories
CHUNK_BYTES = 8 * 2**20


def as_url(path: Path) -> str | None:
    """The URL that an argument of the command line is, or None.

    >>> as_url(Path("s3://bucket/entities")), as_url(Path("file:///tmp/x")), as_url(Path("C:/x"))
    ('s3://bucket/entities', 'file:///tmp/x', None)
    """
    match = re.match(r"(\w[\w+.-]+):/+(.+)", str(path))  # Path() turns // into /
    if match is None:
        return None
    scheme, rest = match.groups()
    return f"{scheme}://{'/' * (scheme == 'file')}{rest}"


@lru_cache
def open_store(url: str) -> "ObjectStore":
    """The folder or file at this URL. A connection is reused."""
    return ObjectStore(url)


class ObjectStore:
    """A folder, or a single file, in an object store."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs: Any = optional_import("pyarrow.fs", "Writing to a URL", "ray")
        with self.errors("opened"):
            self.filesystem, path = self.fs.FileSystem.from_uri(url)
            self.path: str = path.rstrip("/")
            self.has_folders = self.filesystem.type_name not in OBJECT_STORES
            bucket = self.path.partition("/")[0]
            found = (
                self.has_folders or self.filesystem.get_file_info(bucket).type != self.fs.FileType.NotFound
            )
        if not found:
            raise DataError(f"{self.url}: there is no bucket {bucket}. Create it, or check the address.")

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Turn the errors of pyarrow into one sentence."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as why:
            reason = re.sub(r" \(Request ID: .*?\)", "", str(why).splitlines()[0])[:300].rstrip(".")
            raise DataError(
                f"{self.url} cannot be {action}: {reason}. Check the address, and the credentials in the environment."
            ) from why

    def names(self) -> set[str]:
        """Of all files in the folder, relative to it."""
        with self.errors("read"):
            selector = self.fs.FileSelector(self.path, recursive=True, allow_not_found=True)
            files = [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]
        return {path.removeprefix(f"{self.path}/") for path in files}

    def read(self, name: str) -> bytes:
        with self.errors("read"), self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            data: bytes = stream.read()
            return data

    def write(self, name: str, chunks: Iterator[bytes]) -> None:
        """Write a file of the folder; "": the file of this URL itself."""
        path = f"{self.path}/{name}".rstrip("/")
        temporary = f"{path}.part" if self.has_folders else path
        with self.errors("written"):
            if self.has_folders:
                self.filesystem.create_dir(path.rpartition("/")[0])
            with self.filesystem.open_output_stream(temporary) as stream:
                for chunk in chunks:
                    stream.write(chunk)
            if self.has_folders:
                self.filesystem.move(temporary, path)

    def upload(self, source: Path, name: str = "") -> list[str]:
        """Copy a file, or all files of a folder; returns the names of what was written.

        Of a document's .txt and .ann files, the text comes first.
        """
        files = [source]
        if source.is_dir():
            found = (path for path in source.rglob("*") if path.is_file())
            files = sorted(found, key=lambda path: (path.suffix == ".ann", path.as_posix()))
        names = []
        for path in files:
            names.append(
                "/".join(
                    part for part in (name, path.relative_to(source).as_posix()) if part not in ("", ".")
                )
            )
            with open(path, "rb") as file:
                self.write(names[-1], iter(lambda: file.read(CHUNK_BYTES), b""))
        return names
