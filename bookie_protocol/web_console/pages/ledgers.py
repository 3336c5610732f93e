"""Ledgers: a search, a page at a time, and one ledger with its fragments and replicas."""

from __future__ import annotations

import base64
from collections.abc import Sequence, Sized
from typing import Final

from msgspec import UnsetType

from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.bodies import Query, Whole
from bookie_protocol.admin_api.cluster import (
    EnsembleMember,
    FoundLedgers,
    LedgerQuery,
    LedgerSearch,
    LedgerView,
    MetadataQuery,
)
from bookie_protocol.admin_api.decommission import HeldReplicas, LedgerHoldings, Runs
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.parts import (
    Mood,
    card,
    cards,
    each_of,
    facts,
    link,
    name,
    named_link,
    pill,
    rows,
    trouble,
)
from bookie_protocol.web_console.view import View

_STATES: Final = ("OPEN", "IN_RECOVERY", "CLOSED")
_MOODS: Final[dict[str, Mood]] = {"OPEN": "busy", "IN_RECOVERY": "warn", "CLOSED": "good"}
_DIGITS: Final = 20
_MOST_MEMBERS: Final = 10
_MOST_SHOWN: Final = 300
"""Characters of a value of custom metadata."""
_MOST_VALUES: Final = 50
_MOST_WEIGHT: Final = 1_000
"""Bookies of fragments, and custom metadata, that the page of a ledger asks for."""


class LedgerPage(Query):
    """The ledger to show."""

    id: Whole
    """Its id."""
    replicas: bool = False
    """Ask each bookie what it really holds."""


async def ledgers(view: View) -> Html:
    """The search, and one page of what it found."""
    asked = view.asked(LedgerSearch)
    found = await view.ask(None, cluster_api.SEARCH, asked)
    search = _search(view, asked)
    if isinstance(found, str):
        return h.text(search, trouble(found))
    return h.text(search, _found(view, asked, found))


async def ledger(view: View) -> Html:
    """The page of one ledger."""
    asked = view.asked(LedgerPage)
    back = h.p(h.a("← Ledgers", href=view.href("/ledgers", first=asked.id)))
    found = await view.ask(None, cluster_api.METADATA, MetadataQuery(asked.id, most=_MOST_WEIGHT))
    if isinstance(found, str):
        return h.text(back, trouble(found))
    ledger = found.get(str(asked.id))
    if ledger is None:
        return h.text(back, trouble(f"not known: the answer is not about ledger {asked.id}"))
    return h.text(
        back,
        cards(_about(ledger), _custom(ledger)),
        _fragments(view, ledger),
        await _replicas(view, asked),
    )


def _search(view: View, asked: LedgerSearch) -> Html:
    return h.form(
        h.label(
            "From ledger id",
            h.input_(
                type="search",
                name="first",
                inputmode="numeric",
                value=asked.first or None,
                placeholder="0",
                maxlength=19,
            ),
        ),
        h.label(
            "State",
            h.select(
                h.option("any", value=""),
                *(h.option(each, value=each, selected=each == asked.state) for each in _STATES),
                name="state",
            ),
        ),
        h.label("On bookie", h.input_(type="search", name="bookie", value=asked.bookie, placeholder="any bookie id")),
        h.button("Search", type="submit"),
        action=view.base + "/ledgers",
        method="get",
        role="search",
    )


def _found(view: View, asked: LedgerSearch, found: FoundLedgers) -> Html:
    def line(each: LedgerView) -> list[Child]:
        return [
            named_link(str(each.ledger_id), view.href("/ledger", id=each.ledger_id)),
            pill(each.state, _MOODS.get(each.state, "idle")),
            f"{each.ensemble_size} / {each.write_quorum_size} / {each.ack_quorum_size}",
            w.count(each.last_entry_id + 1) if each.closed else w.UNKNOWN,
            w.size(each.length) if each.closed else w.UNKNOWN,
            w.count(_total(each.fragments, each.all_ensembles)),
            _last_ensemble(view, each),
            w.moment(each.ctime),
        ]

    following = None
    if found.next is not None:
        href = view.href("/ledgers", first=found.next, state=asked.state, bookie=asked.bookie)
        following = h.p(h.a("Next page →", href=href, rel="next"), class_="pages")
    return card(
        "Ledgers",
        trouble(*(f"The metadata of ledger {each} cannot be read." for each in found.damaged[:10])),
        rows(
            ("Ledger", "State", "E / Qw / Qa", "Entries", "Size", "Fragments", "Last ensemble", "Created"),
            found.ledgers,
            line,
            "No ledger matches on this page.",
            numbers=(3, 4, 5),
        ),
        following,
        note=f"{w.many(found.looked_at, 'ledger')} looked at" + (", more on the next page" if following else ""),
    )


def _last_ensemble(view: View, ledger: LedgerView) -> Html:
    if not ledger.all_ensembles:
        return _members(view, [])
    return _members(view, max(ledger.all_ensembles.items(), key=lambda each: _first(each[0]))[1])


def _first(key: str) -> int:
    """The first entry of a fragment; -1: the answer says none."""
    return int(key) if key.isascii() and key.isdigit() and len(key) < _DIGITS else -1


def _members(view: View, members: Sequence[EnsembleMember]) -> Html:
    def link_of(each: EnsembleMember) -> Html:
        return named_link(each.id, view.href("/bookie", id=each.id))

    return h.div(each_of(members, link_of, _MOST_MEMBERS), class_="fragments")


def _about(ledger: LedgerView) -> Html:
    return card(
        "Ledger",
        facts(
            ("State", pill(ledger.state, _MOODS.get(ledger.state, "idle"))),
            ("Ensemble", w.many(ledger.ensemble_size, "bookie")),
            ("Write quorum", f"{ledger.write_quorum_size} copies of each entry"),
            ("Ack quorum", f"{ledger.ack_quorum_size} copies acknowledge an entry"),
            ("Entries", w.count(ledger.last_entry_id + 1) if ledger.closed else "not closed yet"),
            ("Size", w.size(ledger.length) if ledger.closed else "not closed yet"),
            ("Digest", ledger.digest_type),
            ("Created", w.moment(ledger.ctime)),
            ("Metadata format", str(ledger.metadata_format_version)),
        ),
    )


def _custom(ledger: LedgerView) -> Html:
    values = list(ledger.custom_metadata.items())
    return card(
        "Custom metadata",
        rows(
            ("Name", "Value"),
            values,
            lambda each: [name(each[0][:_MOST_SHOWN]), name(_value(each[1]))],
            "Its creator stored none.",
            most=_MOST_VALUES,
        ),
        note=_of_all(len(values), _total(ledger.custom_metadata_values, values), "first"),
    )


def _value(encoded: str) -> str:
    """Text as it is, other bytes in hexadecimal; the beginning of long ones."""
    try:
        value = base64.b64decode(encoded)
    except ValueError:
        return encoded[:_MOST_SHOWN]
    try:
        shown = value.decode("utf-8")
    except UnicodeDecodeError:
        shown = "0x" + value[:_MOST_SHOWN].hex()
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}… ({w.size(len(value))})"


def _fragments(view: View, ledger: LedgerView) -> Html:
    firsts = sorted(ledger.all_ensembles, key=_first)
    ends = [*(_first(key) - 1 for key in firsts[1:]), ledger.last_entry_id if ledger.closed else None]

    def line(fragment: tuple[str, int | None]) -> list[Child]:
        key, end = fragment
        return [key, "…" if end is None else str(end), _members(view, ledger.all_ensembles[key])]

    fragments = list(zip(firsts, ends, strict=False))
    return card(
        "Fragments",
        rows(("First entry", "Last entry", "Bookies"), fragments, line, "It has no fragment."),
        note=_of_all(len(firsts), _total(ledger.fragments, firsts), "last"),
    )


def _total(told: int | UnsetType, shown: Sized) -> int:
    return len(shown) if isinstance(told, UnsetType) else told


def _of_all(shown: int, total: int, which: str) -> str | None:
    return f"the {which} {w.count(shown)} of {w.count(total)}" if shown < total else None


async def _replicas(view: View, asked: LedgerPage) -> Html:
    if not asked.replicas:
        href = link(view.base, "/ledger", id=asked.id, replicas="true")
        return card("Replicas", h.p(h.a("Ask each bookie what it really holds", href=href)))
    found = await view.ask(None, decommission_api.REPLICAS, LedgerQuery(asked.id))
    return card("Replicas", trouble(found)) if isinstance(found, str) else _holdings(view, found)


def _holdings(view: View, found: LedgerHoldings) -> Html:
    def line(each: HeldReplicas) -> list[Child]:
        return [
            named_link(each.bookie_id, view.href("/bookie", id=each.bookie_id)),
            pill(each.registration, "good" if each.registration == "writable" else "warn"),
            _runs(each.expected),
            _runs(each.held),
            pill(_runs(each.missing), "bad")
            if each.missing is not None and each.missing.count
            else _runs(each.missing),
            _runs(each.surplus),
            each.problem or "",
        ]

    return card(
        "Replicas",
        rows(
            ("Bookie", "Registration", "Expected", "Held", "Missing", "Surplus", "Problem"),
            found.bookies,
            line,
            "No bookie is named.",
        ),
        note="asked just now",
    )


def _runs(runs: Runs | None) -> str:
    if runs is None:
        return "not known"
    if not runs.count:
        return "none"
    spans = ", ".join(f"{run[0]}" if run[0] == run[-1] else f"{run[0]} to {run[-1]}" for run in runs.runs[:5] if run)
    return f"{w.many(runs.count, 'entry')}: {spans}{', …' if len(runs.runs) > 5 else ''}"
