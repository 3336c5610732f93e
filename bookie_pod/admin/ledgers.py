"""Ledgers of the whole cluster: list, look at, read, delete.

Invariants
- Memory holds a few ledgers' metadata, or what the client reads ahead; answers of any length are streamed. What is
  heavy is made on a thread, and few lists with metadata are under way (`MOST_LISTINGS`).
- What the metadata holds is shown; the ledgers' passwords, as the reference shows them, to who is `admin` alone, who
  may read payloads without knowing them too. Others see an empty password.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from msgspec import UNSET

from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.ledger_weights import Weighed, Window, beginning_of, end_of, weight_of
from bookie_pod.roles import Caller, Role
from bookie_pod.server.http.api.call import Call, Json, JsonMembers, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource, should_be
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api.cluster import (
    EnsembleMember,
    EntriesQuery,
    LedgerQuery,
    LedgersQuery,
    LedgerView,
    MetadataQuery,
)
from bookie_protocol.errors import BadRequest, MetadataDamaged, NotThere, TooManyRequests
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata

T = TypeVar("T")
LEDGERS_PER_PAGE: Final = 100
ENTRIES_PER_PAGE: Final = 1000
MOST_LISTINGS: Final = 2
"""Lists with metadata that are made at the same time; one more is for operators and admins."""
_NO_LEDGER: Final = Answer("There is no such ledger.", 404)
_ONLY_GET: Final = should_be("GET")
_NEEDS_ID: Final = Text(f"{_ONLY_GET.body}, with ledger_id provided", 404)


class ClusterLedgers:
    """Through the client."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._ledgers = client.metadata.ledgers
        self._weighed = {runs_cluster: Weighed() for runs_cluster in (False, True)}
        self._listings = 0

    @asynccontextmanager
    async def listing(self, caller: Caller) -> AsyncIterator[None]:
        """Have a place for a list with metadata. Raises `TooManyRequests`."""
        if self._listings >= MOST_LISTINGS + caller.runs_cluster:
            raise TooManyRequests(f"{MOST_LISTINGS} lists of ledgers with metadata are under way; try again later")
        self._listings += 1
        try:
            yield
        finally:
            self._listings -= 1

    async def ids(self) -> AsyncIterator[int]:
        async for span in self._ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return await (await self._client.get()).metadata(ledger_id)

    async def metadata_of(self, ids: AsyncIterator[int]) -> AsyncGenerator[tuple[int, LedgerMetadata | str], None]:
        """The metadata of these ledgers, or why it cannot be read; those that are deleted meanwhile are left out."""
        window = Window()
        group: list[int] = []
        async for ledger_id in ids:
            group.append(ledger_id)
            if len(group) >= window.size:
                async for each in self._read(group, window):
                    yield each
                group = []
        if group:
            async for each in self._read(group, window):
                yield each

    async def _read(self, group: list[int], window: Window) -> AsyncGenerator[tuple[int, LedgerMetadata | str], None]:
        heaviest = 0
        for ledger_id, stored in zip(group, await self._ledgers.read_each(group), strict=True):
            if isinstance(stored, MetadataDamaged):
                yield ledger_id, f"(damaged) {stored}"  # in its place: those behind it are listed all the same
            elif isinstance(stored, NotThere):
                continue
            elif isinstance(stored, Exception):
                raise stored
            else:
                heaviest = max(heaviest, weight_of(stored.value))
                yield ledger_id, stored.value
        window.seen(heaviest)

    async def made(self, metadata: LedgerMetadata, make: Callable[[LedgerMetadata], T], caller: Caller) -> T:
        """Return `make(metadata)`, which the event loop does not wait for if the ledger is heavy."""
        return await self._weighed[caller.runs_cluster].make(metadata, make)

    async def delete(self, ledger_id: int) -> None:
        await self._ledgers.delete(ledger_id)

    async def entries(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, bytes], None]:
        client = await self._client.get()
        async with client.open(ledger_id, password=None) as reader:
            end = reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
            if first > end:
                return
            async with aclosing(reader.batches(first, end)) as batches:
                async for batch in batches:
                    for entry in batch:
                        yield entry.entry_id, entry.payload


# --- metadata ---------------------------------------------------------------------------------------------


def ledger_view(metadata: LedgerMetadata, most: int | None = None) -> LedgerView:
    """The metadata as the reference shows it. `most`: weight of the last ensembles, and of the first custom metadata,
    that it has; None: it has all."""
    ensembles = metadata.ensembles if most is None else end_of(metadata, most)
    custom = metadata.custom_metadata if most is None else beginning_of(metadata.custom_metadata, most)
    return LedgerView(
        ledger_id=metadata.ledger_id,
        metadata_format_version=metadata.format_version,
        ensemble_size=metadata.ensemble_size,
        write_quorum_size=metadata.write_quorum_size,
        ack_quorum_size=metadata.ack_quorum_size,
        state=metadata.state.value,
        length=metadata.length,
        last_entry_id=metadata.last_entry_id,
        ctime=-1 if metadata.ctime is None else metadata.ctime,
        digest_type=metadata.digest_type.name if metadata.digest_type is not None else None,
        password=_base64(metadata.password or b""),
        custom_metadata={name: _base64(value) for name, value in custom.items()},
        closed=metadata.is_closed,
        all_ensembles={
            str(first): [EnsembleMember(bookie) for bookie in ensemble] for first, ensemble in ensembles.items()
        },
        ctoken=metadata.creation_token,
        fragments=UNSET if most is None else len(metadata.ensembles),
        custom_metadata_values=UNSET if most is None else len(metadata.custom_metadata),
    )


def without_password(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return the metadata for those who may not see the password. A ledger may have none recorded."""
    return replace(metadata, password=b"") if metadata.password else metadata


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


async def _metadata(context: Context, call: Call) -> Reply:
    asked = call.asked(MetadataQuery)
    ledger_id = asked.ledger_id
    ledgers = context.room(ClusterLedgers)
    found = await ledgers.metadata(ledger_id)
    caller = call.caller
    shown = await ledgers.made(found, lambda each: ledger_view(_for(caller, each), asked.most), caller)
    return Json({str(ledger_id): shown})


def _for(caller: Caller, metadata: LedgerMetadata) -> LedgerMetadata:
    """Return the metadata that the caller may see."""
    return metadata if caller.may(Role.ADMIN) else without_password(metadata)


# --- list -------------------------------------------------------------------------------------------------


async def _list(context: Context, call: Call) -> Reply:
    ledgers = context.room(ClusterLedgers)
    asked = call.asked(LedgersQuery)
    if not asked.print_metadata:
        return JsonMembers(_ids(ledgers))
    return JsonMembers(_listed(ledgers, asked.page, call.caller, decode=asked.decode_meta))


async def _ids(ledgers: ClusterLedgers) -> AsyncGenerator[tuple[str, Any], None]:
    async for ledger_id in ledgers.ids():
        yield str(ledger_id), None


async def _listed(
    ledgers: ClusterLedgers, page: int | None, caller: Caller, *, decode: bool
) -> AsyncGenerator[tuple[str, Any], None]:
    def make(metadata: LedgerMetadata) -> LedgerView | str:
        shown = _for(caller, metadata)
        return ledger_view(shown) if decode else encode_ledger_metadata(shown).decode("utf-8", "replace")

    async with ledgers.listing(caller):
        async for ledger_id, found in ledgers.metadata_of(_page(ledgers.ids(), page)):
            shown = found if isinstance(found, str) else await ledgers.made(found, make, caller)
            yield str(ledger_id), shown


async def _page(ids: AsyncIterator[int], page: int | None) -> AsyncIterator[int]:
    """The ids of one page. The reference counts ids from 1 and pages from 100 * (page - 1), so the first page has 99:
    kept, since a caller that pages through both would otherwise miss ledgers or see them twice."""
    first, last = ((page - 1) * LEDGERS_PER_PAGE, page * LEDGERS_PER_PAGE - 1) if page is not None else (0, None)
    number = 0
    async for ledger_id in ids:
        number += 1
        if last is not None and number > last:
            return
        if number >= first:
            yield ledger_id


# --- read, delete -----------------------------------------------------------------------------------------


async def _read(context: Context, call: Call) -> Reply:
    asked = call.asked(EntriesQuery)
    first, last, page = asked.start_entry_id, asked.end_entry_id, asked.page
    if last != -1 and last < first:
        raise BadRequest(f"end_entry_id={last} is below start_entry_id={first}")
    end = last if last != -1 else None
    if page is not None:
        first += (page - 1) * ENTRIES_PER_PAGE
        if end is not None and end < first:
            raise BadRequest(f"page={page} begins at entry {first}, behind end_entry_id={end}")
        page_end = first + ENTRIES_PER_PAGE - 1
        end = page_end if end is None else min(end, page_end)
    return JsonMembers(_entries(context.room(ClusterLedgers), asked.ledger_id, first, end, page))


async def _entries(
    ledgers: ClusterLedgers, ledger_id: int, first: int, last: int | None, page: int | None
) -> AsyncGenerator[tuple[str, Any], None]:
    entries = ledgers.entries(ledger_id, first, last)
    try:
        async for entry_id, payload in entries:
            yield str(entry_id), payload.decode("ascii", "replace")
    finally:
        await entries.aclose()
    if page is not None:
        yield "Entries for page: ", str(page)


async def _delete(context: Context, call: Call) -> Reply:
    ledger_id = call.asked(LedgerQuery).ledger_id
    await context.room(ClusterLedgers).delete(ledger_id)
    return Json(f"Deleted ledger: {ledger_id}")


# --- the table --------------------------------------------------------------------------------------------


def _resource(operation: Operation, refusal: Text) -> Resource:
    return Resource((operation,), refusal, own=False)


RESOURCES: Final = (
    _resource(
        Operation(
            cluster_api.LEDGERS,
            Role.VIEWER,
            "All ledgers, in the order of their ids",
            _list,
            "null, the stored text, or the metadata, by ledger id; of one that cannot be read why, as text.",
        ),
        _ONLY_GET,
    ),
    _resource(
        Operation(
            cluster_api.METADATA,
            Role.VIEWER,
            "The metadata of one ledger",
            _metadata,
            "One member, named by the ledger id.",
            (_NO_LEDGER,),
            missing=_ONLY_GET,
        ),
        _ONLY_GET,
    ),
    _resource(
        Operation(
            cluster_api.READ,
            Role.ADMIN,
            "Payloads as ASCII text, bytes beyond it replaced",
            _read,
            "Payload by entry id; with `page` also its number.",
            (_NO_LEDGER,),
            missing=_NEEDS_ID,
        ),
        _NEEDS_ID,
    ),
    _resource(
        Operation(
            cluster_api.DELETE,
            Role.ADMIN,
            "Delete a ledger; one that does not exist is fine",
            _delete,
            "What was done.",
            missing=Text("Not ledger found. Should provide ledger_id=<id>", 404),
        ),
        should_be("DELETE"),
    ),
)
