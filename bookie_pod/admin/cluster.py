"""The bookies of the cluster, as the metadata service and they themselves tell. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.turns import Turns
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource, should_be
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api.bookie import BookieSpace
from bookie_protocol.admin_api.cluster import BookiesQuery, ClusterInfo, KnownBookie, Registration
from bookie_protocol.aside import Slices
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from bookie_protocol.together import bounded

if TYPE_CHECKING:
    from bookie_client import Client


ASKED_AT_A_TIME: Final = 32
LOCATION: Final = "networkLocation"
"""The property of a registration that holds the network location."""
_UNITS: Final = ("", "KB", "MB", "GB", "TB")


class ClusterView:
    """The other bookies, through the metadata service and the client."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._service = client.metadata
        self._places = asyncio.Semaphore(ASKED_AT_A_TIME)
        self._turns, self._console_turns = Turns(), Turns()

    async def bookies(self, *, read_only: bool) -> Sequence[str]:
        group = BookieGroup.READ_ONLY if read_only else BookieGroup.WRITABLE
        return sorted((await self._service.bookies.list(group)).bookies)

    async def hosts(self, bookie_ids: Sequence[str]) -> Mapping[str, str | None]:
        return dict(zip(bookie_ids, await bounded(bookie_ids, self._host, ASKED_AT_A_TIME), strict=True))

    async def _host(self, bookie_id: str) -> str | None:
        return _host_of(await self._info(bookie_id))

    async def known(self, caller: Caller = NOBODY, *, for_console: bool = False) -> Sequence[KnownBookie]:
        """All bookies that are registered or have a cookie. Raises `TooManyRequests`: it costs a read for each
        registration.

        `for_console`: the console looks once for all its viewers, so other callers do not keep it out.
        """
        async with (self._console_turns if for_console else self._turns).turn(caller):
            return await self._known()

    async def _known(self) -> Sequence[KnownBookie]:
        groups = (BookieGroup.ALL, BookieGroup.WRITABLE, BookieGroup.READ_ONLY)
        cookies, writable, read_only = [(await self._service.bookies.list(group)).bookies for group in groups]
        leaving = await self._service.records(DECOMMISSION).names()
        registered = sorted(writable | read_only)  # others publish nothing, and there may be any number of cookies
        infos = dict(zip(registered, await bounded(registered, self._info, ASKED_AT_A_TIME), strict=True))
        found, slices = list[KnownBookie](), Slices()
        for bookie in sorted(cookies | writable | read_only):
            found.append(_known(bookie, infos.get(bookie), cookies, writable, read_only, leaving))
            await slices.took(1)
        return found

    async def _info(self, bookie_id: str) -> BookieServiceInfo | None:
        async with self._places:
            try:
                return await self._service.bookies.service_info(bookie_id)
            except (MetadataNotFound, MetadataDamaged):
                return None

    async def space(self) -> Mapping[str, BookieSpace]:
        client = await self._client.get()
        bookies = sorted({*await self.bookies(read_only=False), *await self.bookies(read_only=True)})
        found = await bounded(bookies, partial(self._space, client), ASKED_AT_A_TIME)
        return {bookie: space for bookie, space in zip(bookies, found, strict=True) if space is not None}

    async def _space(self, client: Client, bookie_id: str) -> BookieSpace | None:
        async with self._places:
            try:
                info = await client.bookie_info(bookie_id)
            except PodkeeperError:
                return None  # the caller sees that it is missing
        return BookieSpace(info.free_bytes, info.total_bytes)

    async def state(self) -> ClusterInfo:
        bookies, marks = self._service.bookies, self._service.under_replication
        sets = await asyncio.gather(
            *(bookies.list(group) for group in (BookieGroup.ALL, BookieGroup.WRITABLE, BookieGroup.READ_ONLY))
        )
        known, writable, read_only = (each.bookies for each in sets)
        auditor = await self._service.auditor_election.current_auditor()
        return ClusterInfo(
            auditor_elected=auditor is not None,
            auditor_id=auditor or "",
            cluster_under_replicated=await self._is_under_replicated(),
            ledger_replication_enabled=await marks.is_enabled(),
            total_bookies_count=len(known | writable | read_only),
            writable_bookies_count=len(writable),
            readonly_bookies_count=len(read_only - writable),
            unavailable_bookies_count=len(known - writable - read_only),
        )

    async def _is_under_replicated(self) -> bool:
        async with aclosing(self._service.under_replication.list()) as marks:  # type: ignore[type-var]
            async for _ in marks:
                return True
        return False


def _host_of(info: BookieServiceInfo | None) -> str | None:
    address = info.bookie_address() if info is not None else None
    return address[0] if address is not None else None


def _known(
    bookie_id: str,
    info: BookieServiceInfo | None,
    cookies: AbstractSet[str],
    writable: AbstractSet[str],
    read_only: AbstractSet[str],
    leaving: AbstractSet[str],
) -> KnownBookie:
    registration: Registration = "none"
    if bookie_id in writable:
        registration = "writable"
    elif bookie_id in read_only:
        registration = "read-only"
    return KnownBookie(
        bookie_id=bookie_id,
        registration=registration,
        has_cookie=bookie_id in cookies,
        leaving=bookie_id in leaving,
        host=_host_of(info),
        location=info.properties.get(LOCATION) if info is not None else None,
        admin_url=info.admin_url() if info is not None else None,
    )


async def _known_bookies(context: Context, call: Call) -> Reply:
    return Json(await context.room(ClusterView).known(call.caller))


async def _cluster_info(context: Context, call: Call) -> Reply:
    return Json(await context.room(ClusterView).state())


async def _list_bookies(context: Context, call: Call) -> Reply:
    cluster = context.room(ClusterView)
    asked = call.asked(BookiesQuery)
    bookies = await cluster.bookies(read_only=asked.kind == "ro")
    return Json(await cluster.hosts(bookies) if asked.print_hostnames else dict.fromkeys(bookies))


async def _list_bookie_info(context: Context, call: Call) -> Reply:
    found = await context.room(ClusterView).space()
    if not found:
        return Text("Not found any Bookie info.", 404)
    answer = {bookie: f": {{{_space(space)}}}," for bookie, space in found.items()}
    whole = BookieSpace(
        sum(each.free_space for each in found.values()), sum(each.total_space for each in found.values())
    )
    return Json(answer | {"ClusterInfo: ": f"{{{_space(whole)}}}"})


def _space(space: BookieSpace) -> str:
    return (
        f"Free: {space.free_space}{readable(space.free_space)}, Total: {space.total_space}{readable(space.total_space)}"
    )


def readable(nbytes: int) -> str:
    """`(55.527GB)`: units of 1000, up to three decimals, truncated; nothing below 1000."""
    unit = min(len(_UNITS) - 1, (len(str(nbytes)) - 1) // 3)
    if unit == 0:
        return ""
    whole, rest = divmod(nbytes // 1000 ** (unit - 1), 1000)
    decimals = f"{rest:03}".rstrip("0")
    return f"({whole}{'.' if decimals else ''}{decimals}{_UNITS[unit]})"


def _get(operation: Operation) -> Resource:
    return Resource((operation,), should_be("GET"), own=False)


RESOURCES: Final = (
    Resource(
        (
            Operation(
                cluster_api.KNOWN,
                Role.VIEWER,
                "Every bookie that is registered or has a cookie, and where it is",
                _known_bookies,
                "The bookies, in the order of their ids.",
            ),
        ),
    ),
    _get(
        Operation(cluster_api.INFO, Role.VIEWER, "The cluster in numbers", _cluster_info, "Numbers."),
    ),
    _get(
        Operation(
            cluster_api.BOOKIES, Role.VIEWER, "The registered bookies", _list_bookies, "Host, or null, by bookie id."
        ),
    ),
    _get(
        Operation(
            cluster_api.SPACE,
            Role.VIEWER,
            "Space of every bookie, each asked now",
            _list_bookie_info,
            "A text by bookie id, and one of the whole cluster.",
            (Answer("No bookie answered.", 404),),
        ),
    ),
)
