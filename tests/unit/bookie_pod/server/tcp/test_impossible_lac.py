"""A header that says that its own entry, or a later one, is confirmed: nobody is told so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.wire import bookkeeper_pb2 as pb
from tests.support.frames import KEY, LAST, entry, v2_add, v3_add, v3_answer, v3_poll, v3_read
from tests.support.server_rig import PaperTransport, ServerRig
from tests.support.storage_engine import put

LEDGER = 7
IMPOSSIBLE = pytest.mark.parametrize("lac", [3, 4, 2**62, -2, -(2**63)])
"""For entry 3."""


def loaded(rig: ServerRig, *lacs: int) -> None:
    """A ledger as after a restart: stored entries with these LACs, nothing known of them."""
    rig.storage.set_ledger(LEDGER, LedgerRecord(KEY))
    put(rig.storage, *(entry(LEDGER, entry_id, lac=lac) for entry_id, lac in enumerate(lacs)))


async def answer(rig: ServerRig, frame: bytes) -> pb.ReadResponse:
    conn, transport = rig.connect()
    conn.data_received(frame)
    await rig.settle(lambda: transport.frames)
    (got,) = transport.frames
    return v3_answer(got).readResponse


@IMPOSSIBLE
async def test_of_the_last_stored_entry(rig: ServerRig, lac: int) -> None:
    loaded(rig, -1, 0, 1, lac)
    read = await answer(rig, v3_read(LEDGER, 2))
    assert (read.status, read.body, read.maxLAC) == (pb.EOK, entry(LEDGER, 2), 1)
    last = await answer(rig, v3_read(LEDGER, LAST))
    assert last.body == entry(LEDGER, 3, lac=lac)
    assert last.maxLAC == -1
    assert not rig.ledgers.states[LEDGER].lac_known


@IMPOSSIBLE
async def test_a_long_poll_is_not_woken_by_it(rig: ServerRig, lac: int) -> None:
    loaded(rig, -1, 0, 1, lac)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1, timeout_ms=60_000))
    await rig.settle(lambda: rig.polls.waiting)
    assert transport.frames == []
    writer, _ = rig.connect()
    writer.data_received(v3_add(entry(LEDGER, 4)))  # its LAC is 3, which can be
    await rig.settle(lambda: transport.frames)
    assert v3_answer(transport.frames[0]).readResponse.maxLAC == 3


@IMPOSSIBLE
@pytest.mark.parametrize("add", [v2_add, v3_add], ids=["v2", "v3"])
async def test_of_an_add_that_comes_in(rig: ServerRig, lac: int, add: Callable[[bytes], bytes]) -> None:
    """The fourth is a hot add: the first has warmed the ledger up."""
    conn, transport = rig.connect()
    for entry_id in range(4):
        conn.data_received(add(entry(LEDGER, entry_id, lac=lac if entry_id == 3 else None)))
    rig.journal.acknowledge()
    await _answered(rig, transport, 4)
    state = rig.ledgers.states[LEDGER]
    assert (state.hot_key, state.lac) == (KEY, 1)
    assert rig.storage.cached(LEDGER, 3) == entry(LEDGER, 3, lac=lac)
    assert (await answer(rig, v3_read(LEDGER, 3))).maxLAC == 1


async def test_of_the_first_add_after_a_restart(rig: ServerRig) -> None:
    loaded(rig, -1, 0, 1, 2)
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(LEDGER, 4, lac=9)))
    rig.journal.acknowledge()
    await _answered(rig, transport, 1)
    assert (await answer(rig, v3_read(LEDGER, 3))).maxLAC == 2


async def _answered(rig: ServerRig, transport: PaperTransport, count: int) -> None:
    await rig.settle(lambda: len(transport.frames) == count)
