"""What ledgers take, by owner and by bookie: one piece of work, from metadata alone.

Event loop only, but for `take_stock`, the task.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from bookie_client.client import Client
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.common.together import bounded
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.owners.index import Owners, Standing
from pyspark_bookie.jobs.replicas.units import Slice, Unit, size_of

READ_AT_ONCE: Final = 64


@dataclass(slots=True)
class OwnerSpace:
    """`payload_bytes`: once; `replica_bytes`: of all copies; both of closed ledgers. `leaked`: ledgers that the owner
    does not list, and that are old enough."""

    ledgers: int = 0
    open_ledgers: int = 0
    payload_bytes: int = 0
    replica_bytes: int = 0
    leaked_ledgers: int = 0
    leaked_bytes: int = 0

    def add(self, other: OwnerSpace) -> None:
        self.ledgers += other.ledgers
        self.open_ledgers += other.open_ledgers
        self.payload_bytes += other.payload_bytes
        self.replica_bytes += other.replica_bytes
        self.leaked_ledgers += other.leaked_ledgers
        self.leaked_bytes += other.leaked_bytes


@dataclass(slots=True)
class Stock:
    """`by_owner`: by kind and name. `by_bookie`: bytes that bookies should hold. `recent_bytes`: of all copies, of
    ledgers made within the window."""

    ledgers: int = 0
    damaged: int = 0
    by_owner: dict[tuple[str, str], OwnerSpace] = field(default_factory=dict)
    by_bookie: Counter[str] = field(default_factory=Counter)
    recent_bytes: int = 0

    def add(self, other: Stock) -> None:
        self.ledgers += other.ledgers
        self.damaged += other.damaged
        self.by_bookie.update(other.by_bookie)
        self.recent_bytes += other.recent_bytes
        for key, space in other.by_owner.items():
            self.by_owner.setdefault(key, OwnerSpace()).add(space)


@dataclass(frozen=True, slots=True)
class StockQuestion:
    """Times in ms since 1970: ledgers made after `recent_since` are recent, those made before `leaked_before` and not
    listed are leaked."""

    recent_since: int
    leaked_before: int
    managed_ledgers: str


def take_stock(question: StockQuestion, unit: Unit, environment: TaskEnvironment) -> Stock:
    """The task."""
    return environment.client().run(lambda client: stock_of(client, question, unit))


async def stock_of(client: Client, question: StockQuestion, unit: Unit) -> Stock:
    """The same on a client's event loop. Raises `MetadataUnavailable`."""
    owners, stock = Owners(client, question.managed_ledgers), Stock()

    async def count_ledger(each: Slice) -> None:
        try:
            metadata = await client.metadata(each.ledger_id)
        except NoSuchLedger:
            return
        except MetadataDamaged:
            stock.damaged += 1
            return
        ownership = await owners.of(metadata)
        leaked = ownership.standing is Standing.ORPHAN and _before(metadata, question.leaked_before)
        _count(stock, (ownership.kind.value, ownership.name), metadata, leaked, question.recent_since)

    await bounded(unit.slices, count_ledger, READ_AT_ONCE)
    return stock


def _before(metadata: LedgerMetadata, moment: int) -> bool:
    return metadata.ctime is not None and metadata.ctime <= moment


def _count(stock: Stock, owner: tuple[str, str], metadata: LedgerMetadata, leaked: bool, recent_since: int) -> None:
    size = size_of(metadata)
    stock.ledgers += 1
    stock.by_bookie.update(dict(size.by_bookie))
    if metadata.ctime is not None and metadata.ctime > recent_since:
        stock.recent_bytes += size.replica_bytes
    space = OwnerSpace(1, int(not metadata.is_closed), size.nbytes, size.replica_bytes)
    if leaked:
        space.leaked_ledgers, space.leaked_bytes = 1, size.replica_bytes
    stock.by_owner.setdefault(owner, OwnerSpace()).add(space)
