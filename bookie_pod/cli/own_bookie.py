"""The bookie on this machine, found by its own configuration: port, token and certificates. So commands in a pod need
no options.

Threads: the command's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie_pod.config.sections.service import HttpConfig
    from bookie_protocol.admin_api.client import BlockingAdmin

_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def own_bookie(file: str | None, *, token_file: str | None, timeout: float) -> BlockingAdmin:
    """`file`: its properties file. `token_file`: in place of the configured one. `timeout` in seconds.

    `InvalidConfiguration`: it serves no admin API, or a file cannot be used.
    """
    from bookie_pod.cli.bookie_api import bookie_api
    from bookie_pod.config.load import load_config

    config = load_config(file)
    http = config.http
    url, token_file = admin_url(http), token_file or http.auth_token_file
    if not http.tls_enable:
        return bookie_api(url, token_file=token_file, timeout=timeout)
    from bookie_pod.server.http.tls import client_context

    # It is reached over loopback, but its certificate has the name that others call it by.
    name = config.network.advertised_address
    return bookie_api(url, token_file=token_file, timeout=timeout, tls=client_context(http), server_name=name)


def admin_url(http: HttpConfig) -> str:
    """Where its admin API is. `InvalidConfiguration`: it has none."""
    from bookie_protocol.addresses import host_and_port
    from bookie_protocol.errors import InvalidConfiguration

    listener = http.listener
    if listener is None or not listener.admin:
        raise InvalidConfiguration("httpServerEnabled=false: without it a bookie cannot be told anything; set it")
    host = _EVERYWHERE.get(listener.host, listener.host)
    return f"{'https' if http.tls_enable else 'http'}://{host_and_port(host, listener.port)}"
