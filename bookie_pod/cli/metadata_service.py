"""`bookie metadata-service`: the embedded metadata store as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from bookie_pod.cli.daemon import main_process
from bookie_protocol.quiet import quiet_grpc

PORT: Final = 2281
_PORT: Final = click.IntRange(0, 65535)


@click.command("metadata-service")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the store. One process owns it.",
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=_PORT, help="0: any free one.")
@click.option("--http-host", default="0.0.0.0", show_default=True, help="Address of probes and metrics.")
@click.option("--http-port", default=8000, show_default=True, type=_PORT, help="Port of probes and metrics.")
@click.option("--no-http", is_flag=True, help="Serve neither probes nor metrics.")
@click.option(
    "--client-memory-mb",
    default=128,
    show_default=True,
    type=click.IntRange(16, 1_048_576),
    help="What clients may make it hold: requests and answers under way, and half as much again for watches.",
)
@click.option(
    "--max-sessions",
    default=2_000,
    show_default=True,
    type=click.IntRange(8, 1_000_000),
    help="Sessions of all clients; a process has one or two. No connection has more than are left for the others.",
)
@click.option("--token-file", help="Serve only who shows one of the tokens in this file, one a line.")
@click.option("--tls-certificate", help="Serve over TLS: PEM file with the certificate chain.")
@click.option("--tls-key", help="Its private key, in PEM, not encrypted.")
@click.option("--tls-trust", help="Demand certificates from clients, of the authorities in this PEM file.")
@click.option("--log-format", default="json", show_default=True, type=click.Choice(["json", "console"]))
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@main_process
def metadata_service(
    data: Path,
    host: str,
    port: int,
    http_host: str,
    http_port: int,
    no_http: bool,
    client_memory_mb: int,
    max_sessions: int,
    token_file: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_trust: str | None,
    log_format: str,
    log_level: str,
) -> int:
    """Run the embedded metadata service, for development and single clusters without ZooKeeper.

    Bookies and clients find it at embedded://HOST:PORT/ledgers; `bookie cluster init` with that URI makes the cluster.
    Without --token-file and --tls-trust it serves everybody who reaches its port. These files are read again when they
    change; the configuration of clients names theirs in the keys metadataServiceTokenFile,
    metadataServiceTrustStorePath and so on. /healthz, /readyz and /metrics are on the HTTP port. SIGTERM and SIGINT
    stop it; the exit code is 0 then, and 2 if a port or the directory cannot be had.
    """
    quiet_grpc()
    from bookie_pod import logs
    from bookie_pod.node.processes.metadata_service import MetadataProcessOptions, serve_metadata

    logs.configure(log_format, log_level)
    probes = None if no_http else http_port
    guards = (token_file, tls_certificate, tls_key, tls_trust)
    return serve_metadata(
        MetadataProcessOptions(data, host, port, http_host, probes, client_memory_mb, max_sessions, *guards)
    )
