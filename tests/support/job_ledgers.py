"""Ledgers that tests of jobs write and read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bookie_client import BlockingClient

MIB = 1 << 20


def awkward_payloads() -> list[bytes]:
    """Empty ones at the beginning, in the middle and at the end, two of 1 MB, thousands of small ones."""
    return [b"", b"first", os.urandom(MIB), b"", os.urandom(MIB), *(b"%d" % n * 7 for n in range(3000)), b""]


def write_ledger(
    client: BlockingClient, payloads: Sequence[bytes], password: bytes = b"secret", **metadata: bytes
) -> int:
    """A closed ledger with three copies."""
    with client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=password, metadata=metadata) as ledger:
        ledger.append_many(payloads)
    return ledger.ledger_id


def read_ledger(client: BlockingClient, ledger_id: int, password: bytes = b"secret") -> list[bytes]:
    """All payloads; entry ids are those of their places."""
    with client.open(ledger_id, password=password) as reader:
        entries = list(reader.entries()) if reader.last_add_confirmed >= 0 else []
    assert [entry.entry_id for entry in entries] == list(range(len(entries)))
    return [entry.payload for entry in entries]
