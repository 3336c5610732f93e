"""The operator's own pages: its clusters, and what it does in one of them, read from their resources.

Pure; any thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from bookie_operator.api.kinds import KubernetesObject
from bookie_operator.crds.cluster_status import (
    BookieClusterStatus,
    BookieState,
    Condition,
    FinishedOperation,
    Operation,
)
from bookie_operator.crds.validation import parse_status
from bookie_operator.planner.operations import read_time
from bookie_operator.world.model import ClusterView
from bookie_protocol.web_console import html as h
from bookie_protocol.web_console import wording as w
from bookie_protocol.web_console.html import Child, Html
from bookie_protocol.web_console.parts import Mood, bar, card, cards, facts, name, named_link, pill, rows, trouble

_GOOD_WHEN_FALSE: Final = frozenset(
    {"Reconciling", "Stalled", "Upgrading", "ScalingDown", "VolumesExpanding", "Repairing", "Paused", "DeletionBlocked"}
)
_STATES: Final[dict[BookieState, Mood]] = {
    BookieState.PENDING: "busy",
    BookieState.WRITABLE: "good",
    BookieState.READ_ONLY: "warn",
    BookieState.DRAINING: "busy",
    BookieState.STOPPED: "warn",
    BookieState.LOST: "bad",
    BookieState.UNKNOWN: "idle",
}
_MOST_CLUSTERS: Final = 500


def cluster_list(clusters: Sequence[KubernetesObject], base: str) -> Html:
    """All clusters, one in each line."""
    ordered = sorted(clusters, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))
    return card(
        "Clusters",
        rows(
            ("Cluster", "State", "Bookies", "Under-replicated", "Version", "Operation"),
            ordered,
            lambda each: _line(each, base),
            "There is no BookieCluster in the namespaces of this operator.",
            numbers=(2, 3),
            most=_MOST_CLUSTERS,
        ),
        note=w.many(len(ordered), "cluster"),
    )


def operation_page(cluster: ClusterView) -> Html:
    """Return the running operation in a cluster, and what it waits for."""
    status = cluster.status
    ready = _condition(status, "Ready")
    version = status.version
    target = f", to become {version.target}" if version.target and version.target != version.current else ""
    return h.text(
        trouble(
            "Reconciling is paused: nothing is changed until it is resumed." if cluster.paused else None,
            "The resource is being deleted." if cluster.deleting else None,
            "The operator has not yet seen the newest spec."
            if status.observed_generation < cluster.generation
            else None,
        ),
        cards(
            _operation(status),
            card(
                "Cluster",
                facts(
                    ("Ready", pill(f"{ready.status}: {ready.reason}", _mood(ready))),
                    ("Bookies", f"{status.ready_replicas} of {cluster.spec.replicas} serve"),
                    ("Writable", w.count(status.writable_replicas)),
                    ("Up to date", w.count(status.updated_replicas)),
                    ("Version", (version.current or "different ones") + target),
                    ("Metadata", name(status.metadata_service_uri) if status.metadata_service_uri else None),
                ),
            ),
        ),
        card(
            "Conditions",
            rows(
                ("Condition", "Status", "Reason", "For", "Message"),
                status.conditions,
                _condition_line,
                "The operator has not looked at it yet.",
            ),
        ),
        card(
            "Bookies, as the operator sees them",
            rows(
                ("Pod", "Zone", "State", "For", "Disk", "Ledgers left", "Message"),
                status.bookies,
                lambda each: [
                    name(each.name),
                    each.zone,
                    pill(each.state.value, _STATES[each.state]),
                    _for(each.since),
                    _disk(each.disk_used_percent),
                    w.count(each.ledgers_remaining),
                    each.message,
                ],
                "It has no bookie yet.",
                numbers=(5,),
            ),
        ),
        _history(status),
    )


def _line(cluster: KubernetesObject, base: str) -> list[Child]:
    metadata = cluster["metadata"]
    title = f"{metadata['namespace']}/{metadata['name']}"
    link = named_link(title, f"{base}/{title}")
    try:
        status = parse_status(cluster.get("status") or {})
    except ValueError as error:
        return [link, pill("cannot be read", "bad", str(error)), w.UNKNOWN, w.UNKNOWN, w.UNKNOWN, w.UNKNOWN]
    ready, operation = _condition(status, "Ready"), status.operation
    return [
        link,
        pill("ready" if ready.status == "True" else ready.reason, _mood(ready), ready.message),
        f"{status.ready_replicas} of {(cluster.get('spec') or {}).get('replicas', '?')}",
        w.count(status.ledgers.under_replicated),
        status.version.current or w.UNKNOWN,
        h.a(f"{operation.type.value} {operation.bookie}".strip(), href=f"{base}/{title}/operation")
        if operation is not None
        else "none",
    ]


def _operation(status: BookieClusterStatus) -> Html:
    operation = status.operation
    if operation is None:
        ready = _condition(status, "Ready")
        waits = ready.message if ready.status != "True" else ""
        return card("Running operation", h.p("None."), h.p(waits, class_="note") if waits else None)
    about = f" of {operation.bookie}" if operation.bookie else ""
    return card(
        "Running operation",
        facts(
            ("What", f"{operation.type.value}{about}"),
            ("Step", pill(operation.step, "bad" if operation.stalled else "busy")),
            ("Waits", _waits(status, operation)),
            ("Running for", _for(operation.started_at)),
            ("No progress for", _for(operation.last_progress_at)),
            ("Failures in a row", w.count(operation.attempts)),
        ),
        note=operation.id,
    )


def _waits(status: BookieClusterStatus, operation: Operation) -> str:
    told = operation.message or _condition(status, "Reconciling").message or "for its next pass"
    return f"{told} (a person is needed)" if operation.stalled else told


def _condition(status: BookieClusterStatus, kind: str) -> Condition:
    unknown = Condition(type=kind, status="Unknown", reason="NotReported", message="the operator has not looked yet")
    return next((each for each in status.conditions if each.type == kind), unknown)


def _condition_line(condition: Condition) -> list[Child]:
    return [
        condition.type,
        pill(condition.status, _mood(condition)),
        condition.reason,
        _for(condition.last_transition_time),
        condition.message,
    ]


def _mood(condition: Condition) -> Mood:
    if condition.status == "Unknown":
        return "idle"
    if (condition.status == "True") is (condition.type not in _GOOD_WHEN_FALSE):
        return "good"
    return "busy" if condition.type in _GOOD_WHEN_FALSE - {"Stalled", "DeletionBlocked"} else "warn"


def _disk(used_percent: int | None) -> Html:
    share = None if used_percent is None else used_percent / 100
    return bar(share, w.percent(share), is_alarming=True)


def _history(status: BookieClusterStatus) -> Html:
    def line(each: FinishedOperation) -> list[Child]:
        return [
            f"{each.type.value} {each.bookie}".strip(),
            pill(each.outcome, "good" if each.outcome == "Done" else "warn"),
            each.finished_at,
            each.message,
        ]

    newest = tuple(reversed(status.history))
    return card("Last operations", rows(("Operation", "Outcome", "Ended", "Message"), newest, line, "None so far."))


def _for(moment: str) -> str:
    """The time since a moment of RFC 3339."""
    try:
        return w.duration(time.time() - read_time(moment))
    except ValueError:
        return w.UNKNOWN
