"""Sending the entries of one piece to their targets: pipelined, one future for all acknowledgements.

Invariants
- One frame serves all targets of an entry, and all frames of a piece go to a target in one write.
- A piece is stored when every target has acknowledged every entry sent to it; the first refusal ends it.
- "Too many requests" is answered by sending that entry again later, a bounded number of times.
- Nothing is sent again once the piece is over.

The adds have the flag of recovery, so that ledgers which are fenced on a target take them, and not its priority:
clients come first. Event loop only.

Source: reference auto-recovery, section 7; reference wire protocol, sections 3 and 4.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from bookie_client.connection.dialect import AddEncoder
from bookie_client.connection.pool import Channel
from bookie_client.connection.request import Answer, FramedRequest
from bookie_protocol.errors import PodkeeperError, TooManyRequests

BUSY_TRIES: Final = 10
BUSY_SECONDS: Final = 0.02
"""The first pause before an entry is sent again; doubles with each."""


class TargetFailed(Exception):
    """A target refused a copy, or cannot be told to have it. Never leaves this package: `error` does."""

    def __init__(self, bookie: str, error: PodkeeperError) -> None:
        super().__init__(str(error))
        self.bookie = bookie
        self.error = error


class CopyAdds:
    """The adds of one piece; `close` it. `channels`: the targets, by position."""

    def __init__(self, ledger_id: int, channels: Mapping[int, Channel]) -> None:
        self.ledger_id = ledger_id
        self._channels = {channel.bookie_id: channel for channel in channels.values()}
        self._positions = channels
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._left = 0
        self._tries: Counter[tuple[str, int]] = Counter()

    @property
    def is_over(self) -> bool:
        return self._done.done()

    async def store(
        self,
        entries: Sequence[tuple[int, bytes]],
        encode: AddEncoder,
        transactions: Iterable[int],
        needs: Callable[[int, int], bool] | None,
    ) -> int:
        """Send all, and wait until all are durable; returns the number of copies. `needs(position, entry id)`: whether
        that target gets the entry; None: each gets all. Raises `TargetFailed`."""
        adds = [_CopyAdd(self, entry_id) for entry_id, _ in entries]
        for add, (entry_id, entry), txn_id in zip(adds, entries, transactions, strict=False):
            add.key, add.encoded = encode(txn_id, entry_id, entry)
        everything = b"".join([add.frame for add in adds]) if needs is None else b""
        sending: list[tuple[Channel, list[_CopyAdd]]] = []
        for position, channel in self._positions.items():
            mine = adds if needs is None else [add for add in adds if needs(position, add.entry_id)]
            if mine:
                sending.append((channel, mine))
                self._left += len(mine)
        copies = self._left
        if not copies:
            return 0
        for channel, mine in sending:
            channel.send_adds(everything or b"".join([add.frame for add in mine]), mine)
        await self._done
        return copies

    def close(self) -> None:
        """Answers that come later are dropped."""
        self._done.cancel()

    # --- answers --------------------------------------------------------------------------------------------

    def acknowledged(self) -> None:
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)

    def refused(self, bookie: str, add: _CopyAdd, error: PodkeeperError) -> None:
        if self._done.done():
            return
        if isinstance(error, TooManyRequests):
            tried = self._tries[bookie, add.entry_id]
            if tried < BUSY_TRIES:
                self._tries[bookie, add.entry_id] = tried + 1
                self._loop.call_later(BUSY_SECONDS * 2**tried, self._send_again, bookie, add)
                return
        self._done.set_exception(TargetFailed(bookie, error))

    def _send_again(self, bookie: str, add: _CopyAdd) -> None:
        if not self._done.done():
            self._channels[bookie].send_add(add.frame, add.key, add)


class _CopyAdd(FramedRequest):
    """One entry; it waits in the connections to all its targets."""

    __slots__ = ("_adds", "encoded", "entry_id")

    encoded: bytes

    def __init__(self, adds: CopyAdds, entry_id: int) -> None:
        self._adds = adds
        self.entry_id = entry_id

    @property
    def frame(self) -> bytes:
        return self.encoded

    @property
    def is_wanted(self) -> bool:
        return not self._adds.is_over

    def acknowledged(self, bookie: str) -> None:
        self._adds.acknowledged()

    def accepted(self, bookie: str, answer: Answer) -> None:
        self._adds.acknowledged()

    def refused(self, bookie: str, error: PodkeeperError) -> None:
        self._adds.refused(bookie, self, error)

    def describe(self) -> str:
        return f"the copy of entry {self.entry_id} of ledger {self._adds.ledger_id}"
