"""Options by which commands reach a bookie's admin API: `--url`, `--token-file`, `--ca-file`, `--cert-file`.

Where `BOOKIE_CONF` names a configuration, as in a pod, the bookie on this machine that it belongs to is meant, and
port, token and certificates are found there. Without any of these it is the first bookie of the `bookie standalone`
that runs here. Works with Apache's bookies too, where they have what a command asks for.

Threads: the command's own.
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_pod.cli.local_clusters import the_one
from bookie_pod.cli.options import Seconds
from bookie_protocol.bearer_tokens import MAX_BYTES, first_token
from bookie_protocol.errors import InvalidConfiguration

if TYPE_CHECKING:
    import ssl

    from bookie_pod.config.model import BookieConfig
    from bookie_pod.config.sections.service import HttpConfig
    from bookie_protocol.admin_api.client import BlockingAdmin
_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
URI_VARIABLE: Final = "BK_metadataServiceUri"
DEFAULT_URL: Final = "http://127.0.0.1:8000"


def bookie_api(
    url: str,
    *,
    token_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    timeout: float = 60.0,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> BlockingAdmin:
    """`tls`: in place of one made of the files. `server_name`: the name that its certificate must have; the URL's by
    default.

    `InvalidConfiguration` for a URL or a file that cannot be used.
    """
    from bookie_protocol.admin_api.client import BlockingAdmin, Place
    from bookie_protocol.admin_api.trust import named

    url = url.rstrip("/")
    token = read_token(token_file) if token_file is not None else None
    encryption = (tls or client_tls(ca_file, cert_file)) if scheme_of(url, "--url") == "https" else None
    return BlockingAdmin(Place(url, url, encryption, server_name, named(url)), token, timeout_s=timeout)


def scheme_of(url: str, option: str) -> str:
    """Return the scheme of a URL that an option names; `InvalidConfiguration` if it is not usable."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if "@" in url:  # a password may be anything before it
        raise InvalidConfiguration(f"{option}: it has a user or a password; tokens come from a file (--token-file)")
    if "?" in url or "#" in url:
        raise InvalidConfiguration(f"{option}: it has a query or a fragment; tokens come from a file (--token-file)")
    if not usable or not url.isascii() or any(character.isspace() for character in url):
        raise InvalidConfiguration(f"{option} {url}: must look like {DEFAULT_URL}")
    return parts.scheme


def read_token(path: str) -> str:
    """The token in the file of `--token-file`. `InvalidConfiguration` for a file that has none."""
    try:
        with open(path, "rb") as file:
            token = first_token(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise InvalidConfiguration(f"--token-file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"--token-file {path}: it is not a file with tokens") from error
    if token is None:
        raise InvalidConfiguration(f"--token-file {path}: it holds no token")
    return token


def client_tls(ca_file: str | None, cert_file: str | None) -> ssl.SSLContext:
    """The context that `--ca-file` and `--cert-file` ask for. `InvalidConfiguration` for a file that cannot be used."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidConfiguration(f"--ca-file {ca_file}: {error.strerror or 'no PEM file'}") from error
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, password="")
        except OSError as error:
            raise InvalidConfiguration(
                f"--cert-file {cert_file}: {error.strerror or 'no PEM file with certificate and key'}"
            ) from error
    return context


def own_bookie(file: str | None, *, token_file: str | None, timeout: float) -> BlockingAdmin:
    """`file`: its properties file. `token_file`: in place of the configured one. `timeout` in seconds.

    `InvalidConfiguration`: it serves no admin API, or a file cannot be used.
    """
    from bookie_pod.config.load import load_config

    return bookie_of(load_config(file), token_file=token_file, timeout=timeout)


def bookie_of(config: BookieConfig, *, token_file: str | None, timeout: float) -> BlockingAdmin:
    """Return what `own_bookie` returns, for a configuration that was loaded."""
    http = config.http
    url, token_file = admin_url(http), token_file or http.auth_token_file
    if not http.tls_enable:
        return bookie_api(url, token_file=token_file, timeout=timeout)
    from bookie_pod.server.http.tls import client_context

    # It is reached over loopback, but its certificate has the name that others call it by.
    name = config.network.advertised_address
    return bookie_api(url, token_file=token_file, timeout=timeout, tls=client_context(http), server_name=name)


def admin_url(http: HttpConfig) -> str:
    """Return the URL of the bookie's admin API. `InvalidConfiguration`: it has none."""
    from bookie_protocol.addresses import host_and_port
    from bookie_protocol.errors import InvalidConfiguration

    listener = http.listener
    if listener is None or not listener.admin:
        raise InvalidConfiguration("httpServerEnabled=false: the bookie has no admin API; set httpServerEnabled=true")
    host = _EVERYWHERE.get(listener.host, listener.host)
    return f"{'https' if http.tls_enable else 'http'}://{host_and_port(host, listener.port)}"


def default_url() -> str:
    """Return the URL of the bookie that runs here. Of several clusters, BK_metadataServiceUri names one. Raises
    `InvalidConfiguration`."""
    found = the_one("name a bookie with --url URL, or set BOOKIE_URL", os.environ.get(URI_VARIABLE) or None)
    return DEFAULT_URL if found is None or not found.http else found.http[0]


def asks_bookie(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and passes the command a `BlockingAdmin` as its first argument."""

    @click.option(
        "--url",
        envvar="BOOKIE_URL",
        help="The bookie's HTTP server. [environment: BOOKIE_URL; default: as BOOKIE_CONF says, else the first bookie"
        f" of the `bookie standalone` that runs here, else {DEFAULT_URL}]",
    )
    @click.option(
        "--token-file",
        envvar="BOOKIE_TOKEN_FILE",
        metavar="FILE",
        help="File with the bearer token. [environment: BOOKIE_TOKEN_FILE]",
    )
    @click.option("--ca-file", metavar="FILE", help="Certificates to trust (https); default: the system's.")
    @click.option("--cert-file", metavar="FILE", help="Own certificate and key in one PEM file (https).")
    @click.option(
        "--timeout",
        type=Seconds(0.1),
        default=60.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    )
    @functools.wraps(command)
    def asking(
        *arguments: Any,
        url: str | None,
        token_file: str | None,
        ca_file: str | None,
        cert_file: str | None,
        timeout: float,
        **others: Any,
    ) -> Any:
        file = os.environ.get("BOOKIE_CONF")
        if url is None and file and ca_file is None and cert_file is None:
            return command(own_bookie(file, token_file=token_file, timeout=timeout), *arguments, **others)
        url = default_url() if url is None else url
        api = bookie_api(url, token_file=token_file, ca_file=ca_file, cert_file=cert_file, timeout=timeout)
        return command(api, *arguments, **others)

    return asking
