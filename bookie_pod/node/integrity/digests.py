"""The digest types of ledgers, from the metadata service, for the scrubber and for reads.

Invariants
- A type never changes, so what was learnt is kept, for the `MAX_KNOWN` ledgers asked for last.
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


class MetadataDigestTypes:
    """`DigestTypes` by the metadata service. `pay` waits before each question."""

    def __init__(
        self, metadata: GcMetadata, pay: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metadata = metadata
        self._pay = pay
        self._clock = clock
        self._known: OrderedDict[int, DigestType | None] = OrderedDict()
        self._silent_until = 0.0
        self._lock = threading.Lock()

    def digest_type(self, ledger_id: int) -> DigestType | None:
        with self._lock:
            return self._known_or_asked(ledger_id)

    def _known_or_asked(self, ledger_id: int) -> DigestType | None:
        known = self._known
        if ledger_id in known:
            known.move_to_end(ledger_id)
            return known[ledger_id]
        if self._clock() < self._silent_until:
            return None
        self._pay()
        try:
            metadata = self._metadata.read(ledger_id)
        except MetadataError as error:
            self._silent_until = self._clock() + PAUSE_S
            _log.warning("digests are not checked for a while: the metadata service does not tell", reason=str(error))
            return None
        known[ledger_id] = metadata.digest_type if metadata is not None else None
        if len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return known[ledger_id]
