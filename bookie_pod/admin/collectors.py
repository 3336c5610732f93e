"""The garbage collectors as the admin API asks them: each with the directory that it collects."""

from __future__ import annotations

from collections.abc import Sequence

from bookie_pod.node.gc.collection import GarbageCollection
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.reports import Forecast, GcState, LogReport
from bookie_protocol.errors import StorageFault


class Collectors:
    """`GcPort` over a running collection."""

    def __init__(self, collection: GarbageCollection) -> None:
        self._collection = collection
        self._named = [(self._name(each), each) for each in collection.collectors]

    def _name(self, collector: GarbageCollector) -> str:
        return ",".join(folder.removesuffix("/current") for folder in self._collection.folders_of(collector))

    @property
    def force_pending(self) -> bool:
        return self._collection.force_pending

    @property
    def major_suspended(self) -> bool:
        return self._collection.major_suspended

    @property
    def minor_suspended(self) -> bool:
        return self._collection.minor_suspended

    def force(self, major: bool | None = None, minor: bool | None = None) -> None:
        self._collection.force(major, minor)

    def suspend(self, *, major: bool = False, minor: bool = False) -> None:
        self._collection.suspend(major=major, minor=minor)

    def resume(self, *, major: bool = False, minor: bool = False) -> None:
        self._collection.resume(major=major, minor=minor)

    def states(self) -> Sequence[tuple[str, GcState]]:
        return [(name, collector.state()) for name, collector in self._named]

    def reports(self, log_id: int) -> Sequence[tuple[str, LogReport]]:
        found = []
        for name, collector in self._named:
            if not collector.has_log(log_id):
                continue
            try:
                found.append((name, collector.report(log_id)))
            except StorageFault:
                if collector.has_log(log_id):
                    raise
                # removed while it was looked at
        return found

    def forecasts(self) -> Sequence[tuple[str, Forecast]]:
        return [(name, collector.forecast()) for name, collector in self._named]
