"""Standard input, standard output and files as streams that do not hold the event loop up.

Invariants
- Input is read on a daemon thread of its own, so that an idle terminal holds up neither the loop nor the end of the
  process.
- At most `PIECES` pieces wait to be consumed.
- Input is handed on as it arrives: a pipe that delivers a line now and then is written now and then.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Final

from bookie_protocol.errors import InvalidConfiguration

PIECE_BYTES: Final = 256 * 1024
PIECES: Final = 4
STANDARD: Final = "-"


def open_input(path: str) -> BinaryIO:
    """A file, or standard input for `-`. Raises `InvalidConfiguration`."""
    if path == STANDARD:
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise InvalidConfiguration(f"{path}: {error.strerror}") from error


def size_of(file: BinaryIO) -> int | None:
    """Bytes of a regular file; None for what has no end known beforehand."""
    size = os.fstat(file.fileno()).st_size
    return size if file is not sys.stdin.buffer and size else None


async def pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the input, piece by piece, until its end. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(PIECES)
    descriptor = file.fileno()

    def read() -> None:
        try:
            while True:
                room.acquire()
                piece: bytes | OSError
                try:
                    piece = os.read(descriptor, PIECE_BYTES)
                except OSError as error:
                    piece = error
                loop.call_soon_threadsafe(arrived.put_nowait, piece)
                if not piece or isinstance(piece, OSError):
                    return
        except RuntimeError:
            return  # the loop has ended, and the rest is not wanted

    threading.Thread(target=read, name="input", daemon=True).start()
    while piece := await arrived.get():
        if isinstance(piece, OSError):
            raise piece
        yield piece
        room.release()


class Output:
    """A file, or standard output for `-`; a context manager."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO

    def __enter__(self) -> Output:
        if self._path == STANDARD:
            self._file = sys.stdout.buffer
            return self
        try:
            self._file = open(self._path, "wb")
        except OSError as error:
            raise InvalidConfiguration(f"{self._path}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not sys.stdout.buffer:
            with suppress(OSError):  # of what `write` flushed nothing is left, or it raised
                self._file.close()

    async def write(self, data: bytes) -> None:
        """Write and flush, on a thread. Raises `OSError` with the file's name; `BrokenPipeError` when the reader has
        gone."""
        await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            name = "standard output" if self._path == STANDARD else self._path
            raise OSError(error.errno, error.strerror, name) from error
