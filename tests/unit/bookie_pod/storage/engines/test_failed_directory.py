"""One ledger directory of several whose disk failed."""

from __future__ import annotations

import pytest

from bookie_pod.storage.integrity.scrub_storage import scrubbed
from bookie_protocol.errors import NoSuchEntry, NotThere, StorageFault
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

FAILURE = StorageFault("directory /ledgers1 is gone")


def test_the_others_go_on_and_it_never_denies() -> None:
    bookie = MemoryBookie(("/ledgers0", "/ledgers1"), small_options(directories=2))
    storage = bookie.open()
    for ledger_id in (2, 3):
        put(storage, entry(ledger_id, 0))
    storage.flush()
    for ledger_id in (2, 3):
        put(storage, entry(ledger_id, 1))
    voided: list[bool] = []
    storage.on_swap(lambda: voided.append(True))

    storage.fail_directory(1, FAILURE)
    assert voided, "dicts that were handed out are void"
    put(storage, entry(2, 2))
    with pytest.raises(StorageFault, match="/ledgers1 is gone") as refused:
        storage.active_entries(3)
    assert not isinstance(refused.value, NotThere)
    assert not storage.is_full(3), "nobody waits for it"
    assert storage.read(3, 1) == entry(3, 1), "what memory holds is served"
    for denied in (lambda: storage.read(3, 7), lambda: storage.last_entry_id(3), lambda: storage.entry_ids(3)):
        with pytest.raises(StorageFault, match="/ledgers1 is gone"):
            denied()
    with pytest.raises(NoSuchEntry):
        storage.read(2, 7)

    with pytest.raises(StorageFault, match="/ledgers1 is gone"):
        storage.flush()  # so no mark moves
    assert [part.failure is None for part in scrubbed(storage)] == [True, False]
    storage.close()
    storage = bookie.open()
    assert [storage.read(2, each) for each in range(3)] == [entry(2, each) for each in range(3)]
    assert storage.read(3, 0) == entry(3, 0)
    storage.close()


def test_a_disk_that_fails_during_a_read_is_not_asked_again_and_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(3, 0))
    storage.flush()
    lookups = bookie.metrics.lookups

    def fails(location: int, ledger_id: int, entry_id: int) -> bytes:
        storage.fail_directory(0, FAILURE)
        raise StorageFault("input/output error")

    monkeypatch.setattr(storage.directories[0].logs, "read_checked", fails)
    for _ in range(2):
        with pytest.raises(StorageFault, match="/ledgers1 is gone"):
            storage.read(3, 0)
    assert bookie.metrics.lookups == lookups + 1
    storage.close()
