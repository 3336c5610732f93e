"""Which cluster is in Oxia: none before the copy, and ZooKeeper's behind it.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataDamaged, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import decode_instance_id, split_instance_id
from bookie_protocol.metadata_service.tree.nodes import NodeTree


async def check_empty(target: NodeTree, target_root: str, url: str, timeout: float) -> None:
    """Raise `MetadataExists` if Oxia has a cluster already, because the copy deletes nothing."""
    if await target.exists(f"{target_root}/{paths.INSTANCE_ID}", timeout=timeout) is not None:
        raise MetadataExists(
            f"{url} has records of an earlier migration, or of another cluster: start the migration again with an"
            " empty namespace"
        )


async def check_same(source: NodeTree, root: str, target: NodeTree, target_root: str, url: str, timeout: float) -> None:
    """Raise `MetadataDamaged` if Oxia has another cluster than ZooKeeper.

    A word before an instance id does not count.
    """
    ours = await _instance_id(source, root, timeout)
    if ours is not None and await _instance_id(target, target_root, timeout) != ours:
        raise MetadataDamaged(
            f"{url} does not have the cluster of {root}, though Pulsar's migration says so: set metadataServiceUri to"
            " Oxia's if the cluster was formatted there since, or else correct"
            f" {flag.scope_of(root)}{flag.FLAG} in ZooKeeper"
        )


async def _instance_id(tree: NodeTree, root: str, timeout: float) -> str | None:
    path = f"{root}/{paths.INSTANCE_ID}"
    try:
        stored = decode_instance_id((await tree.get(path, timeout=timeout)).data, path)
    except MetadataNotFound:
        return None
    return split_instance_id(stored)[2]
