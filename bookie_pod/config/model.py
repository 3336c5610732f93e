"""The configuration of one bookie: all sections together.

Frozen; any thread may read. Built by `bookie_pod.config.load.load_config`, or in tests from its defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bookie_pod.config.keys import Key, keys_of
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.config.sections.gateway import GatewayConfig
from bookie_pod.config.sections.gc import DisksConfig, GcConfig
from bookie_pod.config.sections.journal import DirectoriesConfig, JournalConfig
from bookie_pod.config.sections.ledger_storage import (
    DbStorageConfig,
    IntegrityConfig,
    LedgerStorageConfig,
    RocksDbConfig,
    SortedStorageConfig,
    StorageEngine,
)
from bookie_pod.config.sections.network import NetworkConfig, ThreadsConfig
from bookie_pod.config.sections.placement import PlacementConfig
from bookie_pod.config.sections.security import AuthConfig, MetadataConfig, TlsConfig
from bookie_pod.config.sections.service import (
    AccessConfig,
    GrpcConfig,
    HttpConfig,
    LogConfig,
    MemoryConfig,
    MetricsConfig,
    NodeConfig,
)
from bookie_pod.config.sections.telemetry import TelemetryConfig


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """All configuration, by topic."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    directories: DirectoriesConfig = field(default_factory=DirectoriesConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    ledger_storage: LedgerStorageConfig = field(default_factory=LedgerStorageConfig)
    db_storage: DbStorageConfig = field(default_factory=DbStorageConfig)
    rocksdb: RocksDbConfig = field(default_factory=RocksDbConfig)
    sorted_storage: SortedStorageConfig = field(default_factory=SortedStorageConfig)
    gc: GcConfig = field(default_factory=GcConfig)
    disks: DisksConfig = field(default_factory=DisksConfig)
    integrity: IntegrityConfig = field(default_factory=IntegrityConfig)
    auto_recovery: AutoRecoveryConfig = field(default_factory=AutoRecoveryConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    log: LogConfig = field(default_factory=LogConfig)
    set_keys: Mapping[str, str] = field(default_factory=_nothing)
    """Keys that are set, with their text, secrets left out: what the admin API shows."""
    ignored_keys: tuple[str, ...] = ()
    """Keys that were set and have no effect here, in alphabetical order, for one log line at start-up."""

    @property
    def direct_io_logs(self) -> bool:
        """Return True if entry logs are written past the page cache: a choice of DbLedgerStorage."""
        return self.db_storage.direct_io_entry_logger and self.ledger_storage.engine is StorageEngine.DB

    @property
    def index_page_limit(self) -> int:
        """Return the index pages in memory at most: `pageLimit`, or what a third of the budget holds; at least one."""
        index = self.sorted_storage
        return (
            index.page_limit if index.page_limit > 0 else max(1, self.memory.budget_bytes // 3 // index.page_size_bytes)
        )

    @property
    def client_memory_bytes(self) -> int:
        """Return the bytes that clients may make the process hold: `clientMemoryMb`, or half of the budget; at
        least two frames."""
        nbytes = self.network.client_memory_mb * 1024 * 1024 or self.memory.budget_bytes // 2
        return max(nbytes, 2 * self.network.max_frame_size_bytes)


def sections() -> Iterator[tuple[str, type[Any]]]:
    """Attribute name and class of every section, in the order of the documentation."""
    for item in dataclasses.fields(BookieConfig):
        factory: object = item.default_factory
        if isinstance(factory, type) and dataclasses.is_dataclass(factory):
            yield item.name, factory


def all_keys() -> dict[str, tuple[str, str, str, Key]]:
    """Every known name, legacy ones too: section attribute, field name, annotation, key."""
    known: dict[str, tuple[str, str, str, Key]] = {}
    for attribute, section in sections():
        for declared_field, declared in keys_of(section):
            entry = (attribute, declared_field.name, str(declared_field.type), declared)
            for name in (declared.name, *declared.legacy):
                assert name not in known, name
                known[name] = entry
    return known


def effective(config: BookieConfig) -> Iterator[tuple[Key, str]]:
    """Every key with the text of its effective value, secrets masked, in the order of the documentation."""
    for attribute, section in sections():
        values = getattr(config, attribute)
        for declared_field, declared in keys_of(section):
            value = getattr(values, declared_field.name)
            yield declared, "********" if declared.secret and value is not None else declared.shown(value)
