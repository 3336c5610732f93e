"""The read of one entry: one replica after the other until one serves undamaged bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from bookie_client.connection.pool import ChannelPool
from bookie_client.connection.request import Request
from bookie_client.reading.replicas import read_failure
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import DigestMismatch, PodkeeperError

_log = structlog.get_logger(__name__)


class ReadObserver(Protocol):
    """Is told which replica served an entry, and which one gave damaged bytes."""

    def served(self, bookie: str, entry_id: int) -> None: ...

    def damaged(self, bookie: str, entry_id: int, error: DigestMismatch) -> None: ...


Done = Callable[[int, bytes | None, bytes, PodkeeperError | None], None]
"""(entry id, payload or None, whole entry, error)."""


class EntryRead(Request):
    """Asks `order` in turn. `done` is called once, from the event loop."""

    __slots__ = ("_asked", "_digest", "_done", "_errors", "_frame", "_key", "_observer", "_order", "_pool", "ids")

    def __init__(
        self,
        ids: tuple[int, int],
        order: Sequence[str],
        request: tuple[bytes, bytes],
        pool: ChannelPool,
        digest: DigestManager,
        observer: ReadObserver,
        done: Done,
    ) -> None:
        self.ids = ids
        self._order = order
        self._key, self._frame = request
        self._pool = pool
        self._digest = digest
        self._observer = observer
        self._done = done
        self._asked = 0
        self._errors: dict[str, PodkeeperError] | None = None

    def send(self) -> None:
        """Ask the next replica."""
        bookie = self._order[self._asked]
        self._asked += 1
        self._pool.channel(bookie).send_read(self._frame, self._key, self)

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        ledger_id, entry_id = self.ids
        bookie = self._order[self._asked - 1]
        try:
            payload = self._digest.verify(entry, ledger_id, entry_id)
        except DigestMismatch as error:
            _log.warning("damaged replica", ledger=ledger_id, entry=entry_id, bookie=bookie, error=str(error))
            self._observer.damaged(bookie, entry_id, error)
            self.failed(error)
            return
        self._observer.served(bookie, entry_id)
        self._done(entry_id, payload, entry, None)

    def failed(self, error: PodkeeperError) -> None:
        if self._errors is None:
            self._errors = {}
        self._errors[self._order[self._asked - 1]] = error
        if self._asked < len(self._order):
            self.send()
        else:
            self._done(self.ids[1], None, b"", read_failure(*self.ids, self._errors))

    def describe(self) -> str:
        return f"the read of entry {self.ids[1]} of ledger {self.ids[0]}"
