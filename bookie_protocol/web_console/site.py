"""All pages of the console of one cluster, by their paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie_protocol.admin_api.bodies import Query
from bookie_protocol.admin_api.cluster import LedgerSearch
from bookie_protocol.admin_api.streams import StreamQuery, StreamsQuery
from bookie_protocol.web_console.frame import SECTIONS, Place, Section, page
from bookie_protocol.web_console.html import Html
from bookie_protocol.web_console.pages.bookie import BookiePage, bookie
from bookie_protocol.web_console.pages.bookies import BookiesPage, bookies
from bookie_protocol.web_console.pages.healing import healing
from bookie_protocol.web_console.pages.ledgers import LedgerPage, ledger, ledgers
from bookie_protocol.web_console.pages.log import LogPage, log
from bookie_protocol.web_console.pages.overview import overview
from bookie_protocol.web_console.pages.streams import stream, streams
from bookie_protocol.web_console.source import Source, Watcher
from bookie_protocol.web_console.view import View


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `live`: a browser asks for it again every few seconds."""

    path: str
    """Path behind that of the overview."""
    section: str
    """Path of its entry in the navigation."""
    heading: Callable[[Query], str]
    query: type[Query]
    make: Callable[[View], Awaitable[Html]]
    live: bool = True

    async def text(
        self,
        source: Source,
        watcher: Watcher,
        query: Query,
        place: Place,
        sections: Sequence[Section] = SECTIONS,
    ) -> str:
        """The page as a browser gets it. Raises `NotThere`, and what asking for the bookies raises."""
        content = await self.make(View(source, watcher, query, place.base))
        at = place._replace(section=self.section)
        return page(at, self.heading(query), content, live=self.live, sections=sections)


def _titled(words: str) -> Callable[[Query], str]:
    return lambda query: words


def _bookie(query: Query) -> str:
    return f"Bookie {query.id}" if isinstance(query, BookiePage) else ""


def _log(query: Query) -> str:
    return f"Entry log {query.entry_log} of {query.bookie}" if isinstance(query, LogPage) else ""


def _ledger(query: Query) -> str:
    return f"Ledger {query.id}" if isinstance(query, LedgerPage) else ""


def _stream(query: Query) -> str:
    return f"Stream {query.name}" if isinstance(query, StreamQuery) else ""


PAGES: Final = (
    Page("", "", _titled("Overview"), Query, overview),
    Page("/bookies", "/bookies", _titled("Bookies"), BookiesPage, bookies),
    Page("/bookie", "/bookies", _bookie, BookiePage, bookie),
    Page("/log", "/bookies", _log, LogPage, log, live=False),
    Page("/ledgers", "/ledgers", _titled("Ledgers"), LedgerSearch, ledgers, live=False),
    Page("/ledger", "/ledgers", _ledger, LedgerPage, ledger, live=False),
    Page("/streams", "/streams", _titled("Streams"), StreamsQuery, streams, live=False),
    Page("/stream", "/streams", _stream, StreamQuery, stream, live=False),
    Page("/healing", "/healing", _titled("Healing"), Query, healing),
)
"""The pages. Those that list or search are not asked for again by themselves: a person does that."""
