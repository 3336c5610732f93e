"""Rebuilds of indexes on request, one at a time, one directory after the other.

Invariants
- Rebuilds never begin by themselves, and one that a stop or a crash has ended is not taken up again: the old index is
  used until the next request.
- A fault of one directory ends its rebuild; the others are tried all the same.
- The event loop is never waited for but by `OnLoop`, and never held up.

Threads: `index-rebuild`, one for each request; everything public may be called by any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from bookie_pod.metrics.scrub import IndexRebuildMetrics
from bookie_pod.storage.gc.throttle import ScrubPace, ScrubStopped, Throttle
from bookie_pod.storage.index_rebuild.online import DirectoryRebuild, LogsDamaged
from bookie_pod.storage.index_rebuild.state import RebuildOutcome, RebuildPhase, RebuildRequest, RebuildState
from bookie_protocol.errors import BadRequest, PodkeeperError, Refused

_log = structlog.get_logger(__name__)


class IndexRebuilder:
    """See the module."""

    def __init__(
        self,
        directories: Sequence[DirectoryRebuild],
        *,
        bytes_per_second: float,
        questions_per_second: float,
        under_pressure: Callable[[], bool] = lambda: False,
        metrics: IndexRebuildMetrics | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Rates of 0: no limit of bytes; `questions_per_second` to the metadata service is above 0. No directories: the
        engine has no databases.

        `on_end` is called on the rebuild's thread whenever a rebuild has ended, whatever came of it: it may have put
        ledgers in limbo. It must not block."""
        self._directories = {each.folder: each for each in directories}
        self._bytes_per_second = bytes_per_second
        self._questions_per_second = questions_per_second
        self._under_pressure = under_pressure
        self._metrics = metrics
        self._on_end = on_end
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._closed = False

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def states(self) -> list[RebuildState]:
        """One per directory, as of now."""
        return [replace(each.state) for each in self._directories.values()]

    def request(self, request: RebuildRequest) -> bool:
        """Begin; False: one runs. `Refused` if the engine has no databases, `BadRequest` for an unknown folder."""
        if not self._directories:
            raise Refused(
                "only the databases of DbLedgerStorage can be rebuilt while the bookie serves; index files are rebuilt "
                "by `bookie disk rebuild-index-files` on a stopped bookie"
            )
        for folder in request.folders:
            if folder not in self._directories:
                known = ", ".join(each.removesuffix("/current") for each in self._directories)
                raise BadRequest(
                    f"{folder.removesuffix('/current')[:200]} is not a ledger directory of this bookie; it has: {known}"
                )
        with self._lock:
            if self.running or self._closed:
                return False
            chosen = [each for each in self._directories.values() if each.folder in (request.folders or (each.folder,))]
            for each in chosen:
                each.state = RebuildState(each.folder, outcome=RebuildOutcome.RUNNING)
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(chosen, request, self._stopped), name="index-rebuild", daemon=True
            )
            self._thread.start()
        return True

    def cancel(self) -> bool:
        """Ask the one that runs to end; False: none runs."""
        with self._lock:
            self._stopped.set()
            return self.running

    def close(self) -> None:
        """End what runs, at the next safe place, and wait for it."""
        with self._lock:
            self._closed = True
            self._stopped.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self, chosen: Sequence[DirectoryRebuild], request: RebuildRequest, stopped: threading.Event) -> None:
        pace = ScrubPace(
            stopped,
            entries_per_second=0,
            bytes_per_second=self._bytes_per_second,
            under_pressure=self._under_pressure,
        )
        questions = Throttle(self._questions_per_second, stopped, by_bytes=False)
        for each in chosen:
            began, each.state.started_ms = time.monotonic(), time.time_ns() // 1_000_000
            _log.info("rebuild of indexes begins", folder=each.folder)
            outcome, detail = self._run_one(each, request, pace, lambda: questions.pay(1, 0))
            state = each.state
            state.phase, state.ended_ms, state.detail = RebuildPhase.WAITING, time.time_ns() // 1_000_000, detail
            state.outcome = outcome
            self._tell(state, (time.monotonic() - began) * 1000)
        self._on_end()

    def _run_one(
        self, each: DirectoryRebuild, request: RebuildRequest, pace: ScrubPace, pay_question: Callable[[], None]
    ) -> tuple[RebuildOutcome, str]:
        try:
            each.run(request, pace, pay_question)
        except ScrubStopped:
            return RebuildOutcome.STOPPED, "stopped; the old index is used"
        except LogsDamaged as error:
            return RebuildOutcome.DAMAGED, f"{error}; accept the damage to use the new index all the same"
        except PodkeeperError as error:
            return RebuildOutcome.FAILED, str(error)
        except Exception as error:  # a fault of ours must be seen by who watches
            _log.exception("rebuild of indexes failed", folder=each.folder)
            return RebuildOutcome.FAILED, f"{type(error).__name__}: {error}"
        return RebuildOutcome.DONE, ""

    def _tell(self, state: RebuildState, milliseconds: float) -> None:
        if self._metrics is not None:
            self._metrics.ran(
                milliseconds,
                state.outcome is RebuildOutcome.DONE,
                entries=state.entries,
                changed_rows=state.rows_changed,
                restored_ledgers=state.ledgers_restored,
            )
        _log.log(
            20 if state.outcome in (RebuildOutcome.DONE, RebuildOutcome.STOPPED) else 40,
            "rebuild of indexes ended",
            folder=state.folder,
            outcome=state.outcome.value,
            reason=state.detail,
            entry_logs=state.logs,
            entries=state.entries,
            rows_changed=state.rows_changed,
            rows_dangling=state.rows_dangling,
            ledgers_restored=state.ledgers_restored,
            seconds=round(milliseconds / 1000, 3),
        )
