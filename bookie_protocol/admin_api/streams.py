"""Streams of ledgers, and how far their consumers are."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from bookie_protocol.admin_api.bodies import API, Body, Query, Route

# Described, not enforced: the client reports the fault in words, not by a regular expression.
StreamName = Annotated[str, Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}$"})]
MOST_STREAMS: Final = 100
MOST_CURSORS: Final = 100
MOST_LEDGERS: Final = 200


class CursorState(Body):
    """The position of one consumer."""

    cursor_id: str
    """Its id."""
    position: str
    """The next entry that it reads, as `ledger:entry`."""
    lag: int
    """Entries between it and the end of the closed ledgers; what an open ledger holds is not counted."""
    moved_time: int
    """Time of its last move, in ms since 1970."""


class ListedLedger(Body):
    """One ledger of a stream."""

    ledger_id: int
    """Its id."""
    first: int
    """Number of entries that the stream had before it."""
    entries: int | None
    """Its entries; null: it is open."""
    bytes: int | None
    """Bytes of payload; null: it is open."""
    closed_time: int | None
    """Time at which it was closed or published, in ms since 1970; null: it is open."""


class StreamState(Body):
    """A stream."""

    name: str
    """Its name."""
    ledgers: int
    """Ledgers that it lists."""
    entries: int
    """Entries of its closed ledgers."""
    bytes: int
    """Bytes of payload of these."""
    open_ledger: int | None
    """Ledger that a writer appends to, or appended to when it died; null: none."""
    waiting_ledgers: int
    """Ledgers that were taken out and are not deleted yet."""
    created_time: int
    """Time of its creation, in ms since 1970."""
    cursors: list[CursorState]
    """Its consumers, the one with the largest lag first; of very many not all."""
    cursors_total: int
    """Number of its consumers."""
    problem: str | None = None
    """Reason why it cannot be read, and all numbers are 0; null: none."""
    listed: list[ListedLedger] | None = None
    """Its newest ledgers, the newest first, if one stream was asked for."""


class StreamsQuery(Query):
    """Streams to list, in the order of their names."""

    after: str = ""
    """Begin behind this name."""
    prefix: str = ""
    """Return only names that begin with this text."""
    limit: Annotated[int, Meta(ge=1, le=MOST_STREAMS)] = 25
    """Maximum number of streams."""


class StreamQuery(Query):
    """One stream."""

    name: StreamName
    """Its name."""


class FoundStreams(Body):
    """One page of streams."""

    streams: list[StreamState]
    """The streams."""
    total: int
    """Number of streams that match, on all pages."""
    next: str | None
    """Name after which the next page begins; null: there are no more."""


LIST: Final = Route("GET", f"{API}/stream/list", FoundStreams, StreamsQuery)
STREAM: Final = Route("GET", f"{API}/stream", StreamState, StreamQuery)
