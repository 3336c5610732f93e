"""Questions to the metadata service that come before the first entry of a ledger is taken.

Two kinds of ledgers are asked about.

A ledger that is older than the bookie. A bookie may have the id of one that is gone (`node.identity.earlier_life`). A
client that sends it an entry of an older ledger that it does not hold may be a writer that does not know that its
ledger was closed: with the earlier bookie the memory of the fence is gone here.

A ledger that is named by its life (`bookie_protocol.keys`). Its writer chose the id, which may have had a ledger
before, or have one again: what a writer sent may be on its way for long, and arrive when its ledger is deleted and
another one has the id and the password.

    still open                     goes on: its fence would come here, as to every bookie of the last ensemble
    being recovered, or closed     goes on if it is no older ledger: fences are known here. Otherwise as if it was gone
    gone, or of another life       an ordinary add gets LedgerFenced, an explicit LAC NoSuchLedger; a copy, or the add
                                   of a recovery, makes the ledger fenced
    could not be asked             LedgerStateUnknown: the writer replaces this bookie, which looks at the metadata too

Invariants
- What was never asked is never asked twice at the same time, and a connection that waits for an answer reads nothing
  more: as many requests wait as there are connections.
- Of a ledger that is here with this life, and of one that is here or younger than the bookie if it is named by its id
  alone, nothing is asked.

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
from bookie_protocol.keys import life_of
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

ASK_S: Final = 5.0
"""The longest that a connection waits for the metadata service."""

Look = Callable[[int], Awaitable[LedgerMetadata | None]]
"""Returns the metadata of a ledger, uncached; None: there is none of this id. Raises MetadataError."""


class MetadataQuestions:
    """`newest`: the highest id of a ledger that there was when this bookie was new; -1: none."""

    def __init__(self, ledgers: Ledgers, newest: int, look: Look) -> None:
        self._ledgers = ledgers
        self._newest = newest
        self._look = look
        self._asking: dict[tuple[int, bytes], asyncio.Task[bool]] = {}

    def must_ask(self, ledger_id: int, life: bytes) -> bool:
        """Return whether an add of this ledger has to wait for `when_open`."""
        if life:
            return self._ledgers.life_of(ledger_id) != life
        return self._is_older(ledger_id)

    def when_open(
        self,
        conn: Connection,
        ledger_id: int,
        life: bytes,
        go_on: Callable[[], None],
        over: Callable[[], None],
        refuse: Callable[[PodkeeperError], None],
    ) -> None:
        """One of the three, soon; `refuse` too if the connection is closed by then: each request comes to its end."""
        question = ledger_id, life
        asking = self._asking.get(question)
        if asking is None:
            asking = self._asking[question] = asyncio.ensure_future(self._ask(*question))
            asking.add_done_callback(lambda task: self._ended(question, task))
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
                        f"ledger {ledger_id}: this bookie cannot find out whether it is still written: {reason}"
                    )
                )
            elif task.result():
                go_on()
            else:
                over()

        asking.add_done_callback(answered)

    def _ended(self, question: tuple[int, bytes], task: asyncio.Task[bool]) -> None:
        self._asking.pop(question, None)
        if not task.cancelled():
            task.exception()  # taken, though all who asked may be gone

    async def _ask(self, ledger_id: int, life: bytes) -> bool:
        async with asyncio.timeout(ASK_S):
            metadata = await self._look(ledger_id)
        if metadata is None:
            return False
        # Metadata of an older format, or rewritten by an older client, have no token: that is no other life.
        if life and metadata.creation_token and life_of(metadata.creation_token) != life:
            return False
        return metadata.state is LedgerState.OPEN or not self._is_older(ledger_id)

    def _is_older(self, ledger_id: int) -> bool:
        return ledger_id <= self._newest and not self._ledgers.is_known(ledger_id)


def refused_as(kind: type[LedgerFenced] | type[NoSuchLedger], ledger_id: int) -> PodkeeperError:
    """Return the error for a ledger that is not written any more."""
    return kind(f"ledger {ledger_id} was closed, or deleted, before this request arrived")
