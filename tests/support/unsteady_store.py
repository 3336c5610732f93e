"""A store for pyarrow, over a local folder, whose reads fail when they are told to."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs


class UnsteadyStore(pafs.FileSystemHandler):
    """`fails` is given the number of each read, counted from 1."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self._local = pafs.LocalFileSystem()
        self._fails = fails
        self.reads = 0

    def get_type_name(self) -> str:
        return "unsteady"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    get_file_info_selector = get_file_info

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_Unsteady(path, self._failed), mode="r")

    open_input_stream = open_input_file

    def _failed(self) -> bool:
        self.reads += 1
        return self._fails(self.reads)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("it is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_output_stream = open_append_stream = _refuse


class _Unsteady(io.FileIO):
    def __init__(self, path: str, failed: Callable[[], bool]) -> None:
        super().__init__(path)
        self._failed = failed

    def read(self, size: int | None = -1, /) -> Any:
        if self._failed():
            raise OSError("Connection reset by peer")
        return super().read(-1 if size is None else size)
