"""Topics of Pulsar as its brokers would store them beside the cluster: lists of ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookie_client import BlockingClient
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from pyspark_bookie.source.pulsar_schema.stored import ROOT as SCHEMAS
from tests.spark.ledgers import write_ledger
from tests.support.pulsar_metadata import compressed, ledger_info, message
from tests.support.pulsar_schemas import locator


def set_topic(client: BlockingClient, name: str, ledger_ids: Sequence[int], kind: str = "NONE") -> None:
    """List these ledgers, as Pulsar does: with its end what is closed, and only the last one may be open."""
    infos = []
    for ledger_id in ledger_ids:
        metadata = client.metadata(ledger_id)
        end = (metadata.last_entry_id + 1, metadata.length, 1) if metadata.is_closed else (0, 0, 0)
        infos.append((1, ledger_info(ledger_id, *end)))
    stored = compressed(message(*infos), kind) if kind != "NONE" else message(*infos)
    client.run(lambda each: _store(each.metadata_service.tree, f"{ROOT}/{name}", stored))


def set_schemas(client: BlockingClient, name: str, versions: Sequence[bytes]) -> None:
    """Store the versions of a topic's schema, each in a ledger of its own; `name` is tenant/namespace/topic."""
    ids = [write_ledger(client, [each]) for each in versions]
    node = locator(*((version, ledger_id, 0) for version, ledger_id in enumerate(ids)))
    client.run(lambda each: _store(each.metadata_service.tree, f"{SCHEMAS}/{name}", node))


async def _store(tree: Any, path: str, stored: bytes) -> None:
    parts = path.split("/")
    for end in range(2, len(parts) + 1):
        await tree.ensure("/".join(parts[:end]))
    await tree.overwrite(path, stored)
