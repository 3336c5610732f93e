"""The digest types of ledgers, from the metadata service, for the scrubber and for reads.

Invariants
- A ledger's type never changes, so what was learnt is kept, for the `MAX_KNOWN` ledgers asked for last. But ids are
  used again: whoever wants a `fresh` answer gets one that is `FRESH_S` old at most.
- A service that does not answer is left alone for `PAUSE_S`: entries are then checked without their digests, and the
  scrubber does not stand still.

Threads: any; they ask one after another.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataError

_log = structlog.get_logger(__name__)

MAX_KNOWN: Final = 65_536
PAUSE_S: Final = 30.0
FRESH_S: Final = 1.0


class MetadataDigestTypes:
    """`DigestTypes` by the metadata service. `pay` waits before each question."""

    def __init__(
        self, metadata: GcMetadata, pay: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metadata = metadata
        self._pay = pay
        self._clock = clock
        self._known: OrderedDict[int, tuple[DigestType | None, float]] = OrderedDict()
        """With the time of the answer."""
        self._silent_until = 0.0
        self._lock = threading.Lock()

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        with self._lock:
            return self._known_or_asked(ledger_id, self._clock() - FRESH_S if fresh else 0.0)

    def _known_or_asked(self, ledger_id: int, since: float) -> DigestType | None:
        known = self._known
        if ledger_id in known and known[ledger_id][1] >= since:
            known.move_to_end(ledger_id)
            return known[ledger_id][0]
        if self._clock() < self._silent_until:
            return None
        self._pay()
        try:
            metadata = self._metadata.read(ledger_id)
        except MetadataError as error:
            self._silent_until = self._clock() + PAUSE_S
            _log.warning("digests are not checked for a while: the metadata service does not tell", reason=str(error))
            return None
        found = metadata.digest_type if metadata is not None else None
        known[ledger_id] = found, self._clock()
        known.move_to_end(ledger_id)
        if len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return found
