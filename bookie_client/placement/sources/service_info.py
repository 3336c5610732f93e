"""Network locations from what bookies publish about themselves: properties of their registration.

`networkLocation` (`/region/rack`) says all. Without it the location is made of the properties that are there, in the
order given: region, zone and rack for most policies, zone and upgrade domain for the zone-aware one.

Invariants
- At most `MAX_ASKED` registrations are read at once.
- A bookie whose registration cannot be read now is "could not tell" and does not keep others from being told.

Event loop only.

Source: reference metadata layout, section 4.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from bookie_client.placement.sources.source import BookieInfos
from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import CouldNotTell, MetadataDamaged, MetadataError, MetadataNotFound

NETWORK_LOCATION: Final = "networkLocation"
REGION: Final = "region"
ZONE: Final = "zone"
RACK: Final = "rack"
UPGRADE_DOMAIN: Final = "upgradeDomain"

REGION_AND_RACK: Final = (REGION, ZONE, RACK)
ZONE_AND_DOMAIN: Final = (ZONE, UPGRADE_DOMAIN)

MAX_ASKED: Final = 16


class PublishedLocations:
    """`parts`: the properties that make a location, outermost first. Of a bookie whose registration cannot be read this
    time, what it told before holds."""

    def __init__(self, parts: tuple[str, ...] = REGION_AND_RACK) -> None:
        self._parts = parts
        self._told: dict[str, Location] = {}

    async def open(self) -> None:
        """Nothing to do."""

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        found: dict[str, Location] = {}
        failures: list[MetadataError] = []
        few = asyncio.Semaphore(MAX_ASKED)

        async def ask(bookie: str) -> None:
            try:
                async with few:
                    properties = (await infos.info(bookie)).properties
            except (MetadataNotFound, MetadataDamaged):
                return
            except MetadataError as error:
                failures.append(error)
                if bookie in self._told:
                    found[bookie] = self._told[bookie]
                return
            location = location_from(properties, self._parts)
            if location is not None:
                found[bookie] = location

        await asyncio.gather(*map(ask, sorted(bookies)))
        if failures and not found:
            raise CouldNotTell(f"registrations of {len(failures)} bookies cannot be read: {failures[0]}")
        self._told = found
        return found

    async def locate_host(self, host: str) -> Location | None:
        """Hosts publish nothing."""
        return None


def location_from(properties: Mapping[str, str], parts: tuple[str, ...] = REGION_AND_RACK) -> Location | None:
    """The location that these properties tell; None when none of them is there."""
    if NETWORK_LOCATION in properties:
        return parse_location(properties[NETWORK_LOCATION])
    return tuple(value for part in parts if (value := properties.get(part, "").strip("/ "))) or None
