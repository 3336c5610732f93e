"""What of the bookies' configuration a rollout is going to change: which keys, and never their values.

The file that StatefulSets have is in a ConfigMap of its own (see `builders.config`). Its content is read only while
they are to get another one and no operation runs: it tells why a rollout begins, and nothing depends on it.

Threads: one event loop.
"""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import CONFIG_MAP
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.common import Manifest
from bookie_operator.builders.config import FILE, changed_keys
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.observe.observing import Observed
from bookie_operator.world.model import World


async def with_config_changes(
    kubernetes: Kubernetes, observed: Observed, objects: DesiredObjects, held: frozenset[str]
) -> Observed:
    """`held`: names of StatefulSets that keep the template that they have, as `Desired` says.

    Raises the errors of `api.errors`, but for what is not there (any more) or may not be read."""
    wanted = next((each for each in objects.support if FILE in each.get("data", {})), None)
    name = _replaced(observed.world, held, objects.config_hash, wanted) if wanted is not None else ""
    if wanted is None or not name:
        return observed
    try:
        live = await kubernetes.find(CONFIG_MAP, observed.world.cluster.namespace, name)
    except Forbidden:
        return observed
    before = ((live or {}).get("data") or {}).get(FILE)
    if before is None:
        return observed
    return replace(observed, world=replace(observed.world, config_changes=changed_keys(before, wanted["data"][FILE])))


def _replaced(world: World, held: frozenset[str], hashed: str, wanted: Manifest) -> str:
    """Name of the ConfigMap with the file that some StatefulSet has instead of the one that is wanted; empty: all have
    that one, have to wait for it, or it does not matter now."""
    if world.cluster.status.operation is not None or world.cluster.deleting:
        return ""
    name = str(wanted["metadata"]["name"])
    files = name.removesuffix(hashed)
    for one in world.stateful_sets:
        if one.name in held:
            continue
        old = sorted(each for each in one.config_maps if each.startswith(files))
        if old and name not in old:
            return old[0]
    return ""
