"""Options of the clients that a pod itself has (gateway, administration, repair), from its configuration.

They are the access to bookies, the placement of ledgers and copies, and the limits of copying.

A bookie's clients go by the bookie's own keys: frames of its size, and TLS with its certificate where bookies serve
TLS; and by the keys that the reference has for clients, where they are set. Keys of placement that are not set are left
to the client's own defaults. Copies are made alike by replication workers, decommissions and recoveries.

For processes with a configuration; any thread, but throttles are made on the event loop that copies.

Source: docs/internals/client-protocol.md, section 16.
"""

from __future__ import annotations

from typing import Any

from bookie_client.options import ClientOptions, TlsOptions
from bookie_client.placement.java_keys import PLACEMENT_KEYS, placement_options
from bookie_client.placement.options import PlacementOptions
from bookie_client.replication.replicator import ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle, YieldingThrottle
from bookie_pod.config.model import BookieConfig, effective
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.config.sections.security import ENTRY_POINT, SASL_CLIENT, SHARED_TOKEN, AuthConfig, TlsConfig
from bookie_protocol.auth.entry_points import CLIENT, make_provider
from bookie_protocol.auth.sasl import AUDITOR_SECTION, JaasAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.errors import BadRequest, InvalidConfiguration
from bookie_protocol.tls import PEM
from bookie_protocol.wire.auth import ClientAuthProvider, OptionalLogin


def client_options(config: BookieConfig, *, repairs: bool = False, **others: Any) -> ClientOptions:
    """`repairs`: of auto-recovery. `others`: further fields of `ClientOptions`. Raises InvalidConfiguration."""
    return ClientOptions(
        max_frame_size=config.network.max_frame_size_bytes,
        tls=tls_options(config.tls),
        auth=client_authentication(config.auth, repairs=repairs),
        **others,
    )


def client_authentication(config: AuthConfig, *, repairs: bool = False) -> ClientAuthProvider | None:
    """Return the login to bookies of this configuration, as auto-recovery if it `repairs`; None: no login. The
    configuration keeps its rules. Raises InvalidConfiguration for files that cannot be used."""
    found = _login(config, repairs)
    return OptionalLogin(found) if found is not None and config.client_optional else found


def _login(config: AuthConfig, repairs: bool) -> ClientAuthProvider | None:
    if config.client_provider_class == SASL_CLIENT:
        return JaasAuth(str(config.jaas_file), *_sections(config, repairs))
    if config.client_provider_class == SHARED_TOKEN:
        return TokenAuth(str(config.token_file), key="authTokenFile")
    if config.client_provider_class == ENTRY_POINT:
        provider: ClientAuthProvider = make_provider(CLIENT, str(config.entry_point), config.entry_point_file)
        return provider
    return None


def _sections(config: AuthConfig, repairs: bool) -> tuple[str, ...]:
    """Return names of sections of the JAAS file: the first existing one is used."""
    if not repairs:
        return (config.jaas_client_section,)
    if config.jaas_auditor_section is not None:
        return (config.jaas_auditor_section,)
    return AUDITOR_SECTION, config.jaas_client_section


def tls_options(config: TlsConfig) -> TlsOptions | None:
    """Return the TLS options for bookies of this configuration; None: plain."""
    if config.provider_factory_class is None:
        return None
    key, key_type, key_password = config.key_store, config.key_store_type, config.key_store_password_path
    if config.client_key_store is not None:
        key, key_type = config.client_key_store, config.client_key_store_type
        key_password = config.client_key_store_password_path
    trust, trust_type, trust_password = config.trust_store, config.trust_store_type, config.trust_store_password_path
    if config.client_trust_store is not None:
        trust, trust_type = config.client_trust_store, config.client_trust_store_type
        trust_password = config.client_trust_store_password_path
    shown = key is not None and (key_type != PEM or config.certificate_path is not None)
    return TlsOptions(
        ca_file=trust,
        certificate_file=config.certificate_path if shown else None,
        key_file=key if shown else None,
        key_password_file=key_password if shown else None,
        key_type=key_type,
        ca_type=trust_type,
        ca_password_file=trust_password,
        check_hostname=config.hostname_verification,
        protocols=config.protocols,
        cipher_suites=config.cipher_suites,
    )


def client_placement(config: BookieConfig, *, local_bookie: str | None = None) -> PlacementOptions:
    """The options that the configuration's keys of placement describe.

    `local_bookie`: the bookie of this process, for the policy that uses no other. `InvalidConfiguration`: an unknown
    class, or keys that make no sense together.
    """
    texts = {
        declared.name: text
        for declared, text in effective(config)
        if declared.name in PLACEMENT_KEYS and declared.name in config.set_keys
    }
    try:
        return placement_options(texts, local_bookie=local_bookie)
    except BadRequest as error:
        raise InvalidConfiguration(str(error)) from error


def copying_throttle(options: AutoRecoveryConfig) -> ReplicationThrottle:
    """The throttle of everything that copies, or checks, together: `replicationRateByBytes`,
    `replicationYieldsToClients`."""
    rate = options.rate_by_bytes if options.rate_by_bytes > 0 else None
    if rate is not None and options.yields_to_clients:
        return YieldingThrottle(rate)
    return ReplicationThrottle(rate)


def replication_options(options: AutoRecoveryConfig, throttle: ReplicationThrottle | None = None) -> ReplicationOptions:
    """`throttle`: one that is shared; by default a new one."""
    return ReplicationOptions(
        entry_batch_size=options.entry_batch_size,
        max_bytes_in_flight=options.max_bytes_in_flight,
        throttle=throttle or copying_throttle(options),
        batch_reads=options.batch_read,
    )
