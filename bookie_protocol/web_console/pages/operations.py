"""Operations that go on in a cluster, and what each waits for: decommissions, recoveries, checks."""

from __future__ import annotations

from typing import Final

from bookie_protocol.admin_api import autorecovery as autorecovery_api
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.autorecovery import CheckRun, CheckSummary
from bookie_protocol.admin_api.decommission import BookieQuery, DecommissionState
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.parts import bar, card, facts, name, pill, rows, trouble
from bookie_protocol.web_console.source import Look
from bookie_protocol.web_console.view import View

_MOST: Final = 20
_ENDED: Final = ("done", "undoing")
_WAITS: Final = {
    "requested": "for a bookie that works on it",
    "draining": "until its ledgers are copied to other bookies",
    "proving": "for the proof that no ledger names it",
    "removing": "until its cookie is deleted",
    "undoing": "until it is writable again",
}
"""The events that a decommission waits for, by its phase."""


async def operations(view: View, look: Look) -> Html:
    """Cards for what goes on; one that says so if nothing does."""
    leaving = [each.known.bookie_id for each in look.bookies.values() if each.known.leaving]
    shown = [await decommission(view, bookie_id) for bookie_id in leaving[:_MOST]]
    checks = await _checks(view)
    found = [each for each in (*shown, checks) if each is not None]
    if not found:
        return card("Operations", h.p("Nothing goes on: no decommission and no check of the auditor.", class_="empty"))
    return h.text(*found)


async def decommission(view: View, bookie_id: str) -> Html | None:
    """Return how far a decommission is; None if there is none."""
    state = await view.ask(None, decommission_api.PROGRESS, BookieQuery(bookie_id))
    title = h.text("Decommission of ", name(bookie_id))
    if isinstance(state, str):
        return card(title, trouble(state))
    done = state.ledgers_total - state.ledgers_left
    share = done / state.ledgers_total if state.ledgers_total else 1.0
    return card(
        title,
        bar(share, f"{w.count(done)} of {w.many(state.ledgers_total, 'ledger')} drained"),
        facts(
            ("Phase", pill(state.phase, "good" if state.phase == "done" else "busy")),
            ("Waits", _waits(state)),
            ("Left", f"{w.many(state.ledgers_left, 'ledger')}, about {w.size(state.bytes_left)}"),
            ("Estimate", w.duration(state.seconds_left) if state.phase not in _ENDED else w.UNKNOWN),
            ("Worked on by", name(state.coordinator) if state.coordinator else None),
            ("Began", w.moment(state.started_time)),
            ("Last update", f"{w.duration(view.ago(state.updated_time))} ago"),
        ),
        _blockers(state),
    )


def _waits(state: DecommissionState) -> Child:
    if state.problem:
        return f"for a person: {state.problem}"
    if state.blocked:
        return f"for {w.many(state.blocked, 'ledger')} that cannot be drained at present"
    return _WAITS.get(state.phase, "for nothing")


def _blockers(state: DecommissionState) -> Html | None:
    if not state.blockers:
        return None
    table = rows(("Ledger", "Reason"), state.blockers, lambda each: (str(each.ledger_id), each.reason), "")
    return h.details(h.summary("Ledgers that hold it up"), table)


async def _checks(view: View) -> Html | None:
    found = await view.ask(None, autorecovery_api.CHECKS)
    if isinstance(found, str):
        return card("Checks of the auditor", trouble(found))
    running = [(each, each.running) for each in found if each.running is not None]
    if not running:
        return None

    def line(each: tuple[CheckSummary, CheckRun]) -> list[Child]:
        check, run = each
        return [
            pill(check.check, "busy"),
            name(check.auditor) if check.auditor else w.UNKNOWN,
            w.duration(view.ago(run.started_time)),
            f"ledger {run.next_ledger}" if run.next_ledger is not None else w.UNKNOWN,
        ]

    return card("Checks that go on", rows(("Check", "Auditor", "For", "Next"), running, line, ""))
