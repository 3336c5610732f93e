"""The options that source, sink and jobs share: access to the cluster, placement, and the location of a process.

    @dataclass(frozen=True, kw_only=True)
    class SinkOptions(AccessOptions): ...

Invariants
- The location of a process is looked up in its own environment, never in the driver's on behalf of a task.

Pure but for `client` and `client_options`, which read files, and `placement_options`, which reads the environment; any
process.

Source: docs/internals/client-protocol.md, sections 11 and 16.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.errors import BadRequest, PodkeeperError
from bookie_protocol.traffic_class import TrafficClass
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError, told
from pyspark_bookie.common.options import camel_case, option, seconds, words
from pyspark_bookie.common.secrets import PasswordSource, read_secret

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.options import ClientOptions, TlsOptions
    from bookie_client.placement.options import PlacementOptions
    from bookie_protocol.metadata_service.options import MetadataServiceOptions
    from bookie_protocol.wire.auth import ClientAuthProvider

DEFAULT_POLICY: Final = "rack-aware"
"""Placement policy of a client without another choice."""
LOCATION_VARIABLE: Final = "BK_networkLocation"
"""Environment variable with the location of the process, as for a bookie, such as `/zone-a` or `/zone-a/rack-7`."""

_OF_A_BOOKIES_HOST: Final = "local"
"""The policy of who writes to the bookie beside itself; a task has none."""
_HAVE_OPTIONS: Final = frozenset({"policy", "local_bookie", "local_location"})
_NAMES: Final = "tuple[str, ...]"
_PLAIN: Final = re.compile(r"(int|float|bool|str)( \| None)?|" + re.escape(_NAMES))


def policy_name(text: str) -> str:
    """Return the name of a placement policy."""
    from bookie_client.placement.options import POLICIES

    names = [name for name in POLICIES if name != _OF_A_BOOKIES_HOST]
    name = text.strip().lower()
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    raise ValueError(f"did you mean {near[0]}?" if near else f"must be one of {', '.join(names)}")


def placement_options(policy: str, given: Mapping[str, str], location: str | None) -> PlacementOptions:
    """`given`: fields of `PlacementOptions`, as texts; `location`: None where the environment tells it, if
    anybody does. Raises `PodkeeperSparkError` (OPTION)."""
    from bookie_client.placement.options import PlacementOptions

    values = settings("placement.", given, PlacementOptions, but=_HAVE_OPTIONS)
    try:
        return PlacementOptions(policy=policy, local_location=own_location(location), **values)
    except BadRequest as error:
        raise PodkeeperSparkError(OPTION, str(error)) from None


def own_location(given: str | None) -> str | None:
    """Return the location of this process; None if it is not set. A label that a pod does not have is an empty text."""
    location = os.environ.get(LOCATION_VARIABLE, "") if given is None else given
    return location.strip() or None


URI_VARIABLE: Final = "BK_metadataServiceUri"
DEFAULT_METADATA_SECONDS: Final = 10.0


class ZooKeeperAuthScheme(Enum):
    """The way in which the user in `zkAuthCredentialsPath` logs in."""

    DIGEST = "digest"
    SASL = "sasl"


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """The cluster, logins, encryption, the source of ledger passwords, placement of ledgers and the location of
    tasks."""

    metadata_service_uri: str = option(variable=URI_VARIABLE)
    metadata_timeout: float = option(DEFAULT_METADATA_SECONDS, read=seconds)
    """Seconds until the metadata service must have answered."""
    metadata_service_tls_enable: bool = option(False)
    """Connect to it over TLS; the next three are PEM files."""
    metadata_service_trust_store_path: str | None = option(None)
    metadata_service_certificate_path: str | None = option(None)
    metadata_service_key_path: str | None = option(None)
    metadata_service_token_file: str | None = option(None)
    """Show an embedded one the first token of this file."""
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
    """Class of the reads of entries: bookies serve `batch` behind writers and other readers."""
    client_settings: Mapping[str, str] = option(factory=dict, prefix="client.")
    """Fields of `ClientOptions`, such as `client.readTimeout`."""
    placement: str = option(DEFAULT_POLICY, read=policy_name)
    """The policy by which ledgers and copies are placed."""
    placement_settings: Mapping[str, str] = option(factory=dict, prefix="placement.")
    """Fields of `PlacementOptions`, such as `placement.minZones`."""
    network_location: str | None = option(None)
    """Location of every task, such as `/zone-a`. None: each task uses `LOCATION_VARIABLE` of its environment."""

    def __post_init__(self) -> None:
        self.password  # noqa: B018 - refuses two sources of one password

    @property
    def password(self) -> PasswordSource:
        """Return the source of ledger passwords."""
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
        """Return the placement options of a client in this process. Raises `PodkeeperSparkError` (OPTION)."""
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
        from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataTls, SaslLogin

        tls = MetadataTls(
            ca_file=self.metadata_service_trust_store_path,
            certificate_file=self.metadata_service_certificate_path,
            key_file=self.metadata_service_key_path,
        )
        if tls != MetadataTls() and not self.metadata_service_tls_enable:
            raise PodkeeperSparkError(
                OPTION, "option metadataServiceTlsEnable=false: files of TLS are named, and not used; set it to true"
            )
        plain = MetadataServiceOptions(
            timeout=self.metadata_timeout,
            tls=tls if self.metadata_service_tls_enable else None,
            token_file=self.metadata_service_token_file,
        )
        path = self.zk_auth_credentials_path
        if path is None:
            return plain
        user, colon, password = _text(read_secret("zkAuthCredentialsPath", path)).partition(":")
        if not (user and colon and password) or "\n" in password:
            raise PodkeeperSparkError(OPTION, f"option zkAuthCredentialsPath={path}: must hold one line user:password")
        if self.zk_auth_scheme is ZooKeeperAuthScheme.SASL:
            return dataclasses.replace(plain, sasl=SaslLogin(username=user, password=password))
        return dataclasses.replace(plain, auth=(("digest", f"{user}:{password}"),))


def _text(secret: bytes) -> str:
    try:
        return secret.decode()
    except UnicodeDecodeError:
        return ""


def settings(prefix: str, given: Mapping[str, str], of: type[Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    """Values of fields of `of`, whose names may be written in any case, with or without underscores. `but`: fields
    that are not set in this way. Raises `PodkeeperSparkError` (OPTION)."""
    known = {
        item.name.replace("_", ""): item
        for item in dataclasses.fields(of)
        if _PLAIN.fullmatch(str(item.type)) and item.name not in but
    }
    values: dict[str, Any] = {}
    for name, text in given.items():
        item = known.get(name.replace("_", "").lower())
        if item is None:
            raise _unknown(prefix, name, {plain: camel_case(field.name) for plain, field in known.items()})
        values[item.name] = _setting(f"{prefix}{name}", str(item.type), text)
    return values


def _unknown(prefix: str, name: str, names: Mapping[str, str]) -> PodkeeperSparkError:
    near = difflib.get_close_matches(name.replace("_", "").lower(), names, n=1)
    hint = f"did you mean {prefix}{names[near[0]]}?" if near else f"there are {', '.join(names.values())}"
    return PodkeeperSparkError(OPTION, f"there is no option {prefix}{name}: {hint}")


def _setting(name: str, kind: str, text: str) -> object:
    plain = kind.removesuffix(" | None")
    if text.strip().lower() == "none" and plain != kind:
        return None
    try:
        if plain == "bool":
            return {"true": True, "false": False}[text.strip().lower()]
        if plain == _NAMES:
            return words(text)
        return {"int": int, "float": float, "str": str}[plain](text)
    except (KeyError, ValueError):
        wanted = "list of names with commas in between" if plain == _NAMES else kind
        raise PodkeeperSparkError(OPTION, f"option {name}={text} is not a valid {wanted}") from None
