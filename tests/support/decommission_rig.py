"""A cluster for tests of decommissions: real metadata, bookies that are only registrations, copies that are only
metadata changes, and a coordinator that can die at any request to the metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts
from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Form, Phase
from bookie_pod.autorecovery.decommission.store import DecommissionRequest
from bookie_pod.node.identity.leaving import is_under_way
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BookieUnavailable,
    EntriesUnreadable,
    MetadataUnavailable,
    MetadataVersionConflict,
    NotEnoughBookies,
    PodkeeperError,
    RecoveryFailed,
    Refused,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.local import LocalTransport
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLife
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService

W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY
GOING = "b0:1"
BOOKIES = tuple(f"b{i}:1" for i in range(5))
QUICK = DrainOptions(ledgers_at_once=2, open_grace=0.02, retry_interval=0.01, give_up_after=0.05, settle=0.05)


Hook = Callable[[int], Awaitable[None]]


class Gate:
    """The server's gate of a bookie, which only notes its mode."""

    read_only = False

    def set_mode(self, *, read_only: bool, high_priority_writes: bool) -> None:
        self.read_only = read_only


async def _at_once(ledger_id: int) -> None:
    return None


def info(bookie_id: str) -> BookieServiceInfo:
    return BookieServiceInfo((Endpoint("bookie", bookie_id.partition(":")[0], 1, BOOKIE_RPC),))


def ledger(ledger_id: int, *ensembles: tuple[int, str], last: int | None = 9) -> LedgerMetadata:
    """`ensembles`: first entry and the digits of its bookies; `last` None: open."""
    segments = {first: tuple(f"b{digit}:1" for digit in digits) for first, digits in ensembles}
    made = LedgerMetadata(ledger_id, 3, 3, 2, segments, digest_type=DigestType.CRC32C, password=b"")
    return made if last is None else made.closed(last, 100 * (last + 1))


class FakeMover(ClientMover):
    """Exchanges bookies for writable ones in the metadata, as if the data had been copied, which takes a while.

    Before it exchanges, and before it stores the end of a ledger, it may be held back (`before_exchange`,
    `before_close`); `refuse` and `cannot_close` say what cannot be done. Nothing is closed but where the rig knows that
    it ends (`Rig.ends`).
    """

    def __init__(self, service: MetadataService, ends: Mapping[int, int]) -> None:
        self._service = service
        self._ends = ends
        self.recovered: list[int] = []
        self.copied: list[int] = []
        """Ledgers whose copies were made, each time."""
        self.refuse: dict[int, str] = {}
        """Ledgers whose entries cannot be read, and what is said of them."""
        self.fails: list[PodkeeperError] = []
        """What the next moves meet, one after the other."""
        self.cannot_close: set[int] = set()
        self.before_exchange: Hook = _at_once
        self.before_close: Hook = _at_once

    async def recover(self, life: LedgerLife) -> None:
        ledger_id = life.ledger_id
        stored = await self._service.ledgers.read(ledger_id)
        await self.before_close(ledger_id)
        if ledger_id in self.cannot_close:
            raise RecoveryFailed("too few bookies answer")
        last = self._ends.get(ledger_id, -1)
        await self._service.ledgers.write(stored.value.closed(last, 100 * (last + 1)), stored.identity)
        self.recovered.append(ledger_id)

    async def move(
        self, metadata: LedgerMetadata, bookies: Collection[str], session_id: int, progress: Callable[[int], None]
    ) -> str:
        if self.fails:
            raise self.fails.pop(0)
        if metadata.ledger_id in self.refuse:
            raise EntriesUnreadable(self.refuse[metadata.ledger_id])
        stored = await self._service.ledgers.read(metadata.ledger_id)
        writable = (await self._service.bookies.list(W)).bookies
        changed = dict(stored.value.ensembles)
        for first, ensemble in stored.value.ensembles.items():
            if not stored.value.is_closed and first == stored.value.first_entry_ids[-1]:
                continue
            spares = sorted(writable - set(ensemble) - set(bookies))
            if not spares and set(ensemble) & set(bookies):
                raise NotEnoughBookies("no spare")
            changed[first] = tuple(spares.pop(0) if bookie in bookies else bookie for bookie in ensemble)
        if changed == stored.value.ensembles:
            return ""
        for _ in range(3):
            progress(stored.value.length // 9)
            await asyncio.sleep(0)
        self.copied.append(metadata.ledger_id)
        await self.before_exchange(metadata.ledger_id)
        named = replace(stored.value, ensembles=changed)
        await self._service.ledgers.write(named, stored.identity, session_id=session_id)
        return ""


class DyingTransport(LocalTransport):
    """Dies at its n-th request: before it is carried out, or after, before the answer. `end_session`: it lives, but was
    away for longer than its session."""

    def __init__(self, owner: EmbeddedOwner) -> None:
        super().__init__(owner, owned=False)
        self.requests = 0
        self.die_at: int | None = None
        self.die_after = False
        self.died = asyncio.Event()

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply:
        reply = await super().open_session(request, timeout)
        self.identity = reply.session
        return reply

    async def end_session(self) -> None:
        await self.close_session(self.identity, 1.0)

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply:
        if self.died.is_set():
            raise MetadataUnavailable("dead")
        self.requests += 1
        if self.requests != self.die_at:
            return await super().execute(request, timeout)
        if self.die_after:
            await super().execute(request, timeout)
        self.died.set()
        raise MetadataUnavailable("dead")


class Rig:
    """Five bookies and their ledgers. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._services: list[MetadataService] = []
        self.admin_reachable = True
        self.bookie_sessions: dict[str, MetadataService] = {}
        self.registered: dict[str, BookieGroup] = {}
        self.options = QUICK
        self.ends: dict[int, int] = {}
        """Where ledgers that are not closed end; others have no entry."""

    async def __aenter__(self) -> Rig:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        self.owner = await EmbeddedOwner.open(str(self._folder))
        self.service, _ = await self.connect()
        await self.service.cluster.initialize()
        await asyncio.gather(*map(self._new_bookie, BOOKIES))

    async def _new_bookie(self, bookie: str) -> None:
        self.bookie_sessions[bookie], _ = await self.connect()
        await self.service.cookies.create(bookie, b"cookie of " + bookie.encode())
        await self.start(bookie)

    async def close(self) -> None:
        await asyncio.gather(*(service.close() for service in self._services))
        await self.owner.close()

    async def connect(self) -> tuple[MetadataService, DyingTransport]:
        transport = DyingTransport(self.owner)
        tree = EmbeddedTree(transport, 4.0)
        await tree.connect()
        service = MetadataService(tree, "/ledgers", None)
        self._services.append(service)
        await service.prepare()
        return service, transport

    async def change(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """By its writer, as often as somebody else is faster."""
        while True:
            stored = await self.service.ledgers.read(ledger_id)
            try:
                await self.service.ledgers.write(change(stored.value), stored.identity)
                return
            except MetadataVersionConflict:
                continue

    # --- bookies ----------------------------------------------------------------------------------------------

    async def start(self, bookie: str, group: BookieGroup = W) -> None:
        await self.bookie_sessions[bookie].bookies.register(bookie, group, info(bookie))
        self.registered[bookie] = group

    async def stop(self, bookie: str) -> None:
        await self.bookie_sessions[bookie].bookies.unregister(bookie, self.registered.pop(bookie))

    async def set_read_only(self, bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
        """The admin API of every bookie."""
        if not self.admin_reachable:
            raise BookieUnavailable("connection refused")
        if decommission is not None and not await is_under_way(self.service, bookie_id, decommission):
            raise Refused("it is over")
        group = R if read_only else W
        if self.registered[bookie_id] is not group:
            # The bookie goes through with it, whatever becomes of whoever asked.
            await asyncio.shield(asyncio.create_task(self.set_registration(group, bookie_id)))

    async def set_registration(self, group: BookieGroup, bookie: str = GOING) -> None:
        """Change its mode by other means than the admin API."""
        before = self.registered[bookie]
        await self.start(bookie, group)
        await self.bookie_sessions[bookie].bookies.unregister(bookie, before)

    # --- ledgers ----------------------------------------------------------------------------------------------

    async def store(self, *ledgers: LedgerMetadata) -> None:
        for metadata in ledgers:
            await self.service.ledgers.create(metadata)

    async def naming(self, bookie: str = GOING) -> set[int]:
        found = set()
        async for span in self.service.ledgers.ranges():
            for ledger_id in span.ids:
                if bookie in (await self.service.ledgers.read(ledger_id)).value.all_bookies():
                    found.add(ledger_id)
        return found

    async def state_of(self, ledger_id: int) -> LedgerState:
        return (await self.service.ledgers.read(ledger_id)).value.state

    async def has_cookie(self, bookie: str = GOING) -> bool:
        return bookie in (await self.service.bookies.list(BookieGroup.ALL)).bookies

    # --- decommissions ----------------------------------------------------------------------------------------

    def coordinator(
        self,
        service: MetadataService | None = None,
        *,
        options: DrainOptions | None = None,
        required: Form | None = None,
        on_step: Callable[[Phase], None] = lambda phase: None,
    ) -> tuple[Coordinator, FakeMover]:
        mover = FakeMover(service or self.service, self.ends)
        parts = Parts(service or self.service, mover, self, options or self.options, required, on_step)
        return Coordinator(parts), mover

    async def decommission(self, bookie: str = GOING, name: str = "first") -> DecommissionRecord:
        async with asyncio.timeout(30):
            return await self.coordinator()[0].run(DecommissionRequest(bookie, name))
