"""A disk that one kind of bookie wrote is opened by the other, both ways, after a clean stop and after a crash."""

from __future__ import annotations

import pytest

from tests.interop.acknowledged import read_back, write_until
from tests.interop.java_programs import run_program
from tests.support.bookie_process import DB_STORAGE, INTERLEAVED_STORAGE, SORTED_STORAGE

_DIRECTIONS = {
    "ours": [("ours", "java"), ("java", "ours")],
    "java": [("java", "java")],  # proves the test itself
}


def pytest_generate_tests(metafunc):
    if "direction" in metafunc.fixturenames:
        from tests.interop.conftest import kind_under_test

        pairs = _DIRECTIONS[kind_under_test(metafunc.config)]
        metafunc.parametrize("direction", pairs, ids=[f"{a}-to-{b}" for a, b in pairs])


# With Sorted and Interleaved storage, flushes and rotated logs come from here, not from the interval.
_SMALL_MEMTABLE = {"skipListSizeLimit": "131072", "logSizeLimit": "524288", "pageLimit": "64"}


# "journal": nothing but the journal holds the entries; "flushed": entry logs and index hold nearly all of them.
@pytest.mark.parametrize(
    ("storage", "ending"),
    [
        pytest.param(DB_STORAGE, "stopped", id="db-stopped"),
        pytest.param(DB_STORAGE, "killed-journal", id="db-killed-journal"),
        pytest.param(DB_STORAGE, "killed-flushed", id="db-killed-flushed"),
        pytest.param(SORTED_STORAGE, "killed-flushed", id="sorted-killed-flushed"),
        pytest.param(INTERLEAVED_STORAGE, "stopped", id="interleaved-stopped"),
    ],
)
def test_ledgers_keep_their_state(class_path, solo, tmp_path, direction, storage, ending):
    first, second = direction
    flush_ms = "200" if ending == "killed-flushed" else "60000"
    bookie = solo.bookie(first, {"flushInterval": flush_ms, "ledgerStorageClass": storage, **_SMALL_MEMTABLE})
    try:
        bookie.start()
        states, acks = tmp_path / "states", tmp_path / "acks"
        run_program(class_path, "LedgerStates", solo.metadata_uri, "write", str(states))
        if ending == "stopped":
            run_program(class_path, "AckWriter", solo.metadata_uri, str(acks), "V2", "4", "4000")
            bookie.stop()
        else:
            write_until(class_path, solo, acks, "V2", bookie.kill)
        bookie = solo.successor(bookie, second)
        bookie.start()
        # With these storages the reference takes any key for a ledger that it knows from its index only: it does not
        # look into the file.
        any_key = second == "java" and storage != DB_STORAGE
        verb = "verify-without-keys" if any_key else "verify"
        run_program(class_path, "LedgerStates", solo.metadata_uri, verb, str(states))
        read_back(class_path, solo, acks, "V3", second)
        # And back: what the second kind added and checkpointed is read by the first.
        bookie.stop()
        bookie = solo.successor(bookie, first)
        bookie.start()
        read_back(class_path, solo, acks, "V2", "java")
    finally:
        solo.discard(bookie)
