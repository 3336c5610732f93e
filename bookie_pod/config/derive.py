"""Defaults that depend on other keys, on the memory or on the processors.

The reference implementation sizes its caches from the JVM's direct-memory limit. Here `memoryBudgetMb` takes that
place; its default is half of what the container (or else the machine) has, or what is left beside `BASE_MB`, and never
more than 1024 MiB, so that an unconfigured bookie on a large machine does not grow caches unasked.

Invariant: a key that is set is never changed, except `ledgerStorageClass` by the older switch that exists to change it,
and `metadataServiceUri`, which older keys of a source with higher priority replace.

Source: docs/internals/bookie-behaviour.md, section 1; docs/internals/metadata-layout.md, section 2 (legacy service
address). Pure functions but for the number of processors and a few small files of the kernel; any thread may call them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bookie_pod.config.cgroups import group_limits
from bookie_pod.config.keys import MIB
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine

_FACTORY_LAYOUTS: Final = {
    "flat": "flat",
    "hierarchical": "hierarchical",
    "longhierarchical": "longhierarchical",
    "org.apache.bookkeeper.meta.FlatLedgerManagerFactory": "flat",
    "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory": "hierarchical",
    "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory": "longhierarchical",
}
ROOM_BESIDE_AN_ENTRY: Final = 64 * 1024
"""Bytes that a message of the gateway may have besides one entry of the largest size."""
KNOWN_FACTORIES: Final = tuple(_FACTORY_LAYOUTS)
LARGEST_DEFAULT_MB: Final = 1024
GRACE_PASSES: Final = 6
"""Passes of garbage collection for which a ledger stays that the metadata service no longer has."""
SMALLEST_GATEWAY_MB: Final = 128
LARGEST_GATEWAY_MB: Final = 256
SMALLEST_DEFAULT_MB: Final = 64
BASE_MB: Final = 128
"""A process has at least so much beside its budget: the interpreter and the libraries take 90 MB of it at rest."""


def derive(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    """`config` with every derived default filled in.

    `ranks` holds, for each key that was set, the priority of the source that set it.
    """
    if "memoryBudgetMb" not in ranks:
        budget = default_memory_budget_mb(beside=config.grpc.server_enabled)
        config = replace(config, memory=replace(config.memory, budget_mb=budget))
    for step in (_threads, _memory_shares, _engine, _files_and_disks, _metadata, _grpc, _gateway, _compaction):
        config = step(config, ranks)
    return config


def _threads(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    if "serverNumIOThreads" in ranks:
        return config
    return replace(config, threads=replace(config.threads, io_threads=2 * (os.cpu_count() or 1)))


def _memory_shares(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    budget = config.memory.budget_mb
    journal, db, rocks = config.journal, config.db_storage, config.rocksdb
    if "journalMaxMemorySizeMb" not in ranks:
        journal = replace(journal, max_memory_bytes=max(1, budget * 5 // 100) * MIB)
    if "dbStorage_writeCacheMaxSizeMb" not in ranks:
        db = replace(db, write_cache_max_bytes=max(1, budget // 4) * MIB)
    if "dbStorage_readAheadCacheMaxSizeMb" not in ranks:
        db = replace(db, read_cache_max_bytes=max(1, budget // 4) * MIB)
    if "dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB" not in ranks:
        db = replace(db, direct_io_write_buffer_mb=max(1, budget // 8))
    if "dbStorage_directIOEntryLoggerTotalReadBufferSizeMB" not in ranks:
        db = replace(db, direct_io_total_read_buffer_mb=max(1, budget // 8))
    if "dbStorage_rocksDB_blockCacheSize" not in ranks:
        directories = max(1, len(config.directories.ledger))
        rocks = replace(rocks, block_cache_size_bytes=config.memory.budget_bytes // 10 // directories)
    return replace(config, journal=journal, db_storage=db, rocksdb=rocks)


def _engine(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    """The older switch: off turns Sorted into Interleaved; alone it selects between these two."""
    if "sortedLedgerStorageEnabled" not in ranks:
        return config
    storage = config.ledger_storage
    if "ledgerStorageClass" in ranks and storage.engine is not StorageEngine.SORTED:
        return config
    engine = StorageEngine.SORTED if storage.sorted_enabled else StorageEngine.INTERLEAVED
    return replace(config, ledger_storage=replace(storage, storage_class=engine.value))


def _files_and_disks(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    sorted_storage, disks = config.sorted_storage, config.disks
    if "fileInfoCacheInitialCapacity" not in ranks:
        capacity = max(sorted_storage.open_file_limit // 4, 64)
        sorted_storage = replace(sorted_storage, file_info_initial_capacity=capacity)
    if "diskUsageLwmThreshold" not in ranks:
        disks = replace(disks, usage_lwm_threshold=disks.usage_threshold)
    if "minUsableSizeForEntryLogCreation" not in ranks:
        size = config.ledger_storage.log_size_limit_bytes * 6 // 5
        disks = replace(disks, min_usable_for_entry_log_bytes=size)
    if "minUsableSizeAfterCompaction" not in ranks:
        size = config.ledger_storage.log_size_limit_bytes // 10
        disks = replace(disks, min_usable_after_compaction_bytes=size)
    if "minUsableSizeForHighPriorityWrites" not in ranks:
        disks = replace(disks, min_usable_for_high_priority_bytes=disks.min_usable_for_entry_log_bytes)
    return replace(config, sorted_storage=sorted_storage, disks=disks)


def _metadata(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    metadata = config.metadata
    if "zkRetryBackoffStartMs" not in ranks:
        metadata = replace(metadata, zk_retry_backoff_start_ms=metadata.zk_timeout_ms)
    if "zkRetryBackoffMaxMs" not in ranks:
        metadata = replace(metadata, zk_retry_backoff_max_ms=metadata.zk_timeout_ms)
    uri_rank = ranks.get("metadataServiceUri", -1) if metadata.service_uri else -1
    if metadata.zk_servers and ranks.get("zkServers", 0) > uri_rank:
        layout = _FACTORY_LAYOUTS.get(metadata.ledger_manager_factory_class or "", "null")
        servers = ";".join(metadata.zk_servers)
        metadata = replace(metadata, service_uri=f"zk+{layout}://{servers}{metadata.zk_ledgers_root_path}")
    return replace(config, metadata=metadata)


def _grpc(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    """Give gRPC the bookie's certificate, unless it has one of its own."""
    tls, grpc = config.tls, config.grpc
    if tls.key_store_type == "PEM":
        if "grpcServerCertificatePath" not in ranks:
            grpc = replace(grpc, certificate_path=tls.certificate_path)
        if "grpcServerKeyPath" not in ranks:
            grpc = replace(grpc, key_path=tls.key_store)
    if tls.trust_store_type == "PEM" and "grpcServerTrustStorePath" not in ranks:
        grpc = replace(grpc, trust_store_path=tls.trust_store)
    return replace(config, grpc=grpc)


def _gateway(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    """Derive the options of the gateway.

    If bookies demand certificates or logins, the gateway is off by default, lest it lets clients past them. Appends
    that wait for a rack do not wait for ever. What appends may hold fits into the memory that clients have.
    """
    tls, gateway, memory = config.tls, config.gateway, config.client_memory_bytes
    if "gatewayMemoryMb" not in ranks:
        gateway = replace(gateway, memory_mb=gateway_memory_mb(config.memory.budget_mb))
    if "gatewayMaxMessageBytes" not in ranks:
        an_entry = config.network.max_frame_size_bytes + ROOM_BESIDE_AN_ENTRY
        gateway = replace(gateway, max_message_bytes=min(gateway.max_message_bytes, max(memory // 8, an_entry)))
    if "gatewayMaxPendingBytes" not in ranks:
        gateway = replace(gateway, max_pending_bytes=min(gateway.max_pending_bytes, memory // 2))
    config = replace(config, gateway=gateway)
    if config.gateway.enforce_fault_domains and "addEntryQuorumTimeoutSec" not in ranks:
        config = replace(config, gateway=replace(config.gateway, add_quorum_timeout_seconds=60))
    demanded = (tls.provider_factory_class and tls.client_authentication) or config.auth.provider_class
    if "gatewayEnabled" in ranks or not demanded or config.grpc.knows_its_clients:
        return config
    return replace(config, gateway=replace(config.gateway, enabled=False))


def _compaction(config: BookieConfig, ranks: Mapping[str, int]) -> BookieConfig:
    """One log per ledger cannot be compacted into logs of their own; a grace is some passes."""
    if "gcDeletionGracePeriod" not in ranks:
        config = replace(config, gc=replace(config.gc, deletion_grace_ms=GRACE_PASSES * config.gc.wait_time_ms))
    if "useTransactionalCompaction" in ranks or not config.ledger_storage.entry_log_per_ledger:
        return config
    return replace(config, gc=replace(config.gc, transactional_compaction=False))


def default_memory_budget_mb(root: str = "/", *, beside: bool = False) -> int:
    """The largest budget of which `process_memory_mb` fits into the memory that this process may use, in MiB, between
    64 and 1024; `beside`: into what is left beside the process that serves gRPC, which may have twice its budget.

    `root` is where the kernel's files are looked for.
    """
    half = available_memory_bytes(root) // 2 // MIB
    if beside:
        half -= gateway_memory_mb(half // 2)
    return max(SMALLEST_DEFAULT_MB, min(LARGEST_DEFAULT_MB, half, 2 * half - BASE_MB))


def process_memory_mb(budget_mb: int) -> int:
    """A bookie with this budget has at most so much memory, in MiB."""
    return budget_mb + max(budget_mb, BASE_MB)


def gateway_memory_mb(budget_mb: int) -> int:
    """Return the budget of the process that serves gRPC beside a bookie with this budget, both in MiB."""
    return max(SMALLEST_GATEWAY_MB, min(LARGEST_GATEWAY_MB, budget_mb))


def available_memory_bytes(root: str = "/") -> int:
    """The memory that this process may use: its container's or its unit's, or else the machine's. `root` as above."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *group_limits("memory", "memory.max", "memory.limit_in_bytes", root)])
