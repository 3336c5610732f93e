"""Streams of ledgers, their consumers and how far these lag behind."""

from __future__ import annotations

from typing import Final

from bookie_protocol.admin_api import streams as streams_api
from bookie_protocol.admin_api.streams import CursorState, ListedLedger, StreamQuery, StreamsQuery, StreamState
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.parts import bar, card, cards, facts, name, named_link, pages, pill, rows, trouble
from bookie_protocol.web_console.view import View

_IN_LISTS: Final = 3
"""Consumers that a list shows of each stream."""


async def streams(view: View) -> Html:
    """A page of streams."""
    asked = view.asked(StreamsQuery)
    found = await view.ask(None, streams_api.LIST, asked)
    search = h.form(
        h.label(
            "Name begins with",
            h.input_(type="search", name="prefix", value=asked.prefix, placeholder="any stream", maxlength=200),
        ),
        h.button("Search", type="submit"),
        action=view.base + "/streams",
        method="get",
        role="search",
    )
    if isinstance(found, str):
        return h.text(search, trouble(found))
    return h.text(
        search,
        card(
            "Streams",
            rows(
                ("Stream", "Ledgers", "Entries", "Size", "Writer", "Consumers, the one that lags most first"),
                found.streams,
                lambda each: _row(view, each),
                "No stream matches.",
                numbers=(1, 2, 3),
            ),
            pages(view.base, "/streams", "after", after=found.next, prefix=asked.prefix),
            note=w.many(found.total, "stream"),
        ),
    )


async def stream(view: View) -> Html:
    """The page of one stream."""
    asked = view.asked(StreamQuery)
    back = h.p(h.a("← Streams", href=view.href("/streams")))
    found = await view.ask(None, streams_api.STREAM, asked)
    if isinstance(found, str):
        return h.text(back, trouble(found))
    listed = found.listed or []

    def line(each: ListedLedger) -> list[Child]:
        return [
            named_link(str(each.ledger_id), view.href("/ledger", id=each.ledger_id)),
            w.count(each.first),
            w.count(each.entries) if each.entries is not None else pill("open", "busy"),
            w.size(each.bytes),
            w.moment(each.closed_time),
        ]

    left = found.ledgers - len(listed)
    return h.text(
        back,
        cards(
            card(
                "Stream",
                facts(
                    ("Entries", w.count(found.entries)),
                    ("Size", w.size(found.bytes)),
                    ("Ledgers", w.count(found.ledgers)),
                    ("Writer", _writer(found)),
                    ("Waiting for deletion", w.many(found.waiting_ledgers, "ledger")),
                    ("Created", w.moment(found.created_time)),
                ),
            ),
            card(
                "Consumers",
                rows(
                    ("Consumer", "Lag", "Position", "Last move"),
                    found.cursors,
                    lambda each: _cursor(view, found, each),
                    "It has no consumer with a cursor.",
                ),
                note=_left_out(found),
            ),
        ),
        card(
            "Ledgers",
            rows(
                ("Ledger", "First entry", "Entries", "Size", "Closed"),
                listed,
                line,
                "It has no ledger.",
                numbers=(1, 2, 3),
            ),
            note=f"{w.count(left)} older ones are left out" if left > 0 else "the newest first",
        ),
    )


def _row(view: View, found: StreamState) -> list[Child]:
    link = named_link(found.name, view.href("/stream", name=found.name))
    if found.problem is not None:
        return [link, w.UNKNOWN, w.UNKNOWN, w.UNKNOWN, pill("cannot be read", "bad"), found.problem]
    shown = [
        h.div(name(each.cursor_id), f" {_lag(each)}", class_="note" if not each.lag else None)
        for each in found.cursors[:_IN_LISTS]
    ]
    left = found.cursors_total - len(shown)
    return [
        link,
        w.count(found.ledgers),
        w.count(found.entries),
        w.size(found.bytes),
        _writer(found),
        [*shown, h.div(f"and {w.many(left, 'more consumer')}", class_="note") if left else None] if shown else "none",
    ]


def _writer(found: StreamState) -> Html:
    return pill("ledger open", "busy") if found.open_ledger is not None else pill("none")


def _cursor(view: View, found: StreamState, cursor: CursorState) -> list[Child]:
    share = cursor.lag / found.entries if found.entries else 0.0
    moved = view.ago(cursor.moved_time)
    return [
        name(cursor.cursor_id),
        bar(share, _lag(cursor)),
        name(cursor.position),
        f"{w.duration(moved)} ago" if moved is not None else w.UNKNOWN,
    ]


def _lag(cursor: CursorState) -> str:
    return f"{w.many(cursor.lag, 'entry')} behind" if cursor.lag else "at the end of the closed ledgers"


def _left_out(found: StreamState) -> str | None:
    left = found.cursors_total - len(found.cursors)
    return f"{w.count(left)} are left out" if left > 0 else None
