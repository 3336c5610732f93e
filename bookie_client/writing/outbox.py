"""New adds on their way out: what one turn of the event loop submits is encoded and sent together.

Invariants
- An add is sent in the turn in which it was taken in, or before anything that changes where adds go (`flush`).
- Adds leave in the order of their entry ids, and carry the LAC as it is when they leave.
- A re-sent add is the same bytes.

Event loop only.

Source: reference client protocol, sections 5 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from bookie_client.connection.dialect import AddEncoder
from bookie_client.connection.pool import Channel
from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.digest import DigestManager
from bookie_protocol.wire.add_frames import AddFrames, CommonFields

BULK_BYTES: Final = 256 * 1024
"""Bytes of new adds that are sent without waiting for the end of the turn."""


class Outbox:
    """The outbox of one pipeline. What is put clears `idle`. `after` is called behind each flush that sent
    something, `broke` when one has a defect."""

    def __init__(
        self,
        context: ClientContext,
        state: AddState,
        digest: DigestManager,
        encoder: AddEncoder,
        idle: asyncio.Event,
        after: Callable[[], None],
        broke: Callable[[str, Exception], None],
    ) -> None:
        self._context = context
        self._state = state
        self._digest = digest
        self._encoder = encoder
        self._idle = idle
        self._after = after
        self._broke = broke
        self._loop = asyncio.get_running_loop()
        self._tail = encoder.tail
        self._fresh: list[PendingAdd] = []
        self._fresh_bytes = 0
        self._flush_due = False
        self._ensemble: tuple[str, ...] = ()
        self._channels: list[Channel] = []
        self.follow_ensemble()

    def put(self, add: PendingAdd) -> None:
        """Take in a new add."""
        fresh = self._fresh
        if not fresh:  # behind others it is clear already: nothing is idle before they have left
            self._idle.clear()
        fresh.append(add)
        self._fresh_bytes += add.nbytes
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)
        elif self._fresh_bytes >= BULK_BYTES:
            self.flush()

    def put_run(self, adds: list[PendingAdd], nbytes: int) -> None:
        """Take in many new adds; bytes of all of them."""
        self._idle.clear()
        self._fresh += adds
        self._fresh_bytes += nbytes
        if self._fresh_bytes >= BULK_BYTES:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)

    def flush(self) -> None:
        """Send what was put."""
        adds = self._fresh
        if not adds:
            return
        self._fresh, self._fresh_bytes = [], 0
        try:
            common = self._encode(adds)
            if self._state.everywhere:
                self._send_everywhere(adds, common)
            else:
                self._send_striped(adds)
        except Exception as defect:  # the adds have begun: whoever flushes is not who waits for them
            self._broke("sending", defect)
            return
        self._after()

    def send_again(self, add: PendingAdd, position: int) -> None:
        """Send an add to the bookie that stands at `position` now."""
        add.waiting |= 1 << position
        self._channels[position].send_add(add.frame, add.key, add)

    def frame(self, add: PendingAdd) -> bytes:
        """The bytes of an add that was encoded before."""
        return b"".join((add.head, add.body, self._tail))

    @property
    def channels(self) -> Sequence[Channel]:
        """The ways to the ensemble that adds go to."""
        return self._channels

    def follow_ensemble(self) -> bool:
        """Adds go to the ensemble that the state names now; whether that is another one."""
        if self._ensemble == self._state.ensemble:
            return False
        self._ensemble = self._state.ensemble
        ledger_id, pool = self._state.ledger_id, self._context.pool
        self._channels = [pool.channel(bookie, ledger_id) for bookie in self._ensemble]
        return True

    def _flush_turn(self) -> None:
        self._flush_due = False
        self.flush()

    def _encode(self, adds: list[PendingAdd]) -> CommonFields | None:
        return self._encoder.make_heads(adds, self._state.piggy_back(), self._digest, self._context.transactions)

    def _send_everywhere(self, adds: list[PendingAdd], common: CommonFields | None) -> None:
        everybody = (1 << len(self._channels)) - 1
        for add in adds:
            add.waiting = everybody
        frames = self._frames(adds, common)
        for channel in self._channels:
            channel.send_adds(frames, adds)

    def _send_striped(self, adds: list[PendingAdd]) -> None:
        mine: list[list[PendingAdd]] = [[] for _ in self._channels]
        for add in adds:
            for position in self._state.targets(add):
                add.waiting |= 1 << position
                mine[position].append(add)
        for channel, its in zip(self._channels, mine, strict=True):
            if its:
                channel.send_adds(self._frames(its), its)

    def _frames(self, adds: list[PendingAdd], common: CommonFields | None = None) -> AddFrames:
        return AddFrames([add.head for add in adds], [add.body for add in adds], self._tail, common)
