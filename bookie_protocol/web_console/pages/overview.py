"""The cluster at a glance: what is wrong, its numbers, a map by zone and node, operations that go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.pages.operations import operations
from bookie_protocol.web_console.parts import Mood, bar, card, figure, figures, trouble
from bookie_protocol.web_console.source import Look, Seen
from bookie_protocol.web_console.view import View

_NO_ZONE: Final = "No zone published"
_MOST_TOLD: Final = 20
_MOST_TILES: Final = 150
"""Bookies on the map, those in trouble first: a page of the largest cluster is as small as that of others."""
_MEASURING: Final = "measuring: two looks are needed"


async def overview(view: View) -> Html:
    """The first page."""
    look = await view.look()
    return h.text(
        trouble(*_troubles(look)),
        _numbers(look),
        card("Cluster map", h.div(*_map(view, look.bookies), class_="zones"), note=_summary(look.bookies)),
        await operations(view, look),
    )


def mood_of(seen: Seen) -> tuple[str, Mood]:
    """The state of a bookie in one word."""
    known, load = seen.known, seen.load
    if known.registration == "none":
        return "away", "bad" if known.has_cookie else "idle"
    if known.leaving:
        return "leaving", "busy"
    if load is None:
        return "silent", "warn"
    if load.complaint is not None:
        return "in trouble", "warn"
    return ("read-only", "warn") if known.registration == "read-only" else ("writable", "good")


def used_share(seen: Seen) -> float | None:
    """The used share of the fullest file system; None: not known."""
    return seen.load.fullest_used_percent / 100 if seen.load is not None else None


def _troubles(look: Look) -> Iterable[str | None]:
    told = 0
    for seen in look.bookies.values():
        words = _trouble(seen)
        if words is not None:
            told += 1
            if told <= _MOST_TOLD:
                yield words
    if told > _MOST_TOLD:
        yield f"{w.many(told - _MOST_TOLD, 'more bookie')} in trouble: see Bookies."
    if look.left_out:
        yield f"{w.many(look.left_out, 'bookie')} of this cluster were not asked: there are too many for one page."
    if look.facts_problem is not None:
        yield f"The state of the cluster is not known: {look.facts_problem}"
    if look.facts is None:
        return
    if look.facts.unrecoverable:
        yield (
            f"{w.many(look.facts.unrecoverable, 'ledger')} had an entry of which no bookie has a copy, by the last"
            " check of replicas."
        )
    if look.facts.auditor is None:
        yield "No auditor is elected: lost bookies are not noticed."
    if not look.facts.autorecovery_enabled:
        yield "Auto-recovery is disabled: lost copies are not made again."


def _trouble(seen: Seen) -> str | None:
    bookie_id = seen.known.bookie_id
    if seen.known.registration == "none":
        return f"{bookie_id} is not registered, and has a cookie." if seen.known.has_cookie else None
    if seen.load is None:
        return f"{bookie_id} tells nothing about itself: {seen.problem}" if seen.problem else None
    return f"{bookie_id}: {seen.load.complaint}" if seen.load.complaint is not None else None


def _numbers(look: Look) -> Html:
    loads = [seen.load for seen in look.bookies.values() if seen.load is not None]
    rates = [seen.rates for seen in look.bookies.values() if seen.rates is not None]
    registered = [seen for seen in look.bookies.values() if seen.known.registration != "none"]
    writable = sum(seen.known.registration == "writable" for seen in registered)
    # Bookies of one machine may share a file system, which counts once; one that tells no id counts for itself.
    spaces = {tuple(each.file_systems) or (each.bookie_id,): each for each in loads}.values()
    total, free = sum(each.total_space for each in spaces), sum(each.free_space for each in spaces)
    fullest = max((each.fullest_used_percent / 100 for each in loads), default=None)
    slowest = max((each.add_p99_ms for each in loads if each.add_p99_ms is not None), default=None)
    marked = look.facts.under_replicated if look.facts is not None else None
    left = look.healing.seconds_left if look.healing is not None else None
    healing: Child = (
        "all copies are there" if marked == 0 else "not known" if marked is None else "waiting to be copied"
    )
    if left is not None and marked:
        healing = f"about {w.duration(left)} left"
    return figures(
        figure(
            "Writable bookies",
            f"{writable} of {len(look.bookies)}",
            w.many(len(look.bookies) - len(registered), "bookie") + " away"
            if len(registered) < len(look.bookies)
            else "all are registered",
            "good" if writable == len(look.bookies) and writable else "warn",
        ),
        figure(
            "Under-replicated ledgers",
            w.count(marked),
            healing,
            None if marked is None else "warn" if marked else "good",
        ),
        figure(
            "Adds",
            w.rate(sum(each.adds for each in rates) if rates else None),
            f"{w.byte_rate(sum(each.written_bytes for each in rates))}, all copies" if rates else _MEASURING,
        ),
        figure(
            "Reads",
            w.rate(sum(each.reads for each in rates) if rates else None),
            w.byte_rate(sum(each.read_bytes for each in rates)) if rates else _MEASURING,
        ),
        figure("Slowest add, p99", w.latency(slowest), "of the last full minute"),
        figure(
            "Free space",
            w.size(free) if loads else w.UNKNOWN,
            f"of {w.size(total)}; fullest disk {w.percent(fullest)}",
            None if fullest is None else "bad" if fullest >= 0.95 else "warn" if fullest >= 0.85 else None,
        ),
    )


def _summary(bookies: Mapping[str, Seen]) -> str:
    places = {_place(seen) for seen in bookies.values()}
    zones = {zone for zone, _ in places} - {_NO_ZONE}
    parts = [w.many(len(bookies), "bookie"), f"on {w.many(len(places), 'node')}"]
    parts += [f"in {w.many(len(zones), 'zone')}"] if zones else []
    parts += [f"of which {_MOST_TILES} are shown"] if len(bookies) > _MOST_TILES else []
    return ", ".join(parts)


def _place(seen: Seen) -> tuple[str, str]:
    """Zone and node. The node is the last part of a location with several, else the host."""
    parts = [part for part in (seen.known.location or "").split("/") if part]
    host = seen.known.host or "host not known"
    if not parts:
        return _NO_ZONE, host
    return parts[0], "/".join(parts[1:]) or host


def _map(view: View, bookies: Mapping[str, Seen]) -> Iterable[Html]:
    zones: dict[str, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    shown = sorted(bookies.values(), key=lambda seen: (_trouble(seen) is None, seen.known.bookie_id))[:_MOST_TILES]
    for seen in sorted(shown, key=lambda seen: seen.known.bookie_id):
        zone, node = _place(seen)
        zones[zone][node].append(seen)
    if not zones:
        yield h.p("No bookie is registered, and none has a cookie.", class_="empty")
    for zone in sorted(zones, key=lambda each: (each == _NO_ZONE, each)):
        nodes = [
            h.div(
                h.span(h.bdi(node), class_="note", title=node),
                h.div(*(_tile(view, seen) for seen in zones[zone][node]), class_="tiles"),
                class_="node",
            )
            for node in sorted(zones[zone])
        ]
        yield h.div(h.h3(h.bdi(zone)), h.div(*nodes, class_="nodes"), class_="zone")


def _tile(view: View, seen: Seen) -> Html:
    word, mood = mood_of(seen)
    disk = used_share(seen)
    return h.a(
        h.span(h.bdi(seen.known.bookie_id), class_="name"),
        bar(disk, f"disk {w.percent(disk)}", is_alarming=True) if disk is not None else None,
        h.span(
            h.span(word), h.span(f"{w.rate(seen.rates.adds)} adds" if seen.rates is not None else ""), class_="note"
        ),
        href=view.href("/bookie", id=seen.known.bookie_id),
        class_=f"tile {mood}",
    )
