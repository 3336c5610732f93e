"""Nodes that a participant makes in Oxia ahead of the copy.

Ledger ids go on behind those that ZooKeeper gives. The copy writes over nothing that ZooKeeper lacks.

Event loop.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from bookie_protocol.errors import MetadataDamaged, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import DEFAULT_LAYOUT, decode_layout
from bookie_protocol.metadata_service.tree.ledger_ids import HIGH_ORDER, LARGEST_HIGH_ORDER, LONG_LAYOUTS, high_orders
from bookie_protocol.metadata_service.tree.nodes import NodeTree, parent_of

MARGIN: Final = 1000
"""High-order bits that are left out. ZooKeeper may give ids until the copy is complete, but not so many: each of them
stands for 2^31 ids."""


async def ensure(target: NodeTree, path: str, timeout: float) -> None:
    """Make a node of Oxia, and those above it. The copy writes over what ZooKeeper has, too."""
    above = [path]
    while (parent := parent_of(above[-1])) != "/":
        above.append(parent)
    for each in reversed(above):
        with suppress(MetadataExists):
            await target.create(each, b"", open_to_all=True, timeout=timeout)


async def begin_new_numbers(source: NodeTree, root: str, target: NodeTree, target_root: str, timeout: float) -> None:
    """Make sure that the 63-bit generator in Oxia has high-order bits under which ZooKeeper gives no id.

    They are made in Oxia alone, so that no client of ZooKeeper gives ids under them, and a migration that fails leaves
    none. It may be repeated. `MetadataDamaged`: a layout without such ids, or none is left.
    """
    try:
        layout = decode_layout((await source.get(f"{root}/{paths.LAYOUT}", timeout=timeout)).data, root)
    except MetadataNotFound:
        if await source.exists(root, timeout=timeout) is None:
            return  # no cluster exists yet
        layout = DEFAULT_LAYOUT  # of those that only Pulsar has used
    if layout not in LONG_LAYOUTS:
        raise MetadataDamaged(
            f"the {layout.name.lower()} layout of {root} has no ledger ids that a move to Oxia could go on with: they"
            " would be given again"
        )
    high_order = await _newest(source, root, timeout) + MARGIN
    if high_order > LARGEST_HIGH_ORDER:
        raise MetadataDamaged(f"{root}/{paths.LONG_ID_GENERATION} has no ledger ids left that Oxia could go on with")
    if await _newest(target, target_root, timeout) < high_order:
        path = f"{target_root}/{paths.LONG_ID_GENERATION}/{HIGH_ORDER}{high_order:010d}"
        await ensure(target, path, timeout)


async def _newest(tree: NodeTree, root: str, timeout: float) -> int:
    try:
        names = (await tree.children(f"{root}/{paths.LONG_ID_GENERATION}", timeout=timeout)).names
    except MetadataNotFound:
        return 0
    return max(high_orders(names), default=0)
