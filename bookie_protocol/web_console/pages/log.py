"""Why an entry log is still there."""

from __future__ import annotations

from bookie_protocol.admin_api import gc as gc_api
from bookie_protocol.admin_api.bodies import Query
from bookie_protocol.admin_api.gc import EntryLogQuery, LogWhy
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Html
from bookie_protocol.web_console.parts import (
    bar,
    card,
    cards,
    each_of,
    facts,
    most_rows,
    name,
    named_link,
    rows,
    trouble,
)
from bookie_protocol.web_console.view import View


class LogPage(Query, rename={"entry_log": "entryLog"}):
    """The entry log to show."""

    bookie: str
    """The bookie that has it."""
    entry_log: str
    """Its name."""


async def log(view: View) -> Html:
    """The page of one entry log."""
    asked = view.asked(LogPage)
    found = await view.ask(asked.bookie, gc_api.WHY, EntryLogQuery(asked.entry_log))
    back = h.p(h.a("← Bookie ", h.bdi(asked.bookie), href=view.href("/bookie", id=asked.bookie)))
    if isinstance(found, str):
        return h.text(back, trouble(found))
    return h.text(back, each_of(found, lambda each: _why(view, each, most_rows(len(found)))))


def _why(view: View, why: LogWhy, most: int) -> Html:
    doubtful = why.in_doubt_bytes or 0
    owners = why.owners or []
    whole = max(why.size, 1)
    return cards(
        card(
            h.text("Why is ", name(why.entry_log), " still here?"),
            h.p(why.reason),
            facts(
                ("File", name(why.path)),
                ("Size", w.size(why.size)),
                ("Live", bar(why.usage, f"{w.percent(why.usage)}, {w.size(why.live_bytes)}")),
                (
                    "In doubt",
                    f"{w.size(doubtful)} count as live because their state is unknown" if doubtful else "nothing",
                ),
                ("Last written", f"{w.duration(why.age_seconds)} ago" if why.age_seconds is not None else w.UNKNOWN),
            ),
        ),
        card(
            "Ledgers that live in it",
            rows(
                ("Ledger", "Share of the file"),
                owners,
                lambda each: [
                    named_link(str(each.ledger_id), view.href("/ledger", id=each.ledger_id)),
                    bar(each.bytes / whole, w.size(each.bytes)),
                ],
                "No ledger lives in it." if why.owners is not None else "Not known: the log was not measured yet.",
                most=most,
            ),
            note="the largest first",
        ),
    )
