"""The flag by which Pulsar's coordinator announces a migration in ZooKeeper, and the URI of the target.

Below the chroot of the brokers, that is the path above the cluster's root, are

    pulsar/migration-coordinator/migration              {"phase": "COPYING", "targetUrl": "oxia://host:6648/namespace"}
    pulsar/migration-coordinator/participants/id-NUMBER  a process that takes part, and has not prepared yet; ephemeral

The copy in Oxia has the paths without the chroot.

Pure; any thread.

Source: Apache Pulsar, PIP-454: `MigrationState`, `MigrationCoordinator`, `DualMetadataStore`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bookie_protocol.errors import UNREADABLE, InvalidConfiguration, MetadataDamaged
from bookie_protocol.metadata_service.options import MetadataDriver, MetadataServiceUri
from bookie_protocol.metadata_service.tree.nodes import parent_of
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri
from bookie_protocol.shown import one_line

FLAG: Final = "/pulsar/migration-coordinator/migration"
PARTICIPANTS: Final = "/pulsar/migration-coordinator/participants"
PARTICIPANT: Final = f"{PARTICIPANTS}/id-"


class Phase(Enum):
    """The phase of a migration.

    ZooKeeper has the metadata in NOT_STARTED and FAILED, Oxia in COMPLETED. In the other two, writes wait.
    """

    NOT_STARTED = "NOT_STARTED"
    PREPARATION = "PREPARATION"
    COPYING = "COPYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def pauses(self) -> bool:
        return self in (Phase.PREPARATION, Phase.COPYING)


@dataclass(frozen=True, slots=True)
class Migration:
    """The content of the flag. `target` is Pulsar's URL of Oxia. `is_believed`: see `Participant`. `written`: creation
    and version of the node. A flag that has the same content again is not the same: what was prepared may be gone."""

    phase: Phase
    target: str
    is_believed: bool = True
    written: tuple[int, int] | None = None

    def says_the_same(self, other: Migration) -> bool:
        """Return True if phase and target are the same, whenever they were written."""
        return (self.phase, self.target) == (other.phase, other.target)

    def is_prepared_with(self, earlier: Migration | None) -> bool:
        """Return True if all is done that it asks for: it is the flag that was prepared for, or its next write begins
        the copy."""
        if earlier is None or self.written is None or earlier.written is None:
            return False
        begins_the_copy = (earlier.phase, self.phase) == (Phase.PREPARATION, Phase.COPYING)
        creation, version = earlier.written
        return self == earlier or (
            begins_the_copy and self.target == earlier.target and self.written == (creation, version + 1)
        )


NONE: Final = Migration(Phase.NOT_STARTED, "")
NOT_BELIEVED: Final = Migration(Phase.NOT_STARTED, "", is_believed=False)


def decode(data: bytes, written: tuple[int, int] | None = None) -> Migration:
    """Decode the flag. Raises `MetadataDamaged` if it is not valid."""
    try:
        found = json.loads(data)
        return Migration(Phase(found["phase"]), str(found.get("targetUrl") or ""), written=written)
    except UNREADABLE as error:
        raise MetadataDamaged(
            f"{FLAG} of Pulsar's migration cannot be understood: {one_line(repr(error), 200)}"
        ) from error


def scope_of(root: str) -> str:
    """Return the chroot of a cluster's brokers, or an empty string if they have none."""
    return parent_of(root).rstrip("/")


def target_uri(migration: Migration, root: str) -> MetadataServiceUri:
    """Return the URI in Oxia of the cluster with this root. Raises `InvalidConfiguration` if the flag names no Oxia."""
    parsed = parse_metadata_service_uri(f"metadata-store:{migration.target}")
    if parsed.driver is not MetadataDriver.OXIA:
        raise InvalidConfiguration(
            f"Pulsar's migration names {one_line(migration.target, 200)}, which is not a URL of Oxia: start it again"
            " with one"
        )
    return replace(parsed, root=root.removeprefix(scope_of(root)))
