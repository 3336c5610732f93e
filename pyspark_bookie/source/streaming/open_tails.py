"""The confirmed ends of ledgers that are being written.

Handles are kept from look to look: an idle query looks several times a second. Nothing is fenced.

Event loop of the client only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_bookie.source.options import StreamingOptions

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.reading.handle import LedgerReader


@dataclass(frozen=True, slots=True)
class OpenTail:
    """The readable part of a ledger: entries, and their payload bytes. `is_closed`: there will be no more."""

    entries: int = 0
    nbytes: int = 0
    is_closed: bool = False


class OpenTails:
    """The open tails of any ledgers; `keep` tells which are still of interest."""

    def __init__(self, options: StreamingOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._known: dict[int, tuple[LedgerReader, OpenTail]] = {}

    async def tail(self, client: Client, ledger_id: int) -> OpenTail:
        """Raises what `Client.open` does."""
        if self._client is not client:  # the one before was closed, and its handles with it
            self._client, self._known = client, {}
        if ledger_id in self._known:
            reader, known = self._known[ledger_id]
            await reader.read_last_add_confirmed()
        else:
            password = self._options.password.read()
            reader = await client.open(ledger_id, password=password, digest=self._options.digest_type)
            known = OpenTail()
        self._known[ledger_id] = reader, known
        entries = reader.last_add_confirmed + 1
        if entries > known.entries or reader.is_closed != known.is_closed:
            is_closed = reader.is_closed
            known = OpenTail(entries, await _length(reader, entries - 1), is_closed)
            self._known[ledger_id] = reader, known
        return known

    async def keep(self, ledger_ids: Collection[int]) -> None:
        """Give up the handles of all others."""
        for ledger_id in self._known.keys() - set(ledger_ids):
            reader, _ = self._known.pop(ledger_id)
            await reader.close()


async def _length(reader: LedgerReader, last: int) -> int:
    """Payload bytes up to an entry: while a ledger is open only its entries tell."""
    if reader.is_closed:
        return reader.length
    return (await reader.read(last, last))[0].length if last >= 0 else 0
