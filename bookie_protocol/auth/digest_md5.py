"""The server's side of SASL DIGEST-MD5 (RFC 2831), as Java's bookies ask for it: `auth` only, one realm, no return.

The client's side is pure-sasl's, which also logs in to ZooKeeper.

A login is two answers of the server: a challenge, and the proof that it knows the password too. What a client sends is
read strictly: whatever is there twice, or is not what the challenge offered, is refused. An unknown user takes the same
time as a wrong password.

Pure but for the random nonce; any thread.
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
"""Bytes of what either side says, as the RFC has it of answers."""
_DIRECTIVE: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",=]+))\s*(,|$)', re.DOTALL)
_URI: Final = f"{SERVICE}/{SERVICE}"
_EXPECTED: Final = {"realm": SERVICE, "qop": "auth", "digest-uri": _URI, "nc": "00000001"}


class DigestMd5Server:
    """One login."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self._nonce = secrets.token_urlsafe(32)

    def challenge(self) -> bytes:
        """What the client has to answer."""
        return f'realm="{SERVICE}",nonce="{self._nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()

    def verify(self, answer: bytes) -> tuple[str, bytes]:
        """Who has logged in, and what proves to them that this server knows the password. Raises Unauthorized."""
        fields = _parse(answer)
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
            raise Unauthorized(f"DIGEST-MD5 login of {user[:100]!r} in the name of somebody else")
        return user, f"rspauth={proof}".encode()


def _parse(answer: bytes) -> dict[str, bytes]:
    if len(answer) > LONGEST:
        raise Unauthorized(f"a DIGEST-MD5 answer of more than {LONGEST} bytes")
    fields: dict[str, bytes] = {}
    at = 0
    while at < len(answer):
        found = _DIRECTIVE.match(answer, at)
        if found is None or (found[4] == b"," and found.end() == len(answer)):
            raise Unauthorized("a DIGEST-MD5 answer that cannot be read")
        name = found[1].decode()
        if name in fields:
            raise Unauthorized(f"a DIGEST-MD5 answer with two of {name}")
        fields[name] = found[3] if found[2] is None else re.sub(rb"\\(.)", rb"\1", found[2], flags=re.DOTALL)
        at = found.end()
    return fields


def _responses(user: str, password: str, nonce: str, cnonce: str, in_the_name_of: str | None = None) -> tuple[str, str]:
    """The client's answer and the server's, in hexadecimal."""
    login = b":".join(_octets(each) for each in (user, SERVICE, password))
    a1 = _md5(login).digest() + f":{nonce}:{cnonce}".encode()
    if in_the_name_of is not None:  # Java's clients name themselves
        a1 += f":{in_the_name_of}".encode()
    nonces = f"{nonce}:00000001:{cnonce}:auth"

    def response(verb: str) -> str:
        a2 = _md5(f"{verb}:{_URI}".encode()).hexdigest()
        return _md5(f"{_md5(a1).hexdigest()}:{nonces}:{a2}".encode()).hexdigest()

    return response("AUTHENTICATE"), response("")


def _octets(text: str) -> bytes:
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
