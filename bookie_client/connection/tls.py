"""The TLS side of a connection: a context from the options, made anew at every connect.

Any thread.

Source: reference wire protocol, section 6.
"""

from __future__ import annotations

import ssl

from bookie_client.options import TlsOptions
from bookie_protocol.errors import BadRequest, InvalidConfiguration
from bookie_protocol.tls_limits import limit_tls
from bookie_protocol.tls_stores import BadStore, load_own, load_trusted


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """The context that START_TLS upgrades to. Raises `BadRequest` for files that cannot be used, and
    for versions and cipher suites that are not there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.check_hostname
    try:
        limit_tls(context, options.protocols, options.cipher_suites)
        if options.ca_file is None:
            context.load_default_certs()
        else:
            load_trusted(context, options.ca_type, options.ca_file, options.ca_password_file)
        own = options.key_file or options.certificate_file
        if own is not None:
            load_own(context, options.key_type, own, options.key_password_file, options.certificate_file)
    except InvalidConfiguration as error:
        raise BadRequest(f"TLS options of this client: {error}") from error
    except (OSError, BadStore) as error:
        raise BadRequest(
            f"TLS files of this client (ca_file, certificate_file, key_file, key_password_file) cannot be used: {error}"
        ) from error
    return context
