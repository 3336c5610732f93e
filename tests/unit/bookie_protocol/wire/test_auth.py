"""Authentication: messages, and both sides of an exchange against the frames of the Java implementation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.auth.kerberos import KerberosAuth
from bookie_protocol.auth.sasl import JaasAuth, SaslAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.errors import ProtocolViolation, Unauthorized
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.auth import (
    AUTH_DISABLED,
    AUTH_DISABLED_ANSWER,
    AuthMessage,
    AuthStep,
    ClientAuthentication,
    OptionalLogin,
    Peer,
    ServerAuthentication,
    decode_auth_message,
    encode_auth_message,
    from_protobuf,
    to_protobuf,
)
from tests.support import golden_frames

PEER = Peer("203.0.113.7:40000")


class TwoSteps:
    """The plug-in of the golden files: hello, welcome?, secret, ok."""

    plugin_name = "TestAuth"

    def __init__(self, certificate: bytes | None = None):
        self.certificate = certificate

    def new_exchange(self, peer):
        return self

    async def start(self):
        return AuthStep(b"hello", False)

    async def process(self, token):
        answers = {
            b"hello": AuthStep(b"welcome?", False),
            b"welcome?": AuthStep(b"secret", False),
            b"secret": AuthStep(b"ok", True),
            b"ok": AuthStep(None, True),
        }
        if token == b"crash":
            raise RuntimeError("no such user database")
        if token not in answers:
            raise Unauthorized("wrong token")
        return answers[token]

    async def tls_established(self, peer):
        if self.certificate is None:
            return False
        if peer.certificate != self.certificate:
            raise Unauthorized("certificate of another role")
        return True


def messages(name: str) -> list[AuthMessage]:
    """The AUTH messages of one golden file, in the order they crossed the wire."""
    found = []
    for item in golden_frames.load(name)["steps"][0]["frames"]:
        body = bytes.fromhex(item["frame"])[4:]
        if item["decoded"]["protocol"] == "v2":
            frame = (v2.decode_request if item["direction"] == "request" else v2.decode_response)(body)
            if isinstance(frame, v2.AuthFrame):
                found.append(frame.message)
        elif item["decoded"]["header"]["operation"] == "AUTH":
            kind = pb.Request if item["direction"] == "request" else pb.Response
            message = kind.FromString(body)
            sub = message.authRequest if kind is pb.Request else message.authResponse
            found.append(from_protobuf(sub))
    return found


async def exchange(client: ClientAuthentication, server: ServerAuthentication) -> list[AuthMessage]:
    said = []
    message = await client.first()
    while message is not None:
        said.append(message)
        answer = await server.answer(message)
        if answer is None:
            break
        said.append(answer)
        message = await client.answer(answer)
    return said


@pytest.mark.parametrize("name", ["wire-v2-auth.json", "wire-v3-auth.json"])
async def test_both_sides_say_what_the_reference_said(name):
    client, server = ClientAuthentication(TwoSteps(), PEER), ServerAuthentication(TwoSteps(), PEER)
    assert not client.authenticated
    assert not server.authenticated
    assert await exchange(client, server) == messages(name)
    assert client.authenticated
    assert server.authenticated


@pytest.mark.parametrize("name", ["wire-v2-auth-client-only.json", "wire-v3-auth-client-only.json"])
async def test_a_bookie_without_plug_in_lets_an_authenticating_client_in(name):
    client, server = ClientAuthentication(TwoSteps(), PEER), ServerAuthentication(None, PEER)
    assert server.authenticated
    assert await exchange(client, server) == messages(name)
    assert client.authenticated


async def test_a_mutual_login_is_not_declined_unless_it_is_optional():
    mutual = TwoSteps()
    mutual.is_mutual = True
    client = ClientAuthentication(mutual, PEER)
    await client.first()
    with pytest.raises(Unauthorized):
        await client.answer(AUTH_DISABLED_ANSWER)
    assert not client.authenticated
    client = ClientAuthentication(OptionalLogin(mutual), PEER)
    await client.answer(AUTH_DISABLED_ANSWER)
    assert client.authenticated


@pytest.mark.parametrize("provider", [TokenAuth, JaasAuth, SaslAuth, KerberosAuth])
def test_logins_in_which_both_prove_themselves_are_mutual(provider):
    assert provider.is_mutual


async def test_an_authenticated_connection_answers_further_auth_like_a_bookie_without_plug_in():
    server = ServerAuthentication(TwoSteps(), PEER)
    await server.answer(AuthMessage("TestAuth", b"secret"))
    assert server.authenticated
    assert server.accepts(AuthMessage("other", b""))
    assert await server.answer(AuthMessage("other", b"")) == AUTH_DISABLED_ANSWER


async def test_the_server_refuses_other_plug_ins_bad_tokens_and_crashes():
    server = ServerAuthentication(TwoSteps(), PEER)
    other = AuthMessage("x", b"hi")
    assert not server.accepts(other)
    with pytest.raises(Unauthorized, match=r"'x' .* TestAuth"):
        await server.answer(other)
    with pytest.raises(Unauthorized, match="wrong"):
        await server.answer(AuthMessage("TestAuth", b"hi"))
    with pytest.raises(Unauthorized, match="database"):
        await server.answer(AuthMessage("TestAuth", b"crash"))
    assert not server.authenticated


async def test_the_client_refuses_a_bookie_of_another_plug_in():
    client = ClientAuthentication(TwoSteps(), PEER)
    with pytest.raises(Unauthorized, match=r"'sasl', .* 'TestAuth'"):
        await client.answer(AuthMessage("sasl", b""))
    assert not client.authenticated
    silent = ClientAuthentication(None, PEER)
    assert silent.authenticated
    assert await silent.first() is None


async def test_a_certificate_may_complete_the_exchange_or_be_refused():
    for side in (ServerAuthentication, ClientAuthentication):
        connection = side(TwoSteps(certificate=b"good"), PEER)
        with pytest.raises(Unauthorized, match="role"):
            await connection.tls_established(PEER._replace(certificate=b"bad"))
        assert not connection.authenticated
        await connection.tls_established(PEER._replace(certificate=b"good"))
        assert connection.authenticated
        undecided = side(TwoSteps(), PEER)
        await undecided.tls_established(PEER._replace(certificate=b"good"))
        assert not undecided.authenticated


def test_worked_hex():
    assert encode_auth_message(AUTH_DISABLED_ANSWER).hex() == (
        "0a12" "4175746844697361626c6564506c7567696e" "1200"
    )  # fmt: skip
    assert AUTH_DISABLED == "AuthDisabledPlugin"


@given(st.text(max_size=20), st.binary(max_size=40))
def test_round_trip(name, payload):
    message = AuthMessage(name, payload)
    assert decode_auth_message(memoryview(encode_auth_message(message))) == message
    assert from_protobuf(to_protobuf(message)) == message
    request = v3.new_request(pb.AUTH, 1)
    request.authRequest.CopyFrom(to_protobuf(message))
    parsed = v3.parse_request(v3.encode_frame(request)[4:])
    assert parsed is not None
    assert from_protobuf(parsed.authRequest) == message


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\x01a", b"\x12\x00", b"\x0a\x02\xff\xfe\x12\x00", b"\xff" * 8])
def test_no_auth_message(data):
    with pytest.raises(ProtocolViolation):
        decode_auth_message(data)
