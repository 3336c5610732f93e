"""An engine in memory whose databases are rebuilt while it serves; a test acts between any two steps of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.locations import KEY, VALUE
from bookie_pod.storage.index_rebuild.online import CollectionHold, DirectoryRebuild, RebuildParts
from bookie_pod.storage.index_rebuild.state import RebuildRequest, RebuildState
from bookie_pod.storage.index_rebuild.swap import finish_online_rebuilds
from tests.support.gc_rig import GcRig
from tests.support.memory_files import MemoryFiles
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.storage_engine import MemoryBookie

JOURNAL = "/journal"


def _nothing() -> None:
    pass


class RebuildRig(GcRig):
    """One ledger directory with its collector. `between` is called before each step of a rebuild."""

    def __init__(self, bookie: MemoryBookie | None = None) -> None:
        self.between: Callable[[], None] = _nothing
        self.stopped = threading.Event()
        self.steps = 0
        super().__init__(bookie=bookie)

    @property
    def tool_stores(self) -> MemoryToolStores:
        assert isinstance(self.bookie, MemoryBookie)
        assert self.bookie.stores is not None
        return MemoryToolStores(self.files, self.bookie.stores)

    @property
    def files(self) -> MemoryFiles:
        return self.bookie.files

    @property
    def folder(self) -> str:
        return self.bookie.directories[0]

    @property
    def directory(self) -> SingleDirectoryStorage:
        assert isinstance(self.storage, DbLedgerStorage)
        return self.storage.directories[0]

    def open(self) -> None:
        """As the bookie starts: an interrupted swap is finished first."""
        self.files.makedirs(JOURNAL)
        finish_online_rebuilds(self.files, self.tool_stores, [self.folder])
        super().open()
        parts = RebuildParts(self.files, self.tool_stores, [JOURNAL], self.metadata)
        hold = CollectionHold(self.gc, self.logs)
        self.rebuilding = DirectoryRebuild(self.directory, parts, hold, self.folder, self.folder, number=0, count=1)

    def rebuild(self, **wanted: Any) -> RebuildState:
        """Run one on this thread; `wanted` as in `RebuildRequest`. What it raises is raised."""
        self.rebuilding.state = RebuildState(self.folder)
        self.rebuilding.run(RebuildRequest(**wanted), _Pace(self), _nothing)
        return self.rebuilding.state

    # --- the index on the disk ------------------------------------------------------------------------------

    def rows(self) -> dict[tuple[int, int], int]:
        """Every row of the location index."""
        scan = self.directory.locations._store.scan(b"", b"\x80")
        return {KEY.unpack(key): VALUE.unpack(value)[0] for key, value in scan}  # type: ignore[misc]

    def spoil(self, rows: Iterable[tuple[tuple[int, int], int]]) -> None:
        """Set rows behind the index's back; location 0 removes one."""
        batch = self.directory.locations._store.batch()
        for place, location in rows:
            if location:
                batch.put(KEY.pack(*place), VALUE.pack(location))
            else:
                batch.delete(KEY.pack(*place))
        batch.commit()


class _Pace(ScrubPace):
    def __init__(self, rig: RebuildRig) -> None:
        super().__init__(rig.stopped, entries_per_second=0, bytes_per_second=0)
        self._rig = rig

    def pay(self, entries: int, nbytes: int) -> None:
        self._rig.steps += 1
        self._rig.between()
        super().pay(entries, nbytes)
