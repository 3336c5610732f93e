"""What every source of network locations answers.

A source is asked with the names under which a bookie may be listed: its id, its host with and without port. It says
what it knows and leaves out the rest; "not known" is an answer, a fault is an error and never an answer.

Event loop only.

Source: reference client protocol, section 16.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bookie_client.placement.topology import Location
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.service_info import BookieServiceInfo


class BookieInfos(Protocol):
    """Who can be asked what is known of bookies (`bookie_client.bookies.Bookies`)."""

    async def info(self, bookie_id: str) -> BookieServiceInfo:
        """Raises `MetadataError`."""
        ...

    async def rack_assignments(self) -> bytes:
        """What Apache Pulsar stores about racks; empty if it stores nothing. Raises `MetadataError`."""
        ...


class TopologySource(Protocol):
    """Network locations by bookie."""

    async def open(self) -> None:
        """Get ready. Raises `BadRequest` for a source that is set up wrongly."""
        ...

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        """The locations of those that are known. Raises `CouldNotTell` (also a `MetadataUnavailable`): what it told
        before still counts."""
        ...

    async def locate_host(self, host: str) -> Location | None:
        """The location of a host, to find this client's own; None: not known."""
        ...


async def names_of(bookie_id: str, infos: BookieInfos) -> tuple[str, ...]:
    """The names under which a bookie may be listed, the likeliest first. Raises `MetadataError`."""
    names = [bookie_id, bookie_id.rpartition(":")[0]]
    try:
        address = (await infos.info(bookie_id)).bookie_address()
    except MetadataNotFound:
        address = None  # it left; its id may still tell
    if address is not None:
        host, port = address
        names += [f"{host}:{port}", host]
    return tuple(dict.fromkeys(name for name in names if name))
