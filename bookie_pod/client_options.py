"""Options of the clients that a pod has of its own (gateway, administration, repair), from its configuration.

A bookie's clients go by the bookie's own keys, as in the reference: frames of its size, and TLS with its certificate
where bookies serve TLS. For processes with a configuration; any thread.
"""

from __future__ import annotations

from typing import Any

from bookie_client.options import ClientOptions, TlsOptions
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.security import ENTRY_POINT, SASL_CLIENT, SHARED_TOKEN, AuthConfig, TlsConfig
from bookie_protocol.auth.entry_points import CLIENT, make_provider
from bookie_protocol.auth.sasl import JaasAuth
from bookie_protocol.auth.shared_token import TokenAuth
from bookie_protocol.tls_stores import PEM
from bookie_protocol.wire.auth import ClientAuthProvider


def client_options(config: BookieConfig, **others: Any) -> ClientOptions:
    """`others`: further fields of `ClientOptions`. Raises InvalidConfiguration."""
    return ClientOptions(
        max_frame_size=config.network.max_frame_size_bytes,
        tls=tls_options(config.tls),
        auth=client_authentication(config.auth),
        **others,
    )


def client_authentication(config: AuthConfig) -> ClientAuthProvider | None:
    """How to log in to bookies of this configuration; None: not at all. The configuration keeps its rules. Raises
    InvalidConfiguration for files that cannot be used."""
    if config.client_provider_class == SASL_CLIENT:
        return JaasAuth(str(config.jaas_file), config.jaas_client_section)
    if config.client_provider_class == SHARED_TOKEN:
        return TokenAuth(str(config.token_file), key="authTokenFile")
    if config.client_provider_class == ENTRY_POINT:
        provider: ClientAuthProvider = make_provider(CLIENT, str(config.entry_point), config.entry_point_file)
        return provider
    return None


def tls_options(config: TlsConfig) -> TlsOptions | None:
    """How to connect to bookies of this configuration; None: plain."""
    if config.provider_factory_class is None:
        return None
    shown = config.key_store is not None and (config.key_store_type != PEM or config.certificate_path is not None)
    return TlsOptions(
        ca_file=config.trust_store,
        certificate_file=config.certificate_path if shown else None,
        key_file=config.key_store if shown else None,
        key_password_file=config.key_store_password_path if shown else None,
        key_type=config.key_store_type,
        ca_type=config.trust_store_type,
        ca_password_file=config.trust_store_password_path,
        check_hostname=config.hostname_verification,
        protocols=config.protocols,
        cipher_suites=config.cipher_suites,
    )
