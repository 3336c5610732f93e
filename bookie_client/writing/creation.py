"""Creating a ledger: the application's request, and the ledger's ensemble, id and metadata. No bookie is contacted.

Invariants
- The parameters of the `create` methods of clients, their types and their defaults are defined here only.
  `takes_new_ledger` gives a method the parameters of `NewLedger`: type checkers, editors and `help` see them as if the
  method listed them.
- An impossible request is refused before anything is sent.

`NewLedger` is immutable; what creates a ledger belongs to the event loop.

Source: docs/internals/client-protocol.md, section 3.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from bookie_client.context import ClientContext
from bookie_client.distribution import MAX_ENSEMBLE, Quorums, check_ensemble_size
from bookie_client.placement.policy import EnsembleRequest, Placement
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.fault_domains import check_domains
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BadRequest, BadVersion, MetadataExists, NotEnoughBookies
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

P = ParamSpec("P")
Maker = TypeVar("Maker")
Made = TypeVar("Made")
Writer = TypeVar("Writer", LedgerWriter, AdvancedLedgerWriter)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """The application's request for a ledger. Raises `BadRequest` for an impossible one."""

    ensemble: int = 3
    """Bookies that the ledger is striped over."""
    write_quorum: int = 2
    """Bookies that each entry is sent to."""
    ack_quorum: int = 2
    """Bookies that must have stored an entry before it counts."""
    password: bytes = field(default=b"", repr=False)
    """Bookies take adds and fencing only from who knows it."""
    digest: DigestType = DigestType.CRC32C
    """Digest by which readers find damaged entries; `MAC` also proves who wrote them."""
    metadata: Mapping[str, bytes] | None = None
    """Custom metadata: kept with the ledger's own and never looked at."""
    ledger_id: int | None = None
    """Id from 0 to 2^63-1; None: the cluster gives a new one."""
    deferred_sync: bool = False
    """Entries are acknowledged before bookies synced them (`LedgerWriter.force`)."""
    restored: bool = False
    """True to restore the ledger under the `ledger_id` that it had: bookies take its entries although they
    remember that a ledger of this id was fenced and deleted, or still have it. No other client may write it, and its
    writer compares it with the original once it is closed, because a fence does not stop these entries."""

    def __post_init__(self) -> None:
        _ = self.quorums  # raises when they do not fit
        if self.ledger_id is not None and not 0 <= self.ledger_id <= MAX_LEDGER_ID:
            raise BadRequest(f"ledger id {self.ledger_id} is outside 0 to 2^63-1")
        for key, value in self.custom_metadata.items():
            if not isinstance(key, str) or not isinstance(value, bytes):
                raise BadRequest(f"custom metadata maps names to bytes; {key!r} does not: {value!r}")

    @property
    def quorums(self) -> Quorums:
        """Ensemble size and quorums. Raises `BadRequest` when they do not fit each other."""
        return Quorums(self.ensemble, self.write_quorum, self.ack_quorum)

    @property
    def custom_metadata(self) -> Mapping[str, bytes]:
        """`metadata`, empty if there is none."""
        return self.metadata or {}


def _taking(
    describe: Callable[P, NewLedger],
) -> Callable[[Callable[[Maker, NewLedger], Made]], Callable[Concatenate[Maker, P], Made]]:
    def decorate(method: Callable[[Maker, NewLedger], Made]) -> Callable[Concatenate[Maker, P], Made]:
        @wraps(method)
        def create(self: Maker, /, *args: P.args, **kwargs: P.kwargs) -> Made:
            return method(self, describe(*args, **kwargs))

        own = inspect.signature(method)
        parameters = [next(iter(own.parameters.values())), *inspect.signature(describe).parameters.values()]
        create.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return create

    return decorate


takes_new_ledger = _taking(NewLedger)
"""Decorator of a method `(self, new: NewLedger)`: callers give the parameters of `NewLedger` by name instead."""


async def create_writer(context: ClientContext, handle: type[Writer], new: NewLedger) -> Writer:
    """Create a ledger and its writer's handle. Raises as `create_ledger`."""
    connections = context.pool.connections
    stored = await create_ledger(context, new)
    digest = digest_manager(new.digest, new.password)
    return handle(
        context,
        stored,
        digest,
        master_key(new.password),
        connections=connections,
        deferred_sync=new.deferred_sync,
        restored=new.restored,
        may_be_used_again=new.ledger_id is not None,
    )


async def create_ledger(context: ClientContext, new: NewLedger) -> Versioned[LedgerMetadata]:
    """Store the metadata of a new, open ledger.

    Raises `BadRequest` (the cluster's layout cannot hold the id), `BadVersion` (deferred sync in a client of
    version 2), `NotEnoughBookies`, `MetadataExists` (the chosen id is taken), `MetadataUnavailable`.
    """
    if new.deferred_sync and context.options.protocol_version != 3:
        raise BadVersion("protocol version 2 has no deferred sync: use ClientOptions(protocol_version=3)")
    quorums, placement = await _place(context, new)
    context.placement_inputs.tell_relaxed(placement)
    tried: int | None = None
    while True:
        ledger_id = await context.ledgers.generate_id() if new.ledger_id is None else new.ledger_id
        try:
            return await context.ledgers.create(_metadata(new, ledger_id, quorums, placement.ensemble))
        except MetadataExists:
            # A client chose the very id that was generated; the next one is another. There may be many such, one after
            # the other: after metadata were restored the generator may be far behind. One that repeats an id is broken.
            if ledger_id in (new.ledger_id, tried):
                raise
            tried = ledger_id


async def _place(context: ClientContext, new: NewLedger) -> tuple[Quorums, Placement]:
    """An ensemble of the size asked for, or with `opportunistic_striping` the largest that there are bookies
    for, down to the write quorum."""
    wanted = new.quorums
    cluster = await context.cluster_view()
    smallest = wanted.write if context.options.opportunistic_striping else wanted.ensemble
    check_ensemble_size(smallest)
    largest = min(wanted.ensemble, max(smallest, len(cluster.writable)), MAX_ENSEMBLE)
    for size in range(largest, smallest - 1, -1):
        quorums = Quorums(size, wanted.write, wanted.ack)
        request = EnsembleRequest(
            quorums=quorums, cluster=cluster, random=context.random, custom_metadata=new.custom_metadata
        )
        try:
            placement = context.placement.new_ensemble(request)
            check_domains(context, quorums, placement.ensemble, cluster.topology)
            return quorums, placement
        except NotEnoughBookies:
            if size == smallest:
                raise
    raise AssertionError("unreachable")


def _metadata(new: NewLedger, ledger_id: int, quorums: Quorums, ensemble: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id,
        quorums.ensemble,
        quorums.write,
        quorums.ack,
        {0: ensemble},
        digest_type=new.digest,
        password=new.password,
        custom_metadata=new.custom_metadata,
        creation_token=secrets.randbelow(MAX_LEDGER_ID),
    )
