"""An embedded cluster that commands make, and a ledger in it."""

from __future__ import annotations

import json

import pytest

from bookie_pod.cli.main import run
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService

Capture = pytest.CaptureFixture[str]


def init(uri: str, capsys: Capture) -> str:
    assert run(["cluster", "init", uri, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["uri"] == uri
    return str(made["instance_id"])


async def create_ledger(service: MetadataService) -> None:
    made = LedgerMetadata(3, 1, 1, 1, {0: ("b:1",)}, digest_type=DigestType.CRC32C, password=b"")
    await service.ledgers.create(made)
