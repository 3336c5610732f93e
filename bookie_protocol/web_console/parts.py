"""The parts of pages: cards, bars, tables, pills, lists of facts. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal, TypeVar
from urllib.parse import quote, urlencode

from bookie_protocol.web_console import html as h
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.wording import UNKNOWN, count, percent

T = TypeVar("T")
Mood = Literal["good", "busy", "warn", "bad", "idle"]
MOST_ROWS: Final = 200
"""Rows of a table, whatever others answer: 130,000 of them keep the event loop for 20 s."""
MOST_TROUBLES: Final = 30
MOST_EACH: Final = 20
"""Things that are shown one below the other, or within one row."""
_FEWEST_ROWS: Final = 10
_FULL: Final = 0.95
_ALMOST: Final = 0.85


def link(base: str, path: str, **query: str | int | None) -> str:
    """A path of the console with its query; a parameter that is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return base + path + (f"?{urlencode(given, quote_via=quote)}" if given else "")


def card(title: Child, *content: Child, note: Child = None, wide: bool = False, key: str | None = None) -> Html:
    """A card with a heading."""
    top = h.div(h.h2(title), h.span(note, class_="note") if note is not None else None, class_="top")
    return h.section(top, *content, class_="card wide" if wide else "card", data_key=key)


def cards(*content: Html | None) -> Html:
    """Cards beside each other."""
    return h.div(*content, class_="cards")


def figure(label: str, value: Child, note: Child = None, mood: Mood | None = None) -> Html:
    """A number that is to be seen from afar."""
    return h.div(
        h.span(label, class_="label"),
        h.strong(value, class_=mood),
        h.span(note, class_="note") if note is not None else None,
        class_="figure",
    )


def figures(*content: Html | None) -> Html:
    """Numbers in a row."""
    return h.div(*content, class_="figures")


def pill(words: str, mood: Mood = "idle", title: str | None = None) -> Html:
    """A state in one word."""
    return h.span(words, class_=f"pill {mood}", title=title)


def bar(share: float | None, label: str, *, is_alarming: bool = False) -> Html:
    """A bar that is filled to a share between 0 and 1. `is_alarming`: a full one is trouble."""
    if share is None:
        return h.span(UNKNOWN, class_="note")
    mood = "plain"
    if is_alarming:
        mood = "bad" if share >= _FULL else "warn" if share >= _ALMOST else "plain"
    drawn = [h.rect(x=0, y=0, width="100%", height="100%", rx=3, class_="ground")]
    drawn.append(h.rect(x=0, y=0, width=f"{100 * _within(share):.1f}%", height="100%", rx=3, class_=mood))
    picture = h.svg(*drawn, class_="bar", role="img", aria_label=f"{label}: {percent(share)}")
    return h.span(picture, h.span(label, class_="value"), class_="gauge")


def columns(shares: Sequence[tuple[float, str]], label: str) -> Html:
    """Bars beside each other, from the left: each share between 0 and 1, and what it says when it is pointed at."""
    width = 100 / max(1, len(shares))
    drawn = [
        h.rect(
            h.title(words),
            x=f"{at * width + width * 0.08:.2f}%",
            y=f"{100 - 100 * _within(share):.1f}%",
            width=f"{width * 0.84:.2f}%",
            height=f"{100 * _within(share):.1f}%",
            rx=2,
            class_="plain",
        )
        for at, (share, words) in enumerate(shares)
    ]
    return h.svg(*drawn, class_="columns", role="img", aria_label=label)


def rows(
    head: Sequence[str],
    items: Sequence[T],
    line: Callable[[T], Sequence[Child]],
    empty: str,
    *,
    numbers: Sequence[int] = (),
    most: int = MOST_ROWS,
) -> Html:
    """A table with a line for each item, but for `most` at most: no line is made for the others, which are counted.

    `numbers`: the columns that hold numbers. `empty`: what it says without rows.
    """
    if not items:
        return h.p(empty, class_="empty")
    lines = (
        h.tr(*(h.td(cell, class_="number" if at in numbers else None) for at, cell in enumerate(line(item))))
        for item in islice(items, most)
    )
    titles = (h.th(name, scope="col", class_="number" if at in numbers else None) for at, name in enumerate(head))
    table = h.div(h.table(h.thead(h.tr(*titles)), h.tbody(*lines)), class_="scroll", tabindex=0)
    return h.text(table, _more(len(items) - most))


def most_rows(tables: int) -> int:
    """Rows of each of several tables of one kind, so that together they have `MOST_ROWS` or a few more."""
    return max(_FEWEST_ROWS, MOST_ROWS // max(1, tables))


def each_of(items: Sequence[T], piece: Callable[[T], Child], most: int = MOST_EACH) -> Html:
    """A piece for each item, one behind the other, but for `most` at most: the others are counted."""
    return h.text(*(piece(item) for item in islice(items, most)), _more(len(items) - most))


def facts(*pairs: tuple[str, Child]) -> Html:
    """Names and values."""
    return h.dl(*((h.dt(name), h.dd(value if value not in (None, "") else UNKNOWN)) for name, value in pairs))


def name(words: str) -> Html:
    """A name or an id that others chose."""
    return h.code(h.bdi(words))


def named_link(words: str, href: str) -> Html:
    """A link by such a name."""
    return h.a(h.bdi(words), href=href, class_="name")


def trouble(*lines: str | None) -> Html | None:
    """Lines about what is wrong, the first of them if there are many; None without any."""
    said = [line for line in lines if line]
    left = len(said) - MOST_TROUBLES
    more = h.li(f"and {count(left)} more") if left > 0 else None
    return h.ul(*(h.li(line) for line in said[:MOST_TROUBLES]), more, class_="trouble") if said else None


def pages(base: str, path: str, following: str | None, **query: str | int | None) -> Html | None:
    """The link to the next page. `following`: the name of the parameter that says where it begins."""
    if following is None or query.get(following) in (None, ""):
        return None
    return h.p(h.a("Next page →", href=link(base, path, **query), rel="next"), class_="pages")


def _more(left: int) -> Html | None:
    return h.p(f"and {count(left)} more", class_="note") if left > 0 else None


def _within(share: float) -> float:
    return min(1.0, max(0.0, share))
