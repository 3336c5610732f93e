"""Rules between keys, checked once at start-up.

Limits of a single key are with the key; here are the rules that need several. Each broken rule is one line that names
key, value and rule.

Source: docs/internals/bookie-behaviour.md, section 1.11. Pure functions; any thread may call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from bookie_pod.config.derive import KNOWN_FACTORIES
from bookie_pod.config.keys import MIB
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.config.sections.security import (
    CERTIFICATE_ROLES,
    ENTRY_POINT,
    SASL_BOOKIE,
    SASL_CLIENT,
    SHARED_TOKEN,
    AuthConfig,
)
from bookie_pod.roles import ROLE_NAMES
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri

_LOCATION: Final = re.compile(r"(/[^/\s]+)+")


def broken_rules(config: BookieConfig) -> Iterator[str]:
    """One line per broken rule."""
    yield from _node(config)
    yield from _network(config)
    yield from _directories(config)
    yield from _journal(config)
    yield from _storage(config)
    yield from _compaction(config)
    yield from _disks(config)
    yield from _security(config)
    if (endpoint := config.telemetry.endpoint) is not None and not _is_collector(endpoint):
        yield (
            "otelEndpoint: it must look like http://collector:4318; credentials come from OTEL_EXPORTER_OTLP_HEADERS"
        )  # it is not shown, as it may have a password


def _is_collector(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and not url.query and not url.fragment
        return usable and "@" not in endpoint and url.port != 0
    except ValueError:
        return False


def _node(config: BookieConfig) -> Iterator[str]:
    for name in config.node.extra_server_components:
        if name.rpartition(".")[2] == "StreamStorageLifecycleComponent":
            yield (
                f"extraServerComponents={name}: there is no table service (port 4181) here; unset the key, and let"
                " stateStorageProviderImplementation of Pulsar's functions_worker.yml be"
                " org.apache.pulsar.functions.instance.state.PulsarMetadataStateStoreProviderImpl"
            )


def _network(config: BookieConfig) -> Iterator[str]:
    network = config.network
    location = network.network_location
    if location is not None and not _LOCATION.fullmatch(location):
        yield f"networkLocation={location}: must look like /zone/rack, without empty parts or blanks"
    if network.bookie_port == 0 and not network.allow_ephemeral_ports:
        yield "bookiePort=0: a port between 1 and 65535 is needed unless allowEphemeralPorts=true"
    low, high = network.write_buffer_low_water_mark_bytes, network.write_buffer_high_water_mark_bytes
    if low > high:
        yield f"serverWriteBufferLowWaterMark={low}: must not exceed serverWriteBufferHighWaterMark={high}"
    rate = config.threads.batch_class_read_rate_bytes
    if rate and not config.threads.batch_class_read_workers:
        yield f"batchClassReadRateByBytes={rate}: needs numBatchClassReadWorkerThreads of at least 1"
    taken: dict[int, str] = {}
    ports = [("bookiePort", network.bookie_port)]
    if (listener := config.http.listener) is not None:
        ports.append((listener.port_key, listener.port))
    if config.grpc.server_enabled:
        ports.append(("grpcServerPort", config.grpc.server_port))
    for name, port in ports:
        if port and port in taken:
            yield f"{name}={port}: {taken[port]} has this port already"
        taken[port] = name


def _directories(config: BookieConfig) -> Iterator[str]:
    directories = config.directories
    for name, paths in (
        ("journalDirectories", directories.journal),
        ("ledgerDirectories", directories.ledger),
        ("indexDirectories", directories.index),
    ):
        if not paths and name != "indexDirectories":
            yield f"{name}=: at least one directory is needed"
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield f"{name}={','.join(paths)}: {path} is listed more than once"
    is_db = config.ledger_storage.engine is StorageEngine.DB
    if is_db and directories.index and len(directories.index) != len(directories.ledger):
        yield (
            f"indexDirectories={','.join(directories.index)}: DbLedgerStorage needs as many index "
            f"directories as ledger directories ({len(directories.ledger)})"
        )


def _journal(config: BookieConfig) -> Iterator[str]:
    journal = config.journal
    alignment = journal.alignment_size_bytes
    if alignment % 512:
        yield f"journalAlignmentSize={alignment}: must be a multiple of 512"
    if alignment > journal.pre_alloc_size_bytes:
        yield (
            f"journalAlignmentSize={alignment}: must not exceed "
            f"journalPreAllocSizeMB={journal.pre_alloc_size_bytes // MIB} ({journal.pre_alloc_size_bytes} bytes)"
        )
    file_info = config.sorted_storage.file_info_format_version
    if (journal.format_version >= 6) != (file_info >= 1):
        yield (
            f"journalFormatVersionToWrite={journal.format_version}: 6 goes together with "
            f"fileInfoFormatVersionToWrite=1, less than 6 with 0; it is {file_info}"
        )


def _storage(config: BookieConfig) -> Iterator[str]:
    arena = config.sorted_storage
    chunk, largest = arena.skip_list_arena_chunk_size_bytes, arena.skip_list_arena_max_alloc_bytes
    if chunk < largest:
        yield f"skipListArenaChunkSize={chunk}: must be at least skipListArenaMaxAllocSize={largest}"
    if arena.page_size_bytes % 8:
        yield f"pageSize={arena.page_size_bytes}: must be a multiple of 8"
    if arena.open_file_limit == 0 and config.ledger_storage.engine is not StorageEngine.DB:
        yield "openFileLimit=0: must be at least 1 unless the storage engine is DbLedgerStorage"
    if config.ledger_storage.entry_log_per_ledger and config.gc.transactional_compaction:
        yield "useTransactionalCompaction=true: not together with entryLogPerLedgerEnabled=true"
    if config.ledger_storage.engine is StorageEngine.DB:
        db = config.db_storage
        write, read = db.write_cache_max_bytes // MIB, db.read_cache_max_bytes // MIB
        if write + read > config.memory.budget_mb:
            yield (
                f"dbStorage_writeCacheMaxSizeMb={write}: together with "
                f"dbStorage_readAheadCacheMaxSizeMb={read} it must not exceed "
                f"memoryBudgetMb={config.memory.budget_mb}; raise memoryBudgetMb or lower the caches"
            )


def _compaction(config: BookieConfig) -> Iterator[str]:
    gc = config.gc
    for name, seconds, enabled in (
        ("minorCompactionInterval", gc.minor_compaction_interval_s, gc.minor_enabled),
        ("majorCompactionInterval", gc.major_compaction_interval_s, gc.major_enabled),
        (
            "entryLocationCompactionInterval",
            gc.entry_location_compaction_interval_s,
            gc.entry_location_compaction_interval_s > 0,
        ),
    ):
        if enabled and seconds * 1000 < gc.wait_time_ms:
            yield f"{name}={seconds}: must be at least gcWaitTime={gc.wait_time_ms} ms"
    if not (gc.minor_enabled and gc.major_enabled):
        return
    if gc.minor_compaction_interval_s >= gc.major_compaction_interval_s:
        yield (
            f"minorCompactionInterval={gc.minor_compaction_interval_s}: must be less than "
            f"majorCompactionInterval={gc.major_compaction_interval_s}"
        )
    if gc.minor_compaction_threshold >= gc.major_compaction_threshold:
        yield (
            f"minorCompactionThreshold={gc.minor_compaction_threshold}: must be less than "
            f"majorCompactionThreshold={gc.major_compaction_threshold}"
        )


def _disks(config: BookieConfig) -> Iterator[str]:
    disks = config.disks
    if disks.usage_lwm_threshold > disks.usage_threshold:
        yield (
            f"diskUsageLwmThreshold={disks.usage_lwm_threshold}: must not exceed "
            f"diskUsageThreshold={disks.usage_threshold}"
        )
    if disks.usage_warn_threshold > disks.usage_threshold:
        yield (
            f"diskUsageWarnThreshold={disks.usage_warn_threshold}: must not exceed "
            f"diskUsageThreshold={disks.usage_threshold}"
        )


def _security(config: BookieConfig) -> Iterator[str]:
    metadata, http = config.metadata, config.http
    yield from _who_may_connect(config)
    if metadata.zk_enable_security and metadata.zk_auth_credentials_path is None:
        yield "zkEnableSecurity=true: access lists name the user that logged in, so zkAuthCredentialsPath is needed"
    files = (metadata.trust_store_path, metadata.certificate_path, metadata.key_path)
    if any(files) and not metadata.tls_enable:
        yield "metadataServiceTlsEnable=false: the files of TLS that are named are not used; set it to true"
    if (metadata.certificate_path is None) != (metadata.key_path is None):
        yield "metadataServiceCertificatePath and metadataServiceKeyPath go together: a certificate and its key"
    uri = metadata.service_uri
    if uri is not None:
        try:
            parse_metadata_service_uri(uri)
        except InvalidConfiguration as error:
            yield str(error)
    factory = metadata.ledger_manager_factory_class
    if factory is not None and factory not in KNOWN_FACTORIES:
        yield f"ledgerManagerFactoryClass={factory}: must be one of {', '.join(KNOWN_FACTORIES)}"
    if http.auth_probes and http.auth_token_file is None:
        yield "httpServerAuthProbes=true: needs httpServerAuthTokenFile, the file with the tokens"
    if http.tls_enable:
        if http.key_store_path is None:
            yield "httpServerKeyStorePath=: a PEM file is needed with httpServerTlsEnable=true"
        if http.trust_store_path is None and http.tls_client_authentication:
            yield (
                "httpServerTrustStorePath=: a PEM file is needed with httpServerTlsEnable=true, unless"
                " httpServerTlsClientAuthentication=false"
            )
    yield from _grpc_security(config)
    for name in config.access.certificate_roles or ("",):
        if name not in ROLE_NAMES:
            yield f"accessCertificateRoles={name}: must be one or some of {', '.join(ROLE_NAMES)}"
    gateway = config.gateway
    if gateway.enforce_fault_domains and gateway.add_quorum_timeout_seconds <= 0:
        yield (
            f"addEntryQuorumTimeoutSec={gateway.add_quorum_timeout_seconds}: a limit is needed with"
            " enforceMinNumFaultDomainsForWrite=true, else appends wait for ever while a rack is away"
        )


def _who_may_connect(config: BookieConfig) -> Iterator[str]:
    auth, tls = config.auth, config.tls
    if tls.required and tls.provider_factory_class is None:
        yield "tlsRequired=true: needs tlsProviderFactoryClass, without which nobody can connect"
    roles = ",".join(auth.authorized_roles)
    if auth.provider_class == CERTIFICATE_ROLES:
        if not roles:
            yield f"bookieAuthProviderFactoryClass={CERTIFICATE_ROLES}: needs authorizedRoles, those that may connect"
        if tls.provider_factory_class is None or not tls.client_authentication:
            yield (
                f"bookieAuthProviderFactoryClass={CERTIFICATE_ROLES}: needs tlsProviderFactoryClass and"
                " tlsClientAuthentication=true, since roles are in the certificates of clients"
            )
    elif roles:
        yield f"authorizedRoles={roles}: needs bookieAuthProviderFactoryClass={CERTIFICATE_ROLES}"
    elif auth.provider_class is not None and auth.client_provider_class is None:
        yield (
            f"bookieAuthProviderFactoryClass={auth.provider_class}: needs clientAuthProviderFactoryClass, by which"
            " auto-recovery, the gateway and repairs of this bookie log in to the others"
        )
    yield from _logins(auth)


def _logins(auth: AuthConfig) -> Iterator[str]:
    """Yield what each provider needs and lacks."""
    for name, provider in (
        ("bookieAuthProviderFactoryClass", auth.provider_class),
        ("clientAuthProviderFactoryClass", auth.client_provider_class),
    ):
        if provider in (SASL_BOOKIE, SASL_CLIENT) and auth.jaas_file is None:
            yield f"{name}={provider}: needs saslJaasConfigFile, the JAAS file with the section of its logins"
        if provider == SHARED_TOKEN and auth.token_file is None:
            yield f"{name}={provider}: needs authTokenFile, the file with the tokens"
        if provider == ENTRY_POINT and auth.entry_point is None:
            yield f"{name}={provider}: needs authProviderEntryPoint, the name of the provider"
    try:
        re.compile(auth.jaas_allowed_ids)
    except re.error as error:
        yield f"saslJaasClientAllowedIds={auth.jaas_allowed_ids}: is not a regular expression: {error}"


def _grpc_security(config: BookieConfig) -> Iterator[str]:
    grpc = config.grpc
    if not grpc.tls_enable:
        if grpc.client_authentication:
            yield "grpcServerTlsClientAuthentication=true: needs grpcServerTlsEnable=true"
        return
    for name, path in (("grpcServerCertificatePath", grpc.certificate_path), ("grpcServerKeyPath", grpc.key_path)):
        if path is None:
            yield f"{name}=: a PEM file is needed with grpcServerTlsEnable=true"
    if grpc.client_authentication and grpc.trust_store_path is None:
        yield "grpcServerTrustStorePath=: a PEM file is needed with grpcServerTlsClientAuthentication=true"
