"""Whether a backup is as new as what bookies have seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.cli.cluster.moves import _check_seen
from bookie_pod.node.metadata_witness import MetadataWitness
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import MetadataWentBack
from bookie_protocol.metadata_service.moving.backup_file import BackupFile
from bookie_protocol.metadata_service.moving.moves import back_up
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.migration import embedded_oxia


async def test_backup_of_oxia_that_is_newer_than_all_a_bookie_saw_counts_and_an_older_one_does_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ledgers" / "current"
    folder.mkdir(parents=True)
    files = {name: BackupFile(str(tmp_path / name)) for name in ("older", "newer")}
    async with embedded_oxia(str(tmp_path / "oxia")) as oxia:
        service = await open_metadata_service(f"metadata-store:oxia://{oxia}/default", timeout=10)
        await service.cluster.initialize(instance_id="one")
        await back_up(service, "here", files["older"], lambda nodes: None)
        witness = MetadataWitness(service, PosixFiles(), str(folder), "b:1", lambda: [1])
        await witness.begin()
        await witness.check()
        await witness.stop()
        await back_up(service, "here", files["newer"], lambda nodes: None)
        await service.close()
    await _check_seen(files["newer"], [str(folder.parent)])
    with pytest.raises(MetadataWentBack):
        await _check_seen(files["older"], [str(folder.parent)])
