"""A start that touches no disk, no port and no cluster: what would it refuse in its configuration?

Keys are read and held against each other when the configuration is loaded; what is left are the classes, names, files
and certificates that they name. `bookie config check` says valid only if this finds nothing.

Reads files and asks the resolver for this host's name; changes nothing. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bookie_pod.client_options import client_options, client_placement
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.bookie_id import derive_bookie_id
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.node.identity.ownership import check_distinct
from bookie_pod.node.metadata import metadata_tls, read_credentials
from bookie_pod.node.side_services import check_grpc
from bookie_pod.node.start_errors import required_metadata_uri
from bookie_pod.server.http.tls import server_context
from bookie_pod.server.tcp.authentication import server_authentication
from bookie_pod.server.tcp.tls import server_tls
from bookie_pod.server.tokens import Tokens
from bookie_pod.telemetry.start import check_telemetry
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import BadRequest, InvalidConfiguration


def refusals(config: BookieConfig) -> Iterator[str]:
    """One line for each part that a start of a bookie would refuse."""
    for build in _parts(config):
        try:
            build()
        except (InvalidConfiguration, BadRequest) as error:
            yield str(error)


def _parts(config: BookieConfig) -> Iterator[Callable[[], object]]:
    yield lambda: required_metadata_uri(config)
    if (path := config.metadata.zk_auth_credentials_path) is not None:
        yield lambda: read_credentials(path)
    if (tls := metadata_tls(config.metadata)) is not None:
        yield tls.check
    if (token_file := config.metadata.token_file) is not None:
        yield WatchedFile("metadataServiceTokenFile", token_file, shown_token).value
    yield lambda: derive_bookie_id(config.network)
    yield lambda: check_distinct(BookieDirectories.of(config.directories))
    yield lambda: client_placement(config)
    yield lambda: client_options(config)
    yield lambda: client_options(config, repairs=True)
    yield lambda: check_telemetry(config.telemetry)
    yield lambda: server_tls(config.tls)
    yield lambda: server_authentication(config.auth)
    if config.http.listener is not None:
        yield lambda: server_context(config.http)
        if (http_tokens := config.http.auth_token_file) is not None:
            yield lambda: Tokens.holders("httpServerAuthTokenFile", http_tokens)
    if config.grpc.server_enabled:
        yield lambda: check_grpc(config.grpc)
