"""Ledgers of a client in an archive, as `offload` leaves them, without the job; and out of the cluster."""

from __future__ import annotations

from dataclasses import replace

from bookie_client import Client
from bookie_protocol.archive import KIND, LedgerIdentity, OffloadRecord, OffloadState
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import LedgerShape, Manifest, manifest_file
from pyspark_bookie.archive.writing import write_ledger
from pyspark_bookie.common.throttle import Throttle

UUID = "0" * 32


async def archive(
    client: Client, ledger_id: int, target: str, state: OffloadState = OffloadState.COMPLETE, password: bytes = b""
) -> OffloadRecord:
    """Everything that says that a closed ledger is in the archive; its record is in any state that has files."""
    files = Files(target, "--target")
    async with await client.open(ledger_id, password=password) as reader:
        batches = [batch async for batch in reader.batches(0, reader.metadata.last_entry_id)]
        metadata = reader.metadata
    written = write_ledger(files, "data", ledger_id, UUID, batches, 1 << 20, Throttle(None))
    placed = tuple(replace(file, path=f"data/{file.path}") for file in written.files)
    manifest = Manifest(ledger_id, UUID, None, written.counts, placed, LedgerShape.of(metadata))
    files.write(manifest_file(ledger_id, UUID), manifest.encode(), f"_tmp/{UUID}/manifest.json")
    record = OffloadRecord(
        ledger_id=ledger_id,
        state=state,
        target=target,
        uuid=UUID,
        folder="data",
        ledger=LedgerIdentity.of(metadata),
        files=placed,
        counts=written.counts,
        completed_ms=1,
    )
    await client.metadata_service.records(KIND).create(str(ledger_id), record.encode())
    return record


async def move(client: Client, ledger_id: int, target: str, **arguments: bytes) -> OffloadRecord:
    """Into the archive and out of the cluster."""
    record = await archive(client, ledger_id, target, **arguments)  # type: ignore[arg-type]
    await client.delete(ledger_id)
    return record
