"""Memory that a worker frees stays with it, and the cycle collector leaves entries alone."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from pyspark import TaskContext

from pyspark_bookie.source import reading
from pyspark_bookie.source.reading import YOUNG_OBJECTS, fewer_collections, freeze_imports

FAULTS = """
import resource
from pyspark_bookie.source.reading import set_thresholds
def batch(): return [b"x" * (2 << 20) for _ in range(8)]
def faults():
    for _ in range(5): batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20): batch()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20
before = faults()
print(int(set_thresholds()), before, faults())
"""
"""Tells whether the C library took the thresholds, and the page faults for each batch of 16 MiB before and after."""


def test_what_was_freed_is_used_again():
    out = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    kept, before, after = map(int, out.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert 4 * after < before


@pytest.mark.parametrize("in_task", [False, True])
def test_only_workers_of_spark_do_so(monkeypatch, in_task):
    calls = []
    monkeypatch.setattr(TaskContext, "get", lambda: object() if in_task else None)
    monkeypatch.setattr(reading, "set_thresholds", lambda: calls.append(1) or True)
    assert reading.keep_freed_memory() is in_task
    assert len(calls) == in_task


@pytest.mark.parametrize(("young", "within"), [(700, YOUNG_OBJECTS), (0, 0), (10 * YOUNG_OBJECTS, 10 * YOUNG_OBJECTS)])
def test_the_collector_runs_less_often_and_is_as_it_was_afterwards(young, within):
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
