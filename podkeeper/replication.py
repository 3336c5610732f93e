"""The copies of a ledger: check them, move or restore them, and tell what would be lost without some bookies."""

from bookie_client.replication.check import (
    CheckOptions,
    FragmentReport,
    LedgerChecker,
    LedgerReport,
    ReplicaFinding,
    ReplicaVerdict,
)
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replica_listing import BookieReplicas, LedgerReplicas, replicas_of
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions, ReplicationResult
from bookie_client.replication.safety import LedgerAtRisk, Risk, SafetyReport, safety_check
from bookie_client.replication.throttle import ReplicationThrottle

__all__ = [
    "BookieReplicas",
    "CheckOptions",
    "Fragment",
    "FragmentReplicator",
    "FragmentReport",
    "LedgerAtRisk",
    "LedgerChecker",
    "LedgerReplicas",
    "LedgerReport",
    "ReplicaFinding",
    "ReplicaVerdict",
    "ReplicationOptions",
    "ReplicationResult",
    "ReplicationThrottle",
    "Risk",
    "SafetyReport",
    "replicas_of",
    "safety_check",
]
