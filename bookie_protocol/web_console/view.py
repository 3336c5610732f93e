"""The input of a page: where it asks, what it was asked for, and where it is. Event loop only."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeVar

from bookie_protocol.admin_api.bodies import Query, Route
from bookie_protocol.errors import CouldNotTell, PodkeeperError
from bookie_protocol.web_console.limits import reckonable
from bookie_protocol.web_console.parts import link
from bookie_protocol.web_console.source import Look, Source, Watcher

T = TypeVar("T")
Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class View:
    """One request of one page."""

    source: Source
    watcher: Watcher
    query: Query
    base: str
    """Path of the overview, without a slash at the end."""
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def asked(self, kind: type[Q]) -> Q:
        """The parameters, as the type that the page names."""
        assert isinstance(self.query, kind), f"{type(self.query).__name__} is read as {kind.__name__}"
        return self.query

    def href(self, path: str, **query: str | int | None) -> str:
        """A path of this console."""
        return link(self.base, path, **query)

    async def look(self) -> Look:
        """The bookies now, or a few seconds ago."""
        return await self.watcher.look(self.source)

    async def ask(self, bookie_id: str | None, route: Route[T], query: Query | None = None) -> T | str:
        """Return the answer of a bookie, or of the cluster for None; the reason as a text if it does not answer, or
        answers what no page can show."""
        try:
            if bookie_id is None:
                return reckonable(await self.source.cluster(route, query), is_ours=True)
            return reckonable(await self.source.bookie(bookie_id, route, query))
        except CouldNotTell as error:
            return f"not known: {error}"
        except PodkeeperError as error:
            return str(error)
        except Exception as error:  # one odd record is an error in its place, not of the page
            return f"not known: an answer that cannot be read: {type(error).__name__}"

    def ago(self, ms: int | None) -> float | None:
        """Seconds since a time in ms since 1970; None: it is not known."""
        return None if ms is None or ms <= 0 else (self.now_ms - ms) / 1000
