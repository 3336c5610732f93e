"""Options of a client, with their units. Immutable; any thread.

The reference client's key follows each default that equals its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import BadRequest
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.tls import PEM
from bookie_protocol.traffic_class import TrafficClass
from bookie_protocol.wire.auth import ClientAuthProvider
from bookie_protocol.wire.framing import DEFAULT_MAX_FRAME_SIZE, LEAST_RECEIVED_FRAME_SIZE

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

MIB: Final = 1024 * 1024
_POSITIVE_OR_NONE: Final = ("add_quorum_timeout", "explicit_lac_interval")
_POSITIVE: Final = (
    "connect_timeout",
    "add_timeout",
    "read_timeout",
    "min_adaptive_timeout",
    "max_adaptive_timeout",
    "reconnect_delay",
    "max_reconnect_delay",
    "max_frame_size",
    "channels_per_bookie",
    "failure_history",
    "quarantine_errors",
    "quarantine_interval",
    "quarantine_time",
    "write_window_entries",
    "write_window_bytes",
    "write_linger_bytes",
    "read_window_entries",
    "read_window_bytes",
    "batch_read_bytes",
    "batch_read_entries",
    "max_speculative_read_timeout",
    "degraded_retry_interval",
    "long_poll_timeout",
    "tail_patience",
    "recovery_window_entries",
    "recovery_window_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Encryption of connections. The files are PEM, or key stores of Java.

    They are read at every connect, so that renewed certificates are used without a restart."""

    ca_file: str | None = None
    """Certificates to trust; None: those of the system (`tlsTrustStore`)."""
    certificate_file: str | None = None
    """This client's certificate chain, if the bookies demand one (`tlsCertificatePath`)."""
    key_file: str | None = None
    """Its private key (`tlsKeyStore`); None: it is in `certificate_file`."""
    key_password_file: str | None = None
    """File with the key's password (`tlsKeyStorePasswordPath`)."""
    key_type: str = PEM
    """PEM, or PKCS12 or JKS: then `key_file` has the certificate chain as well (`tlsKeyStoreType`)."""
    ca_type: str = PEM
    """The same of `ca_file` (`tlsTrustStoreType`)."""
    ca_password_file: str | None = None
    """File with the password of `ca_file`, if that is not PEM (`tlsTrustStorePasswordPath`)."""
    check_hostname: bool = True
    """If True, a bookie's certificate must name the host that the bookie registered (`tlsHostnameVerificationEnabled`,
    whose default is false)."""
    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3`; empty: both (`tlsEnabledProtocols`)."""
    cipher_suites: tuple[str, ...] = ()
    """Cipher suites by Java's names or OpenSSL's; empty: OpenSSL's choice. TLS 1.3 is used only if one of its suites is
    named, and then with all three (`tlsEnabledCipherSuites`)."""

    def __post_init__(self) -> None:
        if self.key_type == PEM and self.key_file is not None and self.certificate_file is None:
            raise BadRequest("TLS option key_file needs certificate_file, the certificate of that key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Immutable; one object may serve many clients."""

    protocol_version: int = 3
    """Wire protocol spoken with bookies: 3 (protobuf) or 2 (binary, `useV2WireProtocol`)."""
    connect_timeout: float = 10.0
    """Seconds to establish a connection (`clientConnectTimeoutMillis`)."""
    add_timeout: float = 5.0
    """Seconds until a bookie must have answered an add (`addEntryTimeoutSec`)."""
    read_timeout: float = 5.0
    """Seconds until a bookie must have answered a read (`readEntryTimeoutSec`)."""
    adaptive_timeouts: bool = False
    """Let the time-outs of adds and single reads follow each bookie: ten times what its answers of late took at most as
    a rule, between the two bounds; doubled while requests time out. `add_timeout` and `read_timeout` count for a bookie
    of which nothing was measured within `failure_history`, and for everything else (fencing, batches, the last add
    confirmed) always. False: they are fixed, as in the Java client."""
    min_adaptive_timeout: float = 1.0
    """Lower bound of adaptive time-outs, in seconds: a bookie that pauses for less is never replaced for it."""
    max_adaptive_timeout: float = 30.0
    """Upper bound of adaptive time-outs, in seconds: what a dead bookie that was slow before can cost an add."""
    reconnect_delay: float = 0.1
    """Seconds after a failed attempt to connect during which requests to that bookie fail at once; doubles at each
    failure. A connection that is lost sooner than that counts as such; after any other the next request connects."""
    max_reconnect_delay: float = 5.0
    """Upper limit of that delay, in seconds."""
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE
    """Bytes of the largest frame that is sent, length word included (`nettyMaxFrameSizeBytes`); no more than the
    bookies' limit. Frames of `received_frame_size` bytes are received."""
    channels_per_bookie: int = 1
    """Connections to each bookie; all requests of one ledger use the same one (`numChannelsPerBookie`)."""
    tls: TlsOptions | None = None
    """Encrypt the connections; None: plain (`tlsProviderFactoryClass`)."""
    auth: ClientAuthProvider | None = None
    """Authentication method; None: no authentication (`clientAuthProviderFactoryClass`)."""

    metadata_service: MetadataServiceOptions = field(default_factory=MetadataServiceOptions)
    """Options of the metadata service for a client that was given its URI: login to ZooKeeper (`auth`, `sasl`), access
    lists, time-out. Ignored if the client was given an open service."""

    failure_history: float = 60.0
    """Seconds for which a failed or slow read counts against a bookie (`bookieFailureHistoryExpirationMSec`)."""
    quarantine: bool = True
    """Keep bookies with many errors out of new ensembles while others that obey the placement rule suffice
    (`bookieHealthCheckEnabled`, whose default is false). `bookie cluster client-quarantine off` ends it for all
    clients of a cluster."""
    quarantine_errors: int = 100
    """Errors and time-outs within the interval that put a bookie into quarantine
    (`bookieErrorThresholdPerInterval`). The time-outs of one stall, which follow each other within `add_timeout`, count
    for at most a third of it."""
    quarantine_interval: float = 60.0
    """Seconds (`bookieHealthCheckIntervalSeconds`). So often a bookie in quarantine is probed, too."""
    quarantine_time: float = 1800.0
    """Seconds that a quarantine lasts at most (`bookieQuarantineTimeSeconds`); it ends when the bookie answers a
    probe. For the same time a writer does not choose a bookie that refused its ledger for another one of the id."""
    quarantine_ratio: float = 1.0
    """Probability with which this client takes part: below 1, some of a cluster's clients stay with the bookie
    (`bookieQuarantineRatio`)."""
    quarantine_connection_errors: bool = False
    """If True, failed connections count too (`bookieConnectionErrorQuarantineEnabled`)."""

    write_window_entries: int = 10_000
    """Adds of one ledger that may wait for their acknowledgement; beyond it `append` and `submit` wait. This and the
    limits in bytes do what the reference's `throttle` is for, which allows so many adds a second because nothing else
    bounds their memory there; there is no limit on the rate."""
    write_window_bytes: int = 32 * MIB
    """Bytes of those adds."""
    write_linger_bytes: int = 64 * MIB
    """Bytes of acknowledged adds of one ledger that a slow bookie has not answered yet."""
    read_window_entries: int = 1_000
    """Reads of one range, one request each, that may be under way or wait to be consumed."""
    read_window_bytes: int = 16 * MIB
    """Bytes of one range, read singly or by batch, that may be under way or wait to be consumed: as far as the
    average entry size tells for single reads, exactly for batches."""
    batch_reads: bool = True
    """Read ranges by requests for many entries where every bookie of the ensemble holds every entry (ensemble
    size = write quorum) and the bookie can; single reads otherwise (`batchReadEnabled`)."""
    batch_read_bytes: int = MIB
    """Bytes of one such answer; also bounded by `max_frame_size` and an eighth of `read_window_bytes`."""
    batch_read_entries: int = 2_000
    """Entries of one such answer; 1 turns them off."""
    first_speculative_read_timeout: float | None = None
    """Seconds after which the next replica is asked too. None: as the bookie's answers of late suggest; 0:
    never, the next one is asked only when one failed (`firstSpeculativeReadTimeout`, whose default is 2 s)."""
    max_speculative_read_timeout: float = 2.0
    """Upper limit of that delay, in seconds (`maxSpeculativeReadTimeout`)."""
    speculative_read_backoff_multiplier: float = 2.0
    """Factor by which the delay grows with each further replica (`speculativeReadTimeoutBackoffMultiplier`)."""
    parallel_reads: bool = False
    """Ask all replicas at once and take the first good answer: shorter waits for several times the traffic."""
    sticky_reads: bool = False
    """A reader stays with one bookie of the ensemble until it fails, so that one bookie's read-ahead serves the
    whole scan; where ensemble size = write quorum (`stickyReadSEnabled`)."""
    reorder_reads: bool = True
    """Ask healthy and near replicas first; False: in the order of the striping alone
    (`reorderReadSequenceEnabled`)."""
    random_read_order: bool = False
    """Shuffle replicas that are equally good, instead of keeping the order of the striping
    (`ensembleRandomReadReordering`)."""
    read_reorder_threshold: int = 0
    """Number of waiting requests by which the first replica may exceed the least busy one before the least busy one is
    asked first; 0: keep the order (`readReorderThresholdPendingRequests`)."""

    traffic_class: TrafficClass = TrafficClass.ONLINE
    """Class of this client's reads of entries. Podkeeper's bookies serve `BATCH`, for jobs, behind all other requests,
    so that it holds up neither writers nor readers; other bookies ignore it. Fencing, recovery, tailing's long polls
    and the last add confirmed are never of the class `BATCH`."""

    long_poll_timeout: float = 5.0
    """Seconds for which a bookie is asked to wait for news of an open ledger that is tailed, protocol version 3
    only."""
    tail_patience: float = 60.0
    """Seconds for which a tail goes on trying to read a confirmed entry while bookies are unreachable, or refuse
    because they have too much to do."""
    keep_metadata_updated: bool = False
    """Readers follow the metadata of closed ledgers too, so that they know copies that re-replication moved before
    reads fail (the reference's open option of this name)."""
    recovery_window_entries: int = 256
    """Entries that a recovery reads ahead of those that are stored again (`recoveryReadBatchSize`, whose default
    is 1)."""
    recovery_window_bytes: int = 16 * MIB
    """Bytes of those entries, as far as the sizes seen tell."""

    opportunistic_striping: bool = False
    """Create a ledger with a smaller ensemble, down to its write quorum, when there are too few bookies
    (`opportunisticStriping`)."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only when the ack quorum is out of reach (`delayEnsembleChange`)."""
    max_ensemble_changes: int | None = None
    """Ensemble changes of one ledger that may be stored; None: no limit (`maxNumEnsembleChanges`). Then its writer goes
    on without what fails, until the ack quorum is out of reach."""
    degraded_retry_interval: float = 1.0
    """Seconds between attempts to replace, or to reach again, a failed bookie for which there was no spare; and at most
    between ensemble changes that entries wait for, if there were many lately."""
    add_quorum_timeout: float | None = None
    """Seconds in which an add must reach its ack quorum, or its writer gives up; None: no limit
    (`addEntryQuorumTimeoutSec`, where -1 stands for none)."""
    enforce_fault_domains: bool = False
    """An add is acknowledged only when bookies in as many racks (regions, zones) have it as the placement policy
    demands of a write set (`enforceMinNumFaultDomainsForWrite`). Needs `add_quorum_timeout`: adds wait while a rack is
    away. Creating a ledger fails when there are too few."""
    explicit_lac_interval: float | None = None
    """Seconds between two checks whether a pausing writer must send its last add confirmed to the bookies; None: never.
    Protocol version 3 only (`explicitLacInterval`, in ms, where 0 means never)."""

    tracer: Tracer | None = None
    """Tracer of OpenTelemetry, as `opentelemetry.trace.get_tracer` returns it, for a span of each append and read. A
    call that its sampler takes names its span to the bookies (`traceparent`, protocol version 3), whose spans are in
    the same trace then. None: no spans, and nothing of OpenTelemetry is imported."""

    @property
    def received_frame_size(self) -> int:
        """Return the bytes of the largest frame that is accepted.

        It is more than writers may send, so that entries that another client wrote with a larger limit can be read and
        copied without an option."""
        return max(self.max_frame_size, LEAST_RECEIVED_FRAME_SIZE)

    def __post_init__(self) -> None:
        if self.protocol_version not in (2, 3):
            raise BadRequest(f"protocol_version {self.protocol_version} is not 2 or 3")
        if self.traffic_class not in tuple(TrafficClass):
            raise BadRequest(f"client option traffic_class must be online or batch, not {self.traffic_class}")
        if not 0.0 <= self.quarantine_ratio <= 1.0:
            raise BadRequest(f"client option quarantine_ratio must be from 0 to 1, not {self.quarantine_ratio}")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise BadRequest(f"client option {name} must be positive, not {getattr(self, name)}")
        if self.first_speculative_read_timeout is not None and self.first_speculative_read_timeout < 0:
            raise BadRequest(
                "client option first_speculative_read_timeout must be positive, 0 (never) or None (adaptive), not "
                f"{self.first_speculative_read_timeout}"
            )
        if self.speculative_read_backoff_multiplier < 1:
            raise BadRequest(
                "client option speculative_read_backoff_multiplier must be at least 1, not "
                f"{self.speculative_read_backoff_multiplier}"
            )
        if self.read_reorder_threshold < 0:
            raise BadRequest(
                f"client option read_reorder_threshold must not be negative: {self.read_reorder_threshold}"
            )
        for name in _POSITIVE_OR_NONE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise BadRequest(f"client option {name} must be positive, or None to turn it off, not {value}")
        if self.min_adaptive_timeout > self.max_adaptive_timeout:
            raise BadRequest(
                f"client option min_adaptive_timeout ({self.min_adaptive_timeout}) must not be above"
                f" max_adaptive_timeout ({self.max_adaptive_timeout})"
            )
        if self.enforce_fault_domains and self.add_quorum_timeout is None:
            raise BadRequest(
                "client option enforce_fault_domains needs add_quorum_timeout: else adds wait for ever while a rack is"
                " away"
            )
        if self.explicit_lac_interval is not None and self.protocol_version != 3:
            raise BadRequest("client option explicit_lac_interval needs protocol_version=3")

    @property
    def reads_are_batch(self) -> bool:
        """Return True if reads of entries are marked for the traffic class `batch`."""
        return self.traffic_class == TrafficClass.BATCH
