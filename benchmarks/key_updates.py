"""A TLS client that does nothing but ask for new keys, which Python's `ssl` cannot: it calls the library by itself.

Each record is some 30 bytes, and makes the other end derive two keys and answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
from typing import Any, Final

_CONNECT: Final = 16 * 1024
_UPDATE_REQUESTED: Final = 1
_UPDATES: Final = 500
"""At a time."""
_POINTERS: Final = ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new")


def _library() -> Any:
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    for name in _POINTERS:
        getattr(library, name).restype = ctypes.c_void_p
    return library


class KeyUpdates:
    """One connection, over streams whose other end expects a handshake now."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ssl = _library()
        new, pointer = self._ssl, ctypes.c_void_p
        self._context = pointer(new.SSL_CTX_new(pointer(new.TLS_client_method())))
        self._connection = pointer(new.SSL_new(self._context))
        self._in, self._out = (pointer(new.BIO_new(pointer(new.BIO_s_mem()))) for _ in range(2))
        new.SSL_set_bio(self._connection, self._in, self._out)
        new.SSL_set_connect_state(self._connection)

    async def shake_hands(self) -> None:
        """Raises EOFError: the other end went."""
        while self._ssl.SSL_do_handshake(self._connection) != 1:
            self._send()
            data = await self._reader.read(_CONNECT)
            if not data:
                raise EOFError("the connection was closed in the middle of the handshake")
            self._ssl.BIO_write(self._in, data, len(data))
        self._send()

    async def flood(self) -> None:
        """Until the other end closes the connection. What it answers is not looked at."""
        taking = asyncio.create_task(self._take())
        try:
            while not taking.done():
                for _ in range(_UPDATES):
                    self._ssl.SSL_key_update(self._connection, _UPDATE_REQUESTED)
                    self._ssl.SSL_do_handshake(self._connection)
                self._send()
                await self._writer.drain()
                await asyncio.sleep(0)
        finally:
            taking.cancel()

    def free(self) -> None:
        """Once, at the end."""
        self._ssl.SSL_free(self._connection)  # with what it reads from and writes to
        self._ssl.SSL_CTX_free(self._context)

    async def _take(self) -> None:
        while await self._reader.read(1 << 16):
            pass

    def _send(self) -> None:
        buffer = ctypes.create_string_buffer(1 << 16)
        while (count := self._ssl.BIO_read(self._out, buffer, len(buffer))) > 0:
            self._writer.write(buffer.raw[:count])
