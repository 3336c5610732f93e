"""Events: stable, aggregated, and never in the way."""

from __future__ import annotations

from bookie_operator.api.kinds import EVENT
from bookie_operator.planner.decision import Event, EventType
from bookie_operator.status.events import REPEAT_S, Events
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.serving import NOW, kubernetes_alone

CLUSTER = {"name": "demo", "namespace": "here", "uid": "u"}


async def test_what_repeats_is_one_event() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        time = NOW
        events = Events(kubernetes, "operator-0", now=lambda: time)
        for _ in range(50):
            await events.publish_about(CLUSTER, Event("DeletionBlocked", "confirm it", EventType.WARNING))
            time += 30.0
        (event,) = server.store.list(EVENT, "here")
        assert event["series"]["count"] > 40
        assert len(server.writes()) <= 1 + 50 * 30 / REPEAT_S
        assert (event["reason"], event["type"], event["note"]) == ("DeletionBlocked", "Warning", "confirm it")
        assert event["regarding"]["uid"] == "u"
        await events.publish_about(CLUSTER, Event("DeletionBlocked", "other words"))
        assert len(server.store.list(EVENT, "here")) == 2


async def test_an_event_that_has_expired_is_made_anew() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        time = NOW
        events = Events(kubernetes, "operator-0", now=lambda: time)
        await events.publish_about(CLUSTER, Event("A", "b"))
        (event,) = server.store.list(EVENT, "here")
        server.store.delete(EVENT, "here", event["metadata"]["name"])
        time += REPEAT_S
        await events.publish_about(CLUSTER, Event("A", "b"))
        assert len(server.store.list(EVENT, "here")) == 1


async def test_an_event_that_cannot_be_written_stops_nothing() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.faults.append(Fault("events", 403, times=2))
        events = Events(kubernetes, "operator-0", now=lambda: NOW)
        await events.publish_about(CLUSTER, Event("A", "b" * 5000))
        await events.publish_about(CLUSTER, Event("C", "b" * 5000))
        await events.publish_about(CLUSTER, Event("D", "b" * 5000))
        (event,) = server.store.list(EVENT, "here")
        assert len(event["note"]) == 1024


async def test_a_note_is_as_long_as_kubernetes_takes_in_any_language() -> None:
    """Which counts bytes, and refuses an event with one too many."""
    async with kubernetes_alone() as (kubernetes, server):
        events = Events(kubernetes, "operator-0", now=lambda: NOW)
        await events.publish_about(CLUSTER, Event("A", "ü€" * 3000))
        (event,) = server.store.list(EVENT, "here")
        assert 1020 < len(event["note"].encode()) <= 1024
        assert set(event["note"]) == {"ü", "€"}
