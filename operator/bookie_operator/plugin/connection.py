"""The connection of a command to the API server: `-n`, `--context`, `--kubeconfig`, as kubectl does.

`connects` gives a command a `Connection` in place of these options. Nothing heavy is loaded before `run`, so that
`--help` answers at once.

Threads: `run` makes an event loop of its own in the calling thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bookie_operator.plugin.faults import UsageFault, explained
from bookie_protocol.shown import one_line

if TYPE_CHECKING:
    from kubernetes import client

    from bookie_operator.api.kubernetes import Kubernetes

T = TypeVar("T")
_NAMESPACE_FILE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Api:
    """The API server, as long as a command runs."""

    kubernetes: Kubernetes
    configuration: client.Configuration
    namespace: str

    @property
    def server(self) -> str:
        return str(self.configuration.host)


class Connection:
    """The address of the API server, and the namespace that is meant."""

    def __init__(self, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
        self._namespace = namespace
        self._context = context
        self._kubeconfig = kubeconfig or os.environ.get("KUBECONFIG") or None

    def run(self, work: Callable[[Api], Coroutine[Any, Any, T]]) -> T:
        """Connect, do the work and disconnect. Raises `Fault`."""
        from bookie_operator.api.errors import KubernetesError
        from bookie_operator.api.kubernetes import Kubernetes
        from bookie_operator.api.transport import Transport

        _silence()
        configuration, namespace = self._load()

        async def connected() -> T:
            kubernetes = Kubernetes(Transport(configuration, timeout_s=_TIMEOUT_S))
            try:
                return await work(Api(kubernetes, configuration, namespace))
            finally:
                await kubernetes.close()

        try:
            return asyncio.run(connected())
        except KubernetesError as error:
            raise explained(error, str(configuration.host)) from error

    def _load(self) -> tuple[client.Configuration, str]:
        from kubernetes import client, config

        configuration = client.Configuration()
        path = os.path.expanduser(self._kubeconfig or "~/.kube/config")
        if not self._kubeconfig and not os.path.exists(path):
            return self._in_cluster(configuration)
        try:
            contexts, active = config.list_kube_config_contexts(config_file=path)  # type: ignore[no-untyped-call]
            chosen = active
            if self._context:
                chosen = next((each for each in contexts if each["name"] == self._context), None)
                if chosen is None:
                    known = ", ".join(sorted(each["name"] for each in contexts)) or "none"
                    raise UsageFault(f"no context {self._context} in {path}; there are: {known}")
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path, context=chosen["name"], client_configuration=configuration
            )
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            words = one_line(error) or type(error).__name__
            raise UsageFault(
                f"kubeconfig {path} cannot be used: {words}; set KUBECONFIG or give --kubeconfig"
            ) from error
        return configuration, self._namespace or chosen["context"].get("namespace") or "default"

    def _in_cluster(self, configuration: client.Configuration) -> tuple[client.Configuration, str]:
        """The configuration of the service account, where the command runs in a pod."""
        from kubernetes import config

        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            with open(_NAMESPACE_FILE, encoding="utf-8") as file:
                own = file.read().strip()
        except (config.ConfigException, OSError) as error:
            raise UsageFault("no kubeconfig: set KUBECONFIG or give --kubeconfig") from error
        return configuration, self._namespace or own


def _silence() -> None:
    """The operator's code logs; here its lines would be among the answer."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the API server is, as kubectl has them."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="Kubeconfig. [environment: KUBECONFIG]"),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "-n", "--namespace", metavar="NAMESPACE", help="Namespace of the cluster. [default: of the context]"
        ),
    ):
        command = option(command)
    return command


def connects(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and pass the command a `Connection` as its first argument. An option before the command, as
    kubectl's users write it, counts unless the command has it too."""

    @connection_options
    @functools.wraps(command)
    def connected(
        *arguments: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **others: Any
    ) -> Any:
        before = click.get_current_context().find_root().params
        connection = Connection(
            namespace or before.get("namespace"),
            context or before.get("context"),
            kubeconfig or before.get("kubeconfig"),
        )
        return command(connection, *arguments, **others)

    return connected
