"""A bookie's admin API, as commands ask it: where it is, and the files that reach it.

Works with Apache's bookies too, where they have what a command asks for.

Threads: the command's own.
"""

from __future__ import annotations

import ssl
import urllib.parse

from bookie_pod.cli.bookie_server import DEFAULT_URL
from bookie_protocol.admin_api.client import BlockingAdmin, Place
from bookie_protocol.bearer_tokens import MAX_BYTES, first_token
from bookie_protocol.errors import InvalidConfiguration


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
    url = url.rstrip("/")
    token = read_token(token_file) if token_file is not None else None
    encryption = (tls or client_tls(ca_file, cert_file)) if _scheme(url) == "https" else None
    return BlockingAdmin(Place(url, url, encryption, server_name), token, timeout_s=timeout)


def _scheme(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(character.isspace() for character in url):
        raise InvalidConfiguration(f"--url {url}: must look like {DEFAULT_URL}")
    return parts.scheme


def read_token(path: str) -> str:
    """The token in the file of `--token-file`. `InvalidConfiguration` for a file that has none."""
    try:
        with open(path, "rb") as file:
            token = first_token(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise InvalidConfiguration(f"--token-file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"--token-file {path}: it is no file with tokens") from error
    if token is None:
        raise InvalidConfiguration(f"--token-file {path}: it holds no token")
    return token


def client_tls(ca_file: str | None, cert_file: str | None) -> ssl.SSLContext:
    """The context that `--ca-file` and `--cert-file` ask for. `InvalidConfiguration` for a file that cannot be used."""
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
