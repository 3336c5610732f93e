"""One session after the other, for drivers that renew them by requests of their own.

Invariants
- The session is renewed every third of its time-out. While renewals fail it is SUSPENDED. It is EXPIRED when the
  service says that it ended, and not before; then all watches fire, and a new one is opened.
- Who hears nothing for a third of the session's time-out takes another connection: one whose other end vanished without
  a word never says so, and the session may still be saved by another.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable
from bookie_protocol.lasting import lasting_task
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import Session, SessionState
from bookie_protocol.shown import one_line

_LONGEST_PAUSE: Final = 0.5
REMINDER_S: Final = 60.0
"""Seconds between two log lines that say why a session cannot be renewed."""
LONGEST: Final = 300
"""Characters of such a reason."""

_log = get_logger(__name__)


class KeptSession(ABC):
    """`connect`, `close`, and what a driver says about its own requests. `timeout` of the session in seconds."""

    def __init__(self, timeout: float) -> None:
        self._session = Session(timeout)
        self._upkeep: asyncio.Task[None] | None = None
        self._closing = False
        self._failure = ""
        """Reason why the last attempt to open a session failed."""
        self._told_at = -math.inf
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The first session was opened, or refused."""
        self._in_doubt = asyncio.Event()
        """Something was lost: renew now, the session may have ended."""

    @property
    def session(self) -> Session:
        return self._session

    async def connect(self) -> None:
        """Open the session.

        `MetadataUnavailable` if there is no answer within the session time-out, `MetadataRefused` if the service
        rejects these credentials, `InvalidConfiguration` if it is not what the driver needs.
        """
        timeout = self._session.default_timeout
        self._upkeep = lasting_task(self._keep_sessions(), "metadata session")
        try:
            async with asyncio.timeout(timeout):
                await self._began
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            raise MetadataUnavailable(f"{self._no_answer(timeout)}{self._failure}") from None

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        if self._session.state is SessionState.CONNECTED:
            with suppress(MetadataUnavailable):  # else it ends by itself
                await self._end_session()
        self._session.move(SessionState.CLOSED)
        await self._close_connection()

    # --- a driver's part -------------------------------------------------------------------------------------

    @abstractmethod
    async def _open_session(self) -> None:
        """`MetadataUnavailable`, `InvalidConfiguration`: none was opened."""

    @abstractmethod
    async def _renew(self, within: float) -> bool:
        """False: the service says that the session has ended. `MetadataUnavailable`, `InvalidConfiguration`: no answer
        in so many seconds."""

    @abstractmethod
    async def _end_session(self) -> None: ...
    @abstractmethod
    async def _reconnect(self) -> None:
        """A request was not answered: if nothing else was since, take another connection."""

    @abstractmethod
    async def _close_connection(self) -> None: ...
    @abstractmethod
    async def _listen(self) -> None:
        """Hear of changes, and fire watches, until cancelled."""

    @abstractmethod
    def _fire_all(self) -> None: ...
    @abstractmethod
    def _no_answer(self, timeout: float) -> str:
        """Return the message for the caller that opened the service, with the place to look."""

    # --- upkeep ----------------------------------------------------------------------------------------------

    async def _keep_sessions(self) -> None:
        """One session after the other, until closed."""
        while True:
            try:
                await self._open_session()
            except (MetadataUnavailable, InvalidConfiguration) as error:
                self._failure = f" ({error})"
                if isinstance(error, MetadataRefused | InvalidConfiguration) and not self._began.done():
                    self._began.set_exception(error)
                await self._reconnect()
                await asyncio.sleep(self._pause())
                continue
            self._session.move(SessionState.CONNECTED)
            if not self._began.done():
                self._began.set_result(None)
            listening = lasting_task(self._listen(), "metadata events")
            try:
                await self._renew_until_expired()
            finally:
                listening.cancel()
                await asyncio.wait([listening])
            self._session.move(SessionState.EXPIRED)
            self._fire_all()

    async def _renew_until_expired(self) -> None:
        interval = self._session.default_timeout / 3
        while True:
            self._in_doubt.clear()
            try:
                if not await self._renew(interval):
                    return
            except (MetadataUnavailable, InvalidConfiguration) as error:  # what was good at the start may be so again
                self._session.move(SessionState.SUSPENDED)
                self._tell(error)
                await self._reconnect()
                await asyncio.sleep(self._pause())
                continue
            self._session.move(SessionState.CONNECTED)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._in_doubt.wait()

    def _tell(self, error: Exception) -> None:
        """Log why the session cannot be renewed, at most once in `REMINDER_S`."""
        now = asyncio.get_running_loop().time()
        if now >= self._told_at + REMINDER_S:
            self._told_at = now
            _log.warning("the session with the metadata service cannot be renewed", reason=one_line(error, LONGEST))

    def _pause(self) -> float:
        return min(self._session.default_timeout / 10, _LONGEST_PAUSE)
