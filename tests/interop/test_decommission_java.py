"""Decommission and recovery between the reference and us: our command drains its live bookie while its own auditor and
workers run; its `recover` and its `decommissionbookie` work against our bookies."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_client.reading.maintenance import replicas
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.interop.cluster import Cluster
from tests.interop.java_autorecovery import start_daemon, tool_configuration
from tests.support.bookie_process import BookieProcess, free_port
from tests.support.java_bookie import java_shell

BOOKIE = str(Path(sys.executable).with_name("bookie"))
PASSWORD = b"x"
ENTRIES = 60
LEDGERS = 10


async def start(cluster: Cluster, kinds: list[str]) -> list[BookieProcess]:
    started = [cluster.bookie(kind, {"gcWaitTime": "3600000"}) for kind in kinds]
    await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in started))
    return started


async def write(cluster: Cluster) -> None:
    async with Client(cluster.metadata_uri) as client:
        for number in range(LEDGERS):
            ledger = await client.create(ensemble=3, write_quorum=3 - number % 2, ack_quorum=2, password=PASSWORD)
            await ledger.append_many([b"%d" % i + bytes(300) for i in range(ENTRIES)])
            if number:
                await ledger.close()


async def check_all(cluster: Cluster, service: MetadataService, gone: str) -> None:
    """Every replica of every entry is where the metadata say, and `gone` is named nowhere."""
    async with Client(cluster.metadata_uri) as client:
        entries = 0
        async for ledger_id in client.list():
            metadata = await client.recover(ledger_id, password=None)
            assert gone not in metadata.all_bookies(), ledger_id
            async with client.open(ledger_id, password=None) as reader:
                entries += reader.last_add_confirmed + 1
                for bookie in metadata.all_bookies():
                    async with aclosing(replicas(reader).scan(bookie, 0, reader.last_add_confirmed)) as answers:
                        async for answer in answers:
                            assert answer.error is None, (ledger_id, bookie, answer)
        assert entries == LEDGERS * ENTRIES
    assert gone not in (await service.bookies.list(BookieGroup.ALL)).bookies


async def is_down(service: MetadataService, bookie_id: str) -> None:
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110 - another process gives no event
            await service.bookies.is_registered(bookie_id, BookieGroup.WRITABLE)
        ):
            await asyncio.sleep(0.1)


async def ours(cluster: Cluster, *words: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of `bookie cluster`."""
    command = await asyncio.create_subprocess_exec(
        *(BOOKIE, "cluster", *words, "--metadata", cluster.metadata_uri, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await command.communicate()
    return command.returncode, out.decode(), err.decode()


async def test_our_command_drains_a_live_bookie_of_the_reference(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no HTTP server here: it is refused while it is writable, and drained once it was restarted read-only."""
    bookies = await start(made, ["java", "java", "ours", "ours"])
    await write(made)
    daemon = await start_daemon(class_path, tool_configuration(made, tmp_path), tmp_path)
    going = bookies[0].bookie_id
    try:
        async with asyncio.timeout(60):
            while await service.auditor_election.current_auditor() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        code, _, err = await ours(made, "decommission", going, "--grace", "1")
        assert code == 10
        assert "still writable and cannot be made read-only" in err
        assert "publishes no HTTP endpoint" in err
        await asyncio.to_thread(bookies[0].stop)
        bookies[0].configuration["forceReadOnlyBookie"] = "true"
        path = bookies[0]._registration_path().replace("/available/", "/available/readonly/")
        monkeypatch.setattr(bookies[0], "_registration_path", lambda: path)  # what counts as ready now
        await asyncio.to_thread(bookies[0].start)
        code, out, err = await ours(made, "decommission", going, "--grace", "1")
        assert code == 0, err
        record = json.loads(out)
        assert (record["phase"], record["form"]) == ("done", "live")
        assert await service.bookies.is_registered(going, BookieGroup.READ_ONLY)
        assert daemon.returncode is None, (tmp_path / "daemon.log").read_text()[-3000:]
    finally:
        if daemon.returncode is None:
            daemon.kill()
        await daemon.wait()
    bookies[0].kill()
    await check_all(made, service, going)


async def test_one_with_an_admin_api_is_made_read_only_over_it_and_writable_again(
    made: Cluster, service: MetadataService
) -> None:
    """Nobody has to restart it: it takes the body that it knows, and does not look at the rest."""
    http = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": str(free_port())}
    http["httpServerClass"] = "org.apache.bookkeeper.http.vertx.VertxHttpServer"
    java = made.bookie("java", {"gcWaitTime": "3600000", **http})
    await asyncio.gather(asyncio.to_thread(java.start), start(made, ["ours", "ours", "ours"]))
    await write(made)
    draining = asyncio.create_task(ours(made, "decommission", java.bookie_id, "--grace", "1"))
    async with asyncio.timeout(60):
        while not await service.bookies.is_registered(java.bookie_id, BookieGroup.READ_ONLY):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    code, _, err = await ours(made, "decommission", java.bookie_id, "--undo")
    assert code == 0, err
    assert (await draining)[0] == 10
    assert await service.bookies.is_registered(java.bookie_id, BookieGroup.WRITABLE)
    code, out, err = await ours(made, "decommission", java.bookie_id, "--grace", "1")
    assert code == 0, err
    assert json.loads(out)["form"] == "live"
    java.kill()
    await check_all(made, service, java.bookie_id)


@pytest.mark.parametrize(
    "words", [("recover", "-f", "-d"), ("decommission", "--stopped", "--grace", "1")], ids=" ".join
)
async def test_our_commands_replace_a_lost_bookie_of_the_reference(
    made: Cluster, service: MetadataService, words: tuple[str, ...]
) -> None:
    """Its copies are made again on others of the reference, from others of the reference."""
    bookies = await start(made, ["java"] * 4)
    await write(made)
    going = bookies[1].bookie_id
    bookies[1].kill()
    await is_down(service, going)
    code, _, err = await ours(made, *words, going)
    assert code == 0, err
    await check_all(made, service, going)
    with pytest.raises(MetadataNotFound):
        await service.cookies.read(going)


async def test_recover_of_the_reference_works_against_our_bookies(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path
) -> None:
    bookies = await start(made, ["ours"] * 4)
    await write(made)
    going = bookies[1].bookie_id
    bookies[1].kill()
    await is_down(service, going)
    await asyncio.to_thread(java_shell, class_path, tool_configuration(made, tmp_path), "recover", "-f", "-d", going)
    await check_all(made, service, going)


async def test_decommissionbookie_of_the_reference_works_against_our_bookies(
    made: Cluster, service: MetadataService, class_path: str, tmp_path: Path
) -> None:
    bookies = await start(made, ["ours"] * 4)
    await write(made)
    configuration = tool_configuration(made, tmp_path)
    daemon = await start_daemon(class_path, configuration, tmp_path)
    going = bookies[1].bookie_id
    try:
        async with asyncio.timeout(60):
            while await service.auditor_election.current_auditor() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        bookies[1].kill()
        await is_down(service, going)
        shell = asyncio.to_thread(java_shell, class_path, configuration, "decommissionbookie", "-bookieid", going)
        async with asyncio.timeout(150):
            await shell
    finally:
        if daemon.returncode is None:
            daemon.kill()
        await daemon.wait()
    await check_all(made, service, going)
