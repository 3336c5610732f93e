"""What a bookie takes at its next start without being restarted for it.

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

from typing import Final

from bookie_operator.builders import naming, sizes
from bookie_operator.builders.common import manifest
from bookie_operator.builders.hashing import Manifest
from bookie_operator.crds.config_keys import dynamic_part
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
    by_volume = {**sizes.journal_sizes(spec.storage.journal), **sizes.ledger_sizes(spec.storage.ledger)}
    keys = {key: text for key, text in by_volume.items() if not spec.config.get(key, "").strip()}
    keys["lostBookieRecoveryDelay"] = str(spec.autorecovery.lost_bookie_recovery_delay_seconds)
    name = naming.settings(cluster.name)
    content = dict(sorted({**given_config(cluster), **keys}.items()))
    return manifest(cluster, "v1", "ConfigMap", name, naming.BOOKIE, {"data": content})
