"""Integrity checks.

Source: reference bookie behaviour, section 1.10. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, LONG_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityConfig:
    """Integrity"""

    data_integrity_checking: bool = key("dataIntegrityChecking", False)
    """After an unclean shutdown compare what is stored with what metadata says, and fetch what is missing."""
    stamp_missing_cookies: bool = key("dataIntegrityStampMissingCookies", False)
    """With `dataIntegrityChecking`: accept empty directories in place of lost ones and stamp them."""
    local_scrub_interval_s: int = key("localScrubInterval", 0, at_least=0, at_most=INT_MAX)
    """Time between scrubs of the local storage, in seconds. 0: never."""
    local_scrub_rate_limit: float = key("localScrubRateLimit", 60.0, at_least=0)
    """Entries that a scrub reads per second. 0: no limit."""
    local_scrub_rate_bytes: int = key("localScrubRateByBytes", 16_777_216, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes that a scrub reads per second, whatever `localScrubRateLimit` allows. 0: no limit."""
    local_scrub_repair: bool = key("localScrubRepair", True, own=True)
    """After each scrub, and when a read found damage, fetch entries that are damaged here from other bookies."""
    index_rebuild_rate_bytes: int = key("indexRebuildRateByBytes", 33_554_432, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes of entry logs that a rebuild of indexes reads per second while the bookie serves; a tenth of that while
    clients wait for the disks. 0: no limit."""
    consistency_check_on_startup: bool = key("localConsistencyCheckOnStartup", False)
    """Check the whole local storage before the bookie serves. Takes as long as reading every disk."""
