"""The rights on each port, as a configuration and its files have them: the output of `bookie config check`.

The ports decide by themselves (`server.access`, `server.tcp.security`); this tells an operator beforehand, so that an
open port or a token with more rights than it should have is seen before a start.

Reads files; any thread. Raises `InvalidConfiguration` as a start does.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.security import CERTIFICATE_ROLES
from bookie_pod.config.sections.service import AccessConfig
from bookie_pod.roles import EVERYTHING, Role
from bookie_pod.server.tokens import Tokens


def rights(config: BookieConfig) -> Iterator[str]:
    """One line for each group of callers of each port."""
    port = f"port {config.network.bookie_port} (bookiePort)"
    yield f"{port}: {_of_bookie_port(config)}; writers need the password of a ledger, readers do not"
    http, grpc = config.http, config.grpc
    if (listener := http.listener) is not None:
        port = f"port {listener.port} ({listener.port_key})"
        if not (http.auth_probes and http.auth_token_file is not None):
            yield f"{port}: everybody: probes and metrics"
        if listener.admin:
            certificates = http.tls_enable and http.tls_client_authentication
            for who in _callers("httpServerAuthTokenFile", http.auth_token_file, certificates, config.access):
                yield f"{port}: {who}"
    if grpc.server_enabled:
        port = f"port {grpc.server_port} (grpcServerPort)"
        yield f"{port}: everybody: health service"
        certificates = grpc.tls_enable and grpc.client_authentication
        for who in _callers("grpcServerAuthTokenFile", grpc.auth_token_file, certificates, config.access):
            yield f"{port}: {who}"


def _of_bookie_port(config: BookieConfig) -> str:
    auth, tls = config.auth, config.tls
    way = "over TLS" if tls.required else "with and without TLS"
    if auth.provider_class == CERTIFICATE_ROLES:
        return f"certificates with the role {' or '.join(auth.authorized_roles)}"
    if auth.provider_class is not None:
        return f"clients that log in by {auth.provider_class.rpartition('.')[2]}, {way}"
    if tls.required and tls.client_authentication:
        return "certificates that tlsTrustStore trusts"
    return f"everybody, {way}"


def _callers(token_key: str, token_file: str | None, certificates: bool, rules: AccessConfig) -> Iterator[str]:
    if token_file is not None:
        for holder in Tokens.holders(token_key, token_file):
            yield f"{holder.name}: {_names(holder.roles)}"
    elif certificates:
        yield "certificates: the roles of ours that their subject names (OU=0:ROLE)"
        yield f"certificates whose subject names no role: {', '.join(rules.certificate_roles)}"
    elif rules.allow_insecure:
        yield f"everybody: {_names(EVERYTHING)} (allowInsecureAccess=true)"
    else:
        yield f"processes of this machine: {_names(EVERYTHING)}"
        yield f"everybody: {Role.VIEWER.value}"


def _names(roles: frozenset[Role]) -> str:
    """The roles that matter: admin contains all others."""
    return Role.ADMIN.value if Role.ADMIN in roles else ", ".join(role.value for role in Role if role in roles)
