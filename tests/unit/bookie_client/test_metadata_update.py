"""The compare-and-set loop."""

import pytest

from bookie_client.metadata_update import MAX_ATTEMPTS, update_metadata
from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.memory_metadata import MemoryLedgers

OPEN = LedgerMetadata(7, 1, 1, 1, {0: ("A",)})


@pytest.fixture
async def store():
    store = MemoryLedgers()
    await store.create(OPEN)
    return store


def close(store, local):
    return update_metadata(store, local, lambda m: not m.is_closed, lambda m: m.closed(3, 30))


async def test_it_writes_once_with_the_version_it_knows(store):
    stored = await close(store, await store.read(7))
    assert (stored.version, store.writes, stored.value.last_entry_id) == (1, 1, 3)


async def test_nothing_is_written_when_not_needed(store):
    stored = await close(store, await store.read(7))
    assert await close(store, stored) is stored
    assert store.writes == 1


async def test_a_conflict_is_resolved_on_what_is_stored(store):
    stale = await store.read(7)
    await store.write(OPEN.with_ensemble(0, ("B",)), stale.identity)
    stored = await close(store, stale)
    assert (stored.version, stored.value.last_ensemble, stored.value.is_closed) == (2, ("B",), True)


async def test_an_applied_write_whose_answer_was_lost_is_recognised(store):
    store.lose_next_answer = True
    stored = await close(store, await store.read(7))
    assert (stored.version, store.writes) == (1, 1)


async def test_faults_are_passed_on(store):
    local = await store.read(7)
    store.unavailable = True
    with pytest.raises(MetadataUnavailable):
        await close(store, local)
    store.unavailable = False
    await store.delete(7)
    with pytest.raises(MetadataNotFound):
        await close(store, local)


async def test_the_loop_ends(store):
    class Busy(MemoryLedgers):
        async def write(self, metadata, replaced, *, session_id=None, timeout=None):
            self.writes += 1
            raise MetadataVersionConflict("always")

    busy = Busy()
    local = await busy.create(OPEN)
    with pytest.raises(MetadataVersionConflict, match=f"lost {MAX_ATTEMPTS}"):
        await close(busy, local)
    assert busy.writes == MAX_ATTEMPTS
