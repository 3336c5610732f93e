"""A folder on a file system of pyarrow's, by its URI, for archives, dumps and reports: local, S3, GCS, HDFS.

Driver and Python workers reach it without Java: `file:///...`, plain paths, `s3://...` (or `s3a://...`, as Hadoop
writes it), `gs://...`, `hdfs://...`.

Credentials are what pyarrow finds in the environment of the process, not what Hadoop's configuration says. Of a URI
that has some, no message shows them (`shown_uri`).

Invariants
- `write` and `move` make a file visible whole or not at all: on object stores by the nature of an upload, elsewhere by
  a rename. On the local file system what they return from is on the disk.
- Paths are relative to the folder, with `/` in between.
- Whatever a store fails with is `ArchivedFileMissing` where the store says that the file is not there, and
  `ArchiveUnavailable` otherwise; each names the argument, the path and what may help.

Any thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from os.path import abspath
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar
from urllib.parse import quote

from bookie_protocol.errors import CouldNotTell, NotThere
from bookie_protocol.shown import one_line, shown_uri
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a file that is read whole."""
_HADOOPS_S3: Final = re.compile(r"^s3[an]://")
_NOT_IN_BUCKETS: Final = re.compile(r"[@:]")
"""Characters of a login that was written as if it belonged to the name."""
P = ParamSpec("P")
T = TypeVar("T")
_PATH_SIGNS: Final = "/:@!$&'()*+,;="
"""Characters that the path of a URI may have besides letters and digits. They are not quoted: URIs are compared as
texts.
"""


def file_system(argument: str, uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and the path in it. Raises `PodkeeperSparkError` (OPTION), which names `argument`, for a URI that
    cannot be used."""
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        if not uri.encode():  # paths are text
            raise ValueError("it is empty")
        if "://" not in uri:
            found, path = pafs.LocalFileSystem(), abspath(uri)
        else:
            found, path = pafs.FileSystem.from_uri(_HADOOPS_S3.sub("s3://", uri))
            if found.type_name != "local" and _NOT_IN_BUCKETS.search(path.partition("/")[0]):
                raise ValueError("its bucket has a name that none can have")
    except (pa.ArrowException, OSError, ValueError) as error:
        shown, why = shown_uri(uri), one_line(error)
        if shown != one_line(uri):  # and pieces of it may be in what pyarrow says
            why = "it cannot be used; write it as s3://bucket/path, and leave credentials to the environment"
        raise PodkeeperSparkError(OPTION, f"{argument} {shown}: {why}") from None
    return found, path.rstrip("/") or "/"


class ArchivedFileMissing(NotThere):
    """The store says that there is no such file."""


class ArchiveUnavailable(CouldNotTell):
    """The store cannot be reached, does not let this process in, or has something else in the place."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in a listing. `modified` None: the store does not tell."""

    path: str
    nbytes: int
    modified: datetime | None


class Files:
    """`argument` is named where the URI cannot be used (`PodkeeperSparkError`), and in every error."""

    def __init__(self, uri: str, argument: str) -> None:
        self.system, self._root = file_system(argument, uri)
        self._argument = argument
        self._local = self.system.type_name == "local"
        self._shown = self._root if self._local else shown_uri(uri).partition("?")[0].rstrip("/")

    def path(self, relative: str) -> str:
        """Return the path for the file system."""
        return f"{self._root.rstrip('/')}/{relative}" if relative else self._root

    def shown(self, relative: str) -> str:
        """The path as messages have it."""
        return one_line(f"{self._shown.rstrip('/')}/{relative}" if relative else self._shown)

    @contextmanager
    def requests(self, path: str) -> Iterator[None]:
        """Raise the failures of requests for a file or folder as the errors of this module."""
        import pyarrow as pa

        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.failed(path, error) from None

    def failed(self, path: str, error: Exception) -> ArchivedFileMissing | ArchiveUnavailable:
        """Return the error for a failed request: an error of the system or of Arrow; ValueError where GCS closed
        its file."""
        if isinstance(error, FileNotFoundError):
            return ArchivedFileMissing(f"{self._told(path)} is not there{self._here()}")
        return ArchiveUnavailable(
            f"{self._told(path)} cannot be reached from {os.uname().nodename}: {one_line(error)}; is {self._argument}"
            " right, and may this process use it?"
        )

    def read_failed(self, path: str, error: Exception) -> ArchivedFileMissing | ArchiveUnavailable:
        """The same of a request for the content of a file. Stores say that it is gone in ways of their own, so they are
        asked whether it is."""
        with suppress(ArchiveUnavailable):
            if self._info(path) is None:
                error = FileNotFoundError()
        return self.failed(path, error)

    def check_there(self) -> None:
        """Raise `ArchivedFileMissing` if the folder does not exist.

        Where the store knows folders by their content, an empty folder does not exist.
        """
        if not self._check_folder(""):
            raise self.failed("", FileNotFoundError())

    def size(self, path: str) -> int | None:
        """Bytes of a file; None: there is none."""
        import pyarrow.fs as pafs

        info = self._info(path)
        return info.size if info is not None and info.type == pafs.FileType.File else None

    def read(self, path: str, most: int = MAX_BYTES) -> bytes:
        """A small file, whole, or as many bytes of it."""
        noted = self.stream(path)
        data = bytearray()
        try:
            while piece := noted.read(most - len(data)):  # stores may give less than they are asked for
                data += piece
            return bytes(data)
        except OSError as error:
            raise self.read_failed(path, error) from None
        finally:
            with suppress(OSError):
                noted.close()

    def open(self, path: str) -> Noted:
        """A file to read anywhere in."""
        with self.requests(path):
            return Noted(self.system.open_input_file(self.path(path)))

    def stream(self, path: str) -> Noted:
        """Open a file for reading from its beginning, without decompression."""
        with self.requests(path):
            return Noted(self.system.open_input_stream(self.path(path), compression=None))

    def make_folder(self, path: str) -> None:
        """Make the folder with what is above it; it may exist."""
        with self.requests(path):
            self.system.create_dir(self.path(path), recursive=True)

    def write(self, path: str, content: bytes, temporary: str) -> None:
        """Write a small file by way of `temporary`, a path on the same file system."""
        self.make_folder(temporary.rpartition("/")[0])
        with self.requests(temporary), self.system.open_output_stream(self.path(temporary)) as stream:
            stream.write(content)
        self.move(temporary, path)

    @property
    def replaces_at_once(self) -> bool:
        """True if `move` never leaves a moment without the file that it replaces; HDFS deletes it first."""
        import pyarrow.fs as pafs

        return not isinstance(self.system, pafs.HadoopFileSystem)

    def move(self, path: str, to: str) -> None:
        """`to` is replaced if it exists."""
        self.make_folder(to.rpartition("/")[0])
        self.sync(path)
        with self.requests(path):
            self.system.move(self.path(path), self.path(to))
        self.sync(to.rpartition("/")[0])

    def sync(self, path: str) -> None:
        """Make a written file or folder durable. On remote stores a finished upload is durable."""
        if not self._local:
            return
        with self.requests(path):
            descriptor = os.open(self.path(path), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(self, path: str) -> None:
        """A file that does not exist is fine."""
        with suppress(ArchivedFileMissing), self.requests(path):
            self.system.delete_file(self.path(path))

    def delete_folder(self, path: str) -> None:
        """Delete the folder with everything in it; one that does not exist is fine."""
        with suppress(ArchivedFileMissing), self.requests(path):
            self.system.delete_dir(self.path(path))

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield all files below a folder; none if there is no such folder. Names that are not valid text are left
        out: no job writes such files."""
        import pyarrow.fs as pafs

        selector = pafs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        prefix = len(self.path("")) + 1 if self._root != "/" else 1
        with self.requests(folder):
            found = self.system.get_file_info(selector)
        if not found:
            self._check_folder(folder)
        for info in found:
            try:
                path = info.path[prefix:]
            except UnicodeDecodeError:
                continue
            if info.type == pafs.FileType.File:
                yield Listed(path, info.size or 0, info.mtime)

    def _check_folder(self, path: str) -> bool:
        """Return True if the folder exists. Raises `ArchiveUnavailable` if it is not a folder."""
        import pyarrow.fs as pafs

        info = self._info(path)
        if info is not None and info.type != pafs.FileType.Directory:
            raise self.failed(path, NotADirectoryError("it is not a folder"))
        return info is not None

    def _info(self, path: str) -> pafs.FileInfo | None:
        """None: there is nothing."""
        import pyarrow.fs as pafs

        with self.requests(path):
            info: pafs.FileInfo = self.system.get_file_info(self.path(path))
            if info.type == pafs.FileType.NotFound and self._local:
                with suppress(FileNotFoundError):
                    os.lstat(self.path(path))  # below a file nothing can ever be
        return None if info.type == pafs.FileType.NotFound else info

    def _told(self, path: str) -> str:
        return f"{self._argument}: {self.shown(path)}"

    def _here(self) -> str:
        return f" on {os.uname().nodename}: every executor must reach it" if self._local else ""


def is_of_this_process(error: Exception) -> bool:
    """Return True if an error of pyarrow's concerns this process and not a file: no memory, or an interruption."""
    import pyarrow as pa

    return isinstance(error, MemoryError | pa.ArrowCancelled)


class Noted:
    """A file of a store that remembers what the store failed with first, for `pyarrow.PythonFile`: what reads Parquet,
    or decompresses, fails with the same errors where bytes are wrong and where there are none.

    Its own errors are `OSError`, whatever the store's are."""

    def __init__(self, raw: pa.NativeFile) -> None:
        self._raw = raw
        self.failure: OSError | None = None
        self.closed = False
        """True after `close`: stores close files on their own, and pyarrow would not ask further."""

    def close(self) -> None:
        """Close the file of the store, too."""
        self.closed = True
        self._noted(self._raw.close)

    def read(self, nbytes: int = -1) -> bytes:
        """`nbytes` -1: to the end."""
        return bytes(self._noted(self._raw.read, nbytes if nbytes >= 0 else None))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Seek as a file does; never called for a stream."""
        return int(self._noted(self._raw.seek, offset, whence))

    def tell(self) -> int:
        """Return the position, as a file does."""
        return int(self._noted(self._raw.tell))

    def _noted(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return ask(*args, **kwargs)
        except Exception as error:
            failure = error if isinstance(error, OSError) else OSError(one_line(error))
            self.failure = self.failure or failure
            raise failure from None


def absolute_uri(text: str) -> str:
    """One text for one place, as far as texts tell; relative paths mean nothing to executors. What is not the URI of a
    folder is left as it is: `Files` says why."""
    if not text:
        return text
    try:
        uri = text if "://" in text else f"file://{quote(abspath(text), safe=_PATH_SIGNS)}"
    except OSError as error:  # there is no current folder any more
        raise PodkeeperSparkError(OPTION, f"{shown_uri(text)} means nothing here: {error.strerror}") from None
    return uri.rstrip("/") if uri.rstrip("/").count("/") > 1 else uri
