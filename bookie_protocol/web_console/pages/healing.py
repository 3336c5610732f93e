"""Under-replication and its healing: how much is left, who works on what, checks, bookies that are away."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from bookie_protocol.admin_api import autorecovery as autorecovery_api
from bookie_protocol.admin_api.autorecovery import AbsentBookieState, CheckSummary, LedgerRepairState, WorkerState
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.pages.operations import operations
from bookie_protocol.web_console.parts import bar, card, figure, figures, name, named_link, pill, rows, trouble
from bookie_protocol.web_console.source import Look
from bookie_protocol.web_console.view import View

_KINDS: Final = 20
"""Kinds of findings of one check that are shown."""


async def healing(view: View) -> Html:
    """The page about healing."""
    look = await view.look()
    checks = await view.ask(None, autorecovery_api.CHECKS)
    return h.text(
        trouble(look.facts_problem, *_complaints(look)),
        _numbers(view, look),
        await operations(view, look),
        _workers(view, look),
        _absent(view, look),
        _checks(view, checks),
    )


def _complaints(look: Look) -> Iterable[str]:
    for bookie_id, seen in look.bookies.items():
        if seen.healing is not None and seen.healing.complaint is not None:
            yield f"{bookie_id}: {seen.healing.complaint}"


def _all_workers(look: Look) -> list[tuple[str, WorkerState]]:
    return [(bookie_id, seen.healing.worker) for bookie_id, seen in look.bookies.items() if seen.healing is not None]


def _numbers(view: View, look: Look) -> Html:
    facts, healing = look.facts, look.healing
    workers = [worker for _, worker in _all_workers(look)]
    speed = sum(each.bytes_per_second for each in workers)
    marked = facts.under_replicated if facts is not None else None
    return figures(
        figure(
            "Under-replicated ledgers", w.count(marked), None, "warn" if marked else "good" if marked == 0 else None
        ),
        figure("Left, by the last minutes", *_estimate(look)),
        figure("Copied now", w.byte_rate(speed) if workers else w.UNKNOWN, "by the workers of bookies"),
        figure(
            "Auto-recovery",
            w.UNKNOWN if facts is None else "enabled" if facts.autorecovery_enabled else "disabled",
            None,
            None if facts is None else "good" if facts.autorecovery_enabled else "bad",
        ),
        figure(
            "Auditor",
            w.UNKNOWN if facts is None else h.bdi(facts.auditor or "none"),
            None if facts is None else _audit(view.ago(facts.last_audit_ms)),
            "bad" if facts is not None and facts.auditor is None else None,
        ),
        figure(
            "Ledgers without a copy",
            w.count(facts.unrecoverable if facts is not None else None),
            "by the last check of replicas" if healing is not None else None,
            "bad" if facts is not None and facts.unrecoverable else None,
        ),
    )


def _audit(seconds: float | None) -> str:
    return "no complete audit is recorded" if seconds is None else f"last audit {w.duration(seconds)} ago"


def _estimate(look: Look) -> tuple[Child, Child]:
    healing = look.healing
    if healing is None:
        return w.UNKNOWN, None
    if not healing.marked:
        return "nothing", None
    if healing.per_second is None:
        watched = w.duration(healing.seconds)
        return w.UNKNOWN, f"their number has not fallen in {watched}" if healing.seconds else "watching since now"
    return (
        f"about {w.duration(healing.seconds_left)}",
        f"{healing.per_second * 60:,.1f} ledgers a minute, over {w.duration(healing.seconds)}",
    )


def _workers(view: View, look: Look) -> Html:
    workers = _all_workers(look)
    in_hand = [(bookie_id, each) for bookie_id, worker in workers for each in worker.ledgers]

    def line(repair: tuple[str, LedgerRepairState]) -> list[Child]:
        bookie_id, each = repair
        return [
            named_link(str(each.ledger_id), view.href("/ledger", id=each.ledger_id)),
            name(bookie_id),
            pill(each.phase, "warn" if each.retry_in_seconds is not None else "busy"),
            _repair(each),
            each.reason or (f"for {w.duration(each.seconds)}" if each.retry_in_seconds is None else ""),
            w.duration(each.retry_in_seconds) if each.retry_in_seconds is not None else "",
        ]

    done = sum(worker.ledgers_repaired for _, worker in workers)
    return card(
        "Ledgers that are being healed",
        rows(
            ("Ledger", "Worker", "Step", "Progress", "Waits for", "Tried again in"),
            in_hand,
            line,
            "No worker has a ledger in hand." if workers else "No bookie runs auto-recovery, or none tells of it.",
        ),
        note=f"{w.many(done, 'ledger')} restored since the workers started",
    )


def _repair(repair: LedgerRepairState) -> Html | str:
    if not repair.entries_to_copy:
        return f"{repair.done_fragments} of {w.many(repair.bad_fragments, 'fragment')}"
    return bar(
        repair.entries_copied / repair.entries_to_copy,
        f"{w.count(repair.entries_copied)} of {w.many(repair.entries_to_copy, 'entry')}, {w.size(repair.bytes_copied)}",
    )


def _absent(view: View, look: Look) -> Html | None:
    absent = [
        each
        for seen in look.bookies.values()
        if seen.healing is not None and seen.healing.is_auditor
        for each in seen.healing.absent_bookies
    ]
    if not absent:
        return None

    def line(each: AbsentBookieState) -> list[Child]:
        return [
            named_link(each.bookie_id, view.href("/bookie", id=each.bookie_id)),
            w.duration(view.ago(each.since_time)),
            pill("lost", "bad") if each.lost else pill("waiting", "warn"),
            "its ledgers are marked"
            if each.audited
            else "its ledgers are being looked for"
            if each.lost
            else f"counts as lost at {w.moment(each.lost_at_time)}",
        ]

    table = rows(("Bookie", "Away for", "State", "Next"), absent, line, "")
    return card("Bookies that are away", table, note="by the auditor")


def _checks(view: View, checks: list[CheckSummary] | str) -> Html:
    if isinstance(checks, str):
        return card("Checks of the auditor", trouble(checks))

    def line(each: CheckSummary) -> list[Child]:
        return [
            name(each.check),
            pill("running", "busy") if each.running is not None else pill("waiting"),
            _last(view, each),
            _counts(each),
            f"{w.duration(view.ago(each.failure_time))} ago: {each.failure}" if each.failure else "",
        ]

    head = ("Check", "State", "Last complete", "Findings", "Last failure")
    return card("Checks of the auditor", rows(head, checks, line, "None."))


def _last(view: View, check: CheckSummary) -> str:
    seconds = view.ago(check.last_complete_time)
    return "never" if seconds is None else f"{w.duration(seconds)} ago"


def _counts(check: CheckSummary) -> str:
    if check.last is None:
        return w.UNKNOWN
    return (
        ", ".join(f"{kind}: {w.count(number)}" for kind, number in islice(check.last.counts.items(), _KINDS))
        or "nothing"
    )
