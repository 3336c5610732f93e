"""Ledgers that are deleted and made anew, or lose their disk, in the middle: nothing of the next life is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from types import TracebackType

import pytest

from bookie_protocol.errors import NoLedgerIndex
from tests.unit.bookie_pod.storage.index.ledger_cache.rig import Rig


def _with_a_file() -> Rig:
    """Ledger 1 has a file with the locations of entries 0 to 4, and nothing of it is in memory."""
    rig = Rig(open_file_limit=1)
    rig.add(1)
    rig.cache.put(1, range(5), range(100, 105))
    rig.flush()
    rig.reopen()
    return rig


def _behind_the_path(rig: Rig, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do this once, between the look where a ledger's file is and the opening of that file."""
    path = rig.cache._directories.path

    def and_then(ledger_id: int) -> str | None:
        found = path(ledger_id)
        monkeypatch.undo()
        act()
        return found

    monkeypatch.setattr(rig.cache._directories, "path", and_then)


@pytest.mark.parametrize("who", ["reader", "flush"])
def test_a_file_that_is_deleted_before_it_is_opened_is_not_kept_for_the_next_life(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = _with_a_file()
    if who == "flush":
        rig.cache.put(1, [3], [300])
        rig.cache.handles.drop(1)
    _behind_the_path(rig, monkeypatch, lambda: rig.cache.delete(1))
    if who == "flush":
        rig.flush()
    else:
        with pytest.raises(NoLedgerIndex):
            rig.cache.last_entry_id(1)
    assert rig.cache.records.get(1) is None
    rig.flush()
    rig.add(1)
    for entry_id in (1, 2):  # the first makes the file
        rig.cache.put(1, [entry_id], [entry_id + 10])
        rig.flush()
    assert [rig.reopen().get(1, entry_id) for entry_id in range(5)] == [0, 11, 12, 0, 0]


def test_a_file_that_is_copied_off_a_failed_disk_before_it_is_opened_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = _with_a_file()
    old = rig.path(1)
    before = rig.files.read_bytes(old)

    def fail() -> None:
        rig.cache.give_up(old[: len("/a")])
        rig.add(2)
        for ledger_id in (1, 2):
            rig.cache.put(ledger_id, [5], [105])
        rig.flush()
        rig.cache.last_entry_id(2)  # whose file takes the place of the copy among the open ones

    _behind_the_path(rig, monkeypatch, fail)
    rig.cache.last_entry_id(1)
    assert rig.path(1) != old
    rig.cache.put(1, [6], [106])
    rig.flush()
    assert rig.files.read_bytes(old) == before
    copy = rig.files.read_bytes(rig.path(1))
    assert [copy[1024 + 8 * entry_id + 7] for entry_id in range(7)] == list(range(100, 107))


def test_a_disk_is_given_up_between_flushes_and_not_in_the_middle_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what removes the deleted file could remove the one that a flush makes meanwhile."""
    rig = _with_a_file()
    other = "/b" if rig.path(1).startswith("/a") else "/a"
    rig.cache.delete(1)
    rig.add(1)
    rig.cache.put(1, [4], [400])
    unlink, flusher = rig.files.unlink, rig.cache._flusher

    def flush_first_if_possible(path: str) -> None:
        monkeypatch.undo()
        if not flusher._lock.locked():
            flusher.flush([1])
        unlink(path)

    monkeypatch.setattr(rig.files, "unlink", flush_first_if_possible)
    rig.cache.give_up(other)
    rig.flush()
    assert [rig.reopen().get(1, entry_id) for entry_id in range(5)] == [0, 0, 0, 0, 400]


class _Turns:
    """A lock behind one of whose turns something happens."""

    def __init__(self, turn: int, act: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self.left = turn
        self._act = act

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()
        self.left -= 1
        if not self.left:
            self._act()


@pytest.mark.parametrize("has_file", [False, True])
def test_a_ledger_made_anew_behind_any_turn_of_a_flush_is_flushed_by_the_next(
    has_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in count(1):
        rig = _with_a_file() if has_file else Rig()
        rig.add(1)
        rig.cache.put(1, [3], [300])

        def another_life(rig: Rig = rig) -> None:
            rig.cache.delete(1)
            rig.add(1)
            rig.cache.put(1, [4], [400])

        rig.cache.take_dirty_headers()
        turns = _Turns(turn, another_life)
        with monkeypatch.context() as patch:
            patch.setattr(rig.cache.pages, "lock", turns)
            rig.cache.flush()
        if turns.left > 0:
            break
        rig.flush()
        assert [rig.reopen().get(1, entry_id) for entry_id in range(5)] == [0, 0, 0, 0, 400], turn
    assert turn > 5
