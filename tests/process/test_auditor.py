"""The auditor with real bookies: killed, back in time, back late, stopped for a while, without what they should hold.

No replication worker runs, so that marks stay."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.auditor.runs import Check, Finished, force_checks
from bookie_pod.autorecovery.auditor.term import CheckStatus
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.standalone.cluster import StandaloneCluster
from tests.support import warm
from tests.support.hanging import hang
from tests.support.http_answers import ask
from tests.support.small_bookie import SMALL_BOOKIE
from tests.support.until import until

KEYS = {
    **SMALL_BOOKIE,
    "lostBookieRecoveryDelay": "4",
}
DELAY = 4
PASSWORD = b"audit"
MARKED_S = 30.0


class Audited:
    """A cluster with an auditor in this process."""

    def __init__(self, cluster: StandaloneCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.service = cluster.metadata
        config = AutoRecoveryConfig(
            lost_bookie_recovery_delay_s=DELAY,
            auditor_check_interval_s=0,
            auditor_replicas_check_interval_s=0,
            auditor_second_look_s=1,
        )
        instruments = AuditorInstruments(Registry(), embedded=False)
        self.auditor = Auditor(self.service, client, config, instruments, bookie_id="auditor:1")

    async def write(self, count: int) -> list[int]:
        """Closed ledgers on three bookies each."""
        ids = []
        for _ in range(count):
            async with self.client.create(ensemble=3, write_quorum=2, ack_quorum=2, password=PASSWORD) as ledger:
                await ledger.append_many([b"%d" % number for number in range(30)])
                ids.append(ledger.ledger_id)
        return ids

    async def naming(self, bookie: str) -> dict[int, tuple[str, ...]]:
        found = {}
        async for ledger_id in self.client.list():
            if bookie in (await self.client.metadata(ledger_id)).all_bookies():
                found[ledger_id] = (bookie,)
        return found

    async def marked(self) -> dict[int, tuple[str, ...]]:
        return {mark.ledger_id: mark.replicas async for mark in self.service.under_replication.list()}

    async def until_marked(self, expected: Mapping[int, tuple[str, ...]]) -> None:
        found: dict[int, tuple[str, ...]] = {}
        try:
            async with asyncio.timeout(MARKED_S):
                while (found := await self.marked()) != expected:  # noqa: ASYNC110 - marks have no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"marked are {found}, not {expected}") from None

    def look_again(self) -> None:
        """As when bookies come back."""
        term = self.auditor._term
        assert term is not None
        term.withdrawals.request()

    def check(self, check: Check) -> CheckStatus:
        return next(each for each in self.auditor.status().checks if each.check is check)

    async def run_check(self, check: Check) -> Finished:
        await force_checks(self.service, [check])
        await until(lambda: self.check(check).runs.last is not None, MARKED_S)
        last = self.check(check).runs.last
        assert last is not None
        return last


@pytest.fixture
async def audited(tmp_path: Path, warm_bookies: None) -> AsyncIterator[Audited]:
    async with (
        StandaloneCluster(tmp_path, 4, KEYS) as cluster,
        Client(cluster.metadata, ClientOptions(read_timeout=3)) as client,
    ):
        made = Audited(cluster, client)
        task = asyncio.create_task(made.auditor.run())
        await until(lambda: made.auditor.is_auditor and made.check(Check.BOOKIES).runs.last is not None, MARKED_S)
        yield made
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_killed_then_marked_after_the_delay_then_back_and_unmarked(audited: Audited) -> None:
    await audited.write(12)
    victim = "bookie-2"
    expected = await audited.naming(victim)
    assert expected
    await audited.cluster.bookies[victim].kill()
    await until(lambda: audited.auditor.status().absent, MARKED_S)
    (absent,) = audited.auditor.status().absent
    assert absent.bookie_id == victim
    assert await audited.marked() == {}
    await audited.until_marked(expected)
    first = min([mark.ctime_ms or 0 async for mark in audited.service.under_replication.list()])
    assert first >= absent.since_ms + DELAY * 1000
    await audited.cluster.start_bookie(victim)
    # A look at a bookie that is registered and does not answer yet leaves the mark to a worker, of which there is none.
    async with asyncio.timeout(MARKED_S):
        while await audited.marked():
            audited.look_again()
            await asyncio.sleep(0.5)
    await until(lambda: audited.auditor.status().withdrawn_marks == len(expected), MARKED_S)
    async with asyncio.timeout(MARKED_S):
        while await audited.service.under_replication.locks():  # noqa: ASYNC110 - each goes right after its mark
            await asyncio.sleep(0.05)


async def test_killed_and_back_within_the_delay(audited: Audited) -> None:
    await audited.write(6)
    await audited.service.under_replication.set_lost_bookie_recovery_delay(60)
    await until(lambda: audited.auditor.status().lost_bookie_recovery_delay_s == 60, MARKED_S)
    last = audited.check(Check.BOOKIES).runs.last
    await audited.cluster.bookies["bookie-2"].kill()
    await until(lambda: audited.auditor.status().absent, MARKED_S)
    await audited.cluster.start_bookie("bookie-2")
    await until(lambda: not audited.auditor.status().absent, MARKED_S)
    await asyncio.sleep(0.5)
    assert await audited.marked() == {}
    assert audited.check(Check.BOOKIES).runs.last == last


async def test_a_command_asks_for_an_audit_whatever_the_delay(audited: Audited) -> None:
    await audited.write(6)
    marks = audited.service.under_replication
    await marks.set_lost_bookie_recovery_delay(3600)
    await until(lambda: audited.auditor.status().lost_bookie_recovery_delay_s == 3600, MARKED_S)
    expected = await audited.naming("bookie-2")
    assert expected
    await audited.cluster.bookies["bookie-2"].kill()
    await until(lambda: audited.auditor.status().absent, MARKED_S)
    assert await audited.marked() == {}
    uri = audited.cluster.metadata_service_uri
    command = await warm.start(warm.BOOKIE, ["cluster", "trigger-audit", "--metadata", uri])
    async with asyncio.timeout(60):
        said, _ = await command.communicate()
    assert (command.returncode, said) == (0, b"auditor auditor:1 was asked for an audit\n")
    await audited.until_marked(expected)
    assert await marks.lost_bookie_recovery_delay() == 3600


async def test_a_bookie_that_hangs_is_not_missing(audited: Audited) -> None:
    await audited.write(6)
    process = audited.cluster.bookies["bookie-2"].process
    hang(process.pid)  # its session lives on for a while
    try:
        last = await audited.run_check(Check.LEDGERS)
        assert last.counts["unreachable"] == len(await audited.naming("bookie-2"))
    finally:
        process.send_signal(signal.SIGCONT)
    assert await audited.marked() == {}


@pytest.mark.parametrize("check", [Check.LEDGERS, Check.REPLICAS])
async def test_a_copy_that_a_bookie_does_not_hold_is_found(audited: Audited, check: Check) -> None:
    _, lost = await audited.write(2)
    metadata = await audited.client.stored_metadata(lost)
    names = metadata.value.last_ensemble
    (spare,) = set(audited.cluster.bookies) - set(names)
    await audited.service.ledgers.write(metadata.value.with_ensemble(0, (spare, *names[1:])), metadata.identity)
    last = await audited.run_check(check)
    assert await audited.marked() == {lost: (spare,)}
    assert last.counts["marked"] == 1
    if check is Check.REPLICAS:
        assert last.counts["short_of_write_quorum"] == last.counts["short_of_ack_quorum"] == 1
        assert "short_no_copy" not in last.counts


async def test_inside_a_bookie_and_over_http(tmp_path: Path, warm_bookies: None) -> None:
    keys = KEYS | {"autoRecoveryDaemonEnabled": "true"}
    async with StandaloneCluster(tmp_path, 3, keys, http_port=0) as cluster:
        ports = [bookie.http_port or 0 for bookie in cluster.bookies.values()]

        async def auditors() -> list[str]:
            answers = [await ask(port, "/api/v1/autorecovery/process") for port in ports]
            # 503: the API is there before the bookie serves.
            assert {answer.status for answer in answers} <= {200, 404, 503}
            states = [answer.json for answer in answers if answer.status == 200]
            return [state["auditorId"] for state in states if state["isAuditor"]] if len(states) == 3 else []

        async with asyncio.timeout(MARKED_S):
            while len(await auditors()) != 1:  # noqa: ASYNC110 - other processes give no event
                await asyncio.sleep(0.1)
        (name,) = await auditors()
        assert (await ask(ports[0], "/api/v1/autorecovery/who_is_auditor")).body == f"Auditor: {name}"
        assert (await ask(ports[1], "/api/v1/autorecovery/trigger_audit", "PUT")).body == "Success trigger audit."
        answer = await ask(ports[2], "/api/v1/autorecovery/checks", "PUT", '{"checks": ["replicas"]}')
        assert answer.json == ["replicas"]

        async def replicas() -> dict[str, object]:
            found = (await ask(ports[2], "/api/v1/autorecovery/checks")).json
            return next(each for each in found if each["check"] == "replicas")

        async with asyncio.timeout(MARKED_S):
            while (await replicas())["last"] is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        async with asyncio.timeout(MARKED_S):
            # The levels of the cluster are asked for now and then.
            while "autorecovery_NO_AUDITOR 0" not in (metrics := (await ask(ports[0], "/metrics")).body):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert "autorecovery_DISABLED 0" in metrics
        assert 'replication_auditor_LAST_RUN_TIMESTAMP_MS{check="replicas"}' in metrics
