"""Logins by a token that both sides know."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie_protocol.auth.shared_token import MOST, NONCE, SharedTokens, TokenAuth
from bookie_protocol.auth.watched_file import CHECK_S, LARGEST
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire.auth import Peer
from tests.support.clock import Clock

PEER = Peer("192.0.2.1:4000")
OLD, NEW, OTHER = "the-old-token-of-the-cluster", "the-new-token-of-the-cluster", "a-token-of-somebody-else"


async def exchange(client: TokenAuth, server: SharedTokens) -> list[bytes]:
    """What went over the wire; both sides are satisfied at the end."""
    mine, yours = client.new_exchange(PEER), server.new_exchange(PEER)
    step, said = await mine.start(), []
    for last in (False, True):
        assert not step.complete
        assert step.token is not None
        reply = await yours.process(step.token)
        assert (reply.complete, reply.token is not None) == (last, True)
        said += [step.token, reply.token or b""]
        step = await mine.process(reply.token or b"")
    assert (step.token, step.complete) == (None, True)
    return said


def logs_in(client: TokenAuth, server: SharedTokens) -> bool:
    try:
        asyncio.run(exchange(client, server))
    except (Unauthorized, InvalidConfiguration):
        return False
    return True


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The bookie's and the client's."""
    bookie, client = tmp_path / "bookie", tmp_path / "client"
    bookie.write_text(f"{OLD}\n")
    client.write_text(f"\n  {OLD}  \n")
    return bookie, client


def test_the_token_never_goes_over_the_wire(files: tuple[Path, Path]) -> None:
    server, client = SharedTokens("authTokenFile", str(files[0])), TokenAuth(str(files[1]))
    said = asyncio.run(exchange(client, server))
    assert OLD.encode() not in b"".join(said)
    assert len(set(said + asyncio.run(exchange(client, server)))) == 8  # and nothing of it comes back


def test_logins_from_one_file_are_one(files: tuple[Path, Path]) -> None:
    """Clients with equal options are shared."""
    assert len({TokenAuth(str(files[1])), TokenAuth(str(files[1]))}) == 1
    assert TokenAuth(str(files[0])) != TokenAuth(str(files[1]))


def test_another_token(files: tuple[Path, Path]) -> None:
    files[1].write_text(OTHER)
    assert not logs_in(TokenAuth(str(files[1])), SharedTokens("authTokenFile", str(files[0])))


def test_rotation_without_a_gap(files: tuple[Path, Path]) -> None:
    clock = Clock()
    server, client = SharedTokens("authTokenFile", str(files[0]), clock), TokenAuth(str(files[1]), clock=clock)
    for file, text in ((files[0], f"{OLD}\n{NEW}"), (files[1], f"{NEW}\n{OLD}"), (files[0], NEW), (files[1], NEW)):
        file.write_text(text)
        clock.now += CHECK_S
        assert logs_in(client, server)
    files[1].write_text(OLD)
    clock.now += CHECK_S
    assert not logs_in(client, server)


def test_a_file_that_is_gone_lets_nobody_in(files: tuple[Path, Path]) -> None:
    clock = Clock()
    server, client = SharedTokens("authTokenFile", str(files[0]), clock), TokenAuth(str(files[1]), clock=clock)
    files[0].unlink()
    assert logs_in(client, server)  # it was looked at a moment ago
    clock.now += CHECK_S
    assert not logs_in(client, server)
    assert not logs_in(client, server)
    files[0].write_text(OLD)
    assert logs_in(client, server)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no token"),
        ("long-enough-a-token\n\nshort", "line 3"),
        ("\n".join([OLD] * (MOST + 1)), f"it holds {MOST + 1} tokens"),
        ("x" * (LARGEST + 1), f"than {LARGEST} bytes"),
        (None, "No such"),
    ],
)
def test_files_that_are_no_use(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    for make in (lambda: SharedTokens("authTokenFile", str(path)), lambda: TokenAuth(str(path), key="authTokenFile")):
        with pytest.raises(InvalidConfiguration, match=f"^authTokenFile={path}: .*{says}"):
            make()


def test_tokens_of_another_length_are_refused(files: tuple[Path, Path]) -> None:
    server, client = SharedTokens("authTokenFile", str(files[0])), TokenAuth(str(files[1]))

    async def talk() -> None:
        for length in (0, NONCE - 1, NONCE + 1, 5000):
            with pytest.raises(Unauthorized, match="begin"):
                await server.new_exchange(PEER).process(bytes(length))
            mine = client.new_exchange(PEER)
            await mine.start()
            with pytest.raises(Unauthorized, match=r"not .*nonce"):
                await mine.process(bytes(length))
            yours = server.new_exchange(PEER)
            await yours.process(bytes(NONCE))
            with pytest.raises(Unauthorized, match="token"):
                await yours.process(bytes(length))

    asyncio.run(talk())


def test_a_bookie_that_does_not_know_the_token(files: tuple[Path, Path]) -> None:
    client = TokenAuth(str(files[1]))

    async def talk() -> None:
        mine = client.new_exchange(PEER)
        await mine.start()
        proof = (await mine.process(bytes(NONCE))).token or b""
        for guess in (proof, bytes(32), b""):  # its own proof is none of the other side's
            with pytest.raises(Unauthorized, match="know"):
                await mine.process(guess)

    asyncio.run(talk())
