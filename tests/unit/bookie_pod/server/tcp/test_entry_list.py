"""The list of a ledger's entries, and the frame that it has to fit into."""

from __future__ import annotations

import pytest

from bookie_pod.server.tcp import handlers
from bookie_protocol.errors import V3Status
from tests.support.frames import entry, v2_add, v3_answer, v3_list
from tests.support.server_rig import ServerRig, answers


@pytest.mark.parametrize(("beyond", "status"), [(0, V3Status.EOK), (1, V3Status.EIO)])
async def test_a_list_that_no_frame_holds_is_an_error_and_no_frame(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, beyond: int, status: V3Status
) -> None:
    """A client gives up a connection whose frames are too long, with everything else that is under way on it."""
    longest = rig.context.options.max_entry_bytes
    monkeypatch.setattr(handlers, "encode_availability", lambda entry_ids: bytes(longest + beyond))
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(7, 0)))
    await answers(rig, transport, 1)
    conn, transport = rig.connect()
    conn.data_received(v3_list(7))
    await rig.settle(lambda: transport.frames)
    answer = v3_answer(transport.frames[0])
    assert answer.status == status
    assert len(answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger) == (longest if not beyond else 0)
