"""Network locations from the racks that Apache Pulsar's administrators assign (`pulsar-admin bookies set-bookie-rack`).

Pulsar keeps them in its metadata store, in the node `bookies` beside the cluster's root, as JSON:

    {"<group>": {"<bookie id>": {"rack": "/region/rack", "hostname": "..."}}}

Brokers place new ledgers by them, and so must whoever repairs these ledgers. A bookie is looked up by its id first and
then by its host, because Pulsar's own mapping knows hosts only: bookies of one host share a rack there.

Groups isolate the namespaces of Pulsar, and only a broker knows which group a ledger was made for: repairs go by racks
alone. With more than one group this is said once.

Invariant: an assignment that cannot be understood is an error, and what it said before stays in force.

Event loop only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from bookie_client.logs import get_logger
from bookie_client.placement.sources.formats import Locations
from bookie_client.placement.sources.mapping import MappedLocations
from bookie_client.placement.sources.source import BookieInfos
from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import CouldNotTell

_log = get_logger(__name__)


class PulsarRacks(MappedLocations):
    """What the metadata service holds at each look."""

    def __init__(self) -> None:
        super().__init__({})
        self._seen: bytes | None = None
        self._told = False

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        stored = await infos.rack_assignments()
        if stored != self._seen:
            groups = _decode(stored)
            self._locations = _by_name(groups)
            self._seen = stored
            self._tell(groups)
        return await super().locate(bookies, infos)

    def _tell(self, groups: Mapping[str, Mapping[str, str]]) -> None:
        used = sorted(group for group, racks in groups.items() if racks)
        if len(used) > 1 and not self._told:
            self._told = True
            _log.warning("repairs keep to the racks of bookies and not to Pulsar's isolation groups", groups=used)


def _decode(stored: bytes) -> dict[str, dict[str, str]]:
    """Rack by bookie, by group. Raises `CouldNotTell`."""
    try:
        groups = json.loads(stored) if stored else {}
        return {group: {bookie: _rack(info) for bookie, info in members.items()} for group, members in groups.items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CouldNotTell(f"the racks that Pulsar stores in the node bookies cannot be read: {error}") from error


def _rack(info: Any) -> str:
    rack = info.get("rack") or ""
    if not isinstance(rack, str):
        raise TypeError(f"a rack is text such as /rack-1, not {rack!r}")
    return rack


def _by_name(groups: Mapping[str, Mapping[str, str]]) -> Locations:
    found: dict[str, Location | None] = {}
    for members in groups.values():
        for bookie, rack in members.items():
            location = parse_location(rack)
            found[bookie] = location
            host = bookie.rpartition(":")[0]
            if host and location is not None:
                found.setdefault(host, location)
    return found
