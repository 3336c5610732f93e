"""What both kinds of storage tell those who listen, and the deletion of a ledger to which nobody has come meanwhile.

Threads: event loop, but for `watch` and `delete_ledger`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from bookie_pod.storage.engines.interface import Consent, OnLoop, always


class ListenedStorage(ABC):
    """One ledger directory of DbLedgerStorage, or one of the engines with a memtable."""

    def __init__(self, on_loop: OnLoop) -> None:
        self._on_loop = on_loop
        self._untouched: set[int] = set()
        """Ledgers of which no entry was put since they are watched. Event loop."""
        self._swap_callbacks: list[Callable[[], None]] = []
        self._space_callbacks: list[Callable[[], None]] = []
        self._deletion_callbacks: list[Callable[[int, bool], None]] = []

    @abstractmethod
    def _put_lately(self) -> Collection[int]:
        """Ledgers in the half that takes entries now."""

    @abstractmethod
    def _delete(self, ledger_id: int) -> None:
        """Forget the ledger. Event loop."""

    def on_swap(self, callback: Callable[[], None]) -> None:
        self._swap_callbacks.append(callback)

    def on_space(self, callback: Callable[[], None]) -> None:
        self._space_callbacks.append(callback)

    def on_ledger_deleted(self, callback: Callable[[int, bool], None]) -> None:
        self._deletion_callbacks.append(callback)

    def _tell_swapped(self) -> None:
        """Dicts of entries that were handed out are not those that take entries now, and there is room."""
        for callback in (*self._swap_callbacks, *self._space_callbacks):
            callback()

    def _tell_deleted(self, ledger_id: int, *, handed_out: bool, fenced: bool) -> None:
        """`handed_out`: its dict of entries was."""
        if handed_out:
            for callback in self._swap_callbacks:
                callback()
        for deleted in self._deletion_callbacks:
            deleted(ledger_id, fenced)

    def watch(self, ledger_ids: Collection[int]) -> None:
        """From now on it is noticed who puts entries of these ledgers, and of no others. Any thread."""
        untouched = set(ledger_ids)

        def begin() -> None:
            self._untouched = untouched
            if not untouched.isdisjoint(self._put_lately()):
                for callback in self._swap_callbacks:
                    callback()

        self._on_loop(begin)

    def in_one_turn(self, work: Callable[[], None]) -> None:
        """Do all of it in one turn of the event loop, where several deletions cost one hand-over. Any thread."""
        self._on_loop(work)

    def delete_ledger(self, ledger_id: int, consent: Consent = always) -> None:
        """Forget the ledger if `consent`, which is told whether nobody has put an entry since `watch`. Any thread."""

        def delete() -> None:
            if consent(ledger_id in self._untouched):
                self._delete(ledger_id)

        self._on_loop(delete)
