"""SASL DIGEST-MD5 (RFC 2831), both sides, as Java's bookies and ZooKeeper use it.

Only `auth` is offered, with one realm and without fast reauthentication.

The server answers twice: with a challenge, and with the proof that it knows the password too. Both sides read strictly:
they refuse a directive that is there twice and every value that was not offered. An unknown user takes the same time as
a wrong password.

Pure except for the random nonces; any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final

from bookie_protocol.errors import Unauthorized

SERVICE: Final = "bookkeeper"
"""The protocol's name, the host's and the realm's: Java's bookies call all three so."""
LONGEST: Final = 4096
"""The most bytes that one side may send in one step; the RFC sets this limit for answers."""
_DIRECTIVE: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",=]+))\s*(,|$)', re.DOTALL)
_URI: Final = f"{SERVICE}/{SERVICE}"
_EXPECTED: Final = {"realm": SERVICE, "qop": "auth", "digest-uri": _URI, "nc": "00000001"}


class DigestMd5Server:
    """One login."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self._nonce = secrets.token_urlsafe(32)

    def challenge(self) -> bytes:
        """Return the challenge that the client has to answer."""
        return f'realm="{SERVICE}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()

    def verify(self, answer: bytes) -> tuple[str, bytes]:
        """Return the user who has logged in, and the proof that this server knows the password. Raises Unauthorized."""
        fields = _parse(answer, "answer")
        text = "utf-8" if fields.pop("charset", b"") == b"utf-8" else "iso-8859-1"
        try:
            said = {name: value.decode(text) for name, value in fields.items()}
        except UnicodeDecodeError:
            raise Unauthorized("a DIGEST-MD5 answer that is not text") from None
        for name, expected in _EXPECTED.items():
            if said.get(name, "auth" if name == "qop" else "") != expected:
                raise Unauthorized(f"a DIGEST-MD5 answer whose {name} is not {expected}")
        user, cnonce = said.get("username", ""), said.get("cnonce", "")
        password = self._passwords.get(user)
        expected_response, proof = _responses(user, password or "", self._nonce, cnonce, said.get("authzid"))
        if not cnonce or not hmac.compare_digest(said.get("nonce", "").encode(), self._nonce.encode()):
            raise Unauthorized("a DIGEST-MD5 answer to another challenge")
        shown = said.get("response", "").encode()
        if not hmac.compare_digest(shown, expected_response.encode()) or password is None:
            raise Unauthorized(f"DIGEST-MD5 login of {user[:100]!r}: no such user, or another password")
        if said.get("authzid", user) != user:
            raise Unauthorized(f"DIGEST-MD5 login of {user[:100]!r} in the name of another user")
        return user, f"rspauth={proof}".encode()


class DigestMd5Client:
    """One login to a server. `service` and `host` name the server as it names itself."""

    def __init__(self, user: str, password: str, service: str = SERVICE, host: str = SERVICE) -> None:
        self._user = user
        self._password = password
        self._uri = f"{service}/{host}"
        self._proof: bytes | None = None
        self.complete = False
        """True once the server has proved that it knows the password."""

    def first(self) -> bytes:
        """Return the empty token, which asks for a challenge."""
        return b""

    def answer(self, said: bytes) -> bytes | None:
        """Return the answer to a challenge, and None after a valid proof.

        Raises Unauthorized for a challenge that this side does not accept, and for a proof that is not valid.
        """
        fields = _parse(said, "challenge")
        if self._proof is None:
            return self._answer_to(fields)
        if not hmac.compare_digest(fields.get("rspauth", b""), self._proof):
            raise Unauthorized("the server did not prove that it knows the password")
        self.complete = True
        return None

    def _answer_to(self, challenge: Mapping[str, bytes]) -> bytes:
        nonce, realm = challenge.get("nonce", b""), challenge.get("realm", b"")
        offered = challenge.get("qop", b"auth").split(b",")
        if not nonce or challenge.get("algorithm") != b"md5-sess" or b"auth" not in map(bytes.strip, offered):
            raise Unauthorized("the server's challenge lacks a nonce, algorithm md5-sess or qop auth")
        charset = "utf-8" if challenge.get("charset") == b"utf-8" else "iso-8859-1"
        try:
            user, realm_text, nonce_text = self._user.encode(charset), realm.decode(charset), nonce.decode("ascii")
        except UnicodeError:
            raise Unauthorized(f"user name, realm or nonce cannot be written in {charset}") from None
        cnonce = secrets.token_urlsafe(32)
        response, proof = _responses(self._user, self._password, nonce_text, cnonce, realm=realm_text, uri=self._uri)
        self._proof = proof.encode()
        quoted = {"username": user, "realm": realm, "nonce": nonce, "cnonce": cnonce.encode()}
        quoted["digest-uri"] = self._uri.encode()
        parts = [f"{name}=".encode() + _quote(value) for name, value in quoted.items()]
        parts += [b"nc=00000001", b"qop=auth", b"response=" + response.encode()]
        return b",".join([b"charset=utf-8", *parts] if charset == "utf-8" else parts)


def _parse(answer: bytes, kind: str) -> dict[str, bytes]:
    if len(answer) > LONGEST:
        raise Unauthorized(f"a DIGEST-MD5 {kind} has {len(answer)} bytes, more than {LONGEST}")
    fields: dict[str, bytes] = {}
    at = 0
    while at < len(answer):
        found = _DIRECTIVE.match(answer, at)
        if found is None or (found[4] == b"," and found.end() == len(answer)):
            raise Unauthorized(f"a DIGEST-MD5 {kind} cannot be parsed")
        name = found[1].decode()
        if name in fields:
            raise Unauthorized(f"a DIGEST-MD5 {kind} has {name} twice")
        fields[name] = found[3] if found[2] is None else re.sub(rb"\\(.)", rb"\1", found[2], flags=re.DOTALL)
        at = found.end()
    return fields


def _quote(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _responses(
    user: str,
    password: str,
    nonce: str,
    cnonce: str,
    in_the_name_of: str | None = None,
    *,
    realm: str = SERVICE,
    uri: str = _URI,
) -> tuple[str, str]:
    """Return the client's answer and the server's, in hexadecimal."""
    login = b":".join(_octets(each) for each in (user, realm, password))
    a1 = _md5(login).digest() + f":{nonce}:{cnonce}".encode()
    if in_the_name_of is not None:  # Java's clients name themselves
        a1 += f":{in_the_name_of}".encode()
    nonces = f"{nonce}:00000001:{cnonce}:auth"

    def response(verb: str) -> str:
        a2 = _md5(f"{verb}:{uri}".encode()).hexdigest()
        return _md5(f"{_md5(a1).hexdigest()}:{nonces}:{a2}".encode()).hexdigest()

    return response("AUTHENTICATE"), response("")


def _octets(text: str) -> bytes:
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
