"""Creating a ledger: its ensemble, its id, its metadata. No bookie is contacted.

Event loop only.

Source: reference client protocol, section 3.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import EnsembleRequest, Placement
from bookie_client.writing.fault_domains import check_domains
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, BadVersion, MetadataExists, NotEnoughBookies
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

MAX_ID_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedger:
    """What the application asks for. Raises `BadRequest` for what can never be."""

    quorums: Quorums
    password: bytes = field(default=b"", repr=False)
    digest: DigestType = DigestType.CRC32C
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    """Custom metadata: kept with the ledger's own and never looked at."""
    ledger_id: int | None = None
    """None: the cluster gives a new one."""
    deferred_sync: bool = False

    def __post_init__(self) -> None:
        if self.ledger_id is not None and not 0 <= self.ledger_id <= MAX_LEDGER_ID:
            raise BadRequest(f"ledger id {self.ledger_id} is outside 0 to 2^63-1")
        for key, value in self.metadata.items():
            if not isinstance(key, str) or not isinstance(value, bytes):
                raise BadRequest(f"custom metadata maps names to bytes; {key!r} does not: {value!r}")


async def create_ledger(context: ClientContext, new: NewLedger) -> Versioned[LedgerMetadata]:
    """Store the metadata of a new, open ledger.

    Raises `BadRequest` (the cluster's layout cannot hold the id), `BadVersion` (deferred sync in a client of
    version 2), `NotEnoughBookies`, `MetadataExists` (the chosen id is taken), `MetadataUnavailable`.
    """
    if new.deferred_sync and context.options.protocol_version != 3:
        raise BadVersion("protocol version 2 has no deferred sync: use ClientOptions(protocol_version=3)")
    quorums, placement = await _place(context, new)
    context.placement_inputs.tell_relaxed(placement)
    for attempt in count(1):
        ledger_id = await context.ledgers.generate_id() if new.ledger_id is None else new.ledger_id
        try:
            return await context.ledgers.create(_metadata(new, ledger_id, quorums, placement.ensemble))
        except MetadataExists:
            # Somebody chose the very id that was generated; the next one is another.
            if new.ledger_id is not None or attempt == MAX_ID_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _place(context: ClientContext, new: NewLedger) -> tuple[Quorums, Placement]:
    """An ensemble of the size asked for, or with `opportunistic_striping` the largest that there are bookies
    for, down to the write quorum."""
    wanted = new.quorums
    cluster = await context.cluster_view()
    smallest = wanted.write if context.options.opportunistic_striping else wanted.ensemble
    for size in range(wanted.ensemble, smallest - 1, -1):
        quorums = Quorums(size, wanted.write, wanted.ack)
        request = EnsembleRequest(quorums=quorums, cluster=cluster, random=context.random, custom_metadata=new.metadata)
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
        custom_metadata=new.metadata,
        creation_token=secrets.randbelow(MAX_LEDGER_ID),
    )
