"""Authentication providers of other packages, found as entry points.

A package that is installed beside Podkeeper declares one under a name in either group, or in both:

    [project.entry-points."podkeeper.bookie_auth"]
    ours = "our_package:make_bookie_auth"
    [project.entry-points."podkeeper.client_auth"]
    ours = "our_package:make_client_auth"

Each is called once with the path of a configuration file of its own, or None, and returns a `ServerAuthProvider` or a
`ClientAuthProvider` of `bookie_protocol.wire.auth`. What it raises is a refusal to start.

Any thread.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Final

from bookie_protocol.errors import InvalidConfiguration

BOOKIE: Final = "podkeeper.bookie_auth"
CLIENT: Final = "podkeeper.client_auth"


def make_provider(group: str, name: str, config_file: str | None) -> Any:
    """Raises InvalidConfiguration."""
    found = entry_points(group=group)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "no package declares any"
        raise InvalidConfiguration(f"authProviderEntryPoint={name}: not in the group {group}: {known}")
    try:
        return found[name].load()(config_file)
    except Exception as error:
        raise InvalidConfiguration(f"authProviderEntryPoint={name}: {error or type(error).__name__}") from error
