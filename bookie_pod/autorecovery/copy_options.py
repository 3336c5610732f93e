"""How copies are made, as the configuration says: the same for replication workers, decommissions and recoveries.

Pure; made on the event loop that copies.
"""

from __future__ import annotations

from bookie_client.replication.replicator import ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle, YieldingThrottle
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig


def copying_throttle(options: AutoRecoveryConfig) -> ReplicationThrottle:
    """The throttle of everything that copies, or checks, together: `replicationRateByBytes`,
    `replicationYieldsToClients`."""
    rate = options.rate_by_bytes if options.rate_by_bytes > 0 else None
    if rate is not None and options.yields_to_clients:
        return YieldingThrottle(rate)
    return ReplicationThrottle(rate)


def replication_options(options: AutoRecoveryConfig, throttle: ReplicationThrottle | None = None) -> ReplicationOptions:
    """`throttle`: one that is shared; by default a new one."""
    return ReplicationOptions(
        entry_batch_size=options.entry_batch_size,
        max_bytes_in_flight=options.max_bytes_in_flight,
        throttle=throttle or copying_throttle(options),
        batch_reads=options.batch_read,
    )
