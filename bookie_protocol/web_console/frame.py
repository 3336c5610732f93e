"""The frame of every page: its head, its navigation, its headers.

Style and script are in the page itself, and the content security policy names their hashes: nothing else may run, be
loaded or be sent. Pure; any thread.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from bookie_protocol.web_console import html as h
from bookie_protocol.web_console.html import Html

CONTENT_TYPE: Final = "text/html; charset=utf-8"
_STYLE: Final = "console.css"
_SCRIPT: Final = "console.js"
_KEYS: Final = (("/", "Search"), ("p", "Pause or go on"), ("?", "These keys"))


class Place(NamedTuple):
    """The place of a page."""

    base: str
    """Path of the overview, such as `/ui`, without a slash at the end."""
    name: str
    """Name of the cluster or of what serves the page."""
    section: str
    """Path of the page's entry in the navigation, behind `base`."""
    up: str | None = None
    """Path of the list of all clusters; None: this page serves one."""


class Section(NamedTuple):
    """One entry of the navigation."""

    path: str
    title: str
    key: str


SECTIONS: Final = (
    Section("", "Overview", "o"),
    Section("/bookies", "Bookies", "b"),
    Section("/ledgers", "Ledgers", "l"),
    Section("/streams", "Streams", "s"),
    Section("/healing", "Healing", "h"),
)


def page(place: Place, heading: str, *content: Html | None, live: bool = True, sections: Sequence[Section]) -> str:
    """A whole page. `live`: its content is asked for again every few seconds."""
    return h.document(
        h.html(
            _head(f"{heading} · {place.name} · Podkeeper"),
            h.body(
                h.a("Skip to the content", href="#content", class_="skip"),
                _header(place, sections),
                h.main(
                    h.div(
                        h.h1(h.bdi(heading)),
                        h.div(id="stale", role="status", aria_live="polite", hidden=True),
                        class_="title",
                    ),
                    h.div(*content, id="live", data_live="yes" if live else "no"),
                    id="content",
                    tabindex=-1,
                ),
                _help(sections),
                h.script.of_file(_SCRIPT),
            ),
            lang="en",
        )
    )


def error_page(status: int, line: str) -> str:
    """A page that says why there is no other."""
    return h.document(
        h.html(
            _head(f"{status} · Podkeeper"),
            h.body(h.main(h.section(h.h1(f"{status}"), h.p(line), class_="card error"), id="content")),
            lang="en",
        )
    )


@cache
def headers() -> Mapping[str, str]:
    """The headers of every page, and of every refusal of one."""
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{_hash(_SCRIPT)}'",
        "style-src": f"'sha256-{_hash(_STYLE)}'",
        "connect-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }


def _hash(name: str) -> str:
    return base64.b64encode(hashlib.sha256(h.asset(name).encode()).digest()).decode()


def _head(title: str) -> Html:
    return h.head(
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.title(title),
        h.style.of_file(_STYLE),
    )


def _header(place: Place, sections: Sequence[Section]) -> Html:
    links = [
        h.li(
            h.a(
                section.title,
                href=place.base + section.path,
                data_key=section.key,
                aria_current="page" if section.path == place.section else None,
            )
        )
        for section in sections
    ]
    return h.header(
        h.a("Podkeeper", href=place.up or place.base, class_="brand"),
        h.span(h.bdi(place.name), class_="cluster", title=place.name),
        h.nav(h.ul(*links), aria_label="Views"),
        h.button("Live", id="pause", type="button", title="Pause or go on (p)", hidden=True),
        h.button("?", id="keys", type="button", title="Keys (?)", aria_label="Keys", hidden=True),
    )


def _help(sections: Sequence[Section]) -> Html:
    keys = [*((section.key, section.title) for section in sections), *_KEYS]
    rows = [h.tr(h.td(h.kbd(key)), h.td(what)) for key, what in keys]
    return h.dialog(
        h.h2("Keys"),
        h.table(h.tbody(*rows)),
        h.form(h.button("Close", value="close"), method="dialog"),
        id="help",
        aria_label="Keys",
    )
