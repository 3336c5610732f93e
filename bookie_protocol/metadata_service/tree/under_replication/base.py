"""The nodes that the parts of the tree share, made on first use.

Invariant: nothing is made unless the cluster exists, and nothing in a tree of another layout.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 10.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication import formats


class UnderReplicationBase:
    """Paths of the tree, and `prepare` before anything is written below it."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self.tree = tree
        self.cluster = cluster
        self.path = f"{root}/{paths.UNDER_REPLICATION}"
        self.ledgers = f"{self.path}/{formats.LEDGERS}"
        self.locks = f"{self.path}/{formats.LOCKS}"
        self._prepared = False

    def mark(self, ledger_id: int) -> str:
        """Return the path of a ledger's mark."""
        return self.ledgers + formats.mark_path(ledger_id)

    def lock(self, ledger_id: int) -> str:
        """Return the path of a ledger's lock."""
        return f"{self.locks}/{formats.leaf_name(ledger_id)}"

    async def prepare(self, timeout: float | None = None, *, again: bool = False) -> None:
        """Make what is missing. `MetadataDamaged`: the tree has another layout. `again`: look once more."""
        if self._prepared and not again:
            return
        try:
            await self.tree.ensure(self.path, timeout=timeout)
        except MetadataNotFound:
            await self.cluster.require(timeout=timeout)
            raise
        layout = f"{self.path}/{formats.LAYOUT}"
        try:
            await self.tree.create(layout, formats.encode_layout(), timeout=timeout)
        except MetadataExists:
            formats.check_layout((await self.tree.get(layout, timeout=timeout)).data, layout)
        for parent in (self.ledgers, self.locks):
            await self.tree.ensure(parent, timeout=timeout)
        self._prepared = True

    async def write(self, name: str, data: bytes, *, open_to_all: bool = False, replace: bool = True) -> bool:
        """Create the child `name`, or (with `replace`) overwrite it. Whether something was written."""
        await self.prepare()
        path = f"{self.path}/{name}"
        while True:
            try:
                await self.tree.create(path, data, open_to_all=open_to_all)
                return True
            except MetadataExists:
                if not replace:
                    return False
            except MetadataNotFound:
                await self.prepare(again=True)  # formatted or nuked under our hands
                continue
            try:
                await self.tree.overwrite(path, data)
                return True
            except MetadataNotFound:
                continue  # removed meanwhile

    async def read(self, name: str) -> bytes | None:
        """Return the data of the child `name`; None if it is not there."""
        try:
            return (await self.tree.get(f"{self.path}/{name}")).data
        except MetadataNotFound:
            await self.cluster.require()
            return None
