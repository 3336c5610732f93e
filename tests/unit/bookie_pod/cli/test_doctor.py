"""`bookie doctor`: each look finds what is wrong, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path

import pytest

from bookie_pod.cli.doctor import disks, machine, ports
from bookie_pod.cli.doctor.certificates import certificate_findings
from bookie_pod.cli.doctor.disks import disk_findings
from bookie_pod.cli.doctor.findings import Finding, State, exit_code
from bookie_pod.cli.doctor.machine import machine_findings
from bookie_pod.cli.doctor.ports import port_findings
from bookie_pod.cli.doctor.services import metadata_findings
from bookie_pod.cli.main import run
from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.metadata_drivers import ServedUnderTest


def config(folder: Path, **keys: str) -> BookieConfig:
    places = {"journalDirectories": "journal", "ledgerDirectories": "ledgers", "indexDirectories": "index"}
    given = {key: str(folder / place) for key, place in places.items()}
    return load_config(environ={}, overrides={"allowLoopback": "true", "bookieId": "b1", **given, **keys})


def states(findings: list[Finding], part: str) -> list[State]:
    return [each.state for each in findings if each.part.startswith(part)]


@pytest.fixture(autouse=True)
def half_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """How full this machine is has no part in what the tests find."""
    blocks = os.statvfs_result((4096, 4096, 1 << 26, 1 << 25, 1 << 25, 1 << 24, 1 << 23, 1 << 23, 0, 255))
    monkeypatch.setattr(disks.os, "statvfs", lambda _: blocks)


def test_disks_are_measured_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_SYNC_SECONDS", 0.05)
    monkeypatch.setattr(disks, "_WRITE_SECONDS", 0.05)
    for name in ("journal", "ledgers", "index"):
        (tmp_path / name).mkdir()
    found = list(disk_findings(config(tmp_path), measure=True))
    measured = [each.text for each in found if each.part.startswith(("journal", "ledgers"))]
    assert any(" ms" in text for text in measured)
    assert any("/s" in text for text in measured)
    assert [list(each.iterdir()) for each in sorted(tmp_path.iterdir())] == [[], [], []]


def test_without_measuring_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks.tempfile, "TemporaryFile", None)
    found = list(disk_findings(config(tmp_path), measure=False))
    assert {each.part.split()[0] for each in found} == {"journal", "ledgers", "index"}
    assert list(tmp_path.iterdir()) == []


def test_full_disk_and_one_that_soon_is(tmp_path: Path) -> None:
    def room(**keys: str) -> list[State]:
        return states(list(disk_findings(config(tmp_path, **keys), measure=False)), "ledgers")

    tiny = {"diskUsageThreshold": "0.0000002", "diskUsageWarnThreshold": "0.0000001"}
    assert State.PROBLEM in room(**tiny)
    assert State.WARNING in room(diskUsageWarnThreshold="0.0000001")


def test_directory_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, expected in ((PermissionError(13, "no"), State.PROBLEM), (OSError(24, "many"), State.UNKNOWN)):

        def refused(error: OSError = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(disks.tempfile, "TemporaryFile", refused)
        assert expected in states(list(disk_findings(config(tmp_path), measure=True)), "journal")


def test_directory_that_may_not_be_looked_at_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object, *_: object, **__: object) -> os.stat_result:
        raise PermissionError(13, "no") if str(path).startswith(str(tmp_path)) else FileNotFoundError(2, "none")

    monkeypatch.setattr(disks.os, "stat", refused)
    assert states(list(disk_findings(config(tmp_path), measure=False)), "journal") == [State.PROBLEM]


def test_disk_without_room_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_MOST_BYTES", 1 << 60)
    monkeypatch.setattr(disks.tempfile, "TemporaryFile", None)
    found = list(disk_findings(config(tmp_path, indexDirectories=""), measure=True))
    assert State.UNKNOWN in states(found, "journal")
    assert State.UNKNOWN in states(found, "ledgers")


def test_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(disks, "_syncs", lambda *_, **__: hangs.wait())
    monkeypatch.setattr(disks, "PATIENCE_S", 0.05)
    assert State.PROBLEM in states(list(disk_findings(config(tmp_path), measure=True)), "journal")
    hangs.set()


def test_file_systems_of_memory_and_of_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disks._mount_of("/proc/self")[0] == "proc"
    for kind, options, state in (
        ("tmpfs", "rw", State.PROBLEM),
        ("nfs4", "rw", State.WARNING),
        ("fuse.sshfs", "rw", State.WARNING),
        ("ext4", "nobarrier", State.WARNING),
        ("ext4", "rw", State.OK),
    ):
        monkeypatch.setattr(disks, "_mount_of", lambda _, kind=kind, options=options: (kind, {options}))
        found = states(list(disk_findings(config(tmp_path), measure=False)), "journal")
        assert state in found
        assert (set(found) == {State.OK}) is (state is State.OK)


def test_mounts_with_names_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Bücher und\\mehr"
    folder.mkdir()
    point = str(folder).replace("\\", "\\134").replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/a rw\n23 1 8:2 / {point} rw - nfs4 host:/b rw\n", encoding="utf-8")
    monkeypatch.setattr(disks, "_MOUNTS", str(mounts))
    assert disks._mount_of(str(folder)) == ("nfs4", {"rw"})


def test_journal_and_ledgers_on_one_disk(tmp_path: Path) -> None:
    two = f"{tmp_path}/ledgers,{tmp_path}/second"
    found = list(disk_findings(config(tmp_path, ledgerDirectories=two, indexDirectories=""), measure=False))
    told = [each.part for each in found if each.state is State.WARNING]
    first, second = (f"ledgers {tmp_path / name}" for name in ("ledgers", "second"))
    assert told == [first, second, second], "each is beside the journal, and the second beside the first"


def test_port_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]

        def found() -> list[State]:
            return states(list(port_findings(config(tmp_path, bookiePort=str(port), httpServerPort="0"))), "port")[:1]

        owner = ports.owner_of(port)
        assert owner is not None
        assert owner[0] == os.getpid()
        for shown, expected in (
            ((5, ["nginx"]), State.PROBLEM),
            ((5, ["/usr/bin/python3", "/opt/bin/bookie", "serve"]), State.OK),
            ((5, ["python", "-m", "bookie_pod.cli", "serve"]), State.OK),
            ((5, []), State.PROBLEM),
            (None, State.UNKNOWN),
        ):
            monkeypatch.setattr(ports, "owner_of", lambda _, shown=shown: shown)
            assert found() == [expected]


def test_port_at_an_address_of_another_machine(tmp_path: Path) -> None:
    found = list(port_findings(config(tmp_path, httpServerHost="192.0.2.1")))
    assert states(found, "port 8000") == [State.PROBLEM]


def test_few_descriptors_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "raise_descriptor_limit", lambda: 1024)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 256 << 20)
    found = list(machine_findings(config(tmp_path, memoryBudgetMb="200")))
    assert states(found, "descriptors") + states(found, "memory") == [State.WARNING] * 2
    small = config(tmp_path, memoryBudgetMb="64", grpcServerEnabled="false")
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: (192 << 20) - 1)
    assert states(list(machine_findings(small)), "memory") == [State.WARNING]
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 192 << 20)
    assert states(list(machine_findings(small)), "memory") == [State.OK]
    monkeypatch.setattr(machine, "raise_descriptor_limit", lambda: resource.RLIM_INFINITY)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 4 << 30)
    found = list(machine_findings(config(tmp_path, memoryBudgetMb="200")))
    assert states(found, "descriptors") + states(found, "memory") == [State.OK] * 2


def test_clock_that_nothing_keeps_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, expected in ((5, [State.WARNING]), (0, [State.OK]), (-1, [State.UNKNOWN])):

        class Kernel:
            def adjtimex(self, _: object, answer: int = answer) -> int:
                return answer

        monkeypatch.setattr(machine.ctypes, "CDLL", lambda *_, **__: Kernel())
        assert states(list(machine_findings(config(tmp_path))), "clock") == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pids.max": "100", "somaxconn": "128", "swappiness": "60", "swaps": "x\n/dev/sdb"}, State.WARNING),
        ({"pids.max": "max", "somaxconn": "4096", "swappiness": "1", "swaps": "x\n/dev/sdb"}, State.OK),
        ({"pids.max": "max", "somaxconn": "4096", "swaps": "x"}, State.OK),
        ({}, State.UNKNOWN),
    ],
)
def test_settings_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: State
) -> None:
    def number(path: str) -> int | None:
        text = files.get(os.path.basename(path), "")
        return int(text) if text.isdigit() else None

    (tmp_path / "swaps").write_text(files.get("swaps", ""))
    monkeypatch.setattr(machine, "_SWAPS", str(tmp_path / "swaps" if files else tmp_path / "none"))
    monkeypatch.setattr(machine, "_number", number)
    limit = files.get("pids.max", "")
    monkeypatch.setattr(machine, "group_limits", lambda *_: [int(limit)] if limit.isdigit() else [])
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    found = {each.part: each.state for each in (machine._threads(), machine._backlog(), machine._swap())}
    if limit == "max":
        assert found.pop("threads") is State.UNKNOWN, "no limit is told"
    assert set(found.values()) == {expected}


def test_certificates_that_end(tmp_path: Path) -> None:
    made = Certificates(tmp_path).make_all()
    for name, days in (("soon", 3), ("later", 90)):
        made.make_unit(name, "0:bookie", days=days)

    def valid(name: str) -> list[State]:
        keys = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsKeyStoreType": "PEM"}
        files = {"tlsKeyStore": str(tmp_path / f"{name}.key"), "tlsCertificatePath": str(tmp_path / f"{name}.pem")}
        return [each.state for each in certificate_findings(config(tmp_path, **keys, **files))]

    assert valid("soon") == [State.WARNING]
    assert valid("later") == [State.OK]
    assert valid("missing") == []  # that it cannot be read is a refusal of the configuration
    (tmp_path / "damaged.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    assert valid("damaged") == []


@pytest.mark.parametrize(
    ("names", "authority", "expected"),
    [
        ("IP:127.0.0.1", "authority", State.OK),
        ("DNS:elsewhere", "authority", State.WARNING),
        ("IP:127.0.0.1", "stranger", State.PROBLEM),
    ],
)
def test_handshake_with_a_client_that_verifies(tmp_path: Path, names: str, authority: str, expected: State) -> None:
    made = Certificates(tmp_path).make_all()
    made.make_named("own", names)
    keys = {**made.settings(bookie="own", demand_client=authority == "authority"), "advertisedAddress": "127.0.0.1"}
    keys["tlsTrustStore"] = str(tmp_path / f"{authority}.pem")
    assert states(list(certificate_findings(config(tmp_path, **keys))), "handshake") == [expected]


class TestMetadata:
    @pytest.fixture
    async def driver(self, tmp_path: Path) -> AsyncIterator[ServedUnderTest]:
        driver = ServedUnderTest(str(tmp_path / "store"))
        yield driver
        await driver.close()

    async def found(self, folder: Path, uri: str) -> list[State]:
        keys = {"metadataServiceUri": uri, "zkTimeout": "2000"}
        return [each.state for each in await metadata_findings(config(folder, **keys))]

    async def test_cluster_that_answers(self, tmp_path: Path, driver: ServedUnderTest) -> None:
        service = await driver.open()
        assert await self.found(tmp_path, driver.uri) == [State.OK, State.PROBLEM], "there is no cluster yet"
        await service.cluster.initialize()
        assert await self.found(tmp_path, driver.uri) == [State.OK, State.OK, State.OK]

    async def test_nobody_answers(self, tmp_path: Path) -> None:
        assert await self.found(tmp_path, "embedded://127.0.0.1:1/ledgers") == [State.WARNING, State.PROBLEM]

    async def test_clock_beside_those_of_other_bookies(
        self, tmp_path: Path, driver: ServedUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = await driver.open()
        await service.cluster.initialize()

        async def clock(uri: str) -> list[State]:
            found = await metadata_findings(config(tmp_path, metadataServiceUri=uri, zkTimeout="2000"))
            return states(found, "clock")

        assert await clock(driver.uri) == [], "there is no other bookie"
        answer = "HTTP/1.1 200 OK\r\nDate: {}\r\nContent-Length: 0\r\n\r\n"
        ahead = [0.0]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.format(formatdate(time.time() + ahead[0], usegmt=True)).encode())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoints = (Endpoint("b2", "127.0.0.1", 1, BOOKIE_RPC), Endpoint("http", "127.0.0.1", port, "http"))
        await service.bookies.register("b2", BookieGroup.WRITABLE, BookieServiceInfo(endpoints))
        assert await clock(driver.uri) == [State.OK]
        ahead[0] = 90.0
        assert await clock(driver.uri) == [State.WARNING]
        for odd in ("Fri, 31 Jan 99999999999999999999 00:00:00", "yesterday"):
            answer = f"HTTP/1.1 200 OK\r\nDate: {odd}\r\nContent-Length: 0\r\n\r\n"
            assert await clock(driver.uri) == [State.UNKNOWN]
        answer = "no HTTP"
        assert await clock(driver.uri) == [State.UNKNOWN]
        server.close()

    async def test_store_in_a_folder_is_left_to_its_owner(self, tmp_path: Path) -> None:
        assert await self.found(tmp_path, f"{tmp_path}/store") == [State.OK]
        assert os.listdir(tmp_path) == []


def test_exit_codes() -> None:
    def code(*found: State, strict: bool = False) -> int:
        return exit_code([Finding("x", state, "y") for state in found], strict=strict)

    assert code(State.OK, State.WARNING) == 0
    assert code(State.WARNING, strict=True) == 13
    assert code(State.WARNING, State.UNKNOWN) == 12
    assert code(State.PROBLEM, State.UNKNOWN) == 13


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"bookieId": "b1", "allowLoopback": "true", "journalDirectories": "/proc/none"}
    ports = {key: str(free_port()) for key in ("bookiePort", "httpServerPort", "grpcServerPort")}
    (tmp_path / "bookie.conf").write_text("".join(f"{key}={value}\n" for key, value in {**keys, **ports}.items()))
    words = [
        "doctor",
        "--config",
        str(tmp_path / "bookie.conf"),
        "--no-writes",
        "--set",
        f"metadataServiceUri={tmp_path}/store",
    ]
    assert run([*words, "--json"]) in (0, 12), "a kernel may not tell everything"
    told = json.loads(capsys.readouterr().out)
    assert {each["state"] for each in told} <= {"ok", "warning", "unknown"}
    assert run(words[:-2]) == 13, "no metadata service is named, so nothing starts"
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("problem  configuration: ")]
