"""The gateway: `LedgerService` on the gRPC port. All keys are our own. Frozen; any thread may read."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, MIB, key


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Gateway"""

    enabled: bool = key(
        "gatewayEnabled",
        True,
        own=True,
        derived="false if bookies demand certificates (`tlsClientAuthentication`) or logins"
        " (`bookieAuthProviderFactoryClass`) and this port nothing, else true",
    )
    """Serve `LedgerService` on `grpcServerPort`: ledgers for clients of any language, on this machine alone until the
    port demands a token (`grpcServerAuthTokenFile`) or a certificate (`grpcServerTlsClientAuthentication`), see
    `allowInsecureAccess`; encrypt it too (`grpcServerTlsEnable`). Where bookies demand certificates or logins of their
    clients and this port demands neither, the gateway is off unless this key is set, because it would let clients past
    them."""
    memory_mb: int = key(
        "gatewayMemoryMb",
        256,
        at_least=64,
        at_most=16_777_216,
        own=True,
        derived="`memoryBudgetMb`, at least 128, at most 256",
    )
    """Memory budget, in MiB, of the process that serves the gRPC port beside a bookie. Connections are shut before it
    holds twice as much. `bookie gateway` goes by `memoryBudgetMb`."""
    max_open_writers: int = key("gatewayMaxOpenWriters", 1000, at_least=1, at_most=INT_MAX, own=True)
    """Ledgers that may be written through this gateway at the same time; beyond, RESOURCE_EXHAUSTED."""
    max_streams: int = key("gatewayMaxStreams", 256, at_least=1, at_most=100_000, own=True)
    """Streaming calls (Append, Read, Tail, List) that may run at the same time; beyond, RESOURCE_EXHAUSTED. No
    connection has more of them than are left for all others, so one alone has half."""
    idle_writer_seconds: int = key("gatewayIdleWriterSeconds", 300, at_least=1, at_most=INT_MAX, own=True)
    """A writer to which nothing was appended for so long is ended, and its ledger closed, in seconds."""
    max_message_bytes: int = key(
        "gatewayMaxMessageBytes",
        16 * MIB,
        at_least=65_536,
        at_most=INT_MAX,
        own=True,
        derived="an eighth of `clientMemoryMb`, at least one largest entry, at most 16 MiB",
    )
    """Largest request that is accepted, in bytes: a batch of entries."""
    read_batch_bytes: int = key("gatewayReadBatchBytes", MIB, at_least=1, at_most=INT_MAX, own=True)
    """Upper limit of the entries in one response, in bytes. One entry that is larger is sent alone. gRPC clients refuse
    responses above 4 MiB by default."""
    max_pending_bytes: int = key(
        "gatewayMaxPendingBytes",
        64 * MIB,
        at_least=1,
        at_most=INT_MAX,
        own=True,
        derived="half of `clientMemoryMb`, at most 64 MiB",
    )
    """Bytes of appends that may wait for their acknowledgement, all calls together; beyond, requests are read no
    further."""
    add_quorum_timeout_seconds: int = key(
        "addEntryQuorumTimeoutSec",
        -1,
        at_most=INT_MAX,
        derived="60 if `enforceMinNumFaultDomainsForWrite` is true, else -1",
    )
    """Seconds in which an append of the gateway must reach its ack quorum, or its writer gives up. 0 or less: no
    limit."""
    enforce_fault_domains: bool = key("enforceMinNumFaultDomainsForWrite", False)
    """An append of the gateway is acknowledged only when bookies in as many racks, regions or zones have it as the
    placement policy demands of a write set."""
