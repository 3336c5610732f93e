"""A ledger in limbo: what is here is served, and nothing is denied or called complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_protocol.errors import V2Code, V3Status
from tests.support.frames import (
    LAST,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_entries,
    v2_read,
    v3_answer,
    v3_list,
    v3_read,
    v3_read_lac,
    v3_status,
)
from tests.support.server_rig import ServerRig, answers

LEDGER = 7


@pytest.fixture
async def limbo(rig: ServerRig) -> ServerRig:
    """The storage put a ledger with entries 0 to 2 into limbo while the server knew it."""
    conn, transport = rig.connect()
    for entry_id in range(3):
        conn.data_received(v2_add(entry(LEDGER, entry_id)))
    await answers(rig, transport, 3)
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    rig.storage.set_ledger(LEDGER, replace(record, limbo=True))
    return rig


async def ask(rig: ServerRig, frame: bytes) -> bytes:
    conn, transport = rig.connect()
    conn.data_received(frame)
    await rig.settle(lambda: transport.frames)
    (answer,) = transport.frames
    return answer


async def test_the_list_of_its_entries_is_not_given_for_complete(limbo: ServerRig) -> None:
    answer = v3_answer(await ask(limbo, v3_list(LEDGER)))
    assert answer.status == V3Status.EUNKNOWNLEDGERSTATE
    assert not answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger


async def test_a_batch_ends_before_what_may_be_lost(limbo: ServerRig) -> None:
    assert v2_entries(await ask(limbo, v2_batch(LEDGER, 0, 10))) == [entry(LEDGER, each) for each in range(3)]


async def test_version_2_has_no_name_for_it_that_clients_know(limbo: ServerRig) -> None:
    assert v2_code(await ask(limbo, v2_read(LEDGER, 9))) == V2Code.EIO
    assert v2_code(await ask(limbo, v2_batch(LEDGER, 9))) == V2Code.EIO
    assert v3_status(await ask(limbo, v3_read(LEDGER, 9))) == V3Status.EUNKNOWNLEDGERSTATE
    assert v3_status(await ask(limbo, v3_read(LEDGER, LAST))) == V3Status.EUNKNOWNLEDGERSTATE
    assert v3_status(await ask(limbo, v3_read_lac(LEDGER))) == V3Status.EUNKNOWNLEDGERSTATE
