"""How much of each entry log still lives.

Invariants
- Sizes come from the log's own map, or from a scan that ended cleanly. A scan that ended at damage makes the log
  *quarantined*: it is never deleted and never compacted, since what lies behind the damage was not seen.
- A ledger counts as live unless it is known neither here nor to the metadata service.
- What is kept in memory is packed (16 bytes a ledger in a log) and bounded by `max_bytes` over all logs; a map
  beyond that is read again in the next pass, a scan too.

Threads: the garbage collection thread; `usages` and `quarantined` may be read by any thread.

Source: reference bookie behaviour, sections 6.2 and 6.7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.storage.entry_log.interface import EntryLogger
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
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
    """How many of those ledgers."""
    in_doubt: int = 0
    """Bytes that count as remaining only because nobody could tell."""

    def usage(self, size_limit: int | None = None) -> float:
        """Live share, 0 to 1. With `size_limit` a log smaller than that counts as if it were full
        (`useTargetEntryLogSizeForGc`)."""
        if self.total == 0:
            return 0.0
        share = self.remaining / self.total
        if size_limit is not None and share < 1:
            return self.remaining / max(self.total, size_limit)
        return share

    @property
    def is_dead(self) -> bool:
        """Nothing in it lives, and that is certain."""
        return self.remaining == 0


class LogUsages:
    """The usage of every flushed log, brought up to date once a pass."""

    def __init__(
        self,
        logs: EntryLogger,
        *,
        is_known: Callable[[int], bool],
        is_dead: Callable[[int], bool],
        pay_scan: Callable[[int, int], None],
        quarantined: Mapping[int, str],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """`is_dead` tells of a ledger that is not known here whether its entries are garbage; it may raise
        `MetadataError`. `pay_scan(entries, bytes)` waits before a scan goes on."""
        self.usages: dict[int, LogUsage] = {}
        self.quarantined: dict[int, str] = dict(quarantined)
        self.torn: set[int] = set()
        """Logs that were active at a crash and end in the middle of an entry, which is normal."""
        self._logs = logs
        self._is_known = is_known
        self._is_dead = is_dead
        self._pay_scan = pay_scan
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[int, LedgerSizes] = OrderedDict()

    def refresh(self, log_id: int) -> LogUsage | None:
        """Look at one flushed log. None: quarantined, or it could not be read in this pass."""
        if log_id in self.quarantined:
            return None
        try:
            sizes = self.sizes(log_id)
        except StorageFault as error:
            _log.error("entry log skipped in this pass", log_id=log_id, reason=str(error))
            return None
        if sizes is None:
            return None
        usage = self._judge(log_id, sizes)
        self.usages[log_id] = usage
        return usage

    def sizes(self, log_id: int) -> LedgerSizes | None:
        """Bytes per ledger of a log; None when it is damaged (and quarantined from now on). `StorageFault`."""
        known = self._sizes.get(log_id)
        if known is not None:
            self._sizes.move_to_end(log_id)
            return known
        found = self._logs.ledgers_map(log_id, self._pay_scan)
        if not found.complete:
            assert found.end is not None
            self.quarantine(log_id, f"at {found.end.position}: {found.end.detail}")
            return None
        if found.end is not None and not found.end.clean:
            self.torn.add(log_id)
        self._remember(log_id, found.ledgers)
        return found.ledgers

    def peek(self, log_id: int) -> LedgerSizes | None:
        """Bytes per ledger if memory holds them. Any thread."""
        return self._sizes.get(log_id)

    def forget(self, log_id: int) -> None:
        """The log is gone."""
        self.usages.pop(log_id, None)
        self._sizes.pop(log_id, None)
        self.torn.discard(log_id)

    def keep_only(self, log_ids: set[int]) -> None:
        """Forget all logs but these."""
        for log_id in set(self.usages) | set(self._sizes):
            if log_id not in log_ids:
                self.forget(log_id)

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
        self._sizes[log_id] = sizes
        while len(self._sizes) > 1 and sum(each.nbytes for each in self._sizes.values()) > self._max_bytes:
            self._sizes.popitem(last=False)

    def _judge(self, log_id: int, sizes: LedgerSizes) -> LogUsage:
        remaining = ledgers = in_doubt = 0
        for ledger_id, nbytes in sizes.pairs():
            if not self._is_known(ledger_id):
                try:
                    if self._is_dead(ledger_id):
                        continue
                    _log.error(
                        "a ledger that the metadata service places here is in an entry log but not in the index",
                        ledger=ledger_id,
                        log_id=log_id,
                    )
                except MetadataError:
                    pass
                in_doubt += nbytes
            remaining += nbytes
            ledgers += 1
        return LogUsage(log_id, sizes.total, remaining, ledgers, in_doubt)
