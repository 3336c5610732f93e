"""What a search for marked ledgers costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bookie_protocol.metadata_service.embedded.local import LocalTransport
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.tree.service import MetadataService


class CountedTree(EmbeddedTree):
    """Counts how often each directory is listed."""

    def __init__(self, owner: EmbeddedOwner) -> None:
        super().__init__(LocalTransport(owner, owned=True), 5.0)
        self.listed: Counter[str] = Counter()

    async def children(self, path, **options):
        self.listed[path] += 1
        return await super().children(path, **options)


async def test_a_directory_is_not_listed_anew_for_each_mark_that_goes(tmp_path: Path) -> None:
    """It may hold tens of thousands of them."""
    tree = CountedTree(await EmbeddedOwner.open(str(tmp_path)))
    await tree.connect()
    service = MetadataService(tree, "/ledgers", None)
    await service.cluster.initialize()
    marks = service.under_replication
    for ledger_id in range(300):
        await marks.mark(ledger_id, ["a:1"], ctime_ms=1)
    tree.listed.clear()
    done = set()
    while (lock := await marks.try_acquire()) is not None:
        done.add(lock.ledger_id)
        await marks.mark_replicated(lock)
    assert done == set(range(300))
    assert max(tree.listed.values()) < 100, tree.listed
    await service.close()
