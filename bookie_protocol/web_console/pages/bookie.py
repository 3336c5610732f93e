"""One bookie: its load, its garbage collection, its entry logs, what else it does."""

from __future__ import annotations

import asyncio
from typing import Final

from bookie_protocol.admin_api import gc as gc_api
from bookie_protocol.admin_api import integrity as integrity_api
from bookie_protocol.admin_api.bodies import Query
from bookie_protocol.admin_api.gc import GcForecast, GcProgress, LogEntry, LogsQuery, StorageLogs
from bookie_protocol.admin_api.integrity import DataIntegrity, RebuildProgress, ScrubStatus
from bookie_protocol.errors import NotThere
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.pages.bookies import cache_bar, disk_bar, garbage_bar
from bookie_protocol.web_console.pages.overview import mood_of
from bookie_protocol.web_console.parts import (
    Mood,
    bar,
    card,
    cards,
    columns,
    each_of,
    facts,
    figure,
    figures,
    most_rows,
    name,
    named_link,
    pill,
    rows,
    trouble,
)
from bookie_protocol.web_console.source import Seen
from bookie_protocol.web_console.view import View

LOGS: Final = 100
_TENTHS: Final = 10
_MOODS: Final[dict[str, Mood]] = {"written": "busy", "complete": "idle", "quarantined": "bad", "held": "warn"}
"""Words by the state of an entry log."""


class BookiePage(Query):
    """The bookie to show."""

    id: str
    """Its id."""


async def bookie(view: View) -> Html:
    """The page of one bookie."""
    bookie_id = view.asked(BookiePage).id
    seen = (await view.look()).bookies.get(bookie_id)
    if seen is None:
        raise NotThere(f"no bookie {bookie_id} is registered or has a cookie")
    if seen.known.registration == "none":
        return h.text(_head(view, seen), h.p("It is not registered, so it cannot be asked for more.", class_="empty"))
    progress, forecasts, logs, rest = await asyncio.gather(
        view.ask(bookie_id, gc_api.PROGRESS),
        view.ask(bookie_id, gc_api.FORECAST),
        view.ask(bookie_id, gc_api.LOGS, LogsQuery(LOGS)),
        _background(view, bookie_id),
    )
    return h.text(
        _head(view, seen),
        cards(
            card("Garbage collection", _progress(progress), note="one collector for each storage"),
            card("What compaction would give back", _forecasts(forecasts), note="as of the last pass"),
            card("In the background", rest),
        ),
        card("Entry logs", _logs(view, bookie_id, logs), note="the one that was written longest ago first"),
    )


def _head(view: View, seen: Seen) -> Html:
    known, load, rates = seen.known, seen.load, seen.rates
    word, mood = mood_of(seen)
    told = trouble(seen.problem, load.complaint if load is not None else None)
    about = card(
        "State",
        facts(
            ("State", pill(word, mood)),
            ("Location", h.bdi(known.location) if known.location else None),
            ("Host", h.bdi(known.host) if known.host else None),
            ("Cookie", "yes" if known.has_cookie else "none"),
            # Text: a stranger may have registered the bookie with an address that looks like this page.
            ("Own console", name(f"{known.admin_url}/ui") if known.admin_url else None),
            ("Ledgers of it", h.a("search", href=view.href("/ledgers", bookie=known.bookie_id))),
        ),
    )
    if load is None:
        return h.text(told, about)
    failed = load.adds_failed + load.reads_failed
    return h.text(
        told,
        figures(
            figure("Adds", w.rate(rates.adds if rates else None), w.byte_rate(rates.written_bytes if rates else None)),
            figure("Add p99", w.latency(load.add_p99_ms), f"p50 {w.latency(load.add_p50_ms)}, last full minute"),
            figure("Reads", w.rate(rates.reads if rates else None), w.byte_rate(rates.read_bytes if rates else None)),
            figure("Read p99", w.latency(load.read_p99_ms), f"p50 {w.latency(load.read_p50_ms)}, last full minute"),
            figure("Journal sync p99", w.latency(load.sync_p99_ms), "slowest journal"),
            figure("Refused or failed", w.count(failed), "since the start"),
        ),
        cards(
            about,
            card(
                "Space and memory",
                facts(
                    ("Fullest disk", disk_bar(seen)),
                    ("Garbage", garbage_bar(seen)),
                    ("Write cache", cache_bar(load.write_cache_bytes, load.write_cache_max_bytes)),
                    ("Read cache", cache_bar(load.read_cache_bytes, load.read_cache_max_bytes)),
                    ("Ledgers", w.count(load.ledgers)),
                ),
            ),
        ),
    )


def _progress(found: list[GcProgress] | str) -> Html | None:
    if isinstance(found, str):
        return trouble(found)
    return each_of(found, _collector)


def _collector(each: GcProgress) -> Html:
    last = each.last_pass
    held = " and ".join(
        word for word, is_held in (("minor", each.minor_suspended), ("major", each.major_suspended)) if is_held
    )
    return h.text(
        h.h3(name(each.directory)),
        trouble(each.deletions_held, *(last.errors[:5] if last is not None else ())),
        bar(each.done / each.total, f"{each.phase}: {w.count(each.done)} of {w.many(each.total, 'log')}")
        if each.total
        else None,
        facts(
            ("Now", pill(each.phase, "idle" if each.phase == "waiting" else "busy")),
            ("Suspended", f"{held} compaction" if held else "nothing"),
            ("Awaiting deletion", w.many(each.ledgers_awaiting_deletion, "ledger")),
            (
                "Last pass",
                "none since the start"
                if last is None
                else f"{w.many(last.ledgers_deleted, 'ledger')} forgotten, {w.many(last.logs_deleted, 'log')} removed,"
                f" {w.many(last.logs_compacted, 'log')} compacted, {w.size(last.reclaimed_bytes)} given back",
            ),
        ),
    )


def _forecasts(found: list[GcForecast] | str) -> Html | None:
    if isinstance(found, str):
        return trouble(found)
    return each_of(found, _outlook)


def _outlook(each: GcForecast) -> Html:
    tenths = each.usage[:_TENTHS]
    most = max((tenth.total_bytes for tenth in tenths), default=0) or 1
    return h.text(
        h.h3(name(each.directory)),
        columns(
            [
                (
                    tenth.total_bytes / most,
                    f"{tenth.from_percent} to {tenth.to_percent} % live: {w.many(tenth.logs, 'log')},"
                    f" {w.size(tenth.total_bytes)}, of which {w.size(tenth.reclaimable_bytes)} are garbage",
                )
                for tenth in tenths
            ],
            "Bytes of entry logs by their live share, from 0 to 100 %",
        ),
        h.p("Entry logs by live share, from 0 % on the left to 100 % on the right", class_="note"),
        facts(
            *(
                (
                    kind,
                    f"{w.many(outlook.logs, 'log')} below {w.percent(outlook.threshold)}: gives back"
                    f" {w.size(outlook.reclaimable_bytes)}, copies {w.size(outlook.rewritten_bytes)};"
                    f" {_due(outlook.due_in_seconds)}",
                )
                for kind, outlook in (("Minor", each.minor), ("Major", each.major))
            ),
            ("Not measured", w.many(each.unmeasured_logs, "log")),
        ),
    )


def _due(seconds: int | None) -> str:
    if seconds is None:
        return "off or suspended"
    return f"due in {w.duration(seconds)}" if seconds else "due with the next pass"


def _logs(view: View, bookie_id: str, found: list[StorageLogs] | str) -> Html | None:
    if isinstance(found, str):
        return trouble(found)

    def line(each: LogEntry) -> list[Child]:
        href = view.href("/log", bookie=bookie_id, entryLog=each.entry_log)
        return [
            named_link(each.entry_log, href),
            w.size(each.size),
            bar(each.usage, f"{w.percent(each.usage)} live"),
            f"{w.duration(each.age_seconds)} ago",
            pill(each.state, _MOODS[each.state]),
            h.a("why is it still here?", href=href),
        ]

    def logs(storage: StorageLogs) -> Html:
        head = ("Entry log", "Size", "Live", "Last written", "State", "")
        more = f"{w.many(storage.left_out, 'more log')}: bookie gc logs lists them all."
        return h.text(
            h.h3(name(storage.directory)),
            rows(head, storage.logs, line, "No entry log.", numbers=(1, 3), most=most_rows(len(found))),
            h.p(more, class_="note") if storage.left_out else None,
        )

    return each_of(found, logs)


async def _background(view: View, bookie_id: str) -> Html:
    scrub, rebuilds, lost = await asyncio.gather(
        view.ask(bookie_id, integrity_api.SCRUB_STATUS),
        view.ask(bookie_id, integrity_api.REBUILD_STATUS),
        view.ask(bookie_id, integrity_api.DATA_INTEGRITY),
    )
    return facts(
        ("Scrub", _scrub(scrub)),
        ("Index rebuild", _rebuilds(rebuilds)),
        ("Lost data", _lost(lost)),
    )


def _scrub(found: ScrubStatus | str) -> Child:
    if isinstance(found, str):
        return found
    damages = found.damages + found.damages_not_kept
    going = [each for each in found.directories if each.total and each.phase != "waiting"]
    state = pill("running", "busy") if found.running else pill("waiting" if found.enabled else "off")
    return h.div(
        state,
        pill(w.many(damages, "damage"), "bad") if damages else pill("no damage known", "good"),
        each_of(
            going,
            lambda each: bar(each.done / each.total, f"{each.phase}: {w.count(each.done)} of {w.count(each.total)}"),
        ),
    )


def _rebuilds(found: list[RebuildProgress] | str) -> Child:
    if isinstance(found, str):
        return found
    going = [each for each in found if each.outcome != "none"]
    if not going:
        return "none since the start"
    return each_of(going, _rebuild)


def _rebuild(each: RebuildProgress) -> Html:
    return h.div(
        name(each.directory),
        " ",
        pill(each.outcome, "busy" if each.outcome == "running" else "good" if each.outcome == "done" else "warn"),
        bar(each.bytes_done / each.bytes_total, each.phase) if each.bytes_total and not each.ended_time else None,
        h.div(each.detail, class_="note") if each.detail else None,
    )


def _lost(found: DataIntegrity | str) -> Child:
    if isinstance(found, str):
        return found
    if not found.enabled:
        return "nothing to look for"
    return h.div(
        pill("running" if found.running else "needed" if found.needed else "done", "busy" if found.needed else "good"),
        f" {w.many(found.ledgers_checked, 'ledger')} checked, {w.count(found.ledgers_failed)} to be tried again,"
        f" {w.many(found.entries_copied, 'entry')} fetched",
        h.div(found.last_error, class_="note") if found.last_error else None,
    )
