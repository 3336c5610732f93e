"""HTTP to pods from anywhere that reaches the API server, as `kubectl port-forward` does it.

The API server's proxy for pods takes the `Authorization` header for itself, and the pods' admin API wants its own; so a
connection is forwarded whole.

Threads: one event loop; connections are opened in threads, and each has one of the `kubernetes` client's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from kubernetes import client
from kubernetes.stream import portforward

from bookie_operator.plugin.connection import Api

if TYPE_CHECKING:
    from bookie_operator.api.trust import Trust

PORT: Final = 8000
_AT_ONCE: Final = 8
Open = Callable[[str], socket.socket]
"""A connection to the admin port of the pod of this name. Raises OSError."""


class ForwardingConnector(aiohttp.TCPConnector):
    """Connects to pods by name, where others connect to their addresses."""

    def __init__(self, open_socket: Open, pods: Mapping[str, str]) -> None:
        """`pods`: names by IP address."""
        super().__init__(limit=_AT_ONCE, force_close=True)
        self._open = open_socket
        self._pods = pods

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        host = req.url.host or ""
        try:
            made = await asyncio.to_thread(self._open, self._pods.get(host, host))
            made.setblocking(False)
            loop = asyncio.get_running_loop()
            tls = self._get_ssl_context(req)
            name = (req.server_hostname or host) if tls is not None else None
            _, protocol = await loop.create_connection(self._factory, sock=made, ssl=tls, server_hostname=name)
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


def opener(api: Api) -> Open:
    """Return a function that opens real connections, through the API server."""

    def open_socket(pod: str) -> socket.socket:
        core: Any = client.CoreV1Api(client.ApiClient(api.configuration))
        try:
            forwarded = portforward(core.connect_get_namespaced_pod_portforward, pod, api.namespace, ports=str(PORT))
        except client.ApiException as error:
            raise OSError(f"no connection to pod {pod}: {error.reason or error.status}") from error
        wrapped = forwarded.socket(PORT)
        made: socket.socket = getattr(wrapped, "_socket", wrapped)
        return made

    return open_socket


@contextlib.asynccontextmanager
async def session_to(pods: list[dict[str, Any]], open_socket: Open) -> AsyncIterator[aiohttp.ClientSession]:
    """A session that takes the pods' addresses."""
    by_address = {
        str(pod["status"]["podIP"]): str(pod["metadata"]["name"])
        for pod in pods
        if (pod.get("status") or {}).get("podIP")
    }
    async with aiohttp.ClientSession(connector=ForwardingConnector(open_socket, by_address)) as session:
        yield session


def trust_of(api: Api, cluster: str) -> Trust:
    """Return the authorities by which the cluster's pods that serve HTTPS are trusted."""
    from bookie_operator.api.trust import Trust
    from bookie_operator.builders import naming

    return Trust(api.kubernetes, api.namespace, naming.admin_server_name(cluster, api.namespace))


async def read_token(api: Api, cluster: str) -> str:
    """The bearer token of the pods' admin API; empty: it is not there. Raises `Forbidden`."""
    from bookie_operator.api.kinds import SECRET
    from bookie_operator.builders import naming
    from bookie_operator.builders.secrets import token_in

    return token_in(await api.kubernetes.find(SECRET, api.namespace, naming.admin_token(cluster)))
