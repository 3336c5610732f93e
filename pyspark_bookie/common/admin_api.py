"""Where bookies serve their admin API, as they say themselves.

Pure; any process. Source: docs/http-api.md.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.metadata_service.service_info import BookieServiceInfo

_HTTP: Final = "http"
_HTTPS: Final = "https"
_TLS: Final = "tls"
"""Among the extensions of an endpoint that is served by HTTPS."""


def admin_url(info: BookieServiceInfo, *, tls: bool = False) -> str | None:
    """Without a path; None: it serves none. `tls`: by HTTPS, also if the bookie does not say so, as Apache's do not."""
    endpoint = next((each for each in info.endpoints if each.protocol in (_HTTP, _HTTPS)), None)
    if endpoint is None:
        return None
    encrypted = tls or endpoint.protocol == _HTTPS or _TLS in endpoint.extensions
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{_HTTPS if encrypted else _HTTP}://{host}:{endpoint.port}"
