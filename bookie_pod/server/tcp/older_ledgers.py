"""The check whether a ledger that is older than the bookie is still written, before its first entry is taken.

A bookie may have the id of one that is gone (`node.identity.earlier_life`). A client that sends it an entry of an older
ledger that it does not hold may be a writer that does not know that its ledger was closed: with the earlier bookie the
memory of the fence is gone here. The metadata service knows.

    still open                     goes on: its fence would come here, as to every bookie of the last ensemble
    being recovered, closed, gone  an ordinary add gets LedgerFenced, an explicit LAC NoSuchLedger; a copy, or the add
                                   of a recovery, makes the ledger fenced
    could not be asked             LedgerStateUnknown: the writer replaces this bookie, which looks at the metadata too

Invariants
- What was never asked is never asked twice at the same time, and a connection that waits for an answer reads nothing
  more: as many requests wait as there are connections.
- Of a ledger that is here, or younger than the bookie, nothing is asked.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerFenced,
    LedgerStateUnknown,
    MetadataError,
    NoSuchLedger,
    PodkeeperError,
)

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

ASK_S: Final = 5.0
"""The longest that a connection waits for the metadata service."""

IsOpen = Callable[[int], Awaitable[bool]]
"""Returns whether a ledger is still written, by an uncached look at its metadata. Raises MetadataError."""


class OlderLedgers:
    """`newest`: the highest id of a ledger that there was when this bookie was new; -1: none."""

    def __init__(self, ledgers: Ledgers, newest: int, is_open: IsOpen) -> None:
        self._ledgers = ledgers
        self._newest = newest
        self._is_open = is_open
        self._asking: dict[int, asyncio.Task[bool]] = {}

    def must_ask(self, ledger_id: int) -> bool:
        """Return whether an add of this ledger has to wait for `when_open`."""
        return ledger_id <= self._newest and not self._ledgers.is_known(ledger_id)

    def when_open(
        self,
        conn: Connection,
        ledger_id: int,
        go_on: Callable[[], None],
        over: Callable[[], None],
        refuse: Callable[[PodkeeperError], None],
    ) -> None:
        """One of the three, soon; `refuse` too if the connection is closed by then: each request comes to its end."""
        asking = self._asking.get(ledger_id)
        if asking is None:
            asking = self._asking[ledger_id] = asyncio.ensure_future(self._ask(ledger_id))
            asking.add_done_callback(lambda _: self._asking.pop(ledger_id, None))
        conn.stall(Stall.LEDGER_ASKED)

        def answered(task: asyncio.Task[bool]) -> None:
            if conn.closed:
                refuse(BookieUnavailable("the connection that asked is closed"))
                return
            try:
                tell(task)
            except Exception as defect:
                conn.broke(defect)
                return
            conn.context.submit_lanes(conn)
            conn.unstall(Stall.LEDGER_ASKED)

        def tell(task: asyncio.Task[bool]) -> None:
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                reason = str(error) if isinstance(error, MetadataError) else "no answer"
                refuse(
                    LedgerStateUnknown(
                        f"ledger {ledger_id} is older than this bookie, which cannot find out whether it is still"
                        f" written: {reason}"
                    )
                )
            elif task.result():
                go_on()
            else:
                over()

        asking.add_done_callback(answered)

    async def _ask(self, ledger_id: int) -> bool:
        async with asyncio.timeout(ASK_S):
            return await self._is_open(ledger_id)


def refused_as(kind: type[LedgerFenced] | type[NoSuchLedger], ledger_id: int) -> PodkeeperError:
    """Return the error for a ledger that is not written any more."""
    return kind(f"ledger {ledger_id} is older than this bookie, and was closed, or deleted, meanwhile")
