"""A store for pyarrow, over a local folder, whose requests fail when they are told to."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from pathlib import Path
from threading import Condition
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

RESET = OSError("Connection reset by peer")


def goes(path: Path, at: int) -> Callable[[int], bool]:
    """The file is deleted by request `at`, and all requests from there on fail."""

    def fails(number: int) -> bool:
        if number == at:
            path.unlink()
        return number >= at

    return fails


class UnsteadyStore(pafs.FileSystemHandler):
    """`fails` is given the number of each request of the kind `failing`, counted from 1: "size", "open", or of an open
    file "read", "seek" or "tell". `closes`: a file whose request failed is closed, as with GCS, and says so."""

    def __init__(
        self,
        fails: Callable[[int], bool],
        failing: str = "read",
        *,
        error: Exception = RESET,
        closes: bool = False,
    ) -> None:
        self._local = pafs.LocalFileSystem()
        self._fails = fails
        self._failing = failing
        self._error = error
        self.closes_files = closes
        self.requests = 0
        self._open = 0
        self._changed = Condition()

    def get_type_name(self) -> str:
        return "unsteady"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self.request("size")
        return self._local.get_file_info(paths)

    get_file_info_selector = get_file_info

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.request("open")
        return pa.PythonFile(_Unsteady(path, self), mode="r")

    open_input_stream = open_input_file

    def opened(self, files: int) -> None:
        """More are open, or fewer."""
        with self._changed:
            self._open += files
            self._changed.notify_all()

    def all_closed(self) -> bool:
        """Whether no file stays open. Threads of pyarrow may hold one for a moment, and frames of an error until the
        collector comes, which takes long behind thousands of tests."""
        with self._changed:
            if self._changed.wait_for(lambda: self._open == 0, 0.1):
                return True
        gc.collect()
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, 5)

    def request(self, kind: str) -> None:
        """Count it, and fail if it is to."""
        if kind == self._failing:
            self.requests += 1
            if self._fails(self.requests):
                raise type(self._error)(*self._error.args)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("it is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_output_stream = open_append_stream = _refuse


class _Unsteady(io.FileIO):
    def __init__(self, path: str, store: UnsteadyStore) -> None:
        super().__init__(path)
        self._store = store
        store.opened(1)

    def close(self) -> None:
        if not self.closed:
            self._store.opened(-1)
        super().close()

    def _request(self, kind: str) -> None:
        try:
            self._store.request(kind)
        except Exception:
            if self._store.closes_files:
                self.close()
            raise

    def read(self, size: int | None = -1, /) -> Any:
        self._request("read")
        return super().read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._request("seek")
        return super().seek(offset, whence)

    def tell(self) -> int:
        self._request("tell")
        return super().tell()
