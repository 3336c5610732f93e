"""Where ledgers and copies are put, and where a process itself stands, by the options of source, sink and jobs.

Invariants
- Where a process stands is looked up in the environment of that process, never in the driver's on behalf of a task.

Pure but for `own_location`, which reads the environment; any process.

Source: reference client protocol, sections 11 and 16.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import BadRequest
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.settings import settings

if TYPE_CHECKING:
    from bookie_client.placement.options import PlacementOptions

DEFAULT_POLICY: Final = "rack-aware"
"""Of a client that is not told another one."""
LOCATION_VARIABLE: Final = "BK_networkLocation"
"""As for a bookie: where the process stands, such as `/zone-a` or `/zone-a/rack-7`."""

_OF_A_BOOKIES_HOST: Final = "local"
"""The policy of who writes to the bookie beside itself; a task has none."""
_HAVE_OPTIONS: Final = frozenset({"policy", "local_bookie", "local_location"})


def policy_name(text: str) -> str:
    """The name of a placement policy."""
    from bookie_client.placement.options import POLICIES

    names = [name for name in POLICIES if name != _OF_A_BOOKIES_HOST]
    name = text.strip().lower()
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    raise ValueError(f"did you mean {near[0]}?" if near else f"must be one of {', '.join(names)}")


def placement_options(policy: str, given: Mapping[str, str], location: str | None) -> PlacementOptions:
    """`given`: fields of `PlacementOptions`, as texts; `location`: None where the environment tells it, if
    anybody does. Raises `PodkeeperSparkError` (OPTION)."""
    from bookie_client.placement.options import PlacementOptions

    values = settings("placement.", given, PlacementOptions, but=_HAVE_OPTIONS)
    try:
        return PlacementOptions(policy=policy, local_location=own_location(location), **values)
    except BadRequest as error:
        raise PodkeeperSparkError(OPTION, str(error)) from None


def own_location(given: str | None) -> str | None:
    """Where this process stands; None: nobody says. A label that a pod does not have is an empty text."""
    location = os.environ.get(LOCATION_VARIABLE, "") if given is None else given
    return location.strip() or None
