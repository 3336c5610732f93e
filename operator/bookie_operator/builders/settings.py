"""The settings that a bookie takes at its next start, without being restarted for them.

The sizes that follow from its volumes and its container are among them.

A ConfigMap of constant name, which containers take as environment variables `BK_<key>` when they start; they win over
the file. Its content counts in no template hash. It has three kinds of keys:
- those of `spec.config` that a running bookie takes over its admin API too.
- sizes of files that follow from the volumes, which may grow: no bookie is restarted for them.
- the first value of `lostBookieRecoveryDelay`, which lives in the metadata service afterwards.

Invariant: a key that no user asked for is there only if bookies of every release know it. The map changes with the
operator, pods of older images take it at their next start, and one that meets an unknown key refuses to start.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.builders.common import Manifest, manifest
from bookie_operator.crds.cluster_spec import Volume
from bookie_operator.crds.config_keys import dynamic_part, known_keys
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.world.model import ClusterView
from bookie_pod.config.keys import render

PREFIX: Final = "BK_"

DYNAMIC_DEFAULTS: Final = {key.name: render(key.default) for _, key in known_keys().values() if key.dynamic}


def given_config(cluster: ClusterView) -> dict[str, str]:
    """Return the keys of `spec.config` that a running bookie takes."""
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
SMALLEST_GATEWAY_MB: Final = 128
LARGEST_GATEWAY_MB: Final = 256
"""Budget of the process that serves gRPC beside a bookie, as the bookie itself has it (`gatewayMemoryMb`)."""
SMALLEST_BUDGET_MB: Final = 64
"""Memory below which a bookie does not work well, whatever its container has."""
BASE_MB: Final = 128
"""A process needs at least so much beside its budget."""


def memory_budget_mb(resources: Mapping[str, Any], *, gateway: bool = False) -> int | None:
    """`memoryBudgetMb`: half of the container's memory, as the interpreter, the index and what is under way need about
    as much again, and at least `BASE_MB`. With a `gateway`, half of what is left beside its process, which may have
    twice its own. None: the container has no limit and asks for nothing, and the bookie looks for itself."""
    for part in ("limits", "requests"):
        given = (resources.get(part) or {}).get("memory")
        size = known_bytes(str(given)) if given is not None else None
        if size:
            half = size // 2 // MIB
            beside = max(SMALLEST_GATEWAY_MB, min(LARGEST_GATEWAY_MB, half // 2)) if gateway else 0
            return max(SMALLEST_BUDGET_MB, min(half - beside, 2 * (half - beside) - BASE_MB))
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
