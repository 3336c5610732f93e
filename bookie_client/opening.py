"""A handle in the making, for `await` and for `async with` alike.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.writer import LedgerWriter

Handle = TypeVar("Handle", bound=LedgerWriter | AdvancedLedgerWriter | LedgerReader)


class Opening(Generic[Handle]):
    """A handle in the making: `await` it, or enter it with `async with`, which closes the handle at the
    end."""

    def __init__(self, make: Callable[[], Awaitable[Handle]]) -> None:
        self._make = make
        self._handle: Handle | None = None

    def __await__(self) -> Generator[Any, None, Handle]:
        return self._make().__await__()

    async def __aenter__(self) -> Handle:
        self._handle = await self._make()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(kind, error, trace)
