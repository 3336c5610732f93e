"""File formats of network locations.

- Table, the reference's: lines of two columns, `host location`; blank lines and `#` comments are skipped.
- JSON or YAML, one of
      zones:   {zone-a: [bookie-0, bookie-1], zone-b: {domain-1: [bookie-2]}}     zones, and upgrade domains in them
      bookies: {bookie-0: /region-1/rack-1}                                       any location
  or Apache Pulsar's rack configuration: {group: {bookie-0: {rack: /rack-1, hostname: ...}}}.

Every malformed file is refused with one line (`BadRequest`) that names what is wrong; nothing is guessed.

Pure; any thread.

Source: reference client protocol, section 16.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import BadRequest

Locations = dict[str, Location | None]
"""Name of a bookie or host -> location; None: listed with the default location."""


def parse_locations(name: str, text: str) -> Locations:
    """The content of a file; its name's ending tells the format (`.json`, `.yaml`, `.yml`, else a table)."""
    if name.endswith(".json"):
        return _document(name, _json(name, text))
    if name.endswith((".yaml", ".yml")):
        return _document(name, _yaml(name, text))
    return _table(name, text)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRequest(f"network topology {name} cannot be read: {error}") from error


def _yaml(name: str, text: str) -> Any:
    # Here, because few clients have such a file and every client imports this module.
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadRequest(f"network topology {name} cannot be read: {' '.join(str(error).split())}") from error


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
