"""The bookies' admin API: where each serves it, and what it takes to be let in.

Any thread. Source: docs/http-api.md, "Who may ask".
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie_protocol.admin_api.client import Place
from bookie_protocol.errors import MetadataError
from pyspark_bookie.common.secrets import read_token

if TYPE_CHECKING:
    from bookie_client.client import Client


@dataclass(frozen=True)
class AdminAccess:
    """The files that it takes, on the driver."""

    token_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def token(self) -> str | None:
        """The token to show. Raises `PodkeeperSparkError` for a file that cannot be used."""
        return read_token("adminTokenFile", self.token_file) if self.token_file is not None else None

    def context(self) -> ssl.SSLContext:
        """The context for bookies that serve HTTPS. Raises `OSError` for files that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


async def admin_places(client: Client, tls: ssl.SSLContext) -> dict[str, Place | None]:
    """Where each registered bookie serves its admin API, and whether by HTTPS, as it says itself; None: nowhere.

    Raises `MetadataUnavailable`.
    """
    places: dict[str, Place | None] = {}
    for bookie in sorted(await client.bookies.writable() | await client.bookies.read_only()):
        try:
            url = (await client.bookies.info(bookie)).admin_url()
        except MetadataError:
            url = None
        places[bookie] = None if url is None else Place(url, url, tls)
    return places
