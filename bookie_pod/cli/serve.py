"""The commands that are the main process of a container.

They are `bookie serve`, `autorecovery`, `gateway` and `metadata-service`. Each runs until it is stopped.

Each runs until it is stopped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import click

from bookie_pod.cli.options import (
    config_option,
    gateway_shorthands,
    overrides,
    process_shorthands,
    set_option,
    shorthands,
)
from bookie_protocol.quiet import quiet_grpc
from bookie_protocol.shown import one_line

if TYPE_CHECKING:
    from bookie_pod.config.model import BookieConfig

Parameters = ParamSpec("Parameters")
PORT: Final = 2281
_PORT: Final = click.IntRange(0, 65535)


def main_process(command: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """Report the error that ends the command to Kubernetes too.

    Commands that a probe or a hook runs in the same container must not: their message would be taken for that of the
    main process.
    """

    @functools.wraps(command)
    def telling(*arguments: Parameters.args, **options: Parameters.kwargs) -> Any:
        from bookie_pod.descriptors import raise_descriptor_limit
        from bookie_protocol.errors import PodkeeperError

        raise_descriptor_limit()
        try:
            return command(*arguments, **options)
        except PodkeeperError as error:
            from bookie_pod.node.processes.until_signal import tell_kubernetes

            tell_kubernetes(one_line(error))
            raise

    return telling


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@shorthands
@main_process
def serve(file: str | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Run a bookie.

    Reads FILE, then BK_<key> environment variables, then the flags; later ones win. SIGTERM and SIGINT
    stop it in an orderly way. The exit code is 0 after such a stop, 1 for an invalid configuration, 2 if a
    port cannot be opened or a cookie forbids the start (the directories are another bookie's, or empty), 3 if
    the metadata service does not answer or the session expired, 4 if registration failed, 5 for any other
    fault of the bookie. The reason is one line on standard error, and in /dev/termination-log if there is one.
    """
    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))
    _check_user(config.auth.permitted_startup_users)

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)
    _log_start(config)

    from bookie_pod.node.processes.bookie import serve as run_node

    return run_node(config)


def _check_user(permitted: tuple[str, ...]) -> None:
    if not permitted:
        return
    import getpass

    from bookie_protocol.errors import InvalidConfiguration

    user = getpass.getuser()
    if user not in permitted:
        raise InvalidConfiguration(
            f"permittedStartupUsers={','.join(permitted)}: the bookie was started by {user}; start it as one of these"
        )


def _log_start(config: BookieConfig) -> None:
    from bookie_pod import logs

    log = logs.logger("config")
    log.info("configuration loaded", keys_set=len(config.set_keys), memory_budget_mb=config.memory.budget_mb)
    if config.ignored_keys:
        log.warning("configuration keys without meaning here are ignored", keys=list(config.ignored_keys))


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@process_shorthands
@main_process
def autorecovery(file: str | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Find lost copies of entries and restore them.

    Runs a candidate for the cluster's auditor, and a replication worker; any number may run. Reads the configuration of
    a bookie as `bookie serve` does; the metadata service is all that it needs. SIGTERM and SIGINT stop it in an orderly
    way. The exit code is 0 after such a stop, 1 for an invalid configuration, 2 if a port cannot be opened or the
    cluster does not exist, 3 if the metadata service does not answer, or the session expired and cannot be renewed.
    """
    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)

    from bookie_pod.node.processes.auto_recovery import serve_auto_recovery

    return serve_auto_recovery(config)


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@gateway_shorthands
@click.option("--beside", is_flag=True, hidden=True, help="As the child of a bookie.")
@main_process
def gateway(file: str | None, assignments: tuple[str, ...], beside: bool, **flags: Any) -> int:
    """Serve ledgers over gRPC, to clients of any language.

    The gateway that runs beside each bookie by default, without a bookie: any number may run, where applications are or
    beside the bookies, and each has processors to itself. Reads the configuration of a bookie as `bookie serve` does;
    the metadata service is all that it needs. HTTP serves probes and metrics only. SIGTERM and SIGINT stop it in an
    orderly way: the ledgers that are written through it are closed. The exit code is 0 after such a stop, 1 for an
    invalid configuration, 2 if a port cannot be opened or the cluster does not exist, 3 if the metadata service does
    not answer, or the session expired and cannot be renewed.
    """
    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)

    from bookie_pod.node.processes.gateway import serve_gateway

    return serve_gateway(config, beside=beside)


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
@click.option(
    "--oxia-namespace",
    "oxia_namespaces",
    multiple=True,
    metavar="NAME",
    help="Serve clients of Oxia under this namespace too; all namespaces are the same tree.  [default: default]",
)
@click.option(
    "--oxia-address",
    metavar="HOST:PORT",
    help="Tell clients of Oxia that the service is here.  [default: --host, or this machine's name, and --port]",
)
@click.option(
    "--log-format",
    default="json",
    show_default=True,
    type=click.Choice(["json", "console"]),
    help="Log for machines, or for people.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log nothing below this level.",
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
    oxia_namespaces: tuple[str, ...],
    oxia_address: str | None,
    log_format: str,
    log_level: str,
) -> int:
    """Run the embedded metadata service, for development and single clusters without ZooKeeper.

    Bookies and clients find it at embedded://HOST:PORT/ledgers; `bookie cluster init` with that URI makes the cluster.
    Clients of Oxia, such as the brokers of Pulsar, find the same tree at oxia://HOST:PORT.
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
    options = MetadataProcessOptions(
        *(data, host, port, http_host, probes, client_memory_mb, max_sessions, *guards),
        oxia_namespaces=oxia_namespaces,
        oxia_address=oxia_address,
    )
    return serve_metadata(options)
