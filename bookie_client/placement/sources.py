"""The sources of network locations: a mapping, a file, a script, the bookies' own properties, or Pulsar's racks.

A file is read again when it changes. Pulsar's racks are those that administrators of Apache Pulsar assign.

A source is asked with the names under which a bookie may be listed: its id, its host with and without port. It says
what it knows and leaves out the rest; "not known" is an answer, a fault is an error and never an answer.

A file has one of these formats:

- Table, the reference's: lines of two columns, `host location`; blank lines and `#` comments are skipped.
- JSON or YAML, one of
      zones:   {zone-a: [bookie-0, bookie-1], zone-b: {domain-1: [bookie-2]}}     zones, and upgrade domains in them
      bookies: {bookie-0: /region-1/rack-1}                                       any location
  or Apache Pulsar's rack configuration: {group: {bookie-0: {rack: /rack-1, hostname: ...}}}.

Every malformed file is refused with one line (`BadRequest`) that names what is wrong; nothing is guessed.

Invariants
- A file that is wrong when the client starts is refused. One that becomes wrong later is reported once, and what it
  said before stays in force; so does what Pulsar's racks said before they could not be understood.
- A script gets at most `max_arguments` hosts in one run, one run at a time, each at most `SCRIPT_SECONDS` long. Its
  answers are kept for `KEEP_SECONDS`; at most `MAX_KEPT` of them.
- At most `MAX_ASKED` registrations of bookies are read at once. A bookie whose registration cannot be read now is
  "could not tell" and does not hold up the others.

Event loop only; files are read in a worker thread.

Sources: docs/internals/client-protocol.md, section 16.1; docs/internals/metadata-layout.md, section 4.1.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from bookie_client.bookies import Bookies
from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import BadRequest, CouldNotTell, MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.extras import needed
from bookie_protocol.logs import get_logger
from bookie_protocol.shown import one_line
from bookie_protocol.together import bounded

Locations = dict[str, Location | None]
"""Name of a bookie or host -> location; None: listed with the default location."""
_log = get_logger(__name__)
SCRIPT_SECONDS: Final = 10.0
KEEP_SECONDS: Final = 600.0
MAX_KEPT: Final = 10_000
NETWORK_LOCATION: Final = "networkLocation"
REGION: Final = "region"
ZONE: Final = "zone"
RACK: Final = "rack"
UPGRADE_DOMAIN: Final = "upgradeDomain"
REGION_AND_RACK: Final = (REGION, ZONE, RACK)
ZONE_AND_DOMAIN: Final = (ZONE, UPGRADE_DOMAIN)
MAX_ASKED: Final = 16


def parse_locations(name: str, text: str) -> Locations:
    """Return the content of a file; its name's ending tells the format (`.json`, `.yaml`, `.yml`, else a table)."""
    if name.endswith(".json"):
        return _document(name, _json(name, text))
    if name.endswith((".yaml", ".yml")):
        return _document(name, _yaml(name, text))
    return _table(name, text)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"network topology {name} cannot be read: {error}") from error


def _yaml(name: str, text: str) -> Any:
    # Not on top: few clients have such a file, and every client imports this module.
    yaml = needed("yaml", "yaml", f"network topology file {name}")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadRequest(f"network topology {name} cannot be read: {one_line(error)}") from error


def _table(name: str, text: str) -> Locations:
    locations: Locations = {}
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.partition("#")[0].split()
        if not columns:
            continue
        if len(columns) != 2 or not columns[1].startswith("/"):
            raise BadRequest(f"network topology {name}, line {number}: expected `host /location`, not {line.strip()!r}")
        _put(locations, name, columns[0], parse_location(columns[1]))
    return locations


def _document(name: str, document: Any) -> Locations:
    locations: Locations = {}
    if document is None:
        return locations
    if not isinstance(document, Mapping):
        raise BadRequest(f"network topology {name}: expected a mapping, not {type(document).__name__}")
    for key, value in document.items():
        content = _mapping(name, key, value)
        if key == "zones":
            _zones(locations, name, content)
        elif key == "bookies":
            for bookie, location in content.items():
                _put(locations, name, bookie, _location(name, bookie, location))
        else:
            _group(locations, name, key, content)
    return locations


def _zones(locations: Locations, name: str, zones: Mapping[Any, Any]) -> None:
    for zone, content in zones.items():
        if isinstance(content, Mapping):
            for domain, bookies in content.items():
                for bookie in _bookies(name, f"{zone}/{domain}", bookies):
                    _put(locations, name, bookie, (str(zone), str(domain)))
        else:
            for bookie in _bookies(name, zone, content):
                _put(locations, name, bookie, (str(zone),))


def _group(locations: Locations, name: str, group: Any, members: Mapping[Any, Any]) -> None:
    for bookie, about in members.items():
        rack = _mapping(name, f"{group}/{bookie}", about).get("rack")
        _put(locations, name, bookie, _location(name, bookie, rack))


def _location(name: str, bookie: Any, text: Any) -> Location | None:
    if not isinstance(text, str):
        raise BadRequest(
            f"network topology {name}: the location of {bookie} must be a text such as /rack, not {text!r}"
        )
    return parse_location(text)


def _mapping(name: str, key: Any, value: Any) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(
            f"network topology {name}: {key} must be a mapping (`zones`, `bookies`, or a group of bookies with racks)"
        )
    return value


def _bookies(name: str, zone: Any, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(f"network topology {name}: zone {zone} must hold a list of bookies, not {value!r}")
    return value


def _put(locations: Locations, name: str, bookie: Any, location: Location | None) -> None:
    if not isinstance(bookie, str):
        raise BadRequest(f"network topology {name}: {bookie!r} is not a valid bookie id; put it in quotes")
    if locations.get(bookie, location) != location:
        raise BadRequest(f"network topology {name}: {bookie} is listed at two places")
    locations[bookie] = location


class TopologySource(Protocol):
    """Network locations by bookie."""

    async def open(self) -> None:
        """Get ready. Raises `BadRequest` for a source that is set up wrongly."""
        ...

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
        """Return the locations that are known. Raises `CouldNotTell` (also a `MetadataUnavailable`): earlier answers
        stay valid then."""
        ...

    async def locate_host(self, host: str) -> Location | None:
        """Return the location of a host, to find this client's own; None: not known."""
        ...


async def names_of(bookie_id: str, infos: Bookies) -> tuple[str, ...]:
    """Return the names under which a bookie may be listed, the likeliest first. Raises `MetadataError`."""
    names = [bookie_id, bookie_id.rpartition(":")[0]]
    try:
        address = (await infos.info(bookie_id)).bookie_address()
    except MetadataNotFound:
        address = None  # it left; its id may still tell
    if address is not None:
        host, port = address
        names += [f"{host}:{port}", host]
    return tuple(dict.fromkeys(name for name in names if name))


class MappedLocations:
    """Locations from a mapping: `locations` has a `/location` for a bookie id, a host or a host:port."""

    def __init__(self, locations: Mapping[str, str]) -> None:
        self._locations: Locations = {name: parse_location(text) for name, text in locations.items()}

    async def open(self) -> None:
        """Do nothing: a mapping needs no preparation."""

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
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
    """`path`: a file in one of the formats above."""

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

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
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
            # Logged at each change only: a bad file keeps its stamp, and a missing one has none.
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
                raise BadRequest(f"network topology file {self._path} is not valid UTF-8: {error}") from error
        return stamp, parse_locations(self._path, text)


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


class ScriptLocations:
    """`path`: `networkTopologyScriptFileName`; `max_arguments`: `networkTopologyScriptNumberArgs`."""

    def __init__(self, path: str, *, max_arguments: int = 100) -> None:
        if max_arguments < 1:
            raise BadRequest(f"networkTopologyScriptNumberArgs must be at least 1, not {max_arguments}")
        self._path = path
        self._max_arguments = max_arguments
        self._kept: dict[str, tuple[float, Location | None]] = {}
        self._one_run = asyncio.Lock()

    async def open(self) -> None:
        """Raises `BadRequest` when the script is missing or may not be executed."""
        if not await asyncio.to_thread(_is_executable, self._path):
            raise BadRequest(f"networkTopologyScriptFileName {self._path} is not an executable file")

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
        hosts = {bookie: (await names_of(bookie, infos))[-1] for bookie in bookies}
        await self._ask(set(hosts.values()))
        return {bookie: location for bookie, host in hosts.items() if (location := self._kept[host][1]) is not None}

    async def locate_host(self, host: str) -> Location | None:
        await self._ask({host})
        return self._kept[host][1]

    async def _ask(self, hosts: set[str]) -> None:
        async with self._one_run:
            now = asyncio.get_running_loop().time()
            self._forget(now, hosts)
            unknown = iter(sorted(hosts - self._kept.keys()))
            while batch := list(islice(unknown, self._max_arguments)):
                for host, location in zip(batch, await self._run(batch), strict=True):
                    self._kept[host] = (now + KEEP_SECONDS, location)

    def _forget(self, now: float, wanted: set[str]) -> None:
        full = len(self._kept) + len(wanted) > MAX_KEPT
        for host, (until, _) in list(self._kept.items()):
            if until < now or (full and host not in wanted):
                del self._kept[host]

    async def _run(self, hosts: list[str]) -> list[Location | None]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._path, *hosts, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise CouldNotTell(f"network topology script {self._path} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(SCRIPT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            raise CouldNotTell(f"network topology script {self._path} did not end in {SCRIPT_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        locations = output.decode(errors="replace").split()
        if process.returncode or len(locations) != len(hosts):
            raise CouldNotTell(
                f"network topology script {self._path} ended with {process.returncode} and {len(locations)} locations"
                f" for {len(hosts)} hosts"
            )
        return list(map(parse_location, locations))


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


class PublishedLocations:
    """The locations that bookies publish in their properties; `parts` are those that make a location, outermost first.

    If the registration of a bookie cannot be read this time, its last location is kept."""

    def __init__(self, parts: tuple[str, ...] = REGION_AND_RACK) -> None:
        self._parts = parts
        self._told: dict[str, Location] = {}

    async def open(self) -> None:
        """Do nothing: registrations are read at each look-up."""

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
        found: dict[str, Location] = {}
        failures: list[MetadataError] = []

        async def ask(bookie: str) -> None:
            try:
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

        await bounded(sorted(bookies), ask, MAX_ASKED)
        if failures and not found:
            raise CouldNotTell(f"registrations of {len(failures)} bookies cannot be read: {failures[0]}")
        self._told = found
        return found

    async def locate_host(self, host: str) -> Location | None:
        """Hosts publish nothing."""
        return None


def location_from(properties: Mapping[str, str], parts: tuple[str, ...] = REGION_AND_RACK) -> Location | None:
    """Return the location that these properties tell; None when none of them is there."""
    if NETWORK_LOCATION in properties:
        return parse_location(properties[NETWORK_LOCATION])
    return tuple(value for part in parts if (value := properties.get(part, "").strip("/ "))) or None


class PulsarRacks(MappedLocations):
    """The racks that Apache Pulsar stores in the metadata service, read at each look-up."""

    def __init__(self) -> None:
        super().__init__({})
        self._seen: bytes | None = None
        self._told = False

    async def locate(self, bookies: Collection[str], infos: Bookies) -> Mapping[str, Location]:
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
