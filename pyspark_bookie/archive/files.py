"""A folder on some file system of pyarrow's, by its URI, for archives, dumps and reports: local, S3, GCS, HDFS. Driver
and Python workers reach them without Java: `file:///...`, plain paths, `s3://...` (or `s3a://...`, as Hadoop writes
it), `gs://...`, `hdfs://...`.

Credentials are what pyarrow finds in the environment of the process, not what Hadoop's configuration says.

Invariants
- `write` and `move` make a file visible whole or not at all: on object stores by the nature of an upload, elsewhere by
  a rename. On the local file system what they return from is on the disk.
- Paths are relative to the folder, with `/` in between.

Any thread. Errors: `OSError`, whatever a store fails with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from os.path import abspath
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_HADOOPS_S3: Final = re.compile(r"^s3[an]://")


def file_system(argument: str, uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it. Raises `PodkeeperSparkError` (OPTION), which names `argument`, for a URI that
    cannot be used."""
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        if "://" not in uri:
            found, path = pafs.LocalFileSystem(), abspath(uri)
        else:
            found, path = pafs.FileSystem.from_uri(_HADOOPS_S3.sub("s3://", uri))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError) as error:
        raise PodkeeperSparkError(OPTION, f"{argument} {uri}: {' '.join(str(error).split())}") from error
    return found, path.rstrip("/") or "/"


@contextmanager
def _os_errors() -> Iterator[None]:
    """Requests of some stores fail with errors of Arrow's, or with ValueError: those of GCS close their file."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(" ".join(str(error).split())) from error


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in a listing. `modified` None: the store does not tell."""

    path: str
    nbytes: int
    modified: datetime | None


class Files:
    """`argument` is named where the URI cannot be used (`PodkeeperSparkError`)."""

    def __init__(self, uri: str, argument: str) -> None:
        self.system, self._root = file_system(argument, uri)
        self._local = self.system.type_name == "local"

    def path(self, relative: str) -> str:
        """The path for the file system."""
        return f"{self._root.rstrip('/')}/{relative}" if relative else self._root

    @_os_errors()
    def size(self, path: str) -> int | None:
        """Bytes of a file; None: there is none."""
        import pyarrow.fs as pafs

        info: pafs.FileInfo = self.system.get_file_info(self.path(path))
        return info.size if info.type == pafs.FileType.File else None

    @_os_errors()
    def read(self, path: str) -> bytes:
        """A small file, whole. `FileNotFoundError`."""
        with self.system.open_input_stream(self.path(path)) as stream:
            return bytes(stream.read())

    @_os_errors()
    def open(self, path: str) -> Noted:
        """A file to read anywhere in. `FileNotFoundError`."""
        return Noted(self.system.open_input_file(self.path(path)))

    @_os_errors()
    def stream(self, path: str) -> Noted:
        """A file to read from its beginning, as it stands there. `FileNotFoundError`."""
        return Noted(self.system.open_input_stream(self.path(path), compression=None))

    @_os_errors()
    def make_folder(self, path: str) -> None:
        """Make the folder with what is above it; it may exist."""
        self.system.create_dir(self.path(path), recursive=True)

    @_os_errors()
    def write(self, path: str, content: bytes, temporary: str) -> None:
        """Write a small file by way of `temporary`, a path on the same file system."""
        self.make_folder(temporary.rpartition("/")[0])
        with self.system.open_output_stream(self.path(temporary)) as stream:
            stream.write(content)
        self.move(temporary, path)

    @_os_errors()
    def move(self, path: str, to: str) -> None:
        """`to` is replaced if it exists."""
        self.make_folder(to.rpartition("/")[0])
        self.sync(path)
        self.system.move(self.path(path), self.path(to))
        self.sync(to.rpartition("/")[0])

    def sync(self, path: str) -> None:
        """What was written to a file or folder is durable when this returns; of remote stores a finished upload is."""
        if not self._local:
            return
        descriptor = os.open(self.path(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @_os_errors()
    def delete(self, path: str) -> None:
        """A file that does not exist is fine."""
        try:
            self.system.delete_file(self.path(path))
        except FileNotFoundError:
            return

    @_os_errors()
    def delete_folder(self, path: str) -> None:
        """Delete the folder with everything in it; one that does not exist is fine."""
        try:
            self.system.delete_dir(self.path(path))
        except FileNotFoundError:
            return

    def list(self, folder: str) -> Iterator[Listed]:
        """All files below a folder; none if there is no such folder."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        prefix = len(self.path("")) + 1 if self._root != "/" else 1
        with _os_errors():
            found = self.system.get_file_info(selector)
        for info in found:
            if info.type == pafs.FileType.File:
                yield Listed(info.path[prefix:], info.size or 0, info.mtime)


P = ParamSpec("P")
T = TypeVar("T")


class Noted:
    """A file of a store that remembers what the store failed with first, for `pyarrow.PythonFile`: what reads Parquet,
    or decompresses, fails with the same errors where bytes are wrong and where there are none."""

    def __init__(self, raw: pa.NativeFile) -> None:
        self._raw = raw
        self.failure: OSError | None = None
        self.closed = False
        """By `close`: stores close files on their own, and pyarrow would ask them nothing more."""

    def close(self) -> None:
        """Close the file of the store, too."""
        self.closed = True
        self._noted(self._raw.close)

    def read(self, nbytes: int = -1) -> bytes:
        """`nbytes` -1: to the end."""
        return bytes(self._noted(self._raw.read, nbytes if nbytes >= 0 else None))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of a file; of a stream nobody asks for it."""
        return int(self._noted(self._raw.seek, offset, whence))

    def tell(self) -> int:
        """As of a file."""
        return int(self._noted(self._raw.tell))

    def _noted(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with _os_errors():
                return ask(*args, **kwargs)
        except OSError as error:
            self.failure = self.failure or error
            raise


def absolute_uri(text: str) -> str:
    """One text for one place, as far as texts tell; relative paths mean nothing to executors."""
    uri = text if "://" in text else f"file://{os.path.abspath(text)}"
    return uri.rstrip("/")
