"""`bookie standalone`: a whole cluster on this machine, for as long as the command runs."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.local_clusters import LocalCluster, announced
from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed
from bookie_protocol.quiet import quiet_grpc
from bookie_protocol.shown import one_line

if TYPE_CHECKING:
    from bookie_pod.node.standalone.cluster import StandaloneCluster

METADATA_PORT: Final = 3180
GRPC_PORT: Final = 3182
HTTP_PORT: Final = 8000
_PORT: Final = click.IntRange(0, 65535)
_LOOPBACK: Final = "127.0.0.1"
_LAST: Final = 65535


@click.command()
@click.option("--bookies", default=3, show_default=True, type=click.IntRange(1, 64), help="Bookie processes.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory for everything. Started again with it, the cluster has its data again.",
)
@click.option("--zookeeper", metavar="URI", help="Use this metadata service, such as zk+null://localhost:2181/ledgers.")
@click.option(
    "--metadata-port",
    default=METADATA_PORT,
    show_default=True,
    type=_PORT,
    help="Port of the embedded metadata service. 0: any free one.",
)
@click.option(
    "--grpc-port",
    default=GRPC_PORT,
    show_default=True,
    type=_PORT,
    help="Port of the first bookie's gRPC server; the others have the next ones. 0: any free ones.",
)
@click.option(
    "--http-port",
    type=_PORT,
    help="Port of the first bookie's HTTP server; the others have the next ones. 0: any free ones. [default:"
    f" {HTTP_PORT}, or any free ones if it is in use]",
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a key of every bookie.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the cluster is ready.")
def standalone(
    bookies: int,
    data: Path,
    zookeeper: str | None,
    metadata_port: int,
    grpc_port: int,
    http_port: int | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run a cluster on this machine until Ctrl-C: bookies as processes of their own, and an embedded metadata
    service unless --zookeeper names one.

    Prints the metadata service's URI, which is what clients need; other `bookie` commands on this machine find it by
    themselves. A bookie that ends is started again, unless it was
    decommissioned. Everything listens on the loopback address only.
    """
    quiet_grpc()
    import asyncio
    import signal

    import uvloop

    from bookie_pod import logs
    from bookie_pod.cli.exit_codes import end_with
    from bookie_pod.cli.options import overrides
    from bookie_pod.cli.progress import Bar
    from bookie_pod.node.standalone.cluster import StandaloneCluster, keep_running

    logs.configure("console", "warning")
    check_ports("--metadata-port", [metadata_port] if zookeeper is None else [])
    check_ports("--grpc-port", range(grpc_port, grpc_port + bookies) if grpc_port else ())
    keys = overrides(assignments, {})
    served = keys.get("httpServerEnabled", "true").strip().lower() != "false"
    cluster = StandaloneCluster(
        data,
        bookies,
        keys,
        metadata_uri=zookeeper,
        metadata_port=metadata_port,
        grpc_port=grpc_port,
        http_port=_http_port(http_port, bookies) if served else None,
    )
    _make(data)

    async def run() -> None:
        end_with(signal.SIGINT, signal.SIGTERM)
        try:
            with Bar(f"starting {bookies} bookies"):
                await cluster.start()
            with _announced(cluster):
                click.echo(json.dumps(_as_dict(cluster)) if as_json else _as_text(cluster))
                await keep_running(cluster, lambda text: click.echo(f"bookie: {text}", err=True))
        finally:
            with Bar("stopping"):
                await cluster.stop()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except asyncio.CancelledError:
        click.echo("bookie: stopped", err=True)
    return CommandExit.OK


def _make(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfiguration(
            f"--data {data}: the directory cannot be created: {error.strerror}; choose another"
        ) from error


def _http_port(given: int | None, bookies: int) -> int:
    """Return the port of the first bookie: that of the option, or the usual one if it and the next ones are free,
    else 0."""
    port = HTTP_PORT if given is None else given
    try:
        check_ports("--http-port", range(port, port + bookies) if port else ())
    except ServerStartFailed:
        if given is not None:
            raise
        return 0
    return port


@contextmanager
def _announced(cluster: StandaloneCluster) -> Iterator[None]:
    """Let other commands find it; where that is not possible, it runs all the same."""
    http = tuple(f"http://{_LOOPBACK}:{each.http_port}" for each in cluster.bookies.values() if each.http_port)
    found = LocalCluster(cluster.metadata_service_uri, str(cluster.directory.absolute()), http)
    with ExitStack() as undo:
        try:
            undo.enter_context(announced(found))
        except OSError as error:
            what = error.filename or "the file that tells other commands of this cluster"
            told = one_line(f"{what}: {error.strerror}; give other commands --metadata {found.metadata_service}")
            click.echo(f"bookie: {told}", err=True)
        yield


def _as_dict(cluster: StandaloneCluster) -> dict[str, object]:
    return {
        "metadata_service": cluster.metadata_service_uri,
        "bookies": [
            {
                "bookie_id": bookie.bookie_id,
                "pid": bookie.pid,
                "port": bookie.port,
                "grpc_port": bookie.grpc_port,
                "http_port": bookie.http_port,
                "log": str(bookie.directory / "bookie.log"),
            }
            for bookie in cluster.bookies.values()
        ],
        "decommissioned": list(cluster.left_out),
    }


def _as_text(cluster: StandaloneCluster) -> str:
    lines = [f"metadata service  {cluster.metadata_service_uri}"]
    for bookie in cluster.bookies.values():
        ports = [f"127.0.0.1:{bookie.port}", f"gRPC 127.0.0.1:{bookie.grpc_port}"]
        if bookie.http_port is not None:
            ports.append(f"http://{_LOOPBACK}:{bookie.http_port}")
        lines.append(f"{bookie.bookie_id:16}  {', '.join(ports)}, {bookie.directory / 'bookie.log'}")
    lines += [
        f"{bookie_id:16}  was decommissioned; remove {cluster.directory / bookie_id} to have a new bookie of this name"
        for bookie_id in cluster.left_out
    ]
    lines += ["", "Other bookie commands on this machine find it by themselves. For programs:"]
    lines += [f"export BK_metadataServiceUri={cluster.metadata_service_uri}", "Ctrl-C stops it."]
    return "\n".join(lines)


def check_ports(option: str, ports: Iterable[int]) -> None:
    """Check that the ports are free on the loopback address; 0 is any free port.

    A bookie finds out late that its gRPC port is another process's, and until then that one answers in its place.
    Raises `InvalidConfiguration` for an invalid port, and `ServerStartFailed` for one that is in use.
    """
    for port in ports:
        if port > _LAST:
            raise InvalidConfiguration(f"{option}: bookies have ports one after the other, and there is no port {port}")
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count
            try:
                listener.bind((_LOOPBACK, port))
            except OSError as error:
                reason = "is in use: stop what uses it, or" if error.errno == errno.EADDRINUSE else f"{error.strerror}:"
                raise ServerStartFailed(
                    f"port {port} of {_LOOPBACK} {reason} choose another with {option} (0: any free one)"
                ) from error
