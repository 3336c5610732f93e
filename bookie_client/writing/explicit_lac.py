"""Explicit LAC: tells bookies, and through them readers, that the last entries of a pause are confirmed.

The LAC that rides on entries lags by what is pending; when a writer pauses, nothing tells readers about the
last entries. So after an interval in which no newer LAC rode on an entry, it is sent by itself.

Invariants
- A LAC that bookies know already is not sent: a writer that pauses costs one round of requests.
- Best effort: a failure never ends the handle; a LAC without Qa answers is sent again after the next interval.

Event loop only.

Source: docs/internals/client-protocol.md, section 10.
"""

from __future__ import annotations

import asyncio

from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import NO_LAC
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)


class LacAnnouncements:
    """Decides what is to be sent. Pure."""

    def __init__(self) -> None:
        self._piggy_backed = NO_LAC
        self._explicit = NO_LAC

    def due(self, piggy_backed: int, lac: int) -> int | None:
        """Called once an interval: the LAC to send now, or None."""
        if piggy_backed > self._piggy_backed:
            self._piggy_backed = piggy_backed
            return None
        return lac if lac > max(self._explicit, self._piggy_backed) else None

    def sent(self, lac: int) -> None:
        """Qa bookies stored it."""
        self._explicit = max(self._explicit, lac)


class ExplicitLac:
    """The periodic task of one handle; cancel `run` to stop it."""

    def __init__(
        self,
        context: ClientContext,
        state: AddState,
        digest: DigestManager,
        master_key: bytes,
        life: bytes = NO_LIFE,
    ) -> None:
        self._context = context
        self._state = state
        self._digest = digest
        self._master_key = master_key
        self._life = life
        self._announcements = LacAnnouncements()

    async def run(self, interval: float) -> None:
        """Every `interval` seconds, until the handle cannot write any more."""
        while not self._state.over:
            await asyncio.sleep(interval)
            try:
                await self._announce()
            except Exception as error:
                # A defect. Readers learn the LAC later, which is no reason to end the writer.
                _log.error("explicit LAC failed", ledger=self._state.ledger_id, error=repr(error), exc_info=error)

    async def _announce(self) -> None:
        lac = self._announcements.due(self._state.piggy_backed, self._state.lac)
        if lac is not None and await self._send(lac) >= self._state.quorums.ack:
            self._announcements.sent(lac)

    async def _send(self, lac: int) -> int:
        """Returns how many bookies of the LAC's write set stored it."""
        state = self._state
        packet = self._digest.encode_lac(state.ledger_id, lac)
        bookies = [state.ensemble[position] for position in state.quorums.write_set(lac)]
        write_lac = self._context.operations.write_lac
        key, life = self._master_key, self._life
        requests = [write_lac(bookie, state.ledger_id, key, lac, packet, life) for bookie in bookies]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        for bookie, answer in zip(bookies, answers, strict=True):
            if isinstance(answer, BaseException):
                _log.debug("explicit LAC refused", ledger=state.ledger_id, bookie=bookie, error=str(answer))
        return sum(answer is None for answer in answers)
