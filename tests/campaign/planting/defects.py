"""The defects that can be planted, from the tests' side alone: the product has no place for them.

Each is a mistake that storage systems have made. `plant` changes the modules of the process that calls it: the
bookies', by `sitecustomize`, and the campaign's own, which runs the clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


def _acknowledge_before_sync() -> None:
    """A group is acknowledged when it is written; a sync comes twice a second."""
    from bookie_pod.storage.journal.journal_file import JournalFile

    sync = JournalFile.sync

    def lazily(self: Any, end: int) -> None:
        now = time.monotonic()
        if now - getattr(_acknowledge_before_sync, "last", 0.0) > 0.5:
            _acknowledge_before_sync.last = now  # type: ignore[attr-defined]
            sync(self, end)

    JournalFile.sync = lazily  # type: ignore[method-assign]


def _skip_a_fence_at_replay() -> None:
    from bookie_pod.node.recovery import ReplayIntoStorage

    ReplayIntoStorage.on_fence = lambda self, ledger_id: None  # type: ignore[method-assign]


def _trim_the_journal_early() -> None:
    """A journal file goes when the next one begins, whatever the mark says."""
    from bookie_pod.storage.journal.directory import remove_journals_below
    from bookie_pod.storage.journal.journal import JournalFileSupply
    from bookie_pod.storage.journal.marks import LogMark

    begin = JournalFileSupply.next

    def trimming(self: Any, end: int) -> Any:
        file = begin(self, end)
        remove_journals_below(self._files, self._directory, LogMark(file.journal_id, 0), 0)
        return file

    JournalFileSupply.next = trimming  # type: ignore[method-assign]


def _believe_a_padding_length() -> None:
    """Replay goes where a padding record says, without looking at the check of its group."""
    from bookie_pod.storage.journal.survey_checked import CheckedSurvey

    def survey(self: Any, start: int) -> Any:
        from bookie_pod.storage.journal.reader import RecordWalk

        sound = start
        for step in RecordWalk(self._file.window, self._header.version, start, skip_entries=True):
            sound = step.end
        return self._file.result(self._header, start, min(sound, self._file.window.size))

    CheckedSurvey.survey = survey  # type: ignore[method-assign]


def _swallow_eio() -> None:
    """A sync that failed counts as one that did not."""
    from bookie_pod.storage.files_posix import PosixFile

    sync = PosixFile._sync

    def swallowing(self: Any, *, data_only: bool) -> None:
        try:
            sync(self, data_only=data_only)
        except OSError:
            self._sync_error = None

    PosixFile._sync = swallowing  # type: ignore[method-assign]


def _count_one_less() -> None:
    """A writer takes one acknowledgement less than its ack quorum for enough."""
    from bookie_client.writing.add_state import AddState

    original = AddState.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._ack = max(1, self._ack - 1)

    AddState.__init__ = init  # type: ignore[method-assign]


def _forget_a_limbo() -> None:
    """A disk that came back empty is served as if it had never held anything."""
    from bookie_pod.node.integrity import service

    async def nothing(*_: Any) -> int:
        return 0

    service.run_preboot_check = nothing  # type: ignore[assignment]


def _leak_a_waiter() -> None:
    """A long poll whose connection is gone keeps its place."""
    from bookie_pod.server.tcp.long_poll import LongPolls

    wait = LongPolls._wait

    def waiting(self: Any, state: Any, request: Any, reply: Any, asker: Any) -> None:
        before = set(asker.on_lost)
        wait(self, state, request, reply, asker)
        for lost in set(asker.on_lost) - before:
            asker.on_lost[lambda lost=lost: lost() or setattr(self, "waiting", self.waiting + 1)] = asker.on_lost.pop(
                lost
            )

    LongPolls._wait = waiting  # type: ignore[method-assign]


def _sync_no_index() -> None:
    """The write-ahead log of an index is written, and never synced."""
    from bookie_pod.storage.index.rocksdb_store import RocksStore

    def sync(self: Any) -> None:
        self._change("write", lambda db: db.flush_wal(False))
        self._buffered = 0

    RocksStore.sync = sync  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Defect:
    """`faults`: the kinds that can show it, of which its campaigns are made, so that it is found soon."""

    plant: Callable[[], None]
    faults: tuple[str, ...]


_CRASHES: Final = ("SIGKILL", "SIGKILL of all", "power lost", "power lost by all")

DEFECTS: Final[dict[str, Defect]] = {
    "acknowledge-before-sync": Defect(_acknowledge_before_sync, _CRASHES),
    "skip-fence": Defect(_skip_a_fence_at_replay, _CRASHES),
    "trim-early": Defect(_trim_the_journal_early, _CRASHES),
    "believe-padding": Defect(_believe_a_padding_length, ("bits flipped in journals",)),
    "swallow-eio": Defect(_swallow_eio, ("EIO of syncs",)),
    "one-ack-less": Defect(_count_one_less, (*_CRASHES, "SIGSTOP", "cut off from clients", "cut off inwards")),
    "forget-limbo": Defect(_forget_a_limbo, ("disk lost",)),
    "leak-waiter": Defect(_leak_a_waiter, ("SIGSTOP", "connections reset", "client with long polls")),
    "unsynced-index": Defect(_sync_no_index, _CRASHES),
}


def plant(name: str) -> None:
    """Raises `KeyError` for a name that is none."""
    DEFECTS[name].plant()
