"""An embedded store in this very process.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.options import DEFAULT_ROOT, MetadataServiceOptions, MetadataServiceUri
from bookie_protocol.metadata_service.tree.service import MetadataService


class LocalTransport:
    """Calls the owner directly. `owned`: closing the transport closes the store."""

    def __init__(self, owner: EmbeddedOwner, *, owned: bool) -> None:
        self._owner = owner
        self._owned = owned

    @property
    def target(self) -> str:
        return "this process"

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply:
        return await self._owner.open_session(request, local=True)

    async def heartbeat(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return self._owner.heartbeat(request)

    async def close_session(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._owner.close_session(request)

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply:
        return await self._owner.execute(request)

    def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        return self._owner.events(request)

    async def reconnect(self) -> None:
        """There is no wire."""

    async def close(self) -> None:
        if self._owned:
            await self._owner.close()


async def connect_local(
    owner: EmbeddedOwner,
    timeout: float,
    *,
    root: str = DEFAULT_ROOT,
    layout: LedgerLayout | None = None,
    owned: bool = False,
    options: MetadataServiceOptions | None = None,
) -> MetadataService:
    """Return a session with an owner in this process; `timeout` in seconds (that of `options` does not count)."""
    tree = EmbeddedTree(LocalTransport(owner, owned=owned), timeout)
    await tree.connect()
    return await MetadataService(tree, root, layout, options).open()


async def open_owned(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Open the store in the URI's folder, for this process alone; closing the service closes the store."""
    if uri.folder is None:
        raise InvalidConfiguration("an owned metadata store needs a folder")
    owner = await EmbeddedOwner.open(uri.folder, make_store=options.make_store)
    return await connect_local(owner, options.timeout, root=uri.root, owned=True, options=options)
