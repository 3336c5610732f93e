"""All bookies beside each other: state, disk, garbage, caches, rates and latencies."""

from __future__ import annotations

from typing import Final

from bookie_protocol.admin_api.bodies import Query
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.pages.overview import mood_of
from bookie_protocol.web_console.parts import bar, card, named_link, pages, pill, rows
from bookie_protocol.web_console.source import Seen
from bookie_protocol.web_console.view import View

_HEAD: Final = (
    "Bookie",
    "State",
    "Disk",
    "Garbage",
    "Write cache",
    "Read cache",
    "Adds",
    "Reads",
    "Sync p99",
    "Ledgers",
)
_NUMBERS: Final = (6, 7, 8, 9)
_ON_A_PAGE: Final = 50


class BookiesPage(Query):
    """The bookies to show."""

    after: str = ""
    """Begin behind this id."""


async def bookies(view: View) -> Html:
    """The table of all bookies, a page at a time."""
    look, after = await view.look(), view.asked(BookiesPage).after
    behind = [look.bookies[each] for each in sorted(look.bookies) if each > after]
    shown, left = behind[:_ON_A_PAGE], len(behind) - _ON_A_PAGE
    note = f"{w.count(look.left_out)} were not asked" if look.left_out else "latencies are of the last full minute"
    return card(
        "Bookies",
        rows(_HEAD, shown, lambda seen: _row(view, seen), "No bookie is registered.", numbers=_NUMBERS),
        pages(view.base, "/bookies", "after", after=shown[-1].known.bookie_id if left > 0 else None),
        note=note,
    )


def disk_bar(seen: Seen) -> Html:
    """Return how full the fullest file system of a bookie is."""
    load = seen.load
    if load is None or not load.total_space:
        return bar(None, "")
    return bar(
        load.fullest_used_percent / 100,
        f"{w.percent(load.fullest_used_percent / 100)}, {w.size(load.free_space)} free",
        is_alarming=True,
    )


def garbage_bar(seen: Seen) -> Html:
    """Return the part of the entry logs that belongs to no ledger any more."""
    load = seen.load
    if load is None or not load.entry_log_bytes:
        return bar(None, "")
    dead = max(0, load.entry_log_bytes - load.live_bytes)
    return bar(dead / load.entry_log_bytes, f"{w.size(dead)} of {w.size(load.entry_log_bytes)}")


def cache_bar(used: int, most: int) -> Html:
    """Return how full a cache is."""
    return bar(used / most if most else None, f"{w.size(used)} of {w.size(most)}")


def _row(view: View, seen: Seen) -> list[Child]:
    word, mood = mood_of(seen)
    known, load, rates = seen.known, seen.load, seen.rates
    link = h.div(
        named_link(known.bookie_id, view.href("/bookie", id=known.bookie_id)),
        h.div(h.bdi(known.location or known.host or ""), class_="note place"),
    )
    state = pill(word, mood, title=seen.problem or (load.complaint if load is not None else None))
    if load is None:
        return [link, state, *[w.UNKNOWN] * (len(_HEAD) - 2)]
    return [
        link,
        state,
        disk_bar(seen),
        garbage_bar(seen),
        cache_bar(load.write_cache_bytes, load.write_cache_max_bytes),
        cache_bar(load.read_cache_bytes, load.read_cache_max_bytes),
        _work(rates.adds if rates is not None else None, load.add_p50_ms, load.add_p99_ms),
        _work(rates.reads if rates is not None else None, load.read_p50_ms, load.read_p99_ms),
        w.latency(load.sync_p99_ms),
        w.count(load.ledgers),
    ]


def _work(per_second: float | None, p50_ms: float | None, p99_ms: float | None) -> Html:
    return h.text(w.rate(per_second), h.span(f"p50 {w.latency(p50_ms)}, p99 {w.latency(p99_ms)}", class_="note"))
