"""The locations of bookies: network locations such as `/rack`, `/region/rack` or `/zone/upgrade-domain`.

Invariants
- A `Topology` is a snapshot: it never changes, so one decision sees one world.
- "Not known" is None, never a made-up place. Each policy says what an unknown bookie counts as.

Pure; any thread.

Source: docs/internals/client-protocol.md, section 16.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Location = tuple[str, ...]
"""Parts of a network location, outermost first: ("region", "rack")."""

DEFAULT_RACK: Final = "default-rack"
DEFAULT_REGION: Final = "default-region"
DEFAULT_ZONE: Final = "default-zone"
DEFAULT_UPGRADE_DOMAIN: Final = "default-upgradedomain"

_DEFAULTS: Final = frozenset({DEFAULT_RACK, DEFAULT_REGION, DEFAULT_ZONE, DEFAULT_UPGRADE_DOMAIN})


def parse_location(text: str) -> Location | None:
    """Return the location that `/region/rack` names; None for an empty one and for the reference's default ones, which
    mean "not known"."""
    parts = tuple(part for part in text.strip().split("/") if part)
    return None if not parts or _DEFAULTS.issuperset(parts) else parts


def format_location(location: Location | None) -> str:
    """Format a location as the reference writes it: `/region/rack`."""
    return "/" + "/".join(location) if location else f"/{DEFAULT_RACK}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The locations known at one moment, by bookie id; `local`: that of this client, if known."""

    locations: Mapping[str, Location] = field(default_factory=dict)
    local: Location | None = None

    def location(self, bookie: str) -> Location | None:
        """None: not known."""
        return self.locations.get(bookie)


UNKNOWN_TOPOLOGY: Final = Topology()
