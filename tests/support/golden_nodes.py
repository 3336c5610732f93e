"""Nodes that Apache BookKeeper wrote, and a tree that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bookie_protocol.metadata_service.tree.service import MetadataService

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())["znodes"]
    return sorted(nodes, key=lambda node: str(node["path"]).split("/"))


async def load(service: MetadataService, root: str, nodes: list[dict[str, Any]]) -> None:
    """Make the golden nodes below our root, missing parents included."""
    await service.tree.ensure(root.rpartition("/")[0])
    await service.tree.ensure(root)
    for node in nodes:
        relative = str(node["path"]).removeprefix("/ledgers")
        names = relative.split("/")[1:]
        for depth in range(1, len(names)):
            await service.tree.ensure("/".join((root, *names[:depth])))
        if relative:
            await service.tree.create(
                root + relative, bytes.fromhex(node["dataHex"]), ephemeral=bool(node["ephemeral"])
            )
