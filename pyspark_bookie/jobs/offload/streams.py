"""Archived ledgers of a stream: only the oldest ones can go, and they go by truncating the stream, so that its readers
are told that they are gone rather than meeting a hole.

Invariants
- A stream is cut only behind ledgers whose archive was proved good.
- A cursor that has not passed them keeps them.

Driver, or any thread with a client.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import takewhile
from typing import TYPE_CHECKING

from bookie_protocol.errors import StreamInUse

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.streams import Manifest, StreamPosition


def oldest(manifest: Manifest, ledger_ids: Collection[int]) -> tuple[int, ...]:
    """The ledgers at the beginning of a stream that are all among these."""
    return tuple(
        ledger.ledger_id
        for ledger in takewhile(lambda ledger: not ledger.is_open and ledger.ledger_id in ledger_ids, manifest.ledgers)
    )


def behind(manifest: Manifest, count: int) -> StreamPosition:
    """The place behind the first `count` ledgers, at least one."""
    from bookie_client.streams import StreamPosition

    if count < len(manifest.ledgers):
        return StreamPosition(manifest.ledgers[count].ledger_id, 0)
    last = manifest.ledgers[-1]
    return StreamPosition(last.ledger_id, last.entries or 0)


def cut(client: BlockingClient, manifest: Manifest, proven: Collection[int]) -> str | None:
    """Truncate a stream behind its oldest ledgers, which are proven; they are deleted with it. Returns why nothing was
    done, in words; None: done, or there was nothing to do."""
    from bookie_client.streams import Streams

    going = oldest(manifest, proven)
    if not going:
        return None
    position = behind(manifest, len(going))
    try:
        client.run(lambda inner: Streams(inner).truncate(manifest.name, position))
    except StreamInUse as error:
        return str(error)
    return None
