"""DIGEST-MD5: the example of the RFC, both sides together, and what each side refuses."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.auth import digest_md5
from bookie_protocol.auth.digest_md5 import LONGEST, DigestMd5Client, DigestMd5Server
from bookie_protocol.auth.sasl import SaslAuth, SaslServer, Users
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.wire.auth import Peer

USERS = {"bookkeeper": "s3cret", "m\u00fcller": "gr\u00fcn", "\u8a08": "\u7b97"}
USERS_WITH_QUOTES = {**USERS, 'a"b\\c': "x"}
PEER = Peer("192.0.2.1:4000")


def directives(text: bytes) -> dict[str, str]:
    return dict(re.findall(r'([a-z-]+)="?([^",]*)"?', text.decode()))


def answer(server: DigestMd5Server, user: str = "bookkeeper", password: str = "s3cret", **changed: str | None) -> bytes:
    """As Java's client would answer; `changed`: other values, with _ for -; None leaves a directive out."""
    nonce = changed.get("nonce") or directives(server.challenge())["nonce"]
    name = changed.get("authzid")
    response, _ = digest_md5._responses(user, password, nonce, "abc", name.strip('"') if name else None)
    fields: dict[str, str | None] = {
        "charset": "utf-8",
        "username": f'"{user}"',
        "realm": '"bookkeeper"',
        "nonce": f'"{nonce}"',
        "nc": "00000001",
        "cnonce": '"abc"',
        "digest-uri": '"bookkeeper/bookkeeper"',
        "response": response,
        "qop": "auth",
    }
    fields |= {name.replace("_", "-"): value for name, value in changed.items() if name != "nonce"}
    return ",".join(f"{name}={value}" for name, value in fields.items() if value is not None).encode()


RFC_CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
RFC_ANSWER = {
    "charset": "utf-8",
    "username": "chris",
    "realm": "elwood.innosoft.com",
    "nonce": "OA6MG9tEQGm2hh",
    "nc": "00000001",
    "cnonce": "OA6MHXh6VqTrRk",
    "digest-uri": "imap/elwood.innosoft.com",
    "response": "d388dad90d4bbd760a152321f2143af7",
    "qop": "auth",
}


def rfc_client(monkeypatch: pytest.MonkeyPatch) -> DigestMd5Client:
    monkeypatch.setattr(digest_md5.secrets, "token_urlsafe", lambda _: "OA6MHXh6VqTrRk")
    return DigestMd5Client("chris", "secret", "imap", "elwood.innosoft.com")


def test_client_of_the_rfcs_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 2831, section 4."""
    client = rfc_client(monkeypatch)
    assert directives(client.answer(RFC_CHALLENGE) or b"") == RFC_ANSWER
    assert not client.complete
    assert client.answer(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") is None
    assert client.complete


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"rubbish",
        RFC_CHALLENGE.replace(b",nonce=", b",nonces="),
        RFC_CHALLENGE.replace(b"md5-sess", b"md5"),
        RFC_CHALLENGE.replace(b'"auth"', b'"auth-conf"'),
        RFC_CHALLENGE + b',nonce="another"',
        RFC_CHALLENGE + b',realm="another"',
        RFC_CHALLENGE.replace(b"OA6MG9tEQGm2hh", b"\xe9"),
        b"rspauth=ea40f60335c427b5527b84dbabcdfffd",
    ],
)
def test_challenges_that_a_client_refuses(monkeypatch: pytest.MonkeyPatch, challenge: bytes) -> None:
    with pytest.raises(Unauthorized):
        rfc_client(monkeypatch).answer(challenge)


@pytest.mark.parametrize(
    "proof", [b"rspauth=" + b"0" * 32, b"rspauth=", b"", RFC_CHALLENGE, b"rspauth=d388dad90d4bbd760a152321f2143af7"]
)
def test_proofs_that_a_client_refuses(monkeypatch: pytest.MonkeyPatch, proof: bytes) -> None:
    client = rfc_client(monkeypatch)
    client.answer(RFC_CHALLENGE)
    with pytest.raises(Unauthorized):
        client.answer(proof)
    assert not client.complete


@pytest.mark.parametrize("user", [*USERS_WITH_QUOTES])
def test_clients_of_every_name(user: str) -> None:
    server = DigestMd5Server(USERS_WITH_QUOTES)
    client = DigestMd5Client(user, USERS_WITH_QUOTES[user])
    name, proof = server.verify(client.answer(server.challenge()) or b"")
    assert name == user
    assert client.answer(proof) is None
    assert client.complete


def test_a_name_that_the_servers_charset_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    client = DigestMd5Client("\u8a08", "x")
    with pytest.raises(Unauthorized):
        client.answer(RFC_CHALLENGE.replace(b",charset=utf-8", b""))


@pytest.mark.parametrize("user", USERS)
def test_who_knows_the_password(user: str) -> None:
    server = DigestMd5Server(USERS)
    name, proof = server.verify(answer(server, user, USERS[user]))
    assert name == user
    assert re.fullmatch(rb"rspauth=[0-9a-f]{32}", proof)


def test_a_client_that_says_in_whose_name_it_comes() -> None:
    """As Java's do, always in their own; then it is part of what is hashed."""
    for user, password in USERS.items():
        server = DigestMd5Server(USERS)
        assert server.verify(answer(server, user, password, authzid=f'"{user}"'))[0] == user


def test_a_login_among_javas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What OpenJDK 17's client answered, and what its server said to that."""
    server = DigestMd5Server(USERS)
    monkeypatch.setattr(server, "_nonce", "3ccEg6WPmYezzvLRPO8wSfbzKV95SjPahjeoGMNj")
    shown = (
        b'charset=utf-8,username="bookkeeper",realm="bookkeeper",nonce="3ccEg6WPmYezzvLRPO8wSfbzKV95SjPahjeoGMNj",'
        b'nc=00000001,cnonce="AaDRtTTw1KTWYBn4Ts/aO2JzFI/m0hLdzUx9zUIV",digest-uri="bookkeeper/bookkeeper",'
        b'maxbuf=65536,response=f022b8a7404e2d48f2777ea4a42ccf21,qop=auth,authzid="bookkeeper"'
    )
    assert server.verify(shown) == ("bookkeeper", b"rspauth=447001cbac6652a31fcaf133931db4d3")


def test_a_name_in_quotes() -> None:
    server = DigestMd5Server({'a"b\\c': "x"})
    assert server.verify(answer(server, 'a"b\\c', "x", username='"a\\"b\\\\c"'))[0] == 'a"b\\c'


@pytest.mark.parametrize(
    "changed",
    [
        {"password": "guess"},
        {"user": "nobody"},
        {"user": "nobody", "password": ""},  # the password that stands in for an unknown user's
        {"user": ""},
        {"response": None},
        {"response": '""'},
        {"realm": '"elsewhere"'},
        {"realm": None},
        {"nonce": "another"},
        {"cnonce": None},
        {"nc": "00000002"},
        {"nc": None},
        {"qop": "auth-conf"},
        {"digest_uri": '"bookkeeper/elsewhere"'},
        {"digest_uri": None},
        {"authzid": '"admin"'},
        {"qop": "auth,qop=auth"},
        {"username": '"bookkeeper",username="admin"'},
    ],
)
def test_everything_else_is_refused(changed: dict[str, str | None]) -> None:
    server = DigestMd5Server(USERS)
    with pytest.raises(Unauthorized) as refusal:
        server.verify(answer(server, **changed))  # type: ignore[arg-type]
    assert "s3cret" not in str(refusal.value)


def test_an_answer_counts_for_one_challenge_alone() -> None:
    first, second = DigestMd5Server(USERS), DigestMd5Server(USERS)
    shown = answer(first)
    assert first.challenge() != second.challenge()
    with pytest.raises(Unauthorized):
        second.verify(shown)


@given(st.binary(max_size=300) | st.from_regex(rb"\A[a-z-]{1,12}=(\"[^\"]{0,9}\"|[a-z0-9]{0,9}),?", fullmatch=True))
def test_rubbish_is_refused_and_nothing_worse(shown: bytes) -> None:
    with pytest.raises(Unauthorized):
        DigestMd5Server(USERS).verify(shown)


def test_a_long_answer_is_refused_unread() -> None:
    with pytest.raises(Unauthorized, match=f"than {LONGEST}"):
        DigestMd5Server(USERS).verify(b"username=" + b"x" * LONGEST)


# --- both sides ---------------------------------------------------------------------------------------------------


async def log_in(client: SaslAuth, server: SaslServer) -> tuple[bool, bool]:
    """Whether client and server are satisfied."""
    mine, yours = client.new_exchange(PEER), server.new_exchange(PEER)
    step = await mine.start()
    for _ in range(2):
        reply = await yours.process(step.token or b"")
        assert reply.token is not None
        step = await mine.process(reply.token)
    assert step.token is None
    return step.complete, reply.complete


def server_of(users: dict[str, str], allowed: str = ".*bookkeeper.*") -> SaslServer:
    return SaslServer(lambda: Users(users), re.compile(allowed))


def test_client_and_server() -> None:
    assert asyncio.run(log_in(SaslAuth("bookkeeper", "s3cret"), server_of(USERS))) == (True, True)


def test_a_user_that_is_not_allowed() -> None:
    for allowed in ("bookkeeper", ".*"):
        assert asyncio.run(log_in(SaslAuth("bookkeeper", "s3cret"), server_of(USERS, allowed))) == (True, True)
    for allowed in ("book", "keeper.*", "other|bookkeepers"):  # the whole name counts
        with pytest.raises(Unauthorized, match="saslJaasClientAllowedIds"):
            asyncio.run(log_in(SaslAuth("bookkeeper", "s3cret"), server_of(USERS, allowed)))


def test_a_bookie_that_does_not_know_the_password() -> None:
    async def talk() -> None:
        exchange = SaslAuth("bookkeeper", "s3cret").new_exchange(PEER)
        await exchange.process(DigestMd5Server({}).challenge())
        step = await exchange.process(b"rspauth=" + b"0" * 32)
        assert not step.complete

    with pytest.raises(Unauthorized):
        asyncio.run(talk())


def test_a_login_begins_with_nothing() -> None:
    with pytest.raises(Unauthorized, match="only DIGEST-MD5"):
        asyncio.run(server_of(USERS).new_exchange(PEER).process(b"\x60\x82"))  # what Kerberos begins with


@pytest.mark.parametrize(("user", "password"), [("", "x"), ("x", ""), ("m\u00fcller", "x"), ("x", "a\nb")])
def test_what_not_every_bookie_would_understand(user: str, password: str) -> None:
    with pytest.raises(InvalidConfiguration):
        SaslAuth(user, password)


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(SaslAuth("bookkeeper", "s3cret"))


def test_a_long_challenge_is_refused_unread() -> None:
    """It would be read byte by byte, each time with all that came before: megabytes take hours."""
    exchange = SaslAuth("bookkeeper", "s3cret").new_exchange(PEER)
    with pytest.raises(Unauthorized, match="4096"):
        asyncio.run(exchange.process(b'realm="bookkeeper",nonce="n",qop="auth",rubbish=' + bytes(4952)))
