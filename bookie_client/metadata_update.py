"""The metadata update loop: compare-and-set until the change is stored or no longer needed.

Invariants
- Every write names the state that its value was derived from.
- All of an update is about one life of the ledger. Another ledger that has its id by now is never changed.
- `needed` and `transform` are pure functions of the metadata. So a write that was applied although its answer
  was lost is found by the next round, which then finishes as "not needed".
- The loop is bounded: a client that loses `MAX_ATTEMPTS` times in a row gets the conflict.

Event loop only.

Source: docs/internals/client-protocol.md, section 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_protocol.errors import MetadataReplaced, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore

MAX_ATTEMPTS: Final = 100


async def update_metadata(
    store: LedgerStore,
    local: Versioned[LedgerMetadata],
    needed: Callable[[LedgerMetadata], bool],
    transform: Callable[[LedgerMetadata], LedgerMetadata],
    session_id: int | None = None,
) -> Versioned[LedgerMetadata]:
    """Apply `transform` to the stored metadata and return what is stored afterwards. With `session_id`, write in this
    session or not at all.

    Raises what `needed` and `transform` raise (that is how a caller refuses), `MetadataNotFound` for a deleted ledger,
    `MetadataReplaced` if another ledger has its id by now, `MetadataUnavailable` if the stored state is unknown,
    `MetadataVersionConflict` after too many rounds, and `SessionEnded`."""
    life = LedgerLife.of(local)
    for _ in range(MAX_ATTEMPTS):
        if not needed(local.value):
            return local
        try:
            return await store.write(transform(local.value), local.identity, session_id=session_id)
        except MetadataVersionConflict:
            local = await read_same(store, life)
    raise MetadataVersionConflict(
        f"ledger {life.ledger_id}: lost {MAX_ATTEMPTS} compare-and-set rounds in a row against other clients"
    )


async def read_same(store: LedgerStore, life: LedgerLife) -> Versioned[LedgerMetadata]:
    """Return the metadata of this very ledger as they are now. `MetadataReplaced`, and as `LedgerStore.read`."""
    found = await store.read(life.ledger_id, fresh=True)
    check_same(found, life)
    return found


def check_same(found: Versioned[LedgerMetadata], life: LedgerLife) -> None:
    """Raise `MetadataReplaced` if these metadata are of another ledger."""
    if LedgerLife.of(found) != life:
        raise MetadataReplaced(f"ledger {life.ledger_id} was deleted: a different ledger now has this id")
