"""The metadata update loop: compare-and-set until the change is stored or no longer needed.

Invariants
- Every write names the version that its value was derived from.
- `needed` and `transform` are pure functions of the metadata. So a write that was applied although its answer
  was lost is found by the next round, which then finishes as "not needed".
- The loop is bounded: somebody who loses `MAX_ATTEMPTS` times in a row gets the conflict.

Event loop only.

Source: reference client protocol, section 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_protocol.errors import MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerStore, Versioned

MAX_ATTEMPTS: Final = 100


async def update_metadata(
    store: LedgerStore,
    local: Versioned[LedgerMetadata],
    needed: Callable[[LedgerMetadata], bool],
    transform: Callable[[LedgerMetadata], LedgerMetadata],
    session_id: int | None = None,
) -> Versioned[LedgerMetadata]:
    """Bring `transform` into the store; returns what is stored afterwards. `session_id`: written in this session or not
    at all.

    Raises what `needed` and `transform` raise (that is how a caller refuses), `MetadataNotFound` for a
    deleted ledger, `MetadataUnavailable` when nobody can tell what is stored, and `MetadataVersionConflict`
    after too many rounds, and `SessionEnded`.
    """
    for _ in range(MAX_ATTEMPTS):
        if not needed(local.value):
            return local
        try:
            return await store.write(transform(local.value), local.version, session_id=session_id)
        except MetadataVersionConflict:
            local = await store.read(local.value.ledger_id)
    raise MetadataVersionConflict(
        f"ledger {local.value.ledger_id}: lost {MAX_ATTEMPTS} compare-and-set rounds in a row against other writers"
    )
