"""Every bad state that a bookie can be started in: one line that names the thing, its exit code, and nothing lost.

After the repair that the line asks for, everything that was acknowledged is served.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http import client as http_client
from pathlib import Path

import pytest

from bookie_protocol.errors import ExitCode
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.bookie_process import DB_STORAGE, SORTED_STORAGE, free_port
from tests.support.frames import entry, v2_add, v2_code, v2_entry, v2_fence, v2_read
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.until import until_true

INVALID_CONFIGURATION, SERVER, METADATA, REGISTRATION, BOOKIE = 1, 2, 3, 4, 5
COOKIE = SERVER
"""What the operator takes for a bookie whose disks are not its own."""
LEDGERS = 6


def write(bookie: ServeProcess) -> None:
    with SyncClient(bookie.port) as client:
        for ledger_id in range(LEDGERS):
            client.send(*(v2_add(entry(ledger_id, e)) for e in range(10)))
            assert [v2_code(client.frame()) for _ in range(10)] == [0] * 10
        assert v2_code(client.ask(v2_fence(0))) == 0


def check(bookie: ServeProcess) -> None:
    with SyncClient(bookie.port) as client:
        for ledger_id in range(LEDGERS):
            for e in range(10):
                assert v2_entry(client.ask(v2_read(ledger_id, e))) == entry(ledger_id, e)
        assert v2_code(client.ask(v2_add(entry(0, 10)))) == 104
        assert v2_code(client.ask(v2_add(entry(1, 10)))) == 0


class Shared:
    """One bookie for all tests that leave it as they found it; a new one after a test that did not."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self.process: ServeProcess | None = None

    def sound(self) -> ServeProcess:
        if self.process is None:
            work = self._factory.mktemp("bookie")
            settings = {
                "journalDirectories": f"{work}/j0,{work}/j1",
                "ledgerDirectories": f"{work}/l0,{work}/l1",
                "indexDirectories": f"{work}/i0,{work}/i1",
            }
            process = ServeProcess(work, settings)
            process.start()
            write(process)
            assert process.stop() == 0
            return process
        process, self.process = self.process, None
        return process


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory)


@pytest.fixture
def bookie(shared: Shared) -> Iterator[ServeProcess]:
    """A bookie of two journals, ledger and index directories that was written to and stopped."""
    with shared.sound() as process:
        before = dict(process.settings)
        yield process
        if process.settings == before and process.process is None:
            shared.process = process


def recovers(bookie: ServeProcess) -> None:
    bookie.start()
    check(bookie)
    assert bookie.stop() == 0
    assert bookie.lines() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("journalDirectories", "{0}/j1,{0}/j0"),
        ("journalDirectories", "{0}/j0"),
        pytest.param("journalDirectories", "{0}/j0,{0}/j1,{0}/j2", marks=pytest.mark.slow),
        pytest.param("ledgerDirectories", "{0}/l1,{0}/l0", marks=pytest.mark.slow),
        pytest.param("indexDirectories", "{0}/i1,{0}/i0", marks=pytest.mark.slow),
        pytest.param("indexDirectories", "", marks=pytest.mark.slow),
    ],
    ids=["journals swapped", "one journal", "three journals", "ledgers swapped", "indexes swapped", "no indexes"],
)
def test_directories_in_another_number_or_order(bookie: ServeProcess, key: str, value: str) -> None:
    right = bookie.settings[key]
    bookie.settings[key] = value.format(bookie.work)
    code, line = bookie.refused()
    assert code == COOKIE
    assert line.startswith("bookie: ")
    assert key in line
    assert right.split(",")[0] in line
    bookie.settings[key] = right
    recovers(bookie)


@pytest.mark.parametrize("kind", ["j", "l", "i"], ids=["journals", "ledgers", "indexes"])
@pytest.mark.parametrize("known", [True, False], ids=["", "of an older release"])
def test_directories_that_changed_places(bookie: ServeProcess, kind: str, known: bool) -> None:
    """Disks that got other names at a boot: every cookie is right."""
    bookie.start()
    assert bookie.stop() == 0  # now the entries are in entry logs
    work = bookie.work
    if not known:
        for path in work.glob("*/current/directory-place"):
            path.unlink()

    def exchange() -> None:
        (work / f"{kind}0").rename(work / "other")
        (work / f"{kind}1").rename(work / f"{kind}0")
        (work / "other").rename(work / f"{kind}1")

    exchange()
    code, line = bookie.refused()
    assert code == (COOKIE if known or kind != "j" else BOOKIE)  # journals of an older release are told by their marks
    assert f"{work}/{kind}" in line
    exchange()
    recovers(bookie)
    assert all((path / "current" / "directory-place").exists() for path in work.glob("[jli][01]"))


def test_another_identity(bookie: ServeProcess) -> None:
    mine = bookie.settings["bookiePort"]
    bookie.settings["bookiePort"] = str(free_port())
    code, line = bookie.refused()
    assert code == COOKIE
    assert f"127.0.0.1:{mine}" in line
    assert "bookieId" in line
    bookie.settings["bookiePort"] = mine
    recovers(bookie)


def test_somebody_elses_disk(bookie: ServeProcess) -> None:
    """The cluster that the disk belongs to has another instance id."""
    mine = bookie.settings["metadataServiceUri"]
    other = f"file://{bookie.work}/other"
    ServeProcess.command("cluster", "init", other)
    bookie.settings["metadataServiceUri"] = other
    code, line = bookie.refused()
    assert code == COOKIE
    assert "instance id" in line
    assert "metadataServiceUri" in line
    bookie.settings["metadataServiceUri"] = mine
    recovers(bookie)


def test_a_cluster_that_was_never_made(bookie: ServeProcess) -> None:
    mine = bookie.settings["metadataServiceUri"]
    bookie.settings["metadataServiceUri"] = f"file://{bookie.work}/nothing"
    code, line = bookie.refused()
    assert code == BOOKIE  # no word on the bookie's disks
    assert f"file://{bookie.work}/nothing" in line
    bookie.settings["metadataServiceUri"] = mine
    recovers(bookie)


@pytest.mark.parametrize(
    "name", ["j1", pytest.param("l0", marks=pytest.mark.slow), pytest.param("i1", marks=pytest.mark.slow)]
)
def test_a_missing_directory(bookie: ServeProcess, name: str) -> None:
    (bookie.work / name).rename(bookie.work / "elsewhere")
    code, line = bookie.refused()
    assert code == COOKIE
    assert f"{bookie.work}/{name}/current" in line
    assert "mount" in line
    assert not (bookie.work / name / "current").exists()
    if (bookie.work / name).exists():
        (bookie.work / name).rmdir()
    (bookie.work / "elsewhere").rename(bookie.work / name)
    recovers(bookie)


@pytest.mark.slow
def test_an_emptied_directory(bookie: ServeProcess) -> None:
    (bookie.work / "l1" / "current").rename(bookie.work / "kept")
    code, line = bookie.refused()
    assert code == COOKIE
    assert f"{bookie.work}/l1/current" in line
    (bookie.work / "kept").rename(bookie.work / "l1" / "current")
    recovers(bookie)


def test_every_directory_emptied(bookie: ServeProcess) -> None:
    """New volumes under an old name: the cluster believes in copies that are not there."""
    names = [path.name for path in bookie.work.iterdir() if path.is_dir() and (path / "current" / "VERSION").exists()]
    assert len(names) >= 4
    for name in names:
        (bookie.work / name).rename(bookie.work / f"{name}.kept")
    code, line = bookie.refused()
    assert code == COOKIE
    assert "mount" in line
    for name in names:
        assert not (bookie.work / name / "current").exists()
        if (bookie.work / name).exists():
            (bookie.work / name).rmdir()
        (bookie.work / f"{name}.kept").rename(bookie.work / name)
    recovers(bookie)


def test_a_stored_cookie_that_is_gone(bookie: ServeProcess) -> None:
    """Old volumes of a bookie that the cluster has forgotten."""

    async def exchange(cookie: bytes | None) -> bytes:
        service = await open_metadata_service(bookie.settings["metadataServiceUri"])
        try:
            (name,) = (await service.bookies.list(BookieGroup.ALL)).bookies or {f"127.0.0.1:{bookie.port}"}
            if cookie is not None:
                await service.cookies.create(name, cookie)
                return cookie
            found = await service.cookies.read(name)
            await service.cookies.delete_this(name, found.identity)
            return found.value
        finally:
            await service.close()

    cookie = asyncio.run(exchange(None))
    code, line = bookie.refused()
    assert code == COOKIE
    assert "cookie" in line
    asyncio.run(exchange(cookie))
    recovers(bookie)


@pytest.mark.parametrize("name", [pytest.param("ledgers", marks=pytest.mark.slow), "locations"])
def test_an_index_that_was_removed(bookie: ServeProcess, name: str) -> None:
    bookie.start()
    assert bookie.stop() == 0  # now the entries are in entry logs
    index = bookie.work / "i0" / "current" / name
    index.rename(bookie.work / "kept")
    code, line = bookie.refused()
    assert code == BOOKIE
    assert f"{bookie.work}/i0/current" in line
    assert not index.exists()
    (bookie.work / "kept").rename(index)
    recovers(bookie)


def test_damage_that_the_check_at_the_start_finds(bookie: ServeProcess) -> None:
    bookie.start()
    assert bookie.stop() == 0  # now the entries are in entry logs
    logs = [path for path in (bookie.work / "l0/current").glob("*.log") if entry(0, 3) in path.read_bytes()]
    log = max(logs, key=lambda path: int(path.stem, 16))  # the newest copy counts
    whole = log.read_bytes()
    log.write_bytes(whole.replace(entry(0, 3), b"\x7f" * len(entry(0, 3))))
    bookie.settings["localConsistencyCheckOnStartup"] = "true"
    code, line = bookie.refused()
    assert code == BOOKIE
    assert "localConsistencyCheckOnStartup found 1 damages" in line
    assert str(log) in line
    log.write_bytes(whole)
    recovers(bookie)
    del bookie.settings["localConsistencyCheckOnStartup"]


@pytest.mark.parametrize(
    "wrote", [pytest.param(DB_STORAGE, marks=pytest.mark.slow), SORTED_STORAGE], ids=["Db", "Sorted"]
)
def test_the_disk_of_another_engine(tmp_path: Path, wrote: str) -> None:
    other = SORTED_STORAGE if wrote == DB_STORAGE else DB_STORAGE
    with ServeProcess(tmp_path, {"ledgerStorageClass": wrote}) as bookie:
        bookie.start()
        write(bookie)
        assert bookie.stop() == 0
        before = sorted(str(path) for path in (tmp_path / "ledgers").rglob("*"))
        bookie.settings["ledgerStorageClass"] = other
        code, line = bookie.refused()
        assert code == BOOKIE
        assert "ledgerStorageClass" in line
        assert wrote.rsplit(".", 1)[1] in line
        assert sorted(str(path) for path in (tmp_path / "ledgers").rglob("*")) == before
        bookie.settings["ledgerStorageClass"] = wrote
        recovers(bookie)


@pytest.mark.slow
def test_a_journal_damaged_in_the_middle(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as bookie:
        bookie.start()
        write(bookie)
        bookie.kill()
        (journal,) = (tmp_path / "journal" / "current").glob("*.txn")
        kept = journal.read_bytes()
        at = kept.index(entry(2, 3))
        journal.write_bytes(kept[: at - 4] + b"\xff\xff\x00\x00" + kept[at:])
        code, line = bookie.refused()
        assert code == BOOKIE
        assert str(journal) in line
        journal.write_bytes(kept)
        recovers(bookie)


@pytest.mark.slow
def test_a_journal_that_is_gone(bookie: ServeProcess) -> None:
    bookie.start()
    assert bookie.stop() == 0
    journals = sorted((bookie.work / "j1" / "current").glob("*.txn"))
    shutil.move(journals[-1], bookie.work / "kept")
    code, line = bookie.refused()
    assert code == BOOKIE
    assert str(journals[-1]) in line
    shutil.move(bookie.work / "kept", journals[-1])
    recovers(bookie)


@pytest.mark.parametrize("which", ["bookiePort", pytest.param("httpServerPort", marks=pytest.mark.slow)])
def test_a_port_in_use(bookie: ServeProcess, which: str) -> None:
    bookie.settings.update({"httpServerEnabled": "true", "httpServerPort": str(free_port())})
    with socket.create_server(("127.0.0.1", int(bookie.settings[which]))):
        code, line = bookie.refused()
    assert code == SERVER
    assert bookie.settings[which] in line
    assert "in use" in line
    recovers(bookie)


@pytest.mark.slow
def test_a_port_in_use_is_noticed_before_a_disk_is_touched(bookie: ServeProcess) -> None:
    before = sorted((str(path), path.stat().st_mtime_ns) for path in bookie.work.glob("[jli]?/current/*"))
    with socket.create_server(("127.0.0.1", bookie.port)):
        bookie.refused()
    assert sorted((str(path), path.stat().st_mtime_ns) for path in bookie.work.glob("[jli]?/current/*")) == before
    recovers(bookie)


def test_two_processes_on_one_disk(bookie: ServeProcess) -> None:
    bookie.settings["bookieId"] = f"127.0.0.1:{bookie.port}"
    bookie.start()
    with ServeProcess(bookie.work / "second", {**bookie.settings, "bookiePort": str(free_port())}) as second:
        code, line = second.refused()
        assert code != 0
        assert "another process" in line.lower() or "lock" in line.lower() or "in use" in line.lower()
    check(bookie)
    bookie.kill()
    recovers(bookie)


def test_an_unreachable_zookeeper(bookie: ServeProcess) -> None:
    mine = bookie.settings["metadataServiceUri"]
    uri = f"zk+hierarchical://127.0.0.1:{free_port()}/ledgers"
    bookie.settings.update({"metadataServiceUri": uri, "zkTimeout": "200"})
    code, line = bookie.refused()
    assert code == METADATA  # again, no word on its disks
    assert uri in line
    bookie.settings["metadataServiceUri"] = mine
    recovers(bookie)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("journalAlignmentSize", "100", marks=pytest.mark.slow),
        pytest.param("bookiePort", "99999", marks=pytest.mark.slow),
        pytest.param("ledgerStorageClass", "org.example.Engine", marks=pytest.mark.slow),
        ("bookieAuthProviderFactoryClass", "org.example.Auth"),
        ("clientAuthProviderFactoryClass", "org.example.Auth"),
        pytest.param("metadataServiceUri", "http://somewhere", marks=pytest.mark.slow),
    ],
)
def test_invalid_configuration(bookie: ServeProcess, key: str, value: str) -> None:
    right = bookie.settings.get(key)
    bookie.settings[key] = value
    code, line = bookie.refused()
    assert code == INVALID_CONFIGURATION
    assert key in line
    assert value in line
    if right is None:
        del bookie.settings[key]
    else:
        bookie.settings[key] = right
    recovers(bookie)


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "ledgers").write_text("in the way")
    with ServeProcess(tmp_path) as bookie:
        code, line = bookie.refused()
        assert code == BOOKIE
        assert f"{tmp_path}/ledgers" in line


def test_a_metadata_service_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    """All of a cluster starts at once after a loss of power. Nobody has a reason to kill the bookie meanwhile."""
    metadata, http = MetadataProcess(tmp_path / "metadata"), free_port()
    settings = {
        "metadataServiceUri": metadata.uri(),
        "zkTimeout": "1000",
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(http),
    }

    def says(path: str) -> tuple[int, str]:
        connection = http_client.HTTPConnection("127.0.0.1", http, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    try:
        metadata.start()
        ServeProcess.command("cluster", "init", metadata.uri())
        metadata.kill()
        with ServeProcess(tmp_path / "bookie", settings) as bookie:
            bookie.launch()
            until_true(lambda: "no answer from the metadata service so far" in says("/readyz")[1], 30)
            assert says("/readyz")[0] == 503
            assert says("/healthz")[0] == 200
            time.sleep(2 * 1.0)  # longer than a request to the metadata service may take
            metadata.start()
            until_true(bookie.is_up, 30)
            until_true(lambda: says("/readyz")[0] == 200, 10)
            assert bookie.stop() == 0
    finally:
        metadata.kill()


def test_a_bookie_that_is_told_to_stop_while_it_waits_to_be_registered_keeps_what_it_acknowledged(
    tmp_path: Path, metadata: MetadataProcess
) -> None:
    """Clients that know its address write already."""
    ServeProcess.command("cluster", "init", metadata.uri())
    settings = {"metadataServiceUri": metadata.uri(), "journalWriteData": "false"}
    with ServeProcess(tmp_path / "bookie", settings) as bookie:

        async def while_another_holds_its_registration() -> None:
            service = await open_metadata_service(metadata.uri())
            try:
                other = BookieServiceInfo(())
                await service.bookies.register(f"127.0.0.1:{bookie.port}", BookieGroup.WRITABLE, other)
                bookie.launch()
                await asyncio.to_thread(until_true, bookie.serves, 30)
                with SyncClient(bookie.port) as client:
                    assert v2_code(client.ask(v2_add(entry(77, 0)))) == 0
                assert not bookie.is_up()
                assert await asyncio.to_thread(bookie.stop) == 0
            finally:
                await service.close()

        asyncio.run(while_another_holds_its_registration())
        bookie.start()
        with SyncClient(bookie.port) as client:
            assert v2_entry(client.ask(v2_read(77, 0))) == entry(77, 0)


def test_no_metadata_service_is_an_invalid_configuration(tmp_path: Path) -> None:
    """Noticed before a port is taken or a directory made."""
    keys = {"journalDirectories": tmp_path / "j", "ledgerDirectories": tmp_path / "l", "allowLoopback": "true"}
    command = [sys.executable, "-m", "bookie_pod.cli.main", "serve"]
    for key, value in keys.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.INVALID_CONFIGURATION
    assert [line for line in done.stderr.splitlines() if "metadataServiceUri is not set" in line][-1].startswith(
        "bookie: "
    )
    assert not list(tmp_path.iterdir())


def test_more_directories_are_refused_where_ledgers_are_found_by_their_number(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "b") as bookie:
        bookie.start()
        bookie.stop()
        bookie.settings["ledgerDirectories"] += f",{bookie.work}/more"
        bookie.settings["allowStorageExpansion"] = "true"
        code, line = bookie.refused()
        assert code == COOKIE
        assert "does not apply to DbLedgerStorage" in line
