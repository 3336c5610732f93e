"""The reference's auditor with our worker, then our auditor with the reference's worker, on five bookies of one kind.

Two bookies are lost for good, one after the other; in the end each replica of each entry is read and compared. Each
kind leaves alone what the other has locked, and each kind's tools tell what the other's daemons do.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.start import make_worker
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments, ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.interop.cluster import KINDS, Cluster
from tests.interop.java_autorecovery import tool_configuration
from tests.interop.java_programs import start_program
from tests.support.auto_recovery import healed, read_every_replica
from tests.support.bookie_process import BookieProcess
from tests.support.java_bookie import java_shell

BOOKIE = str(Path(sys.executable).with_name("bookie"))
LEDGERS = 12
ENTRIES = 50
COPIES = LEDGERS // 2 * ENTRIES * (3 + 2)
JAVA_AUDITOR, OUR_AUDITOR = "10.0.0.8:3181", "10.0.0.9:3181"
CONFIG = AutoRecoveryConfig(
    open_ledger_grace_period_ms=500,
    failed_ledger_lock_release_ms=8000,
    worker_backoff_ms=200,
    lost_bookie_recovery_delay_s=3600,
    auditor_check_interval_s=-1,
    auditor_replicas_check_interval_s=-1,
)


@pytest.fixture(params=KINDS)
def made(request, make_cluster) -> Iterator[Cluster]:
    cluster = make_cluster()
    for _ in range(5):
        cluster.bookie(request.param, {"httpServerEnabled": "false"})
    yield cluster
    cluster.stop()


async def write(uri: str) -> list[int]:
    """Closed ledgers, and one whose writer is gone."""
    ids = []
    async with Client(uri) as client:
        for number in range(LEDGERS):
            ledger = await client.create(ensemble=3, write_quorum=3 - number % 2, ack_quorum=2, password=b"x")
            await ledger.append_many([b"%d" % entry + bytes(700) for entry in range(ENTRIES)])
            if number:
                await ledger.close()
            ids.append(ledger.ledger_id)
    return ids


class Tools:
    """Either kind's commands."""

    def __init__(self, uri: str, class_path: str, configuration: Path) -> None:
        self._uri = uri
        self._class_path = class_path
        self._configuration = configuration

    async def java(self, *words: str) -> str:
        return await asyncio.to_thread(java_shell, self._class_path, self._configuration, *words)

    async def ours(self, *words: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            *(BOOKIE, "cluster", *words, "--metadata", self._uri),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == code, err.decode()
        return out.decode().strip()

    async def marks(self) -> dict[int, set[str]]:
        """Marked ledgers and the bookies that they miss: what both kinds list, and list alike."""
        java, ours = await asyncio.gather(
            self.java("listunderreplicated", "-pmr"), self.ours("list-under-replicated", "--json")
        )
        told: dict[int, set[str]] = {}
        lines = [line.partition("ListUnderReplicatedCommand - ")[2].strip() for line in java.splitlines()]
        for line in filter(None, lines):
            if line.isdigit():
                told[latest := int(line)] = set()
            elif line.startswith("MissingReplica : "):
                told[latest].add(line.removeprefix("MissingReplica : "))
        listed = map(json.loads, ours.splitlines())
        assert {each["ledger"]: set(each["missing_replicas"]) for each in listed} == told
        return told


async def until(condition: Callable[[], Awaitable[object]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.1)


@contextmanager
def part(class_path: str, uri: str, output: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One part of the reference's auto-recovery, as a process. Whoever kills it waits for it."""
    process = start_program(class_path, "AutoRecoveryPart", uri, output, *arguments)
    try:
        yield process
        assert process.returncode is not None or process.poll() is None, output.read_text()[-3000:]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


@dataclass
class Scene:
    """A cluster with ledgers, and what looks at it."""

    cluster: Cluster
    service: MetadataService
    client: Client
    tools: Tools
    ids: list[int]
    class_path: str
    configuration: Path

    def part(self, name: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        log = self.configuration.with_name(f"{name}.log")
        return part(self.class_path, self.cluster.metadata_uri, log, name, str(self.configuration), *arguments)

    async def naming(self, bookie: str) -> set[int]:
        """Ledgers that name the bookie."""
        found = [(await self.client.metadata(ledger_id)) for ledger_id in self.ids]
        return {metadata.ledger_id for metadata in found if bookie in metadata.all_bookies()}

    async def is_marked(self, *expected: int) -> bool:
        return {mark.ledger_id async for mark in self.service.under_replication.list()} == set(expected)


async def test_auditor_and_worker_of_different_kinds_heal_a_cluster(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path
) -> None:
    await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in made.bookies))
    configuration = tool_configuration(made, tmp_path)
    tools = Tools(made.metadata_uri, class_path, configuration)
    ids = await write(made.metadata_uri)
    async with Client(service, ClientOptions(read_timeout=5)) as client:
        scene = Scene(made, service, client, tools, ids, class_path, configuration)
        await java_marks_and_we_repair(scene, made.bookies[0])
        await client.recover(ids[0], password=None)  # it names the victim no more, but need not be closed
        assert await read_every_replica(client, ids) == COPIES
        await we_mark_and_java_repairs(scene, made.bookies[1])
        assert await read_every_replica(client, ids) == COPIES


async def java_marks_and_we_repair(scene: Scene, victim: BookieProcess) -> None:
    marks, tools = scene.service.under_replication, scene.tools
    with scene.part("auditor", JAVA_AUDITOR):
        await until(scene.service.auditor_election.current_auditor)
        assert await tools.ours("who-is-auditor") == JAVA_AUDITOR

        async def delay_is_set() -> bool:
            return await marks.lost_bookie_recovery_delay() is not None

        await until(delay_is_set)
        await tools.ours("lost-delay", "set", "1")
        assert "value in ZK: 1" in await tools.java("lostbookierecoverydelay", "-g")
        lost = await scene.naming(victim.bookie_id)
        assert lost
        victim.kill()
        await until(lambda: scene.is_marked(*lost))
        assert await tools.marks() == {ledger_id: {victim.bookie_id} for ledger_id in lost}

        locked = max(lost)
        before = await scene.client.metadata(locked)
        worker = make_worker(scene.service, scene.client, CONFIG, ReplicationWorkerMetrics(Registry(), embedded=False))
        with scene.part("lock", str(locked)) as holder:
            await until(lambda: marks.locked_by(locked))
            async with running(worker.run()):
                await until(lambda: scene.is_marked(locked))
                state = json.loads(await tools.ours("autorecovery", "status", "--json"))
                assert list(state["locks"]) == [str(locked)]
                assert (state["auditor"], state["under_replicated_ledgers"]) == (JAVA_AUDITOR, 1)
                assert await scene.client.metadata(locked) == before
                holder.kill()
                holder.wait()
                await healed(scene.client, [victim.bookie_id], 60)


async def we_mark_and_java_repairs(scene: Scene, victim: BookieProcess) -> None:
    marks, tools = scene.service.under_replication, scene.tools
    await tools.java("lostbookierecoverydelay", "-s", "3600")
    instruments = AuditorInstruments(Registry(), embedded=False)
    auditor = Auditor(scene.service, scene.client, CONFIG, instruments, bookie_id=OUR_AUDITOR)
    async with running(auditor.run()), Client(scene.cluster.metadata_uri) as another:
        other = another.metadata_service
        await until(lambda: _now(auditor.is_auditor))
        assert f"{OUR_AUDITOR.split(':')[0]}" in await tools.java("whoisauditor")
        await tools.java("autorecovery", "-d")
        assert not json.loads(await tools.ours("autorecovery", "status", "--json", code=12))["enabled"]
        lost = await scene.naming(victim.bookie_id)
        assert lost
        victim.kill()
        await until(lambda: _now(auditor.status().absent))
        await tools.java("lostbookierecoverydelay", "-s", "1")
        assert await scene.is_marked()
        await tools.java("autorecovery", "-e")
        await until(lambda: scene.is_marked(*lost))
        assert await tools.marks() == {ledger_id: {victim.bookie_id} for ledger_id in lost}

        locked = max(lost)
        before = await scene.client.metadata(locked)
        lock = await other.under_replication.lock(locked)
        with scene.part("worker"):
            await until(lambda: scene.is_marked(locked))
            assert f"LedgerId:{locked}\t" in await tools.java("queryautorecoverystatus")
            assert await scene.client.metadata(locked) == before
            assert await marks.locked_by(locked) is not None
            await other.under_replication.release(lock)
            await healed(scene.client, [victim.bookie_id], 60)


async def _now(value: object) -> object:
    return value
