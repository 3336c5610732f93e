"""Requests that were slow or failed are in the log, by what the client's error says of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bookie_client.connection.pool import ChannelPool
from bookie_client.connection.request import Request
from bookie_client.options import ClientOptions
from bookie_pod.logs import MOST
from bookie_pod.server.tcp.request_log import MOST_LEDGERS, RequestId, RequestLog
from bookie_protocol.digest import digest_manager
from bookie_protocol.errors import (
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import DigestType
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import v2
from tests.support.frames import entry, v2_add, v2_fence, v2_read, v3_add, v3_fence
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.server_rig import ServerRig, answers

LEDGER = 7
PEER = "192.0.2.1:40000"


@pytest.fixture
def every_request(rig: ServerRig) -> ServerRig:
    rig.context.request_log.slow_ms = 1e-9
    return rig


def lines(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "ms"} for line in logs if line["event"] == event]


async def test_slow_adds_are_named_by_ledger_with_their_first_and_last(every_request: ServerRig) -> None:
    conn, transport = every_request.connect()
    with capture_logs() as logs:
        conn.data_received(b"".join(v3_add(entry(LEDGER, number), txn=50 + number) for number in range(20)))
        await answers(every_request, transport, 20)
        conn, transport = every_request.connect()
        conn.data_received(v2_add(entry(8, 3)) + v2_add(entry(9, 0)) + v2_add(entry(9, 1)))
        await answers(every_request, transport, 3)
    common = {"event": "adds were slow", "log_level": "warning", "peer": PEER}
    many = {"ledger": LEDGER, "entry": [0, 19], "adds": 20, "txn": [50, 69]}
    few = [{"ledger": 8, "entry": 3}, {"ledger": 9, "entry": [0, 1], "adds": 2}]
    assert lines(logs, "adds were slow") == [{**common, "adds": [many]}, {**common, "adds": few}]


async def test_adds_that_are_fast_leave_no_line(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v2_add(entry(LEDGER, 0)) + v2_read(LEDGER, 0) + v2_read(LEDGER, 1) + v2_read(99, 1))
        await answers(rig, transport, 4)
    assert logs == [], "nor does an entry that is not there"


@pytest.mark.parametrize(
    ("add", "txn"),
    [(v2_add(entry(LEDGER, 1)), {}), (v3_add(entry(LEDGER, 1), txn=9), {"txn": 9})],
    ids=["v2", "v3"],
)
async def test_refused_add_is_named(rig: ServerRig, add: bytes, txn: dict[str, int]) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(LEDGER, 0)) + v2_fence(LEDGER))
    await answers(rig, transport, 2)
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(add)
        await answers(rig, transport, 1)
    (line,) = lines(logs, "an add failed")
    assert line.pop("reason")
    expected = {"log_level": "info", "peer": PEER, "code": "EFENCED", "ledger": LEDGER, "entry": 1, **txn}
    assert line == {"event": "an add failed", **expected}


async def test_slow_reads_are_named(every_request: ServerRig) -> None:
    rig = every_request
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(LEDGER, 0)))
    await answers(rig, transport, 1)
    with capture_logs() as logs:
        for fence in (v2_fence(LEDGER, 0), v3_fence(LEDGER, 0, txn=4)):
            conn, transport = rig.connect()
            conn.data_received(fence)
            await answers(rig, transport, 1)
    found = [{key: line.get(key) for key in ("ledger", "entry", "txn")} for line in lines(logs, "a read was slow")]
    assert found == [{"ledger": LEDGER, "entry": 0, "txn": txn} for txn in (None, 4)]


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (StorageFault("bad"), "warning"),
        (ZeroDivisionError("bad"), "warning"),
        (TooManyRequests("bad"), "info"),
        (NoSuchEntry("bad"), None),
        (NoSuchLedger("bad"), None),
        (Unauthorized("bad"), None),
    ],
)
def test_which_failures_of_reads_have_a_line(error: BaseException, level: str | None) -> None:
    with capture_logs() as logs:
        RequestLog(0).read_failed(PEER, RequestId(LEDGER, 0, 5), error)
    assert [line["log_level"] for line in logs] == ([] if level is None else [level])
    assert all({"reason": "bad", "txn": 5}.items() <= line.items() for line in logs)


def test_lines_are_few_and_one_kind_hides_no_other() -> None:
    log = RequestLog(1)
    with capture_logs() as logs:
        for number in range(2 * MOST):
            log.add_failed(PEER, RequestId(LEDGER, number), LedgerFenced("fenced"))
        log.add_failed(PEER, RequestId(LEDGER, 0), StorageFault("bad"))
    assert [line["code"] for line in logs] == ["EFENCED"] * MOST + ["EIO"]


def test_line_about_many_ledgers_is_bounded() -> None:
    adds = b"".join(v2.encode_response(2, v2.OpCode.ADDENTRY, 0, ledger, 0) for ledger in range(3 * MOST_LEDGERS))
    with capture_logs() as logs:
        RequestLog(1).adds_were_slow(PEER, adds, 5.0)
    (line,) = logs
    assert (len(line["adds"]), line["more_ledgers"]) == (MOST_LEDGERS, 2 * MOST_LEDGERS)


@pytest.mark.parametrize("version", [2, 3])
async def test_error_of_a_client_is_found_in_the_log(tmp_path: Path, version: int) -> None:
    async with ServedBookie(tmp_path) as bookie:
        pool = ChannelPool(lambda _: _at(bookie.port), ClientOptions(protocol_version=version))
        digest = digest_manager(DigestType.CRC32C, b"")
        with capture_logs() as logs:
            for number in range(2):
                stored = digest.encode(LEDGER, number, -1, 5, b"hello")
                key, frame = pool.dialect.add_encoder(LedgerLife(LEDGER, 0), bytes(20))(70 + number, number, stored)
                added = Added()
                pool.channel("b").send_add(frame, key, added)
                error = await added.ended
                async with await RawClient.connect(bookie.port) as other:
                    await other.ask(v2_fence(LEDGER, key=bytes(20)))
        await pool.close()
    assert isinstance(error, LedgerFenced)
    (line,) = lines(logs, "an add failed")
    assert f"from {line['peer']}" in str(error)
    assert line.get("txn") == (71 if version == 3 else None)
    assert ("txn 71" in str(error)) is (version == 3)


async def _at(port: int) -> tuple[str, int]:
    return "127.0.0.1", port


class Added(Request):
    def __init__(self) -> None:
        self.ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.ended.set_result(None)

    def failed(self, error: PodkeeperError) -> None:
        self.ended.set_result(error)

    def describe(self) -> str:
        return "the add"
