"""The list of a ledger's entries, and the frame that it has to fit into."""

from __future__ import annotations

import pytest

from bookie_pod.server.tcp import handlers
from bookie_pod.server.tcp.context import V2_HEAD_BYTES
from bookie_protocol.errors import BadRequest, V3Status
from tests.support.frames import entry, v2_add, v3_answer, v3_list
from tests.support.production import production
from tests.support.server_rig import ServerRig, answers


@pytest.mark.parametrize(("beyond", "status"), [(0, V3Status.EOK), (1, V3Status.EIO)])
async def test_a_list_that_no_frame_holds_is_an_error_and_no_frame(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, beyond: int, status: V3Status
) -> None:
    """A client gives up a connection whose frames are too long, with everything else that is under way on it."""
    longest = rig.context.max_entry_bytes

    def encode(entry_ids: object, most: int) -> bytes:
        if longest + beyond > most:
            raise BadRequest("it does not fit")
        return bytes(longest)

    monkeypatch.setattr(handlers, "encode_availability", encode)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(7, 0)))
    await answers(rig, transport, 1)
    conn, transport = rig.connect()
    conn.data_received(v3_list(7))
    await rig.settle(lambda: transport.frames)
    answer = v3_answer(transport.frames[0])
    assert answer.status == status
    assert len(answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger) == (longest if not beyond else 0)


async def test_room_for_a_list_is_taken_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many clients may ask for lists, each of which is made up to its limit before that is known."""
    config = production()
    longest = config.network.max_frame_size_bytes - V2_HEAD_BYTES
    rig = ServerRig(config, memory_bytes=3 * longest)
    taken: list[int] = []

    def encode(entry_ids: object, most: int) -> bytes:
        taken.append(rig.context.memory.making)
        return b"short"

    monkeypatch.setattr(handlers, "encode_availability", encode)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(7, 0)))
    await answers(rig, transport, 1)
    greedy, _ = rig.connect()
    assert greedy.wire.share.take(2 * longest)
    conn, transport = rig.connect()
    conn.data_received(v3_list(7))
    await rig.settle()
    assert not taken, "there is no room for it"
    greedy.wire.share.make(-2 * longest)
    await rig.settle(lambda: transport.frames)
    assert taken == [2 * longest]
    assert rig.context.memory.total == 0
    rig.close()
