"""Dumps as the source of a transfer.

Any process; one thread uses an open source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bookie_protocol.archive.model import Counts
from bookie_protocol.errors import EntryDamaged, NoSuchLedger
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.dumps.files import Dumps
from pyspark_bookie.jobs.transfer.sources import LedgerAtSource, OpenSource


@dataclass(frozen=True)
class DumpSource:
    """What `export` has written."""

    uri: str

    def open(self, throttle: Throttle) -> OpenSource:
        return _OpenDumps(Dumps(Files(self.uri, "--source")), throttle)


class _OpenDumps:
    def __init__(self, dumps: Dumps, throttle: Throttle) -> None:
        self._dumps = dumps
        self._throttle = throttle

    def ledger(self, ledger_id: int, uuid: str = "") -> LedgerAtSource:
        return _DumpedLedger(self._dumps, ledger_id, self._throttle)


class _DumpedLedger:
    def __init__(self, dumps: Dumps, ledger_id: int, throttle: Throttle) -> None:
        name = dumps.find(ledger_id)
        if name is None:
            raise NoSuchLedger(f"there is no dump of ledger {ledger_id}")
        header = dumps.header(name)
        if header.ledger_id != ledger_id:
            raise EntryDamaged(f"{name} is the dump of ledger {header.ledger_id}")
        self.shape = header.shape
        self.password: bytes | None = None
        self._dumps = dumps
        self._name = name
        self._throttle = throttle

    def payloads(self) -> Iterator[list[bytes]]:
        for payloads in self._dumps.payloads(self._name):
            self._throttle.take(sum(map(len, payloads)))
            yield payloads

    def expected(self) -> Counts | None:
        return None  # a dump is known to be whole when it has been read
