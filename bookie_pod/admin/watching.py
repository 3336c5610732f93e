"""The state of a console between two pages: its looks at the cluster, and connections to other bookies.

Other bookies are asked with the token of the person who looks, never with the bookie's own; and only what the role
`viewer` may see. Anybody who can write metadata can register any address, so a token goes only to those that the
configuration trusts (`trust_of`). Where certificates count instead, this bookie shows its own.

Event loop only.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, TypeVar

import aiohttp

from bookie_pod.admin.bookie_ids import checked_id
from bookie_pod.admin.peers import trust_of
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.server.http.tls import client_context
from bookie_protocol.admin_api.bodies import Query, Route
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.errors import BookieUnavailable, CouldNotTell, MetadataNotFound
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.web_console.source import Watcher

T = TypeVar("T")
TIMEOUT_S: Final = 5.0
CONNECT_S: Final = 2.0
MAX_BYTES: Final = 256 * 1024
"""Bytes of an answer: a page with all its rows is made at once, while the event loop waits."""
_CONNECTIONS: Final = 32
_CONNECTIONS_EACH: Final = 4
"""Connections to one bookie, so that one that hangs leaves some to the others."""
_TLS_S: Final = 60.0
"""Seconds for which certificates that were read count."""


class Watching:
    """The state of one console. `stop` it."""

    def __init__(self, metadata: MetadataService, config: HttpConfig) -> None:
        self.watcher = Watcher()
        self._metadata = metadata
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_until = 0.0
        self._stopped = False

    async def ask(self, bookie_id: str, route: Route[T], query: Query | None, token: str | None) -> T:
        """The answer of another bookie. Raises as `AdminClient.ask`, `MetadataUnavailable`; `BadRequest`: it is not a
        bookie id."""
        checked_id(bookie_id, "bookie")
        try:
            info = await self._metadata.bookies.service_info(bookie_id)
        except MetadataNotFound as error:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered, so it cannot be asked") from error
        url = info.admin_url(tls=self._config.tls_enable)
        if url is None:
            raise BookieUnavailable(f"bookie {bookie_id} publishes no HTTP endpoint: set httpServerEnabled=true there")
        tls = await self._context()
        place = Place(f"bookie {bookie_id}", url, tls, trust=trust_of(self._config, tls))
        client = AdminClient(self._open(), token, timeout_s=TIMEOUT_S, connect_s=CONNECT_S, max_bytes=MAX_BYTES)
        return await client.ask(place, route, query=query)

    async def stop(self) -> None:
        """End what is under way, close connections."""
        self._stopped = True
        await self.watcher.stop()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._stopped:
            raise CouldNotTell("the bookie stops")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS, limit_per_host=_CONNECTIONS_EACH)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def _context(self) -> ssl.SSLContext | None:
        if self._config.tls_enable and time.monotonic() >= self._tls_until:
            self._tls = await asyncio.to_thread(client_context, self._config)
            self._tls_until = time.monotonic() + _TLS_S
        return self._tls
