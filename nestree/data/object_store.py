"""Output to an object store: s3://BUCKET/NAME or gs://BUCKET/NAME, through pyarrow.

An object appears when it is complete, so that a file is there whole or not at all, as `atomic_path` guarantees for
files. Names are those of the objects, as they are written: nothing in them is decoded. Credentials, region and endpoint
come from the environment, as pyarrow documents them.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from nestree.data.io import optional_import
from nestree.errors import DataError, InputError

SCHEMES = {"s3": "", "gs": "?retry_limit_seconds=30"}  # options for pyarrow: GCS would try for 15 minutes
URL = re.compile(r"([A-Za-z][\w+.-]+):(?:/+(.*))?", re.DOTALL)  # Path() turns // into /


def as_url(path: Path) -> str | None:
    """The URL that an argument of the command line is, or None.

    >>> as_url(Path("s3://bucket/entities")), as_url(Path("S3://")), as_url(Path("C:/x")), as_url(Path("a:b"))
    ('s3://bucket/entities', 's3://', None, None)
    """
    match = URL.fullmatch(str(path))
    return match and f"{match[1].lower()}://{match[2] or ''}"


@lru_cache
def open_store(url: str) -> "ObjectStore":
    """The folder or object at this URL; its connection is reused."""
    return ObjectStore(url)


class ObjectStore:
    """A folder, or a single object, in an object store."""

    def __init__(self, url: str) -> None:
        self.url = url
        scheme, _, path = url.partition("://")
        bucket = path.partition("/")[0]
        if "@" in bucket:
            raise InputError(f"a {scheme} URL holds credentials. Set them in the environment instead.")
        if scheme == "file":
            raise InputError(f"{url} is a URL of this machine. Write the path alone: /{path.lstrip('/')}")
        if scheme not in SCHEMES or not re.fullmatch(r"[\w.-]+", bucket):
            raise InputError(
                f"{url} is no URL of an object store. Write s3://BUCKET/NAME, gs://BUCKET/NAME, or a path."
            )
        self.fs: Any = optional_import("pyarrow.fs", "Writing to an object store", "ray")
        with self.translate_errors("opened"):
            self.filesystem = self.fs.FileSystem.from_uri(f"{scheme}://{bucket}{SCHEMES[scheme]}")[0]
            found = self.filesystem.get_file_info(bucket).type != self.fs.FileType.NotFound
        if not found:
            raise DataError(f"{url}: there is no bucket {bucket}. Create it, or check the address.")
        self.path = path.rstrip("/")

    @contextmanager
    def translate_errors(self, action: str) -> Iterator[None]:
        """Turn the errors of pyarrow into one sentence."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as why:
            reason = re.sub(r" \(Request ID: .*?\)", "", " ".join(str(why).split()))[:300].rstrip(".")
            raise DataError(
                f"{self.url} cannot be {action}: {reason}. Check the address, and the credentials in the environment."
            ) from why

    def names(self) -> set[str]:
        """The names of all objects in the folder, relative to it."""
        with self.translate_errors("read"):
            selector = self.fs.FileSelector(self.path, recursive=True, allow_not_found=True)
            files = [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]
        return {path.removeprefix(f"{self.path}/") for path in files}

    def read(self, name: str) -> bytes:
        path = f"{self.path}/{name}"
        with self.translate_errors("read"), self.filesystem.open_input_stream(path, compression=None) as stream:
            data: bytes = stream.read()
            return data

    def write(self, name: str, data: bytes) -> None:
        """Write an object of the folder."""
        with tempfile.NamedTemporaryFile(prefix="nestree-") as file:
            file.write(data)
            file.flush()
            self.upload(Path(file.name), name)

    def upload(self, source: Path, name: str = "") -> list[str]:
        """Copy a file, or all files of a folder; returns the names of what was written. "": the object of this URL.

        Of a document's .txt and .ann files, the text comes first. pyarrow copies, since a stream
        that Python writes to becomes an object even if an interrupt cuts it short.
        """
        files = [source]
        if source.is_dir():
            found = (path for path in source.rglob("*") if path.is_file())
            files = sorted(found, key=lambda path: (path.suffix == ".ann", path.as_posix()))
        names = []
        for path in files:
            relative = path.relative_to(source).as_posix()
            names.append("/".join(part for part in (name, relative) if part not in ("", ".")))
            with self.translate_errors("written"):
                self.fs.copy_files(
                    str(path.resolve()),
                    f"{self.path}/{names[-1]}".rstrip("/"),
                    source_filesystem=self.fs.LocalFileSystem(),
                    destination_filesystem=self.filesystem,
                )
        return names
