"""Compaction of location indexes on request, one after the other on a thread of its own.

Invariants
- An index that waits or is being compacted is not queued again.
- `stop` waits for the one that runs: RocksDB is not closed under its feet.

Threads: event loop, `stop` on another thread after the last `start`; `index-compaction` does the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from bookie_protocol.errors import BadRequest, StorageFault

_log = structlog.get_logger(__name__)


class IndexCompactions:
    """`indexes`: path of each, and what compacts it."""

    def __init__(self, indexes: Mapping[str, Callable[[], None]]) -> None:
        self._indexes = dict(indexes)
        self._wanted: set[str] = set()
        self._stopped = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="index-compaction")

    def running(self) -> dict[str, bool]:
        """By path: whether it waits or is being compacted."""
        return {path: path in self._wanted for path in self._indexes}

    def start(self, paths: Sequence[str] | None = None) -> None:
        """Compact these, None: all. `BadRequest` for an unknown path, and then none."""
        chosen = self._indexes if paths is None else paths
        for path in chosen:
            if path not in self._indexes:
                known = ", ".join(self._indexes) or "none"
                raise BadRequest(f"{path[:200]} is no location index of this bookie; its indexes: {known}")
        for path in chosen:
            if path not in self._wanted and not self._stopped:
                self._wanted.add(path)
                self._executor.submit(self._compact, path)

    def _compact(self, path: str) -> None:
        began = time.monotonic()
        try:
            self._indexes[path]()
        except StorageFault as error:
            _log.error("location index not compacted", path=path, reason=str(error))
        except Exception as error:
            _log.exception("location index not compacted", path=path, reason=str(error))
        else:
            _log.info("location index compacted", path=path, seconds=round(time.monotonic() - began, 3))
        finally:
            self._wanted.discard(path)

    def stop(self) -> None:
        """Blocks while one runs; the others are forgotten."""
        self._stopped = True
        self._executor.shutdown(wait=True, cancel_futures=True)
