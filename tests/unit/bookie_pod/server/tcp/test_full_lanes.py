"""What is told where no lane has a place for the work."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable

import pytest

from bookie_protocol.errors import V2Code, V3Status
from tests.support.frames import (
    LAST,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_fence,
    v2_read,
    v3_fence,
    v3_list,
    v3_poll,
    v3_read_lac,
    v3_status,
)
from tests.support.server_rig import ServerRig, answers
from tests.support.until import until

LEDGER = 7
TOO_MANY = (V2Code.ETOOMANYREQUESTS, V3Status.ETOOMANYREQUESTS)


@pytest.fixture
async def full() -> AsyncIterator[ServerRig]:
    """Entries 0 to 2 of a ledger, and its lane held by one read, which is all that may wait."""
    rig = ServerRig(reads_pending_max=1)
    conn, transport = rig.connect()
    for entry_id in range(3):
        conn.data_received(v2_add(entry(LEDGER, entry_id)))
    await answers(rig, transport, 3)
    goes_on = threading.Event()
    rig.lanes.run(LEDGER, goes_on.wait, lambda result, error: None)
    yield rig
    goes_on.set()
    rig.close()


@pytest.mark.parametrize("known", [True, False], ids=["LAC known", "LAC to be looked up"])
@pytest.mark.parametrize(
    ("frame", "status", "is_read"),
    [
        (v2_read(LEDGER, LAST), v2_code, True),
        (v2_batch(LEDGER, 0, 10), v2_code, True),
        (v3_poll(LEDGER, 0), v3_status, True),
        (v3_list(LEDGER), v3_status, False),
        (v3_read_lac(LEDGER), v3_status, False),
    ],
    ids=["last entry", "batch", "long poll", "list", "LAC"],
)
async def test_who_finds_no_place_is_told(
    full: ServerRig,
    monkeypatch: pytest.MonkeyPatch,
    frame: bytes,
    status: Callable[[bytes], int],
    is_read: bool,
    known: bool,
) -> None:
    """Reads are counted as refused, and nothing is under way any longer."""
    rejected: list[bool] = []
    monkeypatch.setattr(full.context.metrics, "read_rejected", lambda: rejected.append(True))
    if not known:
        del full.ledgers.states[LEDGER]
    conn, transport = full.connect()
    conn.data_received(frame)
    await until(lambda: transport.frames)
    assert [status(each) in TOO_MANY for each in transport.frames] == [True]
    assert len(rejected) == is_read
    assert (full.context.requests.count, full.context.reads_in_progress.count) == (0, 0)


@pytest.mark.parametrize(("frame", "status"), [(v2_fence(LEDGER), v2_code), (v3_fence(LEDGER), v3_status)])
async def test_a_fence_whose_read_finds_no_place_is_durable_before_that_is_told(
    full: ServerRig, frame: bytes, status: Callable[[bytes], int]
) -> None:
    conn, transport = full.connect()
    conn.data_received(frame)
    await until(lambda: full.lanes.rejected)
    assert full.ledgers.states[LEDGER].fenced
    assert transport.frames == []
    full.journal.acknowledge()
    await until(lambda: transport.frames)
    assert [status(each) in TOO_MANY for each in transport.frames] == [True]
    assert full.context.reads_in_progress.count == 0
