"""Requests to the API server: the `kubernetes` client's configuration and connections, plain JSON in and out.

Objects stay as JSON has them: turning hundreds of pods and claims into the client's classes takes longer than all the
requests of a pass. Authentication (tokens that are renewed included), TLS and proxies are the client's.

Invariants
- Every request has a time-out and ends in an answer or in one of `api.errors`. A read over a connection that broke is
  made once more, over another one; nothing else is repeated.
- At most `workers` requests are under way; others wait their turn.

Threads: `request` is called on the event loop; requests run in threads of the transport's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from bookie_operator.api.errors import (
    Absent,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubernetesError,
    TooManyRequests,
    Unreachable,
)

_MAX_MESSAGE: Final = 1000
"""Characters of what a server says that go on."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def load_configuration() -> client.Configuration:
    """Load the configuration of the pod's service account, else that of KUBECONFIG.

    Raises KubernetesError when there is neither.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as exc:
            raise KubernetesError(f"no service account of a pod, and no usable KUBECONFIG: {exc}") from exc
    return configuration


class Transport:
    """One connection pool, one bounded thread pool."""

    def __init__(self, configuration: client.Configuration, *, timeout_s: float = 15.0, workers: int = 16) -> None:
        configuration.connection_pool_maxsize = workers
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._pool: urllib3.PoolManager = self._client.rest_client.pool_manager
        self._timeout = urllib3.Timeout(connect=min(5.0, timeout_s), read=timeout_s)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="kubernetes")

    async def request(self, request: Request) -> Any:
        """The answer's JSON.

        Raises the errors of `api.errors`.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(self._send, request))

    def close(self) -> None:
        """Waits for the requests that are under way, each of which has its time-out."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._pool.clear()
        self._client.close()  # type: ignore[no-untyped-call]

    def _send(self, request: Request) -> Any:
        url = self._configuration.host.rstrip("/") + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        headers = {"Accept": request.accept, "User-Agent": "podkeeper-operator"}
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = json.dumps(request.body, separators=(",", ":")).encode()
        try:
            settings: dict[str, Any] = dict(self._configuration.auth_settings())
            for setting in settings.values():
                if setting["in"] == "header" and setting["value"]:
                    headers[setting["key"]] = setting["value"]
            answer = self._exchange(request.method, url, body, headers)
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise Unreachable(f"{request}: {type(exc).__name__}: {str(exc)[:_MAX_MESSAGE]}") from exc
        return judged(request, answer)

    def _exchange(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        def once() -> urllib3.BaseHTTPResponse:
            return self._pool.request(
                method, url, body=body, headers=headers, timeout=self._timeout, retries=False, redirect=False
            )

        try:
            return once()
        except urllib3.exceptions.ProtocolError:  # an idle connection that the server has closed
            if method != "GET":
                raise
            return once()


def judged(request: Request, answer: urllib3.BaseHTTPResponse) -> Any:
    """The answer's JSON.

    Raises the errors of `api.errors`.
    """
    try:
        decoded = json.loads(answer.data)
    except (ValueError, RecursionError) as exc:
        if answer.status < 400:
            raise Unreachable(f"{request}: the answer is not valid JSON: {answer.data[:80]!r}") from exc
        decoded = None
    if answer.status < 300:
        return decoded
    message = decoded.get("message", "") if isinstance(decoded, dict) else ""
    message = (message or answer.data.decode(errors="replace").strip() or f"status {answer.status}")[:_MAX_MESSAGE]
    text = f"{request}: {answer.status}: {message}"
    plain: dict[int, type[KubernetesError]] = {
        401: Forbidden,
        403: Forbidden,
        404: Absent,
        409: Conflict,
        410: Expired,
    }
    if answer.status in plain:
        raise plain[answer.status](text)
    if answer.status == 429:
        raise TooManyRequests(text, message, _seconds(answer.headers.get("Retry-After")))
    if 400 <= answer.status < 500:
        raise Invalid(text, message)
    raise Unreachable(text)


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None
