"""The sanity test every minute, for the gauge `SERVER_SANITY` (`sanityCheckMetricsEnabled`).

Invariants
- The gauge is 1 after a test that passed, and of a read-only bookie, which has nothing wrong with it; 0 after one that
  failed or took too long; -1 until the first has ended.
- One test at a time; none fails the bookie.

Threads: event loop; the gauge may be read by any.

Source: reference bookie behaviour, section 11.3; apache/bookkeeper#3924.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

INTERVAL_S: Final = 60.0
TIMEOUT_S: Final = 60.0


class Sanity(IntEnum):
    """Values of the gauge."""

    UNKNOWN = -1
    FAILED = 0
    PASSED = 1


class SanityWatch:
    """`test` says whether all went well; `read_only` whether there is nothing to try."""

    def __init__(
        self,
        test: Callable[[], Awaitable[bool]],
        read_only: Callable[[], bool],
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.value = Sanity.UNKNOWN
        self._test = test
        self._read_only = read_only
        self._interval_s = interval_s
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.value = Sanity.PASSED if await self._passes() else Sanity.FAILED
            await asyncio.sleep(self._interval_s)

    async def _passes(self) -> bool:
        if self._read_only():
            return True
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._test()
        except TimeoutError:
            _log.warning("sanity test failed", reason=f"no result within {self._timeout_s:g} s")
        except Exception as error:  # whatever is wrong, it is this gauge that tells
            _log.exception("sanity test failed", reason=str(error))
        return False
