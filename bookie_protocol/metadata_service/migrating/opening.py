"""Opening a metadata service whose URI names ZooKeeper, wherever its metadata are by now.

Threads: event loop only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from bookie_protocol.errors import MetadataNotFound, MetadataRefused
from bookie_protocol.extras import needed
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.migrating.participant import Participant
from bookie_protocol.metadata_service.options import DEFAULT_ROOT, MetadataServiceOptions, MetadataServiceUri
from bookie_protocol.metadata_service.tree.nodes import NodeTree, parent_of
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree, connect_zookeeper


async def open_zookeeper(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect, look where the metadata are, and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """

    async def connect(target: MetadataServiceUri) -> NodeTree:
        oxia = needed("bookie_protocol.metadata_service.oxia.driver", "oxia", "a migration of the metadata to Oxia")
        # User and password are ZooKeeper's. What TLS trusts is one for both.
        return cast("NodeTree", await oxia.connect_oxia(target, replace(options, auth=(), sasl=None, secure=False)))

    async def believes(timeout: float) -> bool:
        return not options.secure or await is_trustworthy(source, uri.root, timeout)

    source = await connect_zookeeper(uri, options)
    tree: NodeTree = source
    if options.follow_migration and uri.root == flag.scope_of(uri.root) + DEFAULT_ROOT:  # Pulsar's is always there
        tree = gate = MigratingTree(source)
        try:
            await Participant(gate, uri.root, connect, believes).begin()
        except BaseException:
            await gate.close()
            raise
    return await MetadataService(tree, uri.root, uri.layout, options).open()


async def is_trustworthy(tree: ZooKeeperTree, root: str, timeout: float) -> bool:
    """Return whether only users who may change the cluster's root may write the flag.

    The same has to be true of every node above it: the maker of a node chooses its access list, so a stranger could
    make one that seems to belong to the owners, or one that they may not look at. A missing one can be made, or was
    deleted, by whom the node above belongs to. `MetadataRefused`: the owners made one that we may not look at.
    """
    path = flag.scope_of(root) + flag.FLAG
    above = [path]
    while above[-1] != "/":
        above.append(parent_of(above[-1]))
    found: list[frozenset[tuple[str, str]]] = []
    for each in (root, *reversed(above)):
        try:
            found.append(await tree.changers(each, timeout=timeout))
        except MetadataNotFound:
            return bool(found)
        except MetadataRefused:
            if each == path:
                raise
            return False
        if not found[-1] <= found[0]:
            return False
    return True
