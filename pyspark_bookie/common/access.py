"""How a task reaches the cluster: the options that source, sink and jobs share.

    @dataclass(frozen=True, kw_only=True)
    class SinkOptions(AccessOptions): ...

Pure but for `client` and `client_options`, which read files, and `placement_options`, which reads the environment; any
process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.errors import PodkeeperError
from bookie_protocol.traffic_class import TrafficClass
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError, told
from pyspark_bookie.common.options import option, seconds
from pyspark_bookie.common.placement import DEFAULT_POLICY, placement_options, policy_name
from pyspark_bookie.common.secrets import PasswordSource, read_secret
from pyspark_bookie.common.settings import settings

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.options import ClientOptions, TlsOptions
    from bookie_client.placement.options import PlacementOptions
    from bookie_protocol.metadata_service.options import MetadataServiceOptions
    from bookie_protocol.wire.auth import ClientAuthProvider

URI_VARIABLE: Final = "BK_metadataServiceUri"
DEFAULT_METADATA_SECONDS: Final = 10.0


class ZooKeeperAuthScheme(Enum):
    """How the user in `zkAuthCredentialsPath` logs in."""

    DIGEST = "digest"
    SASL = "sasl"


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """The cluster, logins, encryption, where passwords of ledgers are, where ledgers go and where tasks stand."""

    metadata_service_uri: str = option(variable=URI_VARIABLE)
    metadata_timeout: float = option(DEFAULT_METADATA_SECONDS, read=seconds)
    """Seconds until the metadata service must have answered."""
    zk_auth_credentials_path: str | None = option(None)
    """File with one line `user:password`."""
    zk_auth_scheme: ZooKeeperAuthScheme = option(ZooKeeperAuthScheme.DIGEST)
    auth_token_file: str | None = option(None)
    """Log in to bookies by the token in this file."""
    sasl_jaas_config_file: str | None = option(None)
    """Log in to bookies as a section of this JAAS file says."""
    sasl_jaas_client_section_name: str = option("BookKeeper")
    password_file: str | None = option(None)
    recorded_passwords: bool = option(False)
    tls_ca_file: str | None = option(None, name="tls.caFile")
    tls_certificate_file: str | None = option(None, name="tls.certificateFile")
    tls_key_file: str | None = option(None, name="tls.keyFile")
    tls_key_password_file: str | None = option(None, name="tls.keyPasswordFile")
    tls_check_hostname: bool = option(True, name="tls.checkHostname")
    tls: bool = option(False)
    """Encrypt connections to bookies; any of the other `tls` options turns it on, too."""
    traffic_class: TrafficClass = option(TrafficClass.BATCH)
    """Of what is read of entries: bookies serve `batch` behind writers and other readers."""
    client_settings: Mapping[str, str] = option(factory=dict, prefix="client.")
    """Fields of `ClientOptions`, such as `client.readTimeout`."""
    placement: str = option(DEFAULT_POLICY, read=policy_name)
    """The policy by which ledgers and copies are placed."""
    placement_settings: Mapping[str, str] = option(factory=dict, prefix="placement.")
    """Fields of `PlacementOptions`, such as `placement.minZones`."""
    network_location: str | None = option(None)
    """Where every task stands, such as `/zone-a`. None: as `LOCATION_VARIABLE` in the environment of each tells."""

    def __post_init__(self) -> None:
        self.password  # noqa: B018 - refuses two sources of one password

    @property
    def password(self) -> PasswordSource:
        """Where the password of ledgers comes from."""
        return PasswordSource(self.password_file, self.recorded_passwords)

    def client_options(self) -> ClientOptions:
        """Raises `PodkeeperSparkError` (OPTION)."""
        from bookie_client.options import ClientOptions

        try:
            return ClientOptions(
                tls=self._tls(),
                auth=self._auth(),
                metadata_service=self._metadata_service(),
                traffic_class=self.traffic_class,
                **self._given(),
            )
        except PodkeeperError as error:
            raise PodkeeperSparkError(OPTION, str(error)) from None

    def placement_options(self) -> PlacementOptions:
        """Of a client in this process. Raises `PodkeeperSparkError` (OPTION)."""
        return placement_options(self.placement, self.placement_settings, self.network_location)

    def client(self, **defaults: Any) -> BlockingClient:
        """The client of this process for these options. `defaults`: fields of `ClientOptions`, where the user has set
        none by `client.*`. Raises `PodkeeperSparkError`."""
        from pyspark_bookie.common.clients import client

        options = self.client_options()
        if defaults:
            options = dataclasses.replace(options, **{**defaults, **self._given()})
        placement = self.placement_options()
        with told():
            return client(self.metadata_service_uri, options, placement)

    # --- inside -----------------------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        from bookie_client.options import ClientOptions

        return settings("client.", self.client_settings, ClientOptions)

    def _tls(self) -> TlsOptions | None:
        from bookie_client.options import TlsOptions

        files = (self.tls_ca_file, self.tls_certificate_file, self.tls_key_file, self.tls_key_password_file)
        if not self.tls and not any(files):
            return None
        ca, certificate, key, password = files
        return TlsOptions(
            ca_file=ca,
            certificate_file=certificate,
            key_file=key,
            key_password_file=password,
            check_hostname=self.tls_check_hostname,
        )

    def _auth(self) -> ClientAuthProvider | None:
        from bookie_protocol.auth.sasl import JaasAuth
        from bookie_protocol.auth.shared_token import TokenAuth

        path = self.sasl_jaas_config_file
        if path is None:
            return None if self.auth_token_file is None else TokenAuth(self.auth_token_file, key="authTokenFile")
        if self.auth_token_file is not None:
            raise PodkeeperSparkError(OPTION, "options authTokenFile and saslJaasConfigFile exclude each other")
        return JaasAuth(path, self.sasl_jaas_client_section_name)

    def _metadata_service(self) -> MetadataServiceOptions:
        from bookie_protocol.metadata_service.options import MetadataServiceOptions, SaslLogin

        path = self.zk_auth_credentials_path
        if path is None:
            return MetadataServiceOptions(timeout=self.metadata_timeout)
        user, colon, password = _text(read_secret("zkAuthCredentialsPath", path)).partition(":")
        if not (user and colon and password) or "\n" in password:
            raise PodkeeperSparkError(OPTION, f"option zkAuthCredentialsPath={path}: must hold one line user:password")
        if self.zk_auth_scheme is ZooKeeperAuthScheme.SASL:
            login = SaslLogin(username=user, password=password)
            return MetadataServiceOptions(timeout=self.metadata_timeout, sasl=login)
        return MetadataServiceOptions(timeout=self.metadata_timeout, auth=(("digest", f"{user}:{password}"),))


def _text(secret: bytes) -> str:
    try:
        return secret.decode()
    except UnicodeDecodeError:
        return ""
