"""Defaults that depend on other keys and on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.config.derive import default_memory_budget_mb, gateway_memory_mb, process_memory_mb
from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine

MIB = 1024 * 1024


def load(**settings: str) -> BookieConfig:
    return load_config(environ={}, overrides=settings)


def test_shares_of_the_memory_budget() -> None:
    config = load(memoryBudgetMb="400", ledgerDirectories="/a,/b")
    assert config.db_storage.write_cache_max_bytes == config.db_storage.read_cache_max_bytes == 100 * MIB
    assert config.journal.max_memory_bytes == 20 << 20
    assert config.rocksdb.block_cache_size_bytes == 20 * MIB
    assert config.db_storage.direct_io_write_buffer_mb == 50


def test_section_defaults_are_those_of_the_largest_default_budget() -> None:
    config = load(memoryBudgetMb="1024")
    assert config.db_storage == BookieConfig().db_storage
    assert config.journal == BookieConfig().journal
    assert config.rocksdb == BookieConfig().rocksdb
    assert config.disks == BookieConfig().disks
    assert config.sorted_storage == BookieConfig().sorted_storage


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        ({}, StorageEngine.DB),
        ({"ledgerStorageClass": "SortedLedgerStorage"}, StorageEngine.SORTED),
        ({"sortedLedgerStorageEnabled": "false"}, StorageEngine.INTERLEAVED),
        ({"sortedLedgerStorageEnabled": "true"}, StorageEngine.SORTED),
        (
            {"ledgerStorageClass": StorageEngine.SORTED.value, "sortedLedgerStorageEnabled": "false"},
            StorageEngine.INTERLEAVED,
        ),
        ({"ledgerStorageClass": StorageEngine.DB.value, "sortedLedgerStorageEnabled": "false"}, StorageEngine.DB),
    ],
)
def test_storage_engine(settings: dict[str, str], engine: StorageEngine) -> None:
    assert load(**settings).ledger_storage.engine is engine


def test_values_that_follow_others() -> None:
    config = load(diskUsageThreshold="0.9", logSizeLimit="1000", openFileLimit="100", zkTimeout="7")
    assert config.disks.usage_lwm_threshold == 0.9
    assert config.disks.min_usable_for_entry_log_bytes == 1200
    assert config.disks.min_usable_for_high_priority_bytes == 1200
    assert config.sorted_storage.file_info_initial_capacity == 64
    assert config.metadata.zk_retry_backoff_start_ms == 7
    assert load(minUsableSizeForEntryLogCreation="5").disks.min_usable_for_high_priority_bytes == 5


def limit(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_budget_is_half_of_the_container(tmp_path: Path) -> None:
    limit(tmp_path, "memory.max", str(600 * MIB))
    assert default_memory_budget_mb(str(tmp_path)) == 300
    limit(tmp_path, "memory/memory.limit_in_bytes", str(500 * MIB))
    assert default_memory_budget_mb(str(tmp_path)) == 250


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/system.slice/bookie.service", ["system.slice/bookie.service/memory.max"]),
        ("0::/system.slice/bookie.service", ["system.slice/memory.max", "memory.max"]),
        ("4:memory:/a/b\n0::/", ["memory/a/b/memory.limit_in_bytes"]),
        ("0::/../../elsewhere", ["memory.max"]),
    ],
)
def test_memory_budget_is_half_of_a_unit_or_of_what_it_is_in(tmp_path: Path, group: str, files: list[str]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for place, name in enumerate(files):
        limit(tmp_path, name, str((500 + 100 * place) * MIB))
    assert default_memory_budget_mb(str(tmp_path)) == 250


@pytest.mark.parametrize(("container", "budget"), [(192, 64), (200, 72), (256, 128), (257, 128), (300, 150)])
def test_a_small_container_leaves_room_for_what_a_process_takes_at_rest(
    tmp_path: Path, container: int, budget: int
) -> None:
    limit(tmp_path, "memory.max", str(container * MIB))
    assert default_memory_budget_mb(str(tmp_path)) == budget
    assert process_memory_mb(budget) <= container


@pytest.mark.parametrize(("container", "budget"), [(256, 64), (512, 128), (1024, 256), (2048, 768), (8192, 1024)])
def test_what_a_bookie_and_the_process_beside_it_may_have_fits_into_the_container(
    tmp_path: Path, container: int, budget: int
) -> None:
    limit(tmp_path, "memory.max", str(container * MIB))
    found = default_memory_budget_mb(str(tmp_path), beside=True)
    assert found == budget
    assert budget == 64 or 2 * (found + gateway_memory_mb(found)) <= container


def test_memory_budget_has_a_floor_and_a_ceiling(tmp_path: Path) -> None:
    limit(tmp_path, "memory.max", str(10 * MIB))
    assert default_memory_budget_mb(str(tmp_path)) == 64
    limit(tmp_path, "memory.max", "max")
    assert 64 <= default_memory_budget_mb(str(tmp_path)) <= 1024


@pytest.mark.parametrize(
    ("keys", "enabled"),
    [
        ({}, True),
        ({"gatewayEnabled": "false"}, False),
        ({"tlsClientAuthentication": "true"}, True),
        ({"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory"}, True),
        (
            {
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsClientAuthentication": "true",
            },
            False,
        ),
        (
            {
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsClientAuthentication": "true",
                "gatewayEnabled": "true",
            },
            True,
        ),
        (
            {
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsClientAuthentication": "true",
                "grpcServerAuthTokenFile": "/tokens",
            },
            True,
        ),
        (
            {
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsClientAuthentication": "true",
                "tlsKeyStoreType": "PEM",
                "tlsTrustStoreType": "PEM",
                "tlsKeyStore": "/key",
                "tlsCertificatePath": "/certificate",
                "tlsTrustStore": "/trusted",
                "grpcServerTlsEnable": "true",
                "grpcServerTlsClientAuthentication": "true",
            },
            True,
        ),
    ],
)
def test_the_gateway_lets_nobody_past_client_certificates_unasked(keys: dict[str, str], enabled: bool) -> None:
    assert load_config(environ={}, overrides=keys).gateway.enabled is enabled


def test_the_grpc_port_has_the_certificate_of_the_bookie_unless_it_has_its_own() -> None:
    files = {"tlsKeyStore": "/key", "tlsCertificatePath": "/chain", "tlsTrustStore": "/trusted"}
    pem = files | {"tlsKeyStoreType": "PEM", "tlsTrustStoreType": "PEM"}
    grpc = load_config(environ={}, overrides=pem).grpc
    assert (grpc.key_path, grpc.certificate_path, grpc.trust_store_path) == ("/key", "/chain", "/trusted")
    grpc = load_config(environ={}, overrides=pem | {"grpcServerKeyPath": "/own", "grpcServerTrustStorePath": "/t"}).grpc
    assert (grpc.key_path, grpc.certificate_path, grpc.trust_store_path) == ("/own", "/chain", "/t")
    grpc = load_config(environ={}, overrides=files).grpc
    assert (grpc.key_path, grpc.certificate_path, grpc.trust_store_path) == (None, None, None)


def test_appends_of_the_gateway_that_wait_for_a_rack_have_an_end() -> None:
    enforce = {"enforceMinNumFaultDomainsForWrite": "true"}
    assert load_config(environ={}, overrides={}).gateway.add_quorum_timeout_seconds == -1
    assert load_config(environ={}, overrides=enforce).gateway.add_quorum_timeout_seconds == 60
    given = load_config(environ={}, overrides=enforce | {"addEntryQuorumTimeoutSec": "7"}).gateway
    assert (given.add_quorum_timeout_seconds, given.enforce_fault_domains) == (7, True)
