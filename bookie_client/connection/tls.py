"""The TLS side of a connection: a context from the options, made anew at every connect.

Any thread.

Source: reference wire protocol, section 6.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from bookie_client.options import TlsOptions
from bookie_protocol.errors import BadRequest


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """The context that START_TLS upgrades to. Raises `BadRequest` for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.check_hostname
    try:
        if options.ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file, _password(options.key_password_file))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"TLS files of this client (ca_file, certificate_file, key_file, key_password_file) cannot be used: {error}"
        ) from error
    return context


def _password(path: str | None) -> str:
    """The key's password; an empty one keeps OpenSSL from asking on the terminal."""
    return "" if path is None else Path(path).read_text(encoding="utf-8").strip()
