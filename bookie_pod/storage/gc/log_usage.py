"""The part of each entry log that still lives.

Invariants
- Sizes come from the log's own map, or from a scan. A log in which nothing seems to live goes only if a check sum
  proves the map, or after a scan: a flipped bit in a map must not cost a log. Where there is no map, and so nothing but
  a scan, it goes only if no row of the index points into it.
- Where a scan ends before the log does, the index decides. If it places an entry behind that point, the log is
  *quarantined*: never deleted, never compacted, since what lies there was not seen. If not, the log was being written
  when power failed, and ends there.
- A ledger counts as live unless it is known neither here nor to the metadata service. (In a log that is written at
  present, which is only counted: unless it is not known here.)
- Of what counts as live, some may be *superseded*: copies that a killed compaction left, and entries of an earlier life
  of the id. Such bytes make a log due for compaction, which looks at each entry. They never make it dead.
- What is kept in memory is packed (16 bytes a ledger in a log) and bounded by `max_bytes` over all logs; a map
  beyond that is read again in the next pass, a scan too.

Threads: the garbage collection thread; `usages`, `quarantined` and `unreadable` may be read by any thread.

Source: docs/internals/bookie-behaviour.md, sections 6.2 and 6.7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes, LedgerSizesBuilder
from bookie_pod.storage.entry_log.scan import LedgersMap
from bookie_pod.storage.gc.index_check import IndexedRows
from bookie_pod.storage.gc.ledger_collector import LedgerCollector
from bookie_pod.storage.gc.packed_ids import PackedIds
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import MetadataError, StorageFault

_log = structlog.get_logger(__name__)

DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogUsage:
    """One log at the last pass. Bytes of entries, their 4-byte sizes included."""

    log_id: int
    total: int
    remaining: int
    """Bytes of ledgers that still exist."""
    ledgers: int
    """The number of those ledgers."""
    in_doubt: int = 0
    """Bytes that count as remaining only because their state could not be determined."""
    superseded: int = 0
    """Bytes of what remains that the index does not name, as far as that is known."""

    @property
    def live_bytes(self) -> int:
        """Return the bytes that compaction would have to copy, as far as that is known."""
        return self.remaining - self.superseded

    @property
    def garbage_bytes(self) -> int:
        """Return the bytes that compaction would give back, as far as that is known."""
        return self.total - self.live_bytes

    def usage(self, size_limit: int | None = None) -> float:
        """Live share, 0 to 1. With `size_limit` a log smaller than that counts as if it were full
        (`useTargetEntryLogSizeForGc`)."""
        if self.total == 0:
            return 0.0
        share = self.live_bytes / self.total
        if size_limit is not None and share < 1:
            return self.live_bytes / max(self.total, size_limit)
        return share

    @property
    def is_dead(self) -> bool:
        """Return whether it is certain that nothing in it lives."""
        return self.remaining == 0


class LogUsages:
    """The usage of every flushed log, brought up to date once a pass."""

    def __init__(
        self,
        storage: CollectedStorage,
        ledgers: LedgerCollector,
        *,
        pay_scan: Callable[[int, int], None],
        rows: IndexedRows,
        quarantined: Mapping[int, str],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """`ledgers` tells of a ledger that is not known here whether its entries are garbage. `pay_scan(entries,
        bytes)` waits before a scan goes on."""
        self.usages: dict[int, LogUsage] = {}
        self.current: list[LogUsage] = []
        """The usage of the logs that are being written, as far as the index here knows what lives."""
        self.quarantined: dict[int, str] = dict(quarantined)
        self.ends: dict[int, int] = {}
        """Logs that end before their last byte, which is normal after a crash, and where."""
        self.scanned: dict[int, bool] = {}
        """Logs whose sizes only a scan tells, and whether their header names a map all the same."""
        self.unreadable: dict[int, str] = {}
        """Logs that could not be looked at when it was last tried, and why."""
        self.seen_deleted = PackedIds()
        """Ledgers that were deleted here, of which some log was seen to hold entries since `begin_pass`."""
        self.all_seen = True
        """Every log that was looked at since `begin_pass` could be judged, or is quarantined."""
        self._storage = storage
        self._ledgers = ledgers
        self._pay_scan = pay_scan
        self._rows = rows
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[int, LedgerSizes] = OrderedDict()
        self._nbytes = 0
        self._unproved: set[int] = set()
        self._superseded: dict[int, LedgerSizes] = {}
        """Superseded entries, by ledger, of logs that were scanned: those that a killed process was writing."""

    # --- passes ---------------------------------------------------------------------------------------------

    def begin_pass(self, log_ids: Collection[int]) -> None:
        """Begin a pass: these are all logs now, and the others are forgotten."""
        self.seen_deleted.clear()
        self._rows.begin_pass()
        self.all_seen = True
        known = set(log_ids)
        for log_id in (
            set(self.usages)
            | set(self._sizes)
            | self._unproved
            | set(self.ends)
            | set(self.scanned)
            | set(self.unreadable)
        ) - known:
            self.forget(log_id)
        for log_id in set(self.quarantined) - known:
            # Another process or a person has removed it; another log may get the id one day.
            _log.info("a quarantined entry log is gone", log_id=log_id)
            del self.quarantined[log_id]

    def measure_current(self) -> None:
        """Look at the logs that are written at present."""
        has_ledger, found = self._storage.has_ledger, []
        for log_id, sizes in self._storage.logs.current_sizes().items():
            alive = [nbytes for ledger_id, nbytes in sizes.items() if has_ledger(ledger_id)]
            found.append(LogUsage(log_id, sum(sizes.values()), sum(alive), len(alive)))
        self.current = found

    def refresh(self, log_id: int) -> LogUsage | None:
        """Look at one flushed log. None: quarantined, or it could not be read in this pass."""
        if log_id in self.quarantined:
            return None
        try:
            usage = self._measure(log_id)
        except StorageFault as error:
            _log.error("entry log skipped in this pass", log_id=log_id, reason=str(error))
            self.unreadable[log_id] = str(error)
            self.all_seen = False
            return None
        self.unreadable.pop(log_id, None)
        if usage is not None:
            self.usages[log_id] = usage
        return usage

    def _measure(self, log_id: int) -> LogUsage | None:
        sizes = self.sizes(log_id)
        if sizes is None:
            return None
        usage = self._judge(log_id, sizes)
        if usage.is_dead and log_id in self._unproved:
            sizes = self._read(log_id, scan=True)
            return None if sizes is None else self._judge(log_id, sizes)
        if usage.is_dead and log_id in self.scanned and self._is_indexed(log_id):
            return None
        return usage

    def _is_indexed(self, log_id: int) -> bool:
        """Return whether a row points into a log in which a scan saw nothing that lives; if so, quarantine the log."""
        closed = self.scanned[log_id]
        found = self._rows.behind(log_id, 0, closed=closed)
        if found is None:
            return False
        self.quarantine(
            log_id,
            f"entry {found.entry_id} of ledger {found.ledger_id} should be at {found.position},"
            " which a scan steps over",
        )
        return True

    def skip(self, log_id: int) -> None:
        """The log may not be touched in this pass."""
        self.forget(log_id)
        self.all_seen = False

    # --- bytes per ledger -----------------------------------------------------------------------------------

    def sizes(self, log_id: int) -> LedgerSizes | None:
        """Bytes per ledger of a log; None when it is damaged (and quarantined from now on). `StorageFault`."""
        known = self._sizes.get(log_id)
        if known is not None:
            self._sizes.move_to_end(log_id)
            return known
        return self._read(log_id)

    def _read(self, log_id: int, *, scan: bool = False) -> LedgerSizes | None:
        superseded = LedgerSizesBuilder()

        def met(location: int, ledger_id: int, entry_id: int, size: int) -> None:
            if self._is_superseded(location, ledger_id, entry_id):
                superseded.add(ledger_id, SIZE_BYTES + size)

        found = self._storage.logs.ledgers_map(log_id, self._pay_scan, scan=scan, met=met)
        start = found.missing_from
        if start is not None:
            assert found.end is not None
            if self._is_damaged(log_id, start, found):
                return None
            self.ends[log_id] = start
        if found.checked or found.end is not None:
            self._unproved.discard(log_id)
        else:
            self._unproved.add(log_id)
        if found.end is not None:
            self._superseded[log_id] = superseded.build()
            if not scan:
                self.scanned[log_id] = found.closed
        self._remember(log_id, found.ledgers)
        return found.ledgers

    def _is_superseded(self, location: int, ledger_id: int, entry_id: int) -> bool:
        """Return whether the index does not name this entry, of a ledger that is known here.

        A compaction that was killed before it changed the index leaves such copies.
        """
        if not self._storage.has_ledger(ledger_id):
            return False
        row = self._storage.location_of(ledger_id, entry_id)
        return row != location if row else self._storage.is_earlier_life(ledger_id, split_location(location)[0])

    def _is_damaged(self, log_id: int, start: int, found: LedgersMap) -> bool:
        """Return whether the log has entries after the point where a scan ended; if so, quarantine the log."""
        assert found.end is not None
        behind = self._rows.behind(log_id, start, closed=found.closed)
        if behind is None:
            _log.info("entry log ends before its last byte", log_id=log_id, position=start, detail=found.end.detail)
            return False
        self.quarantine(
            log_id,
            f"at {start}: {found.end.detail}; entry {behind.entry_id} of ledger {behind.ledger_id} should be at"
            f" {behind.position}",
        )
        return True

    def peek(self, log_id: int) -> LedgerSizes | None:
        """Bytes per ledger if memory holds them. Any thread."""
        return self._sizes.get(log_id)

    def forget(self, log_id: int) -> None:
        """The log is gone, or may not be touched."""
        self.usages.pop(log_id, None)
        self._drop(log_id)
        self.ends.pop(log_id, None)
        self.scanned.pop(log_id, None)
        self._superseded.pop(log_id, None)
        self.unreadable.pop(log_id, None)
        self._unproved.discard(log_id)

    def outgrown(self, usage: LogUsage) -> LogUsage:
        """Forget what a scan found superseded: a copy has shown that more of the log lives."""
        self._superseded.pop(usage.log_id, None)
        return replace(usage, superseded=0)

    def quarantine(self, log_id: int, detail: str) -> None:
        """Never touch this log again; a person, or re-replication, must."""
        _log.error(
            "entry log quarantined: it is damaged and will be neither deleted nor compacted; its readable entries are"
            " served, the others heal by re-replication",
            log_id=log_id,
            detail=detail,
        )
        self.quarantined[log_id] = detail
        self.forget(log_id)

    def _remember(self, log_id: int, sizes: LedgerSizes) -> None:
        self._drop(log_id)
        self._sizes[log_id] = sizes
        self._nbytes += sizes.nbytes
        while len(self._sizes) > 1 and self._nbytes > self._max_bytes:
            self._nbytes -= self._sizes.popitem(last=False)[1].nbytes

    def _drop(self, log_id: int) -> None:
        sizes = self._sizes.pop(log_id, None)
        if sizes is not None:
            self._nbytes -= sizes.nbytes

    # --- what lives -----------------------------------------------------------------------------------------

    def _judge(self, log_id: int, sizes: LedgerSizes) -> LogUsage:
        remaining = ledgers = in_doubt = superseded = 0
        scanned: Mapping[int, int] = self._superseded.get(log_id) or {}
        deleted, has_ledger = self._ledgers.deleted, self._storage.has_ledger
        for ledger_id, nbytes in sizes.pairs():
            known = has_ledger(ledger_id)
            if not known:
                try:
                    if self._ledgers.is_dead(ledger_id):
                        self.seen_deleted.add(ledger_id)
                        continue
                    _log.error(
                        "a ledger that the metadata service places here is in an entry log but not in the index",
                        ledger=ledger_id,
                        log_id=log_id,
                    )
                except MetadataError:
                    pass
                in_doubt += nbytes
            elif ledger_id in deleted:
                deleted.came_back(ledger_id)
                self.seen_deleted.add(ledger_id)
            remaining += nbytes
            ledgers += 1
            if known:
                is_earlier = self._storage.is_earlier_life(ledger_id, log_id)
                superseded += nbytes if is_earlier else scanned.get(ledger_id, 0)
        return LogUsage(log_id, sizes.total, remaining, ledgers, in_doubt, superseded)
