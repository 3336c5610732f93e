"""What is told where the journal has failed, and where the bookie has a defect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from bookie_client.connection.request import error_for
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import ResourcesShort, StorageFault, TooManyRequests, V2Code, V3Status
from bookie_protocol.wire import v3
from bookie_protocol.wire.v3 import pb
from tests.support.frames import (
    entry,
    v2_add,
    v2_code,
    v2_fence,
    v2_read,
    v3_fence,
    v3_force,
    v3_list,
    v3_read,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.server_rig import ServerRig, answers

LEDGER = 7


def bookie_info() -> bytes:
    request = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    request.getBookieInfoRequest.requested = 3
    return v3.encode_frame(request)


async def failed(rig: ServerRig) -> None:
    """A ledger of one entry, then the journal fails."""
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(LEDGER, 0)))
    await answers(rig, transport, 1)
    rig.journal.error = StorageFault("the disk is gone")


@pytest.mark.parametrize(("frame", "status"), [(v2_fence(LEDGER, 0), v2_code), (v3_fence(LEDGER, 0), v3_status)])
async def test_a_fence_that_is_not_durable_gives_no_entry_and_stays(
    rig: ServerRig, frame: bytes, status: Callable[[bytes], int]
) -> None:
    await failed(rig)
    conn, transport = rig.connect()
    conn.data_received(frame * 2)
    await rig.settle(lambda: len(transport.frames) == 2)
    assert {status(each) for each in transport.frames} == {V2Code.EIO if status is v2_code else V3Status.EIO}
    assert rig.ledgers.states[LEDGER].fenced
    writer, told = rig.connect()
    writer.data_received(v2_add(entry(LEDGER, 1)))
    await rig.settle(lambda: told.frames)
    assert v2_code(told.frames[0]) == V2Code.EFENCED


@pytest.mark.parametrize("frame", [v3_force(LEDGER), v3_write_lac(LEDGER, 1)], ids=["force", "explicit LAC"])
async def test_what_a_failed_journal_does_not_take_is_an_io_error(rig: ServerRig, frame: bytes) -> None:
    await failed(rig)
    conn, transport = rig.connect()
    conn.data_received(frame)
    await rig.settle(lambda: transport.frames)
    assert [v3_status(each) for each in transport.frames] == [V3Status.EIO]
    assert rig.context.specials_in_progress == 0


@pytest.mark.parametrize(
    ("frame", "status"), [(v2_read(LEDGER, LAST_ENTRY), v2_code), (v3_read(LEDGER, LAST_ENTRY), v3_status)]
)
async def test_a_machine_that_is_short_of_something_asks_for_patience(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, frame: bytes, status: Callable[[bytes], int]
) -> None:
    """Whoever gets an I/O error takes the copy for damaged, and has it replaced."""
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(LEDGER, 0)))
    await answers(rig, transport, 1)

    def short(*_: object) -> None:
        raise ResourcesShort("too many open files")

    monkeypatch.setattr(rig.storage, "last_entry_id", short)
    reader, told = rig.connect()
    reader.data_received(frame)
    await rig.settle(lambda: told.frames)
    assert error_for(status(told.frames[0])) is TooManyRequests


@pytest.mark.parametrize("frame", [v3_list(LEDGER), v3_read_lac(LEDGER), bookie_info()], ids=["list", "LAC", "info"])
async def test_a_defect_is_an_io_error_of_one_request(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    await failed(rig)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(rig.storage, "entry_ids", broken)
    monkeypatch.setattr(rig.storage, "last_entry_id", broken)
    monkeypatch.setattr(rig.handlers, "_disk_space", broken)
    conn, transport = rig.connect()
    with capture_logs():
        conn.data_received(frame * 2)
        await rig.settle(lambda: len(transport.frames) == 2)
    assert {v3_status(each) for each in transport.frames} == {V3Status.EIO}
    assert not transport.closing


async def test_the_lac_of_a_ledger_without_entries_is_nowhere(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_fence(LEDGER))
    await answers(rig, transport, 1)
    conn.data_received(v3_read_lac(LEDGER))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert v3_status(transport.frames[1]) == V3Status.ENOENTRY
