"""What streams have now: their manifests, and how far their open ledgers are confirmed.

An idle query asks some 80 times a second. So what was seen counts for `metadata_refresh` seconds, and the handles of
open ledgers are kept, as are the parts of long lists that never change.

Invariants
- Nobody is fenced.
- At most `MAX_CONCURRENT` streams are asked about at the same time; handles are kept of the open ledgers alone.

The methods that end in `_now` run on the client's event loop; the others are for the one thread of the reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bookie_client.streams.managed_ledgers import managed_ledger, stored_name
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_client.streams.streams import Streams
from bookie_protocol.errors import NoSuchLedger, NoSuchStream
from pyspark_bookie.common.errors import told
from pyspark_bookie.common.together import bounded
from pyspark_bookie.source.options import OpenLedgers
from pyspark_bookie.source.selection import matching_streams
from pyspark_bookie.source.streaming.offsets import Place
from pyspark_bookie.source.streaming.open_tails import OpenTails
from pyspark_bookie.source.streaming.options import StreamingOptions
from pyspark_bookie.source.streaming.stream_view import StreamView

if TYPE_CHECKING:
    from bookie_client.client import Client

MAX_CONCURRENT: Final = 32


class StreamTails:
    """The streams that the options select."""

    def __init__(self, options: StreamingOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._names_at = float("-inf")
        self._views: dict[str, StreamView] = {}
        self._views_at = float("-inf")
        self._open = OpenTails(options)
        self._topic = Topic()
        self._client: Client | None = None
        self._streams: Streams | None = None

    def views(self, *, fresh: bool = False) -> dict[str, StreamView]:
        """The views by name, sorted. `fresh`: as of now. Raises `PodkeeperSparkError`."""
        now = self._clock()
        if fresh or now - self._views_at >= self._options.metadata_refresh:
            with told():
                self._views = self._options.client().run(self._all_now)
            self._views_at = self._clock()
        return self._views

    def view(self, name: str) -> StreamView:
        """One stream as of now, whether it is selected or not. Raises `PodkeeperSparkError`."""
        with told(f"stream {name}"):
            return self._options.client().run(lambda client: self._view_now(client, name))

    def move_cursor(self, name: str, place: Place) -> int:
        """Tell a stream how far the query is, and return the ordinal at which its cursor is then. Raises what
        `Streams.move_cursor` does."""
        cursor = self._options.cursor
        assert cursor is not None
        position = StreamPosition(*place.position)
        return self._options.client().run(lambda client: Streams(client).move_cursor(name, cursor, position)).ordinal

    # --- the client's event loop ----------------------------------------------------------------------------------

    async def _all_now(self, client: Client) -> dict[str, StreamView]:
        names = await self._names_now(client)
        seen = await bounded(names, lambda name: self._view_if_there(client, name), MAX_CONCURRENT)
        found = {name: view for name, view in zip(names, seen, strict=True) if view is not None}
        opened = (view.manifest.open_ledger for view in found.values())
        await self._open.keep({each.ledger_id for each in opened if each is not None})
        return found

    async def _view_if_there(self, client: Client, name: str) -> StreamView | None:
        """None: a pattern found the name of a stream that is deleted, or half deleted, by now."""
        try:
            return await self._view_now(client, name)
        except NoSuchStream:
            if self._options.stream_pattern is None:
                raise
            return None

    async def _names_now(self, client: Client) -> tuple[str, ...]:
        options = self._options
        if options.managed_ledger is not None:
            return (stored_name(options.managed_ledger),)
        if options.stream_pattern is None:
            return tuple(sorted({*(options.streams or ()), *([options.stream] if options.stream else [])}))
        if self._clock() - self._names_at >= options.discovery_interval:
            self._names = tuple(await matching_streams(self._streams_of(client), options.stream_pattern))
            self._names_at = self._clock()
        return self._names

    async def _view_now(self, client: Client, name: str) -> StreamView:
        while True:
            listed = await self._listed_now(client, name)
            opened = listed.manifest.open_ledger
            if opened is None or self._options.open_ledgers is OpenLedgers.SKIP:
                return listed
            try:
                return replace(listed, tail=await self._open.tail(client, opened.ledger_id))
            except NoSuchLedger:
                if (await self._listed_now(client, name)).manifest.version == listed.manifest.version:
                    raise

    async def _listed_now(self, client: Client, name: str) -> StreamView:
        """What the list says, without the open ledger's entries."""
        if self._options.managed_ledger is None:
            return StreamView(await self._streams_of(client).manifest(name))
        found = await managed_ledger(client, name)
        unreadable = frozenset(each.ledger_id for each in found.offloaded.values() if each.is_deleted)
        left = self._topic.left_by(found.manifest)
        return StreamView(found.manifest, unreadable=unreadable, is_counted=False, left=left)

    def _streams_of(self, client: Client) -> Streams:
        """The same as long as the client is: it keeps the segments of lists that were read."""
        if self._streams is None or self._client is not client:
            self._client, self._streams = client, Streams(client)
        return self._streams


class Topic:
    """Which ledger left Pulsar's list last, as far as this run saw it: only then it is known how long that was."""

    def __init__(self) -> None:
        self._listed: tuple[StreamLedger, ...] = ()
        self._left: StreamPosition | None = None

    def left_by(self, manifest: Manifest) -> StreamPosition | None:
        """The end of that ledger; None if nobody saw it."""
        gone = [ledger for ledger in self._listed if ledger.ledger_id not in manifest]
        self._listed = manifest.ledgers
        if gone:
            last = gone[-1]
            self._left = None if last.entries is None else StreamPosition(last.ledger_id, last.entries)
        return self._left
