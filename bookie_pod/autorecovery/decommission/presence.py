"""The registration of a bookie, now and in between, and the way to make it read-only.

Threads: event loop.

Source: docs/internals/auto-recovery.md, sections 12.2 and 12.3.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final

import aiohttp

from bookie_protocol.admin_api.bookie import SET_READ_ONLY, ReadOnlyBody, ReadOnlyQuery
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.admin_api.trust import Trust
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    MetadataError,
    MetadataNotFound,
    NoTls,
    NotThere,
    Refused,
    Unauthorized,
)
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService

ADMIN_S: Final = 20.0
"""Seconds that a bookie's admin API may take to change its mode."""
ANNOUNCED_S: Final = 30.0
"""Seconds within which a change of mode must show in the metadata service."""
FOLLOW_PAUSE_S: Final = 1.0
"""Seconds until registrations that could not be followed are followed again."""
_LOOK_S: Final = 0.2


class Presence(Enum):
    """The registration of a bookie. One that is in both lists counts as writable."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    ABSENT = "not registered"


async def presence_of(service: MetadataService, bookie_id: str) -> Presence:
    """Return the present registration, read now. Raises `MetadataError`."""
    # Writable once more at the end: between the two looks the bookie may have moved from one list to the other.
    for group, presence in (
        (BookieGroup.WRITABLE, Presence.WRITABLE),
        (BookieGroup.READ_ONLY, Presence.READ_ONLY),
        (BookieGroup.WRITABLE, Presence.WRITABLE),
    ):
        if await service.bookies.is_registered(bookie_id, group):
            return presence
    return Presence.ABSENT


class Vigil:
    """Remembers whether a bookie was registered, and writable, at any time since `reset`; an async context manager.

    `settle`: seconds in which every client hears of a change of the registrations.
    """

    def __init__(self, service: MetadataService, bookie_id: str, settle: float = 0.0) -> None:
        self._service = service
        self._bookie_id = bookie_id
        self._settle = settle
        self._quiet_since = asyncio.get_running_loop().time()
        self._tasks: list[asyncio.Task[None]] = []
        self.seen_writable = self.seen_registered = False

    def reset(self) -> None:
        """The bookie is known not to be writable now."""
        self.seen_writable = self.seen_registered = False
        self._quiet_since = asyncio.get_running_loop().time()

    async def settled(self) -> None:
        """Wait until it has been so for `settle` seconds.

        Clients hear of it a little later, and a ledger that they create meanwhile may still name the bookie.
        """
        left = self._quiet_since + self._settle - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    async def check(self) -> Presence:
        """The bookie's registration now; `seen_writable` takes it into account."""
        presence = await presence_of(self._service, self._bookie_id)
        self.seen_writable |= presence is Presence.WRITABLE
        self.seen_registered |= presence is not Presence.ABSENT
        return presence

    async def __aenter__(self) -> Vigil:
        loop = asyncio.get_running_loop()
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
            self._tasks.append(loop.create_task(self._follow(group), name=f"vigil over {self._bookie_id}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _follow(self, group: BookieGroup) -> None:
        while True:
            with suppress(MetadataError):  # then `check` alone tells
                async with self._service.bookies.watch(group) as snapshots:
                    async for snapshot in snapshots:
                        is_here = self._bookie_id in snapshot.bookies
                        self.seen_registered |= is_here
                        self.seen_writable |= is_here and group is BookieGroup.WRITABLE
            await asyncio.sleep(FOLLOW_PAUSE_S)


class BookieAdmin:
    """Changes the mode of a bookie that serves, over the HTTP endpoint that it publishes with its registration
    (Apache's path), or over `url`.

    `token`: for bookies whose admin API demands one, shown to those in `trust`. `tls`: for those that serve https. A
    bookie of another kind, such as one of Apache's among ours, may know neither: one that does not say that it serves
    https, and does not, is asked over plain http, and is not shown the token.
    """

    def __init__(
        self,
        service: MetadataService,
        *,
        url: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._service = service
        self._url = url.rstrip("/") if url is not None else None
        self._token = token
        self._tls = tls
        self._trust = trust

    async def _urls_of(self, bookie_id: str) -> list[str]:
        """Return the addresses of the bookie's admin API, the likelier first.

        `BookieUnavailable`: it publishes none, or is not registered.
        """
        if self._url is not None:
            return [self._url]
        try:
            info = await self._service.bookies.service_info(bookie_id)
        except MetadataNotFound as error:
            raise BookieUnavailable(
                f"bookie {bookie_id} is not registered, so its admin API cannot be found"
            ) from error
        told = info.admin_url()
        if told is None:
            raise BookieUnavailable(
                f"bookie {bookie_id} publishes no HTTP endpoint: set httpServerEnabled=true there, or make it read-only"
                " by other means and repeat"
            )
        if self._tls is None or told.startswith("https:"):
            return [told]
        return [told.replace("http:", "https:", 1), told]

    async def set_read_only(self, bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
        """`decommission`: when the one began for which this is done; the bookie refuses if it is over by then.

        `BookieUnavailable`: it cannot be reached. `Refused`, `Unauthorized`: it will not."""
        *likelier, last = await self._urls_of(bookie_id)
        for url in likelier:
            with suppress(NoTls):
                return await self._ask(bookie_id, url, self._token, read_only, decommission)
        try:
            await self._ask(bookie_id, last, None if likelier else self._token, read_only, decommission)
        except NoTls as error:
            raise BookieUnavailable(f"bookie {bookie_id}: {error}") from error

    async def _ask(
        self, bookie_id: str, url: str, token: str | None, read_only: bool, decommission: int | None
    ) -> None:
        # `decommission` is no member: Apache's bookies take none that they do not know, and do not look at the query.
        place = Place(f"the admin API at {url}", url, self._tls, trust=self._trust)
        try:
            async with aiohttp.ClientSession() as session:
                client = AdminClient(session, token, timeout_s=ADMIN_S)
                await client.fetch(place, SET_READ_ONLY, ReadOnlyBody(read_only), ReadOnlyQuery(decommission))
        except NoTls:
            raise
        except Unauthorized as error:
            raise Unauthorized(f"bookie {bookie_id}: {error}") from error
        except (Refused, NotThere) as error:
            raise Refused(f"bookie {bookie_id} refuses to change its mode: {error}") from error
        except CouldNotTell as error:
            raise BookieUnavailable(f"bookie {bookie_id}: {error}") from error


async def make_read_only(
    service: MetadataService, admin: BookieAdmin, bookie_id: str, presence: Presence, began_ms: int | None = None
) -> None:
    """Make a registered bookie read-only by an operator's word, and wait until the registration says so. `began_ms`: of
    the decommission for which it is done.

    One that is read-only already gets the request too, so that it stays so when its disks get room; there it is no
    error if it cannot be reached. `Refused`: it is writable and cannot be made read-only.
    """
    try:
        await admin.set_read_only(bookie_id, True, began_ms)
    except (BookieUnavailable, Refused) as error:
        if presence is Presence.READ_ONLY:
            return
        raise Refused(
            f"bookie {bookie_id} is still writable and cannot be made read-only: {error}; nothing was moved. Correct"
            " that, or stop the bookie, and repeat"
        ) from error
    await _left_the_writable(service, bookie_id)


async def make_writable(service: MetadataService, admin: BookieAdmin, bookie_id: str) -> bool:
    """Take it back. False: it is not registered, so there is nothing to take back. Raises what `set_read_only` does."""
    if await presence_of(service, bookie_id) is Presence.ABSENT:
        return False
    await admin.set_read_only(bookie_id, False)
    return True


async def _left_the_writable(service: MetadataService, bookie_id: str) -> None:
    deadline = asyncio.get_running_loop().time() + ANNOUNCED_S
    while await presence_of(service, bookie_id) is Presence.WRITABLE:
        if asyncio.get_running_loop().time() >= deadline:
            raise BookieUnavailable(
                f"bookie {bookie_id} changed its mode, but its registration does not show it after {ANNOUNCED_S:g} s:"
                " does it reach the metadata service?"
            )
        await asyncio.sleep(_LOOK_S)
