"""What a bookie takes at its next start without being restarted for it, and the sizes that follow from its volumes and
its container.

A ConfigMap of constant name, which containers take as environment variables `BK_<key>` when they start; they win over
the file. Its content counts in no template hash. Three kinds of keys stand there:
- those of `spec.config` that a running bookie takes over its admin API too.
- sizes of files that follow from the volumes, which may grow: no bookie is restarted for them.
- the first value of `lostBookieRecoveryDelay`, which lives in the metadata service afterwards.

Invariant: nothing that nobody asked for stands there unless bookies of every release know it. The map changes with the
operator, pods of older images take it at their next start, and one that meets an unknown key refuses to start.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.builders.common import Manifest, manifest
from bookie_operator.crds.cluster_spec import Volume
from bookie_operator.crds.config_keys import dynamic_part
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.world.model import ClusterView

PREFIX: Final = "BK_"

DYNAMIC_DEFAULTS: Final = {
    "compactionRateByBytes": "20000000",
    "compactionRateByEntries": "1000",
    "forceAllowCompaction": "false",
    "gcMetadataOpRateLimit": "1000",
    "gcWaitTime": "600000",
    "isThrottleByBytes": "true",
    "majorCompactionInterval": "86400",
    "majorCompactionMaxTimeMillis": "-1",
    "majorCompactionThreshold": "0.8",
    "minorCompactionInterval": "3600",
    "minorCompactionMaxTimeMillis": "-1",
    "minorCompactionThreshold": "0.2",
    "useTargetEntryLogSizeForGc": "false",
}
"""The bookie's own defaults."""


def given_config(cluster: ClusterView) -> dict[str, str]:
    """The keys of `spec.config` that a running bookie takes."""
    return {key: text.strip() for key, text in dynamic_part(cluster.spec.config).items() if text.strip()}


def dynamic_config(cluster: ClusterView) -> dict[str, str]:
    """Every key that a running bookie takes, with its value: so a key that was taken out of `spec.config` is put back
    in bookies that have it."""
    return dict(sorted({**DYNAMIC_DEFAULTS, **given_config(cluster)}.items()))


def settings_map(cluster: ClusterView) -> Manifest:
    spec = cluster.spec
    by_volume = {**journal_sizes(spec.storage.journal), **ledger_sizes(spec.storage.ledger)}
    keys = {key: text for key, text in by_volume.items() if not spec.config.get(key, "").strip()}
    keys["lostBookieRecoveryDelay"] = str(spec.autorecovery.lost_bookie_recovery_delay_seconds)
    name = naming.settings(cluster.name)
    content = dict(sorted({**given_config(cluster), **keys}.items()))
    return manifest(cluster, "v1", "ConfigMap", name, naming.BOOKIE, {"data": content})


MIB: Final = 1 << 20
LARGEST_JOURNAL_FILE_MB: Final = 2048
LARGEST_ENTRY_LOG: Final = 1 << 30
SMALLEST_BUDGET_MB: Final = 64
"""Below it a bookie does not work well, whatever its container has."""


def memory_budget_mb(resources: Mapping[str, Any]) -> int | None:
    """`memoryBudgetMb`: half of the container's memory, as the interpreter, the index and what is under way need about
    as much again. None: the container has no limit and asks for nothing, and the bookie looks for itself."""
    for part in ("limits", "requests"):
        given = (resources.get(part) or {}).get("memory")
        size = known_bytes(str(given)) if given is not None else None
        if size:
            return max(SMALLEST_BUDGET_MB, size // 2 // MIB)
    return None


def journal_sizes(journal: Volume) -> dict[str, str]:
    """Keys that keep journal files within their volume: the open file, the one that is made in advance, one that is
    kept, and those that no checkpoint has passed yet. The pod's default of five that are kept takes 14 GiB."""
    size = known_bytes(journal.size) or 0
    file_mb = min(LARGEST_JOURNAL_FILE_MB, max(16, size // MIB // 8))
    return {"journalMaxSizeMB": str(file_mb), "journalMaxBackups": "1"}


def ledger_sizes(ledger: Volume) -> dict[str, str]:
    """Keys that keep one entry log small beside its volume, so that compaction finds room; none for a usual volume."""
    size = known_bytes(ledger.size) or 0
    log = max(16 * MIB, size // 16)
    return {} if log >= LARGEST_ENTRY_LOG else {"logSizeLimit": str(log)}
