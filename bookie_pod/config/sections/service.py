"""HTTP, gRPC, metrics, logs and memory: what surrounds the bookie.

Source: docs/internals/bookie-behaviour.md, sections 1.10 and 13.6. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bookie_pod.config.keys import INT_MAX, MIB, key


class HttpListener(NamedTuple):
    """The address on which the HTTP server listens."""

    host: str
    port: int
    port_key: str
    """The key that set the port, for messages."""
    admin: bool
    """Serve the admin API too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """HTTP: probes, metrics, admin API"""

    server_enabled: bool = key("httpServerEnabled", True)
    """Serve the admin API, the probes and the metrics on `httpServerPort`. False: no admin API; probes and
    metrics are served on `prometheusStatsHttpPort`, as Apache's Prometheus provider does. Apache's default
    is false."""
    server_port: int = key("httpServerPort", 8000, at_least=0, at_most=65535)
    """Port of the HTTP server; 0 takes any free port. Apache's own default is 8080, but its charts and
    runbooks use 8000, the Prometheus port."""
    server_host: str = key("httpServerHost", "0.0.0.0")
    """Address that the HTTP server binds to; `0.0.0.0` and `::` are all addresses, IPv4 and IPv6. Unless it demands a
    token (`httpServerAuthTokenFile`) or client certificates (`httpServerTlsEnable`), it takes changes from its own
    machine alone, see `allowInsecureAccess`."""
    server_class: str | None = key("httpServerClass", None, no_effect=True)
    """Has no effect: there is one HTTP server."""
    auth_token_file: str | None = key("httpServerAuthTokenFile", None, own=True)
    """File with the bearer tokens of the admin API, one a line, each followed by its roles, such as
    `reader,operator`, and by a name for the audit trail; without roles it is `admin`. Requests must carry
    `Authorization: Bearer <token>`. It is read again when it changes. The bookie's own commands, and bookies that ask
    each other, show the first one. Unset: no token is asked for."""
    auth_probes: bool = key("httpServerAuthProbes", False, own=True)
    """Demand the token of `httpServerAuthTokenFile` on probes and metrics too. Kubernetes sends none by itself."""
    tls_enable: bool = key("httpServerTlsEnable", False)
    """Serve HTTPS, and demand client certificates unless `httpServerTlsClientAuthentication=false`. The PEM files are
    read again when they change."""
    tls_client_authentication: bool = key("httpServerTlsClientAuthentication", True, own=True)
    """Demand a certificate from clients with `httpServerTlsEnable`, as Apache BookKeeper does. Probes of
    Kubernetes have none: set it to false there, and demand a token (`httpServerAuthTokenFile`)."""
    certificate_path: str | None = key("httpServerCertificatePath", None, own=True)
    """PEM file with the server's certificate chain. Unset: it is in `httpServerKeyStorePath`, after the key."""
    key_store_path: str | None = key("httpServerKeyStorePath", None)
    """PEM file with the server's private key and, without `httpServerCertificatePath`, its certificate chain."""
    key_store_password: str | None = key("httpServerKeyStorePassword", None, secret=True)
    """Password of the private key."""
    trust_store_path: str | None = key("httpServerTrustStorePath", None)
    """PEM file with the certificates of the authorities that sign client certificates, and those of bookies whose admin
    API this one asks. Without client authentication it may be unset: then bookies are trusted as the system says."""
    trust_store_password: str | None = key("httpServerTrustStorePassword", None, secret=True, no_effect=True)
    """Has no effect: PEM certificates carry no password."""
    stats_enable: bool = key("prometheusStatsHttpEnable", True)
    """Serve probes and metrics even with `httpServerEnabled=false`. If both are false no port is opened, and
    Kubernetes cannot probe the pod over HTTP."""
    stats_address: str = key("prometheusStatsHttpAddress", "0.0.0.0")
    """Address of probes and metrics with `httpServerEnabled=false`."""
    stats_port: int = key("prometheusStatsHttpPort", 8000, at_least=0, at_most=65535)
    """Port of probes and metrics with `httpServerEnabled=false`."""

    @property
    def listener(self) -> HttpListener | None:
        """Return the address to listen on, or None if both switches are off."""
        if self.server_enabled:
            return HttpListener(self.server_host, self.server_port, "httpServerPort", admin=True)
        if self.stats_enable:
            return HttpListener(self.stats_address, self.stats_port, "prometheusStatsHttpPort", admin=False)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """gRPC"""

    server_enabled: bool = key("grpcServerEnabled", True, own=True)
    """Serve gRPC: the standard health service, reflection, and the gateway (`gatewayEnabled`)."""
    server_port: int = key("grpcServerPort", 3182, at_least=0, at_most=65535, own=True)
    """Port of the gRPC server; 0 takes any free port."""
    server_host: str = key("grpcServerHost", "0.0.0.0", own=True)
    """Address that the gRPC server binds to; `0.0.0.0` and `::` are all addresses, IPv4 and IPv6. Unless it demands a
    token (`grpcServerAuthTokenFile`) or client certificates (`grpcServerTlsClientAuthentication`), it serves ledgers to
    its own machine alone, see `allowInsecureAccess`."""
    tls_enable: bool = key("grpcServerTlsEnable", False, own=True)
    """Serve gRPC over TLS, and nothing unencrypted on that port. Kubernetes' own gRPC probes know no TLS: probe the
    HTTP port then."""
    certificate_path: str | None = key(
        "grpcServerCertificatePath", None, own=True, derived="`tlsCertificatePath`, if `tlsKeyStoreType` is PEM"
    )
    """PEM file with the certificate chain for `grpcServerTlsEnable`. The three files are read again when they
    change."""
    key_path: str | None = key(
        "grpcServerKeyPath", None, own=True, derived="`tlsKeyStore`, if `tlsKeyStoreType` is PEM"
    )
    """PEM file with the private key for `grpcServerTlsEnable`, not encrypted."""
    trust_store_path: str | None = key(
        "grpcServerTrustStorePath", None, own=True, derived="`tlsTrustStore`, if `tlsTrustStoreType` is PEM"
    )
    """PEM file with the certificates of the authorities that sign client certificates, for
    `grpcServerTlsClientAuthentication`."""
    client_authentication: bool = key("grpcServerTlsClientAuthentication", False, own=True)
    """Demand a certificate from clients with `grpcServerTlsEnable`."""
    auth_token_file: str | None = key("grpcServerAuthTokenFile", None, own=True)
    """File with bearer tokens and their roles, as in `httpServerAuthTokenFile`: every call but those of the health
    service must carry the metadata `authorization: Bearer <token>`. It is read again when it changes. Unset: no token
    is asked for. Use it with TLS (`grpcServerTlsEnable`): gRPC libraries refuse to send tokens over a connection that
    is not encrypted unless forced to."""

    @property
    def knows_its_clients(self) -> bool:
        """Return True if clients must authenticate."""
        return self.auth_token_file is not None or (self.tls_enable and self.client_authentication)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Roles and the audit trail of HTTP and gRPC"""

    allow_insecure: bool = key("allowInsecureAccess", False, own=True)
    """Allow every client that reaches the HTTP or the gRPC port everything, if that port demands neither tokens
    nor certificates: to read and delete every ledger. Without this key a client of such a port from elsewhere may only
    read states and lists over HTTP; requests from the same machine, by a loopback address and through no proxy, may do
    everything."""
    certificate_roles: tuple[str, ...] = key("accessCertificateRoles", ("viewer",), own=True)
    """Roles on both ports of a certificate whose subject names no role, where certificates are demanded and no tokens:
    `viewer`, `reader`, `writer`, `operator`, `admin`. A certificate whose subject names some of these, as in
    `OU=0:viewer` or `OU=0:bookie,operator`, has those alone; one that names only others has no rights."""
    audit_log_file: str | None = key("auditLogFile", None, own=True)
    """File to which each change through HTTP, gRPC or a command, and each refusal, is appended as one line of JSON:
    who, from where, what, with which outcome; refusals also of the bookie's own port, where a client shows no
    credential, a wrong one, or another password than a ledger's. It may be moved away at any time, and several
    processes may share it. Unset: the lines are in the ordinary log, at `info`, without those of clients that write
    ledgers over gRPC, and commands write none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Metrics"""

    enable_statistics: bool = key("enableStatistics", True, no_effect=True)
    """Has no effect: counting costs next to nothing and is always on."""
    stats_provider_class: str | None = key("statsProviderClass", None, no_effect=True)
    """Has no effect: metrics are always served as Prometheus text."""
    latency_rollover_seconds: int = key("prometheusStatsLatencyRolloverSeconds", 60, at_least=1, at_most=INT_MAX)
    """Period that the quantiles of a summary cover, in seconds."""
    expose_jvm_metrics: bool = key("exposeDefaultJVMMetrics", True)
    """Export metrics of the process (`process_*`). There is no JVM."""
    task_execution_stats: bool = key("enableTaskExecutionStats", False, no_effect=True)
    """Has no effect: there are no executor tasks to time."""
    limit_stats_logging: bool = key("limitStatsLogging", True, no_effect=True)
    """Has no effect: metrics are not logged."""
    sanity_check_metrics: bool = key("sanityCheckMetricsEnabled", False)
    """Run the sanity test every minute and export its result as `bookie_SERVER_SANITY`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Memory"""

    budget_mb: int = key(
        "memoryBudgetMb",
        1024,
        at_least=16,
        at_most=16_777_216,
        own=True,
        derived="half of the container's or machine's memory without what the process beside it may have that serves"
        " gRPC (twice `gatewayMemoryMb`), and 128 less than the whole of it at most, between 64 and 1024",
    )
    """Memory that caches and queues are sized from, in MiB. Takes the place of the JVM's direct memory:
    defaults given as a percentage are a share of it, and read and write cache together must fit into it.
    The process needs as much again, and at least 128 MiB, for the interpreter, the index and what is under way; keep
    the container's limit at twice this, or at 128 MiB more than this if that is larger."""

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.budget_mb * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Life cycle"""

    death_watch_interval_ms: int = key("bookieDeathWatchInterval", 1000, at_least=1, at_most=INT_MAX)
    """Interval at which the node checks that its parts are alive, in ms."""
    extra_server_components: tuple[str, ...] = key("extraServerComponents", ())
    """Java classes that run beside a bookie, of which there are none here. That of the stream storage (table service,
    port 4181) is refused, because the state of Pulsar's functions would be missing; others are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logs"""

    format: str = key("logFormat", "json", choices=("json", "console"), own=True)
    """`json`: one object per line. `console`: for people."""
    level: str = key("logLevel", "info", choices=("debug", "info", "warning", "error"), own=True)
    """Minimum severity that is logged."""
