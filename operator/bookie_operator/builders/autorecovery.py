"""Auto-recovery: a Deployment of auditors and replication workers, apart from the bookies. See `beside`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import commands, naming
from bookie_operator.builders.beside import Beside, deployment
from bookie_operator.builders.common import environment
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.builders.inputs import autorecovery_inputs
from bookie_operator.world.model import ClusterView


def autorecovery(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    wanted = cluster.spec.autorecovery
    if not wanted.enabled:
        return None
    env = [environment("BK_advertisedAddress", "$(POD_NAME)")]  # its name among the auditors
    if wanted.max_concurrent_ledgers is not None:
        env.append(environment("BK_replicationLedgersAtOnce", str(wanted.max_concurrent_ledgers)))
    of = Beside(
        naming.autorecovery(cluster.name),
        naming.AUTORECOVERY,
        commands.AUTORECOVERY,
        wanted.replicas,
        wanted.resources,
        autorecovery_inputs(cluster),
        grace_seconds=60,
        may_miss=1,
        env=env,
    )
    return deployment(cluster, context, config_name, of)
