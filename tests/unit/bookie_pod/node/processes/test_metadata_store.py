"""The room that the embedded metadata service holds for a start on a full disk: who holds it, and who gives it up."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from bookie_pod.node.processes import metadata_service
from bookie_pod.node.processes.metadata_service import STORE_PART, opened_store
from bookie_pod.storage.disks import RESERVE
from bookie_pod.storage.files import DiskUsage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.metadata_service.embedded import store
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.store import StoreFull, StoreIsOwned

TOTAL = 1 << 20
HELD = TOTAL // STORE_PART


class Disk:
    """A folder on a disk of which a test says how much is free; the service looks at it all the time."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self.reserve = data / RESERVE
        self.usable = TOTAL
        self._looked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(PosixFiles, "usage", lambda files, path: self._usage())
        monkeypatch.setattr(metadata_service, "RESERVE_LOOK_S", 0.0)

    def _usage(self) -> DiskUsage:
        self._loop.call_soon_threadsafe(self._looked.set)
        return DiskUsage(TOTAL, self.usable, 1)

    async def looked(self) -> None:
        """After two whole looks."""
        for _ in range(3):
            self._looked.clear()
            await self._looked.wait()

    def serve(self) -> AbstractAsyncContextManager[EmbeddedOwner]:
        return opened_store(self.data, OwnerLimits())


@pytest.fixture
async def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "data", monkeypatch)


async def test_room_is_held_whenever_there_is_some(disk: Disk) -> None:
    disk.usable = TOTAL // 50
    async with disk.serve():
        await disk.looked()
        assert not disk.reserve.exists(), "the disk is full"
        disk.usable = TOTAL
        await disk.looked()
        assert disk.reserve.stat().st_size == HELD
        disk.reserve.unlink()
        await disk.looked()
        assert disk.reserve.stat().st_size == HELD, "somebody has made room in a hurry, and there is enough"


async def test_only_who_may_open_the_store_gives_it_up(disk: Disk) -> None:
    async with disk.serve():
        await disk.looked()
        disk.usable = 0
        with pytest.raises(StoreIsOwned):
            async with disk.serve():
                pass
        await disk.looked()
        assert disk.reserve.exists()
    async with disk.serve():
        assert not disk.reserve.exists()


async def test_a_store_that_has_no_room_to_open_takes_what_is_held(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    async with disk.serve():
        await disk.looked()
    disk.usable = 0
    opens = store.Rdict

    def full(*arguments: object, **options: object) -> object:
        if disk.reserve.exists() and "access_type" not in options:
            raise Exception("IO error: No space left on device: While appending to file")
        return opens(*arguments, **options)

    monkeypatch.setattr(store, "Rdict", full)
    async with disk.serve():
        assert not disk.reserve.exists()
    disk.reserve.touch()
    disk.usable = TOTAL
    with pytest.raises(StoreFull):
        async with disk.serve():
            pass
    assert disk.reserve.exists(), "it is not the disk that lacks room"
