"""The file of Oxia's Java client that a URI names with `configFilePath`, as Apache Pulsar's do: TLS and the token.

Its other properties are about Java's client. One that would lead to other records than the URI is refused.

Threads: event loop only; the file is small.

Source: `OxiaClientBuilderImpl.loadConfig` and `TokenAuthentication` of Oxia's Java client, 0.9.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.java_properties import parse
from bookie_protocol.shown import one_line

CLIENT_FILE_KEY: Final = "configFilePath"
_TOKEN_CLASSES: Final = (
    "io.oxia.client.auth.TokenAuthentication",
    "io.streamnative.oxia.client.auth.TokenAuthentication",
)
"""The second name is that of the client in Pulsar 4.0."""
_IN_PLACE: Final = "token:"
_IN_FILE: Final = "file:"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """`token` None: the client shows none."""

    is_encrypted: bool
    token: WatchedFile[str] | None


def read_client_file(path: str, namespace: str) -> ClientFile:
    """Read it. `InvalidConfiguration`: it cannot be read, or asks for what there is not here."""
    given = WatchedFile(CLIENT_FILE_KEY, path, _properties).value()
    if given.get("namespace", namespace) != namespace:
        raise InvalidConfiguration(
            f"{CLIENT_FILE_KEY}={path}: it names another namespace of Oxia than the URI, {namespace}: name one of them"
        )
    return ClientFile(given.get("enableTls", "").strip().lower() == "true", _token(path, given))


def _token(path: str, given: dict[str, str]) -> WatchedFile[str] | None:
    plugin, params = given.get("authPluginClassName", ""), given.get("authParams", "")
    if not plugin:
        return None
    if plugin not in _TOKEN_CLASSES:
        raise InvalidConfiguration(
            f"{CLIENT_FILE_KEY}={path}: authPluginClassName is {one_line(plugin, 200)}, and only"
            f" {_TOKEN_CLASSES[0]} is known here"
        )
    if params.startswith(_IN_FILE):
        return WatchedFile(f"authParams in {path}", unquote(urlsplit(params).path), shown_token)
    if params.startswith(_IN_PLACE):
        return WatchedFile(CLIENT_FILE_KEY, path, _token_in_place)
    raise InvalidConfiguration(
        f"{CLIENT_FILE_KEY}={path}: authParams is not understood; write {_IN_FILE} and the path of a file with a token,"
        f" or {_IN_PLACE} and the token"
    )


def _token_in_place(written: bytes) -> str:
    return shown_token(_properties(written).get("authParams", "").removeprefix(_IN_PLACE).encode())


def _properties(written: bytes) -> dict[str, str]:
    return {pair.key: pair.value for pair in parse(written.decode())}
