"""The bookies' admin API over HTTP: where each serves it, and a few questions.

Invariants
- A bookie that publishes no admin API, does not answer or refuses is an `AdminError` of that bookie, told by name.
- An answer is at most `MAX_BODY` bytes, and comes within the time-out.

Any thread. Source: docs/http-api.md.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from bookie_protocol.errors import MetadataError
from pyspark_bookie.common.secrets import read_token

if TYPE_CHECKING:
    from bookie_client.client import Client

TIMEOUT_S: Final = 30.0
MAX_BODY: Final = 64 * 1024 * 1024


class AdminError(Exception):
    """The text names the bookie and what went wrong, in one line."""


@dataclass(frozen=True)
class AdminAccess:
    """How the admin API is reached. `tls` and its files: docs/http-api.md, "Who may ask"."""

    token_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """The context for bookies that serve HTTPS. Raises `OSError` for files that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


class AdminApi:
    """Asks bookies. `urls`: by bookie id; None: it publishes none."""

    def __init__(self, urls: dict[str, str | None], access: AdminAccess, timeout: float = TIMEOUT_S) -> None:
        self._urls = urls
        self._timeout = timeout
        self._headers = {"Accept": "application/json"}
        if access.token_file is not None:
            token = read_token("adminTokenFile", access.token_file)
            if token is not None:
                self._headers["Authorization"] = f"Bearer {token}"
        self._context = access.context()

    @property
    def bookies(self) -> list[str]:
        """All of them, sorted."""
        return sorted(self._urls)

    def get(self, bookie: str, path: str, **parameters: str) -> Any:
        """The JSON of `GET /api/v1/bookie/<path>`. Raises `AdminError`."""
        base = self._urls.get(bookie)
        if base is None:
            raise AdminError(f"bookie {bookie} publishes no admin API: set httpServerEnabled=true")
        url = f"{base}/api/v1/bookie/{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            request = Request(url, headers=self._headers)
            with urlopen(request, timeout=self._timeout, context=self._context) as answer:
                body = answer.read(MAX_BODY + 1)
            if len(body) > MAX_BODY:
                raise AdminError(f"bookie {bookie}: {path} answers more than {MAX_BODY} bytes")
            return json.loads(body)
        except HTTPError as error:
            with error:
                said = " ".join(error.read(300).decode("utf-8", "replace").split())
            hint = "; set --admin-token-file" if error.code == 401 else ""
            raise AdminError(f"bookie {bookie}: {path} answers {error.code}: {said}{hint}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise AdminError(f"bookie {bookie}: {url} cannot be asked: {error}") from error


async def admin_urls(client: Client) -> dict[str, str | None]:
    """Where each registered bookie serves its admin API, and whether by HTTPS, as it says itself.

    Raises `MetadataUnavailable`.
    """
    urls: dict[str, str | None] = {}
    for bookie in sorted(await client.bookies.writable() | await client.bookies.read_only()):
        try:
            urls[bookie] = (await client.bookies.info(bookie)).admin_url()
        except MetadataError:
            urls[bookie] = None
    return urls
