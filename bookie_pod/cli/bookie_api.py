"""A bookie's admin API, as commands ask it: one connection per request.

Works with Apache's bookies too, where they have what a command asks for.

Threads: the command's own; calls block for `timeout` seconds at most.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from bookie_pod.cli.bookie_server import DEFAULT_URL
from bookie_protocol.bearer_tokens import MAX_BYTES, first_token
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    BookieUnavailable,
    CouldNotTell,
    InvalidConfiguration,
    NotThere,
    PodkeeperError,
    ProtocolViolation,
    Refused,
    Unauthorized,
)

_MAX_LINE: Final = 400
_REFUSALS: Final[Mapping[int, type[PodkeeperError]]] = {
    400: BadRequest,
    403: Unauthorized,
    404: NotThere,
    409: Refused,
    413: BadRequest,
}


class BookieApi:
    """One bookie's admin API."""

    def __init__(
        self,
        url: str,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        timeout: float = 60.0,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`tls`: in place of one made of the files. `server_name`: the name that its certificate must have; the URL's
        by default.

        `InvalidConfiguration` for a URL or a file that cannot be used.
        """
        self.url = url.rstrip("/")
        self._parts = _parse(self.url)
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {read_token(token_file)}"} if token_file is not None else {}
        self._tls = (tls or client_tls(ca_file, cert_file)) if self._parts.scheme == "https" else None
        self._server_name = server_name

    def get(self, path: str, **query: str) -> Any:
        """The JSON that `GET /api/v1/<path>` answers. Raises what the status stands for."""
        return self._ask("GET", path, query, None)

    def put(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """The JSON that `PUT /api/v1/<path>` answers."""
        return self._ask("PUT", path, {}, json.dumps(body).encode() if body is not None else None)

    def delete(self, path: str) -> Any:
        """The JSON that `DELETE /api/v1/<path>` answers."""
        return self._ask("DELETE", path, {}, None)

    def _ask(self, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> Any:
        host, port = self._parts.hostname or "", self._parts.port
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = _Named(host, port, self._timeout, self._tls, self._server_name or host)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        target = f"{self._parts.path}/api/v1/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        try:
            connection.request(method, target, body, self._headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except TimeoutError as error:
            raise BookieTimeout(f"{self.url} does not answer within {self._timeout:g} s") from error
        except ssl.SSLError as error:  # somebody is there: that is another thing than a bookie that is gone
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise CouldNotTell(
                f"{self.url}: no TLS with it: {reason}; do its certificate and --ca-file match?"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise BookieUnavailable(f"{self.url} cannot be reached: {reason}; is --url the bookie's?") from error
        except http.client.HTTPException as error:
            raise ProtocolViolation(f"{self.url} does not speak HTTP: {error!r}; is --url the bookie's?") from error
        finally:
            connection.close()
        return self._judge(answer.status, text, target)

    def _judge(self, status: int, text: str, target: str) -> Any:
        line = " ".join(text.split())[:_MAX_LINE]
        if status == 200:
            try:
                return json.loads(text)
            except ValueError as error:
                raise ProtocolViolation(f"{self.url} is no bookie's admin API: it answers {line[:80]!r}") from error
        if status == 401:
            raise Unauthorized(f"{self.url} demands a token: give the file that holds it with --token-file")
        if status == 404 and line.startswith("<html>"):
            raise NotThere(f"{self.url} has no {target.partition('?')[0]}")
        kind = _REFUSALS.get(status, CouldNotTell)
        raise kind(line or f"{self.url} answers {target} with status {status}")


class _Named(http.client.HTTPSConnection):
    """A connection to a server whose certificate has another name than the address that it is reached at."""

    def __init__(self, host: str, port: int | None, timeout: float, tls: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=tls)
        self._named = (tls, name)

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        tls, name = self._named
        self.sock = tls.wrap_socket(self.sock, server_hostname=name)


def _parse(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(character.isspace() for character in url):
        raise InvalidConfiguration(f"--url {url}: must look like {DEFAULT_URL}")
    return parts


def read_token(path: str) -> str:
    """The token in the file of `--token-file`. `InvalidConfiguration` for a file that has none."""
    try:
        with open(path, "rb") as file:
            token = first_token(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise InvalidConfiguration(f"--token-file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"--token-file {path}: it is no file with tokens") from error
    if token is None:
        raise InvalidConfiguration(f"--token-file {path}: it holds no token")
    return token


def client_tls(ca_file: str | None, cert_file: str | None) -> ssl.SSLContext:
    """The context that `--ca-file` and `--cert-file` ask for. `InvalidConfiguration` for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidConfiguration(f"--ca-file {ca_file}: {error.strerror or 'no PEM file'}") from error
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, password="")
        except OSError as error:
            raise InvalidConfiguration(
                f"--cert-file {cert_file}: {error.strerror or 'no PEM file with certificate and key'}"
            ) from error
    return context
