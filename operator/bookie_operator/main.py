"""The `bookie-operator` command.

Every option has a variable of the environment; `docs/operator.md` says what it is for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
import structlog

from bookie_protocol.quiet import quiet_secrets

if TYPE_CHECKING:
    from bookie_operator.api.kubernetes import Kubernetes

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_DEPTH: Final = 12_000
"""Limit on the depth of calls, and so of JSON that can be read.

API servers take 10,000 levels where a resource may have anything, such as an affinity: by Python's own 1,000 a user who
may make one BookieCluster would end the watch of all. It is not much more, because some of what recurs takes the stack
of a thread.
"""
_OWN_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_TAG = re.compile(r"(?P<repository>.+?)(?::[^:/]+)?(?:@.+)?")


def configure(log_format: str = "json", level: str = "info", stream: TextIO | None = None) -> None:
    """Logs: one line of JSON for each event, on standard error, the records of libraries (kopf, aiohttp, urllib3) too.

    `log_format`: json or console; `level`: debug, info, warning or error.

    Threads: `configure` once at the start; logging from any.
    """
    stream = stream or sys.stderr
    renderer: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
    if log_format == "console":
        plain = structlog.dev.plain_traceback  # others show local variables, of which some are secret
        renderer = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    quiet_secrets()
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    # Libraries say at info what only their authors need: kopf each event that it handles.
    root.setLevel(LEVELS[level] if level in ("debug", "error") else logging.WARNING)


class _ToStructlog(logging.Handler):
    """Hands records of the standard library's logging over."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"part": record.name}
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            name = logging.getLevelName(record.levelno).lower()
            getattr(structlog.get_logger(), name if name in LEVELS else "error")(record.getMessage(), **fields)
        except Exception:
            self.handleError(record)


@click.group()
@click.version_option(version("podkeeper"), prog_name="bookie-operator", message="%(prog)s %(version)s")
def main() -> None:
    """Runs BookieClusters on Kubernetes."""
    sys.setrecursionlimit(_DEPTH)


@main.command()
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Namespace of its clusters; may be repeated.")
@click.option("--all-namespaces", is_flag=True, envvar="PODKEEPER_ALL_NAMESPACES", help="Watch every namespace.")
@click.option(
    "--metrics-port",
    default=8080,
    show_default=True,
    envvar="PODKEEPER_METRICS_PORT",
    help="Port of /metrics, /healthz and /readyz.",
)
@click.option(
    "--image",
    default="podkeeper",
    show_default=True,
    envvar="PODKEEPER_IMAGE",
    help="Repository of the bookies' images.",
)
@click.option(
    "--own-image",
    default="",
    envvar="PODKEEPER_OPERATOR_IMAGE",
    help="Image of the operator. A Job that removes metadata runs it where the bookies are of an older release.",
)
@click.option(
    "--lease-namespace",
    default="",
    envvar="PODKEEPER_LEASE_NAMESPACE",
    help="Namespace of the Lease by which one of several operators works; by default its own.",
)
@click.option(
    "--lease-name",
    default="podkeeper-operator",
    show_default=True,
    envvar="PODKEEPER_LEASE_NAME",
    help="Name of that Lease: operators with the same one stand by for each other.",
)
@click.option(
    "--no-election", is_flag=True, envvar="PODKEEPER_NO_ELECTION", help="Work without a Lease: no other operator runs."
)
@click.option(
    "--no-nodes", is_flag=True, envvar="PODKEEPER_NO_NODES", help="Ask for neither nodes nor storage classes."
)
@click.option(
    "--liveness-seconds",
    default=900,
    show_default=True,
    envvar="PODKEEPER_LIVENESS_SECONDS",
    help="Seconds without the end of a pass after which /healthz fails.",
)
@click.option("--log-format", type=click.Choice(["json", "console"]), default="json", envvar="PODKEEPER_LOG_FORMAT")
@click.option("--log-level", type=click.Choice(list(LEVELS)), default="info", envvar="PODKEEPER_LOG_LEVEL")
def run(
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    metrics_port: int,
    image: str,
    own_image: str,
    lease_namespace: str,
    lease_name: str,
    no_election: bool,
    no_nodes: bool,
    liveness_seconds: int,
    log_format: str,
    log_level: str,
) -> None:
    """Watch and keep BookieClusters, until a signal."""
    from bookie_operator.api.errors import KubernetesError
    from bookie_operator.api.transport import load_configuration
    from bookie_operator.reconcile.context import Settings
    from bookie_operator.running import RunOptions, run_operator

    configure(log_format, log_level)
    own = own_namespace()
    watched = watched_namespaces(namespaces, own, all_namespaces=all_namespaces)
    settings = Settings(
        image_repository=repository(image),
        own_image=own_image,
        release=version("podkeeper"),
        operator_namespace=own,
        reads_nodes=not no_nodes,
    )
    election = "" if no_election else (lease_namespace or own or (watched[0] if watched else "default"))
    options = RunOptions(
        watched,
        settings,
        election,
        lease_name,
        metrics_port=metrics_port,
        liveness_s=float(liveness_seconds),
    )
    try:
        configuration = load_configuration()
    except KubernetesError as exc:
        raise click.ClickException(str(exc)) from exc
    asyncio.run(run_operator(configuration, options))


@main.command()
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Namespace to look in; may be repeated.")
@click.option("--all-namespaces", is_flag=True, envvar="PODKEEPER_ALL_NAMESPACES", help="Look in every namespace.")
def remains(namespaces: tuple[str, ...], all_namespaces: bool) -> None:
    """Tell which BookieClusters there are, and fail if any is: without an operator their deletion never ends."""
    from bookie_operator.api.errors import KubernetesError
    from bookie_operator.api.kubernetes import Kubernetes
    from bookie_operator.api.transport import Transport, load_configuration

    watched = watched_namespaces(namespaces, own_namespace(), all_namespaces=all_namespaces)

    async def look() -> list[str]:
        kubernetes = Kubernetes(Transport(load_configuration()))
        try:
            return await remaining(kubernetes, watched)
        finally:
            await kubernetes.close()

    try:
        found = asyncio.run(look())
    except KubernetesError as exc:
        raise click.ClickException(
            f"it is unknown whether there are BookieClusters: {exc}. Try again, or use `helm uninstall --no-hooks`"
        ) from exc
    if found:
        raise click.ClickException(
            f"{len(found)} BookieClusters are left, and without an operator their deletion never ends. Delete them"
            " first:\n"
            + "\n".join(found)
            + "\nOr uninstall all the same, by `helm uninstall --no-hooks`: bookies go on serving, and another "
            "operator can take them over.\nUntil then Helm takes the release for uninstalled in part, and refuses"
            " upgrades: `helm history RELEASE` shows its last deployed revision, and `helm rollback RELEASE REVISION`"
            " makes it usable again with the values of that revision"
        )
    click.echo("no BookieCluster is left")


async def remaining(kubernetes: Kubernetes, namespaces: tuple[str, ...]) -> list[str]:
    """Return a command for each BookieCluster that there is; `namespaces`: empty means all of them.

    Raises the errors of `api.errors`.
    """
    from bookie_operator.api.errors import Absent
    from bookie_operator.api.kinds import CLUSTER

    found = []
    for namespace in namespaces or ("",):
        try:
            found += await kubernetes.list(CLUSTER, namespace, metadata_only=True)
        except Absent:  # the definitions are gone, and every resource with them
            continue
    named = sorted((each["metadata"]["namespace"], each["metadata"]["name"]) for each in found)
    return [f"  kubectl -n {namespace} delete bkc {name}" for namespace, name in named]


def own_namespace() -> str:
    """Return the namespace of the pod; empty outside of Kubernetes."""
    if found := os.environ.get("POD_NAMESPACE", ""):
        return found
    try:
        with open(_OWN_NAMESPACE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def watched_namespaces(given: tuple[str, ...], own: str, *, all_namespaces: bool) -> tuple[str, ...]:
    """Return the namespaces; empty: all of them.

    Without options they are those of `PODKEEPER_NAMESPACES` (with commas), else its own.
    """
    listed = tuple(part.strip() for part in os.environ.get("PODKEEPER_NAMESPACES", "").split(",") if part.strip())
    if all_namespaces:
        if given:
            raise click.UsageError("--all-namespaces and --namespace exclude each other")
        return ()
    chosen = given or listed or ((own,) if own else ())
    if not chosen:
        raise click.UsageError("outside of Kubernetes say where: --namespace NAME, or --all-namespaces")
    return chosen


def repository(image: str) -> str:
    """An image's name without tag and digest: the tag is that of each cluster's version."""
    found = _TAG.fullmatch(image)
    return found["repository"] if found else image


if __name__ == "__main__":
    main()
