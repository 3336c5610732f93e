"""Facts about a cluster, on a real metadata service: they are those of this moment, complete, or an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from bookie_pod.admin.cookies import StoredCookies
from bookie_pod.admin.facts import FactsView
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Finished, Returned, Runs, look_at_returned
from bookie_pod.config.load import load_config
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, Refused
from bookie_protocol.metadata_service.interface import SessionState
from tests.support.decommission_rig import BOOKIES, GOING, R, Rig, ledger

CONFIG = load_config(environ={}, overrides={"lostBookieRecoveryDelay": "77"})


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(ledger(1, (0, "012")), ledger(2, (0, "123")), ledger(4, (0, "102"), last=None))
        yield made


async def test_a_cluster_that_nobody_has_audited(rig: Rig) -> None:
    found = await FactsView(rig.service, CONFIG).cluster()
    assert found.instance_id == await rig.service.cluster.instance_id()
    assert (found.writable, found.read_only, found.cookies) == (list(BOOKIES), [], list(BOOKIES))
    assert (found.auditor, found.last_audit_ms, found.unrecoverable) == (None, None, None)
    assert (found.under_replicated, found.autorecovery_enabled) == (0, True)
    assert found.lost_bookie_recovery_delay_seconds == 77


async def test_every_answer_is_of_its_own_moment(rig: Rig) -> None:
    view = FactsView(rig.service, CONFIG)
    before = await view.cluster()
    await rig.set_registration(R)
    await rig.stop("b1:1")
    await rig.service.cookies.delete("b4:1")
    for ledger_id in (1, 2):
        await rig.service.under_replication.mark(ledger_id, ["b1:1"], ctime_ms=1)
    await rig.service.under_replication.disable()
    await rig.service.under_replication.set_lost_bookie_recovery_delay(0)
    records = AuditRecords(rig.service)
    await records.write(Check.BOOKIES, Runs("b2:1", None, Finished(1_000, 1_500, 500)))
    await records.write(Check.REPLICAS, Runs("b2:1", None, Finished(1_000, 1_500, 500, {"short_no_copy": 3})))
    await look_at_returned(rig.service, ["b3:1"])
    office = await rig.service.auditor_election.elect("b2:1")
    assert (await view.cluster()).unchecked is None, "its auditor does not say that it looks"
    await records.change_returned(lambda asked: Returned("b2:1", asked.waiting, "another term"))
    assert (await view.cluster()).unchecked is None, "it said so before it was elected again, and others may be back"
    for term in ("", office.term):
        await records.change_returned(lambda asked, term=term: Returned("b2:1", asked.waiting, term))
        assert (await view.cluster()).unchecked == ["b3:1"]
    after = await view.cluster()
    assert (before.unchecked, after.unchecked) == (None, ["b3:1"])
    assert before.writable == list(BOOKIES)
    assert (after.writable, after.read_only) == (["b2:1", "b3:1", "b4:1"], [GOING])
    assert after.cookies == ["b0:1", "b1:1", "b2:1", "b3:1"]
    assert (after.under_replicated, after.unrecoverable) == (2, 3)
    assert (after.auditor, after.last_audit_ms) == ("b2:1", 1_000)
    assert (after.autorecovery_enabled, after.lost_bookie_recovery_delay_seconds) == (False, 0)


async def test_a_proof_counts_ledgers_and_marks(rig: Rig) -> None:
    view = FactsView(rig.service, CONFIG)
    await rig.service.under_replication.mark(2, [GOING], ctime_ms=1)
    found = await view.proof(GOING)
    assert (found.ledgers, found.open_ledgers, found.marks, found.first_ledgers) == (2, 1, 1, [1, 2, 4])
    assert (found.registered, found.ledgers_seen) == (True, 3)
    await rig.stop(GOING)
    assert not (await view.proof(GOING)).registered


async def test_ledgers_that_were_given_up_do_not_count(rig: Rig) -> None:
    view = FactsView(rig.service, CONFIG)
    await rig.service.under_replication.mark(2, [GOING], ctime_ms=1)
    found = await view.proof(GOING, {2, 4, 77})
    assert (found.ledgers, found.open_ledgers, found.marks, found.first_ledgers) == (1, 0, 0, [1])
    assert found.accepted_losses == 2


async def test_a_cookie_goes_when_only_such_ledgers_need_it(rig: Rig) -> None:
    cookies = StoredCookies(rig.service)
    await rig.stop(GOING)
    with pytest.raises(Refused, match=r"1 ledgers .* 4"):
        await cookies.delete(GOING, frozenset({1}))
    assert await rig.has_cookie()
    await cookies.delete(GOING, frozenset({1, 4}))
    assert not await rig.has_cookie()


async def test_a_bookie_that_nothing_needs(rig: Rig) -> None:
    await rig.stop("b4:1")
    found = await FactsView(rig.service, CONFIG).proof("b4:1")
    assert (found.ledgers, found.marks, found.first_ledgers, found.registered) == (0, 0, [], False)
    assert found.instance_id == await rig.service.cluster.instance_id()


async def test_who_is_about_to_name_it_is_waited_for_or_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    view, (worker, _) = FactsView(rig.service, CONFIG), await rig.connect()
    await rig.stop("b4:1")
    lock, holders = await worker.under_replication.lock(1), rig.service.under_replication.holders

    async def released_then() -> object:
        found = await holders()
        if 1 in found:
            await worker.under_replication.release(lock)
        return found

    monkeypatch.setattr(rig.service.under_replication, "holders", released_then)
    assert (await view.proof("b4:1")).claims == 0
    monkeypatch.setattr("bookie_pod.admin.facts._LOCKS_SECONDS", 0.0)
    await worker.under_replication.lock(2)
    await rig.store(ledger(5, (0, "123"), last=None).in_recovery())
    found = await view.proof("b4:1")
    assert (found.ledgers, found.claims, found.first_claims) == (0, 2, [2, 5])
    assert (await view.proof("b4:1", {2, 5})).claims == 0


@pytest.mark.parametrize(
    "ask", [lambda view: view.cluster(), lambda view: view.proof(GOING)], ids=["the cluster", "a proof"]
)
async def test_a_read_that_fails_is_an_error(rig: Rig, ask: Callable) -> None:
    service, transport = await rig.connect()
    view = FactsView(service, CONFIG)
    transport.requests = 0
    await ask(view)
    requests = transport.requests
    assert requests > 5
    for dies_at in range(1, requests + 1):
        service, transport = await rig.connect()
        transport.requests, transport.die_at = 0, dies_at
        with pytest.raises((MetadataUnavailable, MetadataDamaged)):
            await ask(FactsView(service, CONFIG))


async def test_without_a_session_it_is_said_at_once_that_nobody_can_tell(rig: Rig) -> None:
    """A request would only wait until its time is over, and so would whoever asks."""
    service, transport = await rig.connect()
    service.session.move(SessionState.SUSPENDED)
    transport.requests = 0
    with pytest.raises(MetadataUnavailable):
        await FactsView(service, CONFIG).cluster()
    assert transport.requests == 0
