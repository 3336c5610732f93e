"""The origin of an HTTP request: this machine itself, another one, or a page of another site.

Pure; any thread.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import Final

from bookie_protocol.addresses import is_loopback

Header = Callable[[str], str | None]
"""Returns a header by its name in lower case."""
EMBEDDED: Final = "a page of another site asks for this page; open it directly"
_PASSED_ON: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "via")
"""Envoy beside a pod, as meshes have it, may say nothing but `x-forwarded-proto`."""
_ELSEWHERE: Final = "cross-site"


def comes_from_here(address: str, header: Header) -> bool:
    """Return whether a process of this machine asks, for itself, by a loopback address."""
    if not is_on_this_machine(address, header) or header("sec-fetch-site") == _ELSEWHERE:
        return False
    origin = header("origin")
    return origin is None or _names_this_machine(origin)


def is_on_this_machine(address: str, header: Header) -> bool:
    """Return whether the other end has a loopback address, asks for one, and passes on nothing. A browser counts, also
    when a page of another site makes it ask (`is_embedded`)."""
    if not is_loopback(address) or any(header(name) is not None for name in _PASSED_ON):
        return False
    host = header("host")
    return host is None or _names_this_machine(f"//{host}")


def is_embedded(header: Header) -> bool:
    """Return whether a page of another site asks for this one other than by a link that a person follows: as a picture,
    in a frame, by its script. Old browsers do not tell: their requests count as a person's."""
    if header("sec-fetch-site") in (None, "same-origin", "none"):
        return False
    return (header("sec-fetch-mode"), header("sec-fetch-dest")) != ("navigate", "document")


def _names_this_machine(url: str) -> bool:
    try:
        return is_loopback(urllib.parse.urlsplit(url).hostname or "")
    except ValueError:
        return False
