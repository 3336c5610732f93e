"""SortedLedgerStorage and InterleavedLedgerStorage.

Source: reference bookie behaviour, section 1.7. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedStorageConfig:
    """SortedLedgerStorage and InterleavedLedgerStorage"""

    skip_list_size_limit_bytes: int = key("skipListSizeLimit", 67_108_864, at_least=1, at_most=1_073_741_823)
    """Memtable of SortedLedgerStorage, in bytes; up to two exist at a time."""
    skip_list_arena_chunk_size_bytes: int = key(
        "skipListArenaChunkSize", 4_194_304, at_least=1, at_most=INT_MAX, no_effect=True
    )
    """Allocation step of the memtable, in bytes. Has no effect here: Python manages this memory."""
    skip_list_arena_max_alloc_bytes: int = key(
        "skipListArenaMaxAllocSize", 131_072, at_least=1, at_most=INT_MAX, no_effect=True
    )
    """Largest allocation from the memtable's arena, in bytes; must not exceed the step. Has no effect here."""
    page_size_bytes: int = key("pageSize", 8192, at_least=8, at_most=INT_MAX)
    """Index page in bytes; each entry takes 8. Must not change once index files exist."""
    page_limit: int = key("pageLimit", -1, at_least=-1, at_most=INT_MAX)
    """Index pages in memory at most. 0 and -1: a third of `memoryBudgetMb`."""
    open_file_limit: int = key("openFileLimit", 20_000, at_least=0, at_most=INT_MAX)
    """Index files open at the same time at most; keep it below the process's file limit. 0 is good for
    DbLedgerStorage only, which has no such files."""
    file_info_initial_capacity: int = key(
        "fileInfoCacheInitialCapacity",
        5000,
        at_least=1,
        at_most=INT_MAX,
        derived="a quarter of `openFileLimit`, at least 64",
        no_effect=True,
    )
    """Initial capacity of the table of open index files. Has no effect here: the table grows as it is used."""
    file_info_max_idle_seconds: int = key("fileInfoMaxIdleTime", 0, at_least=0, at_most=INT_MAX)
    """An index file that nobody used for this many seconds is closed. 0: only `openFileLimit` closes
    files."""
    file_info_format_version: int = key("fileInfoFormatVersionToWrite", 1, at_least=0, at_most=1)
    """Format of new index files. 0 has no explicit LAC and goes together with a journal format below 6."""
