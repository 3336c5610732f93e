"""Authentication, TLS and the metadata service.

Source: docs/internals/bookie-behaviour.md, sections 1.1 and 1.10, and on docs/internals/metadata-layout.md, sections 2
and 16. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie_pod.config.keys import INT_MAX, key

CERTIFICATE_ROLES: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"
SASL_BOOKIE: Final = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
SASL_CLIENT: Final = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
SHARED_TOKEN: Final = "dev.podkeeper.SharedToken"
ENTRY_POINT: Final = "dev.podkeeper.EntryPoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """Authentication and authorisation"""

    provider_class: str | None = key(
        "bookieAuthProviderFactoryClass", None, choices=(CERTIFICATE_ROLES, SASL_BOOKIE, SHARED_TOKEN, ENTRY_POINT)
    )
    """Provider that every connection must authenticate with, by the name of Apache's class where there is one.
    `BookieAuthZFactory`: the role in the certificate of the client, which must be one of `authorizedRoles`.
    `SASLBookieAuthProviderFactory`: SASL: user and password by DIGEST-MD5, or Kerberos (`saslJaasConfigFile`).
    `SharedToken`: a token that all share (`authTokenFile`), for clients of Podkeeper. `EntryPoint`: one of your own
    (`authProviderEntryPoint`). Unset: none."""
    authorized_roles: tuple[str, ...] = key("authorizedRoles", ())
    """Roles that may connect, with `BookieAuthZFactory`. A role is in the organisational unit of a certificate's
    subject, as in `OU=0:broker`. The bookies' own certificates need one too, for auto-recovery and the gateway."""
    permitted_startup_users: tuple[str, ...] = key("permittedStartupUsers", ())
    """Users that may run this process. Empty: all."""
    client_provider_class: str | None = key(
        "clientAuthProviderFactoryClass", None, choices=(SASL_CLIENT, SHARED_TOKEN, ENTRY_POINT)
    )
    """Provider by which clients of this configuration (auto-recovery, the gateway, repairs, commands) log in to
    bookies: the counterpart of `bookieAuthProviderFactoryClass`. Certificate roles need none."""
    client_optional: bool = key("clientAuthOptional", False, own=True)
    """Let those clients go on with bookies that ask for no login, while a cluster is changed to logins. Without this
    key such a bookie is refused where the login is mutual (SASL, `SharedToken`): it has proved nothing."""
    jaas_file: str | None = key("saslJaasConfigFile", None, own=True)
    """JAAS file for SASL, as Java's `java.security.auth.login.config` names it. It is read again when it changes;
    later logins use it, on both sides."""
    jaas_bookie_section: str = key("saslJaasBookieSectionName", "Bookie")
    """Section of that file with the users that may log in to this bookie, each as `user_NAME="password"`; or with a
    `Krb5LoginModule`, whose `keyTab` has the keys of `principal`, `bookkeeper/HOST@REALM`."""
    jaas_client_section: str = key("saslJaasClientSectionName", "BookKeeper")
    """Section with the login of clients: `username` and `password`; or a `Krb5LoginModule` with `useKeyTab`, `keyTab`
    and `principal`, or with `useTicketCache` (and `ticketCache`)."""
    jaas_auditor_section: str | None = key(
        "saslJaasAuditorSectionName",
        None,
        derived="`Auditor` if the file has that section, else `saslJaasClientSectionName`",
    )
    """Section with the login of auto-recovery."""
    jaas_allowed_ids: str = key("saslJaasClientAllowedIds", ".*bookkeeper.*")
    """Regular expression for SASL that the whole name of a user must match; for Kerberos, the principal with its
    realm."""
    token_file: str | None = key("authTokenFile", None, own=True)
    """File for `SharedToken` with tokens of at least 16 characters, one a line. A bookie accepts clients that have
    one of them, a client uses the first. The token itself never goes over the wire. The file is read again when it
    changes."""
    entry_point: str | None = key("authProviderEntryPoint", None, own=True)
    """Name of the provider for `EntryPoint`, in the groups `podkeeper.bookie_auth` and `podkeeper.client_auth` of
    the entry points of installed Python packages (docs/client-options.md)."""
    entry_point_file: str | None = key("authProviderConfigFile", None, own=True)
    """File that such a provider is given the path of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS"""

    provider_factory_class: str | None = key("tlsProviderFactoryClass", None)
    """Set (`org.apache.bookkeeper.tls.TLSContextFactory`): clients may switch a connection to TLS."""
    provider: str = key("tlsProvider", "OpenSSL", choices=("OpenSSL", "JDK"), no_effect=True)
    """Has no effect: TLS is always that of OpenSSL."""
    required: bool = key("tlsRequired", False, own=True)
    """Refuse every request until the client has switched its connection to TLS. Needs `tlsProviderFactoryClass`.
    Without this key clients that do not use TLS are served as well, also with `tlsClientAuthentication`, as by Apache's
    bookies: set it once all clients use TLS."""
    client_authentication: bool = key("tlsClientAuthentication", False)
    """Demand a certificate from clients that switch to TLS. Clients that do not are kept out by `tlsRequired`."""
    key_store_type: str = key("tlsKeyStoreType", "JKS", choices=("PEM", "PKCS12", "JKS"))
    """Form of the key store. PKCS12 and JKS are distinguished by their first bytes, as in Java."""
    key_store: str | None = key("tlsKeyStore", None)
    """File with this bookie's private key, and if it is not PEM with its certificate chain."""
    key_store_password_path: str | None = key("tlsKeyStorePasswordPath", None)
    """File that holds the password of the key store."""
    trust_store_type: str = key("tlsTrustStoreType", "JKS", choices=("PEM", "PKCS12", "JKS"))
    """Form of the trust store."""
    trust_store: str | None = key("tlsTrustStore", None)
    """File with the certificates of trusted authorities."""
    trust_store_password_path: str | None = key("tlsTrustStorePasswordPath", None)
    """File that holds the password of the trust store. PEM certificates have none."""
    certificate_path: str | None = key("tlsCertificatePath", None)
    """File with this bookie's certificate chain, for PEM."""
    client_key_store_type: str = key("clientKeyStoreType", "JKS", choices=("PEM", "PKCS12", "JKS"))
    """Form of `clientKeyStore`."""
    client_key_store: str | None = key("clientKeyStore", None)
    """Key store of clients of this configuration (auto-recovery, the gateway, repairs, commands); if it is PEM, with
    the certificate of `tlsCertificatePath`. Unset: `tlsKeyStore`."""
    client_key_store_password_path: str | None = key("clientKeyStorePasswordPath", None)
    """File that holds the password of `clientKeyStore`."""
    client_trust_store_type: str = key("clientTrustStoreType", "JKS", choices=("PEM", "PKCS12", "JKS"))
    """Form of `clientTrustStore`."""
    client_trust_store: str | None = key("clientTrustStore", None)
    """File with the certificates of the authorities that those clients trust. Unset: `tlsTrustStore`."""
    client_trust_store_password_path: str | None = key("clientTrustStorePasswordPath", None)
    """File that holds the password of `clientTrustStore`."""
    hostname_verification: bool = key("tlsHostnameVerificationEnabled", False)
    """Auto-recovery checks that another bookie's certificate names its host."""
    refresh_seconds: int = key("tlsCertFilesRefreshDurationSeconds", 0, at_least=0, at_most=INT_MAX)
    """Interval at which changed files of keys and certificates are looked for, in seconds; new ones apply to new
    connections. 0: never."""
    cipher_suites: tuple[str, ...] = key("tlsEnabledCipherSuites", ())
    """Cipher suites that may be used, by Java's names or OpenSSL's. Empty: OpenSSL's choice. Without one of TLS 1.3
    that is not used; with one all three of its suites are, which cannot be chosen singly."""
    protocols: tuple[str, ...] = key("tlsEnabledProtocols", ())
    """TLS versions that may be used, by bookies and by clients of this configuration. Empty: `TLSv1.2,TLSv1.3`, which
    are all there are; older ones beside them are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """Metadata service"""

    service_uri: str | None = key(
        "metadataServiceUri",
        None,
        derived="`zk+<layout>://<zkServers><zkLedgersRootPath>` if `zkServers` is set",
    )
    """URI of the cluster's metadata, such as `zk+hierarchical://zk1:2181;zk2:2181/ledgers`,
    `etcd://etcd1:2379,etcd2:2379/podkeeper` or `metadata-store:oxia://oxia:6648/default`. If one source sets this key
    and `zkServers`, this key wins; a source of higher priority wins over both."""
    zk_servers: tuple[str, ...] = key("zkServers", ())
    """Older form: ZooKeeper servers, comma-separated."""
    zk_ledgers_root_path: str = key("zkLedgersRootPath", "/ledgers")
    """Older form: root znode of the cluster."""
    ledger_manager_factory_class: str | None = key("ledgerManagerFactoryClass", None, legacy=("ledgerManagerType",))
    """Older form: layout of the ledgers' znodes, by the name of Apache's class."""
    tls_enable: bool = key("metadataServiceTlsEnable", False, own=True)
    """Connect to the metadata service over TLS: to ZooKeeper's `secureClientPort`, to etcd, to Oxia, or to an
    embedded one that has a certificate. The certificate must name the host of the URI."""
    trust_store_path: str | None = key("metadataServiceTrustStorePath", None, own=True)
    """PEM file with the certificates of the trusted authorities, for `metadataServiceTlsEnable`. Unset: those of
    the system. This file and the next two are read again for new connections."""
    certificate_path: str | None = key("metadataServiceCertificatePath", None, own=True)
    """PEM file with this process's certificate chain, for `metadataServiceTlsEnable`, if the service demands one."""
    key_path: str | None = key("metadataServiceKeyPath", None, own=True)
    """PEM file with its private key, not encrypted."""
    token_file: str | None = key("metadataServiceTokenFile", None, own=True)
    """File whose first token is shown to Oxia or to an embedded metadata service, over TLS or to this machine. It is
    read again when it changes."""
    follow_migration: bool = key("metadataServiceFollowMigration", True, own=True)
    """Take part in Pulsar's live migration of the metadata from ZooKeeper to Oxia. With `zkEnableSecurity` only if no
    other user may write what Pulsar says of it. If it is false, the migration does not wait for this process, and what
    the process writes meanwhile is lost: set it to false only where no migration takes place."""
    zk_timeout_ms: int = key("zkTimeout", 10_000, at_least=1, at_most=INT_MAX)
    """Time-out of the session with the metadata service, in ms, which ZooKeeper, etcd and Oxia may change to one within
    their bounds; and of each request. The bookie counts as lost this long after it stopped answering. After a longer
    pause it goes on and registers again, as soon as the metadata service answers. A start waits for it twelve times as
    long."""
    zk_retry_backoff_start_ms: int = key(
        "zkRetryBackoffStartMs", 10_000, at_least=0, at_most=INT_MAX, derived="`zkTimeout`", no_effect=True
    )
    """First pause before a metadata operation is tried again, in ms. Has no effect here: an operation is tried
    again within its time-out, after pauses of at most 1 s."""
    zk_retry_backoff_max_ms: int = key(
        "zkRetryBackoffMaxMs", 10_000, at_least=0, at_most=INT_MAX, derived="`zkTimeout`", no_effect=True
    )
    """Maximum pause before a metadata operation is tried again, in ms. Has no effect here, like
    `zkRetryBackoffStartMs`."""
    zk_retry_max: int = key("zkRetryBackoffMaxRetries", INT_MAX, at_least=0, at_most=INT_MAX, no_effect=True)
    """Maximum retries of a metadata operation. Has no effect here: each has a time-out instead."""
    zk_request_rate_limit: float = key("zkRequestRateLimit", 0.0, at_least=0)
    """Metadata operations per second. 0: no limit."""
    zk_enable_security: bool = key("zkEnableSecurity", False)
    """New znodes belong to their creator alone: every component logs in to ZooKeeper as the same user. Znodes that
    exist keep their access lists. Needs `zkAuthCredentialsPath`."""
    zk_auth_scheme: str = key("zkAuthScheme", "digest", choices=("digest", "sasl"), own=True)
    """Login method for ZooKeeper: its own `digest` scheme, or `sasl` (DIGEST-MD5, what Java's JAAS files set up)."""
    zk_auth_credentials_path: str | None = key("zkAuthCredentialsPath", None, own=True)
    """File that holds `user:password` for ZooKeeper or etcd; Oxia has tokens. Unset: no login."""
