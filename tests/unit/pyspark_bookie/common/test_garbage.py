"""The cycle collector while entries stream through a task."""

from __future__ import annotations

import gc

import pytest
from pyspark import TaskContext

from pyspark_bookie.common.garbage import YOUNG_OBJECTS, fewer_collections, freeze_imports


@pytest.mark.parametrize(("young", "within"), [(700, YOUNG_OBJECTS), (0, 0), (10 * YOUNG_OBJECTS, 10 * YOUNG_OBJECTS)])
def test_it_runs_less_often_and_is_as_it_was_afterwards(young, within):
    before = gc.get_threshold()
    gc.set_threshold(young, *before[1:])
    try:
        with pytest.raises(ZeroDivisionError), fewer_collections():
            assert gc.get_threshold() == (within, *before[1:])
            raise ZeroDivisionError
        assert gc.get_threshold() == (young, *before[1:])
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(("in_task", "frozen", "calls"), [(False, 0, 0), (True, 0, 1), (True, 5_000, 0)])
def test_a_worker_freezes_what_it_imported_and_does_so_once(monkeypatch, in_task, frozen, calls):
    done = []
    monkeypatch.setattr(TaskContext, "get", lambda: object() if in_task else None)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: done.append(1))
    freeze_imports()
    assert len(done) == calls
