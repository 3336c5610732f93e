"""The information that a bookie publishes about itself: where it listens, and for which protocols.

Format: binary protobuf `BookieServiceInfoFormat`, endpoints first, then properties in the order of their
keys. Empty bytes are the legacy form (bookies older than 4.11): one `bookie-rpc` endpoint parsed from the
bookie id.

Also here: which bookie ids are valid, since an id is the name of a node.

Any thread.

Sources: docs/internals/metadata-layout.md, sections 4.1 and 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from bookie_protocol.addresses import EVERY_ADDRESS, host_and_port, is_host
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.codec import checked_string
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import BookieServiceInfoFormat

BOOKIE_RPC: Final = "bookie-rpc"
READ_ONLY_NODE: Final = "readonly"

_WRITTEN_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9:_.\-]+")
READABLE_BOOKIE_ID: Final = r"[A-Za-z0-9:;<=>?@\[\\\]^_.\-]+"
_READ_BOOKIE_ID: Final = re.compile(READABLE_BOOKIE_ID)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listening socket. `extensions` of the bookie's own endpoint holds `tls` if it can be upgraded."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Endpoints in the order they are published, and free properties."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    def bookie_address(self) -> tuple[str, int] | None:
        """Host and port of the first endpoint that speaks the BookKeeper protocol."""
        for endpoint in self.endpoints:
            if endpoint.protocol == BOOKIE_RPC:
                return endpoint.host, endpoint.port
        return None

    def endpoint(self, protocol: str) -> Endpoint | None:
        """Return the first endpoint of this protocol."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)

    def admin_url(self, *, tls: bool = False) -> str | None:
        """Return the URL of its admin API, without a path; None: it has none, or what it publishes is no host and port.
        `tls`: use HTTPS even if the bookie does not publish it, as Apache's bookies do not."""
        endpoint = next((each for each in self.endpoints if each.protocol in ("http", "https")), None)
        if endpoint is None:
            return None
        encrypted = tls or endpoint.protocol == "https" or "tls" in endpoint.extensions
        host, bookie = endpoint.host, self.bookie_address()
        if host in EVERY_ADDRESS and bookie is not None:
            host = bookie[0]
        if not is_host(host) or not 1 <= endpoint.port <= 65535:
            return None
        return f"{'https' if encrypted else 'http'}://{host_and_port(host, endpoint.port)}"


def is_valid_bookie_id(bookie_id: str) -> bool:
    """Return True if a new bookie may take this id."""
    usable = bookie_id.lower() != READ_ONLY_NODE and bookie_id not in (".", "..")  # names of nodes
    return usable and _WRITTEN_BOOKIE_ID.fullmatch(bookie_id) is not None


def is_readable_bookie_id(bookie_id: str) -> bool:
    """Return True if the reference could have written this id (it accepts a few more characters)."""
    usable = bookie_id.lower() != READ_ONLY_NODE and bookie_id not in (".", "..")  # names of nodes
    return usable and _READ_BOOKIE_ID.fullmatch(bookie_id) is not None


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """Return the bytes of a registration."""
    message = BookieServiceInfoFormat()
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    message.properties.update(info.properties)
    return message.SerializeToString(deterministic=True)


def decode_service_info(bookie_id: str, data: bytes) -> BookieServiceInfo:
    """Parse a registration; `MetadataDamaged` if it is neither a message nor the empty legacy form of
    `host:port`.
    """
    if not data:
        return _legacy_service_info(bookie_id)
    try:
        message = BookieServiceInfoFormat.FromString(data)
        if not message.IsInitialized():
            raise MetadataDamaged(f"registration of bookie {bookie_id} lacks a required field")
        endpoints = tuple(_endpoint(item, f"registration of bookie {bookie_id}") for item in message.endpoints)
        return BookieServiceInfo(endpoints, dict(message.properties))
    except (DecodeError, UnicodeDecodeError) as error:
        raise MetadataDamaged(f"registration of bookie {bookie_id} cannot be read: {error}") from error


def _endpoint(item: BookieServiceInfoFormat.Endpoint, subject: str) -> Endpoint:
    name, host, protocol = (checked_string(text, subject) for text in (item.id, item.host, item.protocol))
    auth = tuple(checked_string(text, subject) for text in item.auth)
    extensions = tuple(checked_string(text, subject) for text in item.extensions)
    return Endpoint(name, host, item.port, protocol, auth, extensions)


def _legacy_service_info(bookie_id: str) -> BookieServiceInfo:
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise MetadataDamaged(
            f"bookie {bookie_id} registered without an address, and its id is not of the form host:port"
        )
    return BookieServiceInfo((Endpoint(bookie_id, host, int(port), BOOKIE_RPC),))
