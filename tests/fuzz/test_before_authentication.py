"""Whatever comes before a client is known changes nothing, tells nothing, and ends by itself."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_protocol.errors import ProtocolViolation, V2Code, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.auth import AuthMessage
from tests.fuzz.damaged_frames import FRAMES, damaged
from tests.support.auth import TwoTokens
from tests.support.certificates import Certificates
from tests.support.frames import entry, v2_add, v3_auth, v3_start_tls
from tests.support.served_bookie import RawClient, ServedBookie
from tests.support.until import until

LOGINS = [
    make(AuthMessage(plugin, token))
    for make in (v3_auth, v2.encode_auth)
    for plugin in ("TestAuth", "sasl", "AuthDisabledPlugin", "")
    for token in (b"", b"hello", b"guess", bytes(5000))
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates")).make_all()


def tells_nothing(frame: bytes) -> bool:
    """Refused, a token, or the answer to START_TLS; no entry, no id of anything that is stored."""
    with suppress(ProtocolViolation):
        response = v3.parse_response(frame[4:])
        if response.header.operation == pb.AUTH:
            return response.status in (pb.EUA, pb.EOK) and not response.HasField("readResponse")
        if response.header.operation == pb.START_TLS:
            return response.status in (pb.EOK, pb.EBADREQ)
        return response.status == V3Status.EUA and [name.name for name, _ in response.ListFields()] == [
            "header",
            "status",
        ]
    answer = v2.decode_response(frame[4:])
    return isinstance(answer, v2.AuthFrame) or (len(frame) == 28 and answer.code == V2Code.EUA)


async def bombard(bookie: ServedBookie, rng: random.Random) -> None:
    client = await RawClient.connect(bookie.port)
    frames = [rng.choice(LOGINS if rng.random() < 0.5 else FRAMES) for _ in range(30)]
    for frame in frames:
        client.send(damaged(rng, frame) if rng.random() < 0.5 else frame)
    if rng.random() < 0.3:
        client.send(v3_start_tls() + rng.randbytes(rng.randrange(300)))
    with suppress(OSError):
        client.writer.write_eof()
    with suppress(EOFError, TimeoutError, ConnectionError):
        while True:
            assert tells_nothing(await client.frame(2))
    await client.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("guard", ["login", "TLS"])
async def test_nothing_comes_of_it(tmp_path: Path, certificates: Certificates, seed: int, guard: str) -> None:
    rng = random.Random(seed)
    settings = {**certificates.settings(demand_client=True), "tlsRequired": str(guard == "TLS").lower()}
    unexpected: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unexpected.append(context))
    async with ServedBookie(tmp_path, settings) as bookie:
        context, clients = bookie.server.context, bookie.server.clients
        for ledger in range(1, 8):  # there is something to be told
            bookie.side.storage.set_master_key(ledger, bytes(20))
        async with await RawClient.connect(bookie.port) as client:
            if guard == "login":
                await client.ask(v2_add(entry(3, 0)))
        clients.auth = TwoTokens() if guard == "login" else None
        before = [bookie.side.storage.ledger(ledger) for ledger in range(20)]
        states = set(context.operations.ledgers.states)
        with capture_logs() as logs:
            await asyncio.gather(*(bombard(bookie, rng) for _ in range(20)))
            await until(lambda: not clients.connections)
        assert [line for line in logs if line["log_level"] == "error"] == []
        assert len(clients.strangers) == 0
        assert not context.busy
        assert [bookie.side.storage.ledger(ledger) for ledger in range(20)] == before
        assert set(context.operations.ledgers.states) == states
        assert context.memory.total == 0
    assert unexpected == []
