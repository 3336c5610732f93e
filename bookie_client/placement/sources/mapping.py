"""Network locations from a mapping, and from a file that is read again when it changes.

Invariants
- A file that is wrong when the client starts is refused. One that becomes wrong later is reported once, and what it
  said before stays in force.

Event loop only; files are read in a worker thread.

Source: reference client protocol, section 16.1.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping

from bookie_client.logs import get_logger
from bookie_client.placement.sources.formats import Locations, parse_locations
from bookie_client.placement.sources.source import BookieInfos, names_of
from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import BadRequest

_log = get_logger(__name__)


class MappedLocations:
    """`locations`: bookie id, host, or host:port -> `/location`."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._locations: Locations = {name: parse_location(text) for name, text in locations.items()}

    async def open(self) -> None:
        """Nothing to do."""

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        found = {}
        for bookie in bookies:
            location = self._locations.get(bookie)
            if location is None and bookie not in self._locations:
                location = self._first(await names_of(bookie, infos))
            if location is not None:
                found[bookie] = location
        return found

    async def locate_host(self, host: str) -> Location | None:
        return self._locations.get(host)

    def _first(self, names: Collection[str]) -> Location | None:
        return next((self._locations[name] for name in names if name in self._locations), None)


class FileLocations(MappedLocations):
    """`path`: a file in one of the formats of `sources.formats`."""

    def __init__(self, path: str) -> None:
        super().__init__({})
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    async def open(self) -> None:
        """Raises `BadRequest` when the file is missing or malformed."""
        try:
            self._stamp, self._locations = await asyncio.to_thread(self._read)
        except OSError as error:
            raise BadRequest(f"network topology {self._path} cannot be read: {error.strerror or error}") from error

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        await self._reload()
        return await super().locate(bookies, infos)

    async def _reload(self) -> None:
        try:
            stamp = await asyncio.to_thread(_stamp, self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            _, self._locations = await asyncio.to_thread(self._read)
        except (OSError, BadRequest) as error:
            # Told at each change only: a bad file keeps its stamp, and a missing one has none.
            if self._stamp is not None:
                _log.warning("network topology stays as it was", file=self._path, error=str(error))
            if isinstance(error, OSError):
                self._stamp = None
        else:
            _log.info("network topology read again", file=self._path, names=len(self._locations))

    def _read(self) -> tuple[tuple[int, int, int], Locations]:
        stamp = _stamp(self._path)
        with open(self._path, encoding="utf-8") as file:
            try:
                text = file.read()
            except UnicodeDecodeError as error:
                raise BadRequest(f"network topology {self._path} is no UTF-8 text: {error}") from error
        return stamp, parse_locations(self._path, text)


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
