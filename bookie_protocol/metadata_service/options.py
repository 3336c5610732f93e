"""The options with which a metadata service is opened: address, time-outs, credentials, limits.

Any thread.

Sources: docs/internals/metadata-layout.md, sections 8.1, 12, 13 and 16.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.ledger_metadata.model import CURRENT_FORMAT_VERSION

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.interface import LedgerLayout

DEFAULT_ROOT: Final = "/ledgers"
DEFAULT_MAX_NODE_BYTES: Final = 1024 * 1024 - 1
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
_NEWEST_FORMAT: Final = -1


class MetadataDriver(Enum):
    """ZOOKEEPER; ETCD; OXIA; SERVED: an embedded store of another process; OWNED: an embedded store of this process."""

    ZOOKEEPER = "zk"
    ETCD = "etcd"
    OXIA = "oxia"
    SERVED = "embedded"
    OWNED = "file"


@dataclass(frozen=True, slots=True)
class MetadataServiceUri:
    """A parsed URI.

    `layout` None: what the cluster has. `folder` is set for OWNED only, `hosts` for the others. `namespace` is Oxia's;
    `session_seconds` the time-out of sessions that the URI asks for, None: that of the options; `client_file` a file of
    Oxia's Java client.
    """

    driver: MetadataDriver
    root: str
    layout: LedgerLayout | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    folder: str | None = None
    namespace: str = ""
    session_seconds: float | None = None
    client_file: str | None = None

    @property
    def connect_string(self) -> str:
        """`host:port,host:port`, as ZooKeeper clients want it."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


class SaslMechanism(Enum):
    """The login method for a ZooKeeper server; GSSAPI (Kerberos) needs `podkeeper[kerberos]` and a ticket."""

    DIGEST_MD5 = "DIGEST-MD5"
    GSSAPI = "GSSAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslLogin:
    """A login to ZooKeeper by SASL. `username` is the principal with GSSAPI (None: that of the ticket)."""

    mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5
    username: str | None = None
    password: str | None = None
    service: str = "zookeeper"
    """First part of the servers' own principal."""

    def __post_init__(self) -> None:
        if self.mechanism is SaslMechanism.DIGEST_MD5 and not (self.username and self.password):
            raise InvalidConfiguration("a SASL login by DIGEST-MD5 needs a user name and a password")

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism.value}, {self.username})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTls:
    """Connections to the metadata service are encrypted, and its certificate must name the host that is connected to.
    The files are PEM, and read again for new connections."""

    ca_file: str | None = None
    """Certificates to trust, and no others; None: those of the system."""
    certificate_file: str | None = None
    """This client's certificate chain, if the service demands one."""
    key_file: str | None = None
    """Its private key, not encrypted."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidConfiguration("TLS to the metadata service: a certificate and its key go together")

    def context(self) -> ssl.SSLContext:
        """Return a context with the files as they are now. Raises OSError."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file, password="")
        return context

    def check(self) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        try:
            self.context()
        except OSError as error:
            reason = "no PEM files that belong together" if isinstance(error, ssl.SSLError) else error.strerror
            files = ", ".join(path for path in (self.ca_file, self.certificate_file, self.key_file) if path is not None)
            raise InvalidConfiguration(f"TLS to the metadata service, of {files}: {reason}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServiceOptions:
    """`auth`, `sasl` and `secure` mean nothing to embedded stores; `tls` and `token_file` nothing to one that this
    process owns."""

    timeout: float = DEFAULT_TIMEOUT_SECONDS
    """Seconds: time-out of the session, and of every call that names none (`zkTimeout`)."""
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """ZooKeeper's (scheme, credential) pairs, such as ("digest", "user:password"); for etcd this one, or `sasl`."""
    sasl: SaslLogin | None = None
    secure: bool = False
    """New nodes belong to their creator alone (`zkEnableSecurity`)."""
    tls: MetadataTls | None = None
    """None: connections are not encrypted."""
    token_file: str | None = None
    """File whose first token is shown to Oxia, or to an embedded store that another process serves; it is read again
    when it changes. A token is shown over TLS, or to this machine."""
    requests_per_second: float = 0.0
    """Requests a second, in bursts of up to a second's worth (`zkRequestRateLimit`); 0: no limit."""
    max_node_bytes: int = DEFAULT_MAX_NODE_BYTES
    """Maximum bytes of one write, as `jute.maxbuffer` of the ZooKeeper servers, which hang up on larger ones."""
    ledger_metadata_version: int = CURRENT_FORMAT_VERSION
    """Newest format that new ledgers are written in: 1, 2, 3, or -1 for the newest (`ledgerMetadataVersion`)."""
    follow_migration: bool = True
    """Take part in Pulsar's migration of ZooKeeper's metadata to Oxia (`metadataServiceFollowMigration`)."""
    make_store: bool = True
    """If True, make an embedded store in a folder that holds none; else raise `MetadataNotFound`."""

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise InvalidConfiguration(f"the metadata service's time-out is {self.timeout:g} s: it must be positive")
        if self.requests_per_second < 0:
            raise InvalidConfiguration(f"zkRequestRateLimit={self.requests_per_second:g}: it must not be negative")
        if self.ledger_metadata_version not in (_NEWEST_FORMAT, *range(1, CURRENT_FORMAT_VERSION + 1)):
            raise InvalidConfiguration(
                f"ledgerMetadataVersion={self.ledger_metadata_version}: there are formats 1 to "
                f"{CURRENT_FORMAT_VERSION}, and -1 for the newest"
            )
        if self.secure and not self.auth and self.sasl is None:
            raise InvalidConfiguration(
                "zkEnableSecurity=true needs credentials, since the access list of a node names its creator; set "
                "zkAuthCredentialsPath"
            )

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password, for services that know no other schemes."""
        if self.sasl is not None and self.sasl.username is not None and self.sasl.password is not None:
            return self.sasl.username, self.sasl.password
        for _, credential in self.auth[:1]:
            user, _, password = credential.partition(":")
            return user, password
        return None

    @property
    def format_version(self) -> int:
        """The newest format for new ledgers, 1 to 3."""
        newest = self.ledger_metadata_version == _NEWEST_FORMAT
        return CURRENT_FORMAT_VERSION if newest else self.ledger_metadata_version
