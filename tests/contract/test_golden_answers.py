"""The bookie answers as the reference did, byte for byte, to everything that was recorded of it.

Where this bookie answers otherwise on purpose, `DIFFERENT` says how and why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bookie_pod.storage.engines.detection import KNOWN_ENGINES, short_name
from bookie_protocol.wire import bookkeeper_pb2 as pb
from tests.support.served_bookie import RawClient, ServedBookie

GOLDEN = Path(__file__).parent.parent / "golden"

DIFFERENT = {
    # Negative entry ids are the journal's record kinds; the reference acknowledges such an add and never replays it.
    "v2_add_negative_entry_id": ["00000018020100000000006400000000000001f5fffffffffffffffb"],
    # The reference's Db engine leaves this unanswered; here the list of entries is served (checked in its own test).
    "v3_get_list_of_entries": None,
}
REFERENCE_FRAME_BYTES = "5242880"
"""What was recorded had the reference's default, which is below that of this bookie."""
DISK_SPACE = {"v3_get_bookie_info", "v3_get_bookie_info_total", "v3_get_bookie_info_free"}


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return found


@pytest.fixture(params=KNOWN_ENGINES, ids=short_name)
async def bookie(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedBookie]:
    settings = {"ledgerStorageClass": request.param, "nettyMaxFrameSizeBytes": REFERENCE_FRAME_BYTES}
    async with ServedBookie(tmp_path, settings) as served:
        yield served


async def test_hand_made_frames(bookie: ServedBookie) -> None:
    wrong = []
    for case in load("wire-edge-cases.json")["cases"]:
        name = case["case"]
        expected = DIFFERENT.get(name, case["answers"])
        if expected is None:
            continue
        answers, closed = await play(bookie.port, case, len(expected))
        if name in DISK_SPACE:
            answers, expected = [fields_of(a) for a in answers], [fields_of(e) for e in expected]
        # Answers of different requests may come in any order.
        if sorted(answers) != sorted(expected) or closed != case["closedByBookie"]:
            wrong.append((name, expected, answers, closed))
    assert not wrong, "\n".join(map(str, wrong))


async def play(port: int, case: dict[str, Any], answers_expected: int) -> tuple[list[str], bool]:
    """Send a case's frames, each after the answer of the one before where there is one, as the recording did."""
    answers: list[str] = []
    closed = False
    async with await RawClient.connect(port) as client:
        try:
            if len(case["sent"]) > 1 and answers_expected == len(case["sent"]) and "pipelined" not in case["case"]:
                answers += [(await client.ask(bytes.fromhex(frame))).hex() for frame in case["sent"]]
            else:
                client.send(*map(bytes.fromhex, case["sent"]))
                for _ in range(answers_expected):
                    answers.append((await client.frame(5)).hex())
            while case["closedByBookie"]:
                # What was asked before the frame that closes it may or may not be answered first.
                await client.frame(5)
        except EOFError:
            closed = True
    return answers, closed


def fields_of(frame: str) -> str:
    """Which fields a GET_BOOKIE_INFO answer carries; the sizes are this machine's."""
    response = pb.Response.FromString(bytes.fromhex(frame)[4:])
    info = response.getBookieInfoResponse
    return f"{response.status} {info.status} {info.HasField('totalDiskCapacity')} {info.HasField('freeDiskSpace')}"


@pytest.mark.parametrize("recording", ["wire-v2.json", "wire-v3.json"])
async def test_recorded_conversations(bookie: ServedBookie, recording: str) -> None:
    """Every step of the stock client's conversation, in order, on as many connections as it used."""
    connections: dict[int, RawClient] = {}
    try:
        for step in load(recording)["steps"]:
            if step["step"].startswith(("v3_get_list_of_entries", "v3_get_bookie_info")):
                continue
            for number in sorted({frame["connection"] for frame in step["frames"]}):
                if number not in connections:
                    connections[number] = await RawClient.connect(bookie.port)
                expected = [f["frame"] for f in step["frames"] if f["connection"] == number and is_answer(f)]
                requests = [f["frame"] for f in step["frames"] if f["connection"] == number and not is_answer(f)]
                got = await converse(connections[number], requests, len(expected))
                assert sorted(map(without_time, got)) == sorted(map(without_time, expected)), step["step"]
                # The reference answers reads that are under way together in any order, and adds in theirs.
                assert [*filter(is_add, got)] == [*filter(is_add, expected)], step["step"]
    finally:
        for client in connections.values():
            await client.close()


async def converse(client: RawClient, requests: list[str], answers: int) -> list[str]:
    """Requests one after the other; a long poll's answer comes after the add that wakes it."""
    got: list[str] = []
    for position, request in enumerate(requests):
        client.send(bytes.fromhex(request))
        remaining_requests = len(requests) - position - 1
        while len(got) < answers - remaining_requests and len(got) < answers and not waits(request, requests, position):
            got.append((await client.frame()).hex())
    while len(got) < answers:
        got.append((await client.frame()).hex())
    return got


def waits(request: str, requests: list[str], position: int) -> bool:
    """True for a long poll that a later request of the step wakes."""
    message = pb.Request()
    try:
        message.ParseFromString(bytes.fromhex(request)[4:])
    except Exception:
        return False
    return message.readRequest.HasField("previousLAC") and position + 1 < len(requests)


def is_add(frame: str) -> bool:
    data = bytes.fromhex(frame)[4:]
    if data[0] == 2:  # the version; a message of version 3 begins with the tag of its header
        return data[1:3] == b"\0\1"
    return pb.Response.FromString(data).header.operation == pb.ADD_ENTRY


def is_answer(frame: dict[str, Any]) -> bool:
    return bool(frame["direction"] == "response")


def without_time(frame: str) -> str:
    """A frame without the time at which a LAC was updated."""
    body = bytes.fromhex(frame)[4:]
    if body[:1] != b"\x0a":
        return frame
    response = pb.Response()
    response.ParseFromString(body)
    if not response.readResponse.HasField("lacUpdateTimestamp"):
        return frame
    response.readResponse.lacUpdateTimestamp = 0
    return response.SerializeToString().hex()


async def test_list_of_entries_is_answered(bookie: ServedBookie) -> None:
    """The stock client's request of the recording, which the reference's Db engine leaves unanswered."""
    steps = {step["step"]: step for step in load("wire-v3.json")["steps"]}
    async with await RawClient.connect(bookie.port) as client:
        for frame in steps["v3_add"]["frames"]:
            if not is_answer(frame):
                await client.ask(bytes.fromhex(frame["frame"]))
        request = steps["v3_get_list_of_entries"]["frames"][0]["frame"]
        response = pb.Response.FromString((await client.ask(bytes.fromhex(request)))[4:])
    listed = response.getListOfEntriesOfLedgerResponse
    header = (0).to_bytes(4) + (1).to_bytes(4) + bytes(56)
    run = (0).to_bytes(8) + (0).to_bytes(8) + (4).to_bytes(4) + (0).to_bytes(4)
    assert response.status == pb.EOK
    assert listed.availabilityOfEntriesOfLedger == header + run


async def test_unauthenticated_frames(tmp_path: Path) -> None:
    """With an authentication plug-in, nothing but its exchange and START_TLS is served before it completes."""
    from tests.support.auth import TwoTokens

    async with ServedBookie(tmp_path) as bookie:
        bookie.server.clients.auth = TwoTokens()
        wrong = []
        for case in load("wire-edge-cases-unauthenticated.json")["cases"]:
            answers, closed = await play(bookie.port, case, len(case["answers"]))
            if answers != case["answers"] or closed != case["closedByBookie"]:
                wrong.append((case["case"], case["answers"], answers, closed))
        assert not wrong, "\n".join(map(str, wrong))


async def test_connections_are_dropped_until_the_bookie_serves(bookie: ServedBookie) -> None:
    bookie.server.clients.accepting = False
    async with await RawClient.connect(bookie.port) as client:
        assert await client.closed()
    bookie.server.clients.accepting = True
    async with await RawClient.connect(bookie.port) as client:
        assert await client.ask(bytes.fromhex("000000140202000000000000000bde310000000000000000"))
    await asyncio.sleep(0)
