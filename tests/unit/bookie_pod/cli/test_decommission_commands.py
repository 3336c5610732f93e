"""The command lines of decommission, recover and cookies: what is refused before anything is connected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType

import pytest

from bookie_client.client import Client
from bookie_client.replication.replicator import ReplicationOptions
from bookie_pod.autorecovery.decommission.coordinator import Watched
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, DrainProgress
from bookie_pod.cli.cluster import decommission_run, recover_run
from bookie_pod.cli.cluster.decommission_run import (
    AdminAccess,
    _coordinator_lines,
    _done,
    _heard,
    _stage,
    read_ledger_ids,
    while_draining,
)
from bookie_pod.cli.cluster.recover_run import bookie_ids
from bookie_pod.cli.main import run
from bookie_pod.cli.tables import duration_text, size_text
from bookie_pod.config.sections.service import HttpConfig
from bookie_protocol.errors import InvalidConfiguration, Refused
from tests.support.certificates import Certificates

NOWHERE = ("--metadata", "file:///does/not/exist")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("decommission", "b:1", "--plan", "--undo"), "one of --plan, --status and --undo"),
        (("decommission", "b:1", "--live", "--stopped"), "one of --stopped and --live"),
        (("decommission", "b:1", "--accept-loss", "/does/not/exist"), "--accept-loss /does/not/exist: No such file"),
        (("recover", "b:1,,c:1", "-f"), "'' is not a valid bookie id"),
        (("recover", "a/b", "-q"), "'a/b' is not a valid bookie id"),
        (("recover", "b:1"), "recover asks before it replaces bookies, and there is no terminal: give --force"),
        (("safety-check", "a b"), "'a b' is not a valid bookie id"),
        (("cookie", "generate", "a/b", "-j", "/j", "-l", "/l", "-o", "/tmp/x"), "'a/b' is not a valid bookie id"),
        (("cookie", "generate", "b:1", "-j", "/j,,", "-l", "/l", "-o", "/tmp/x"), "not a list of directories"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("cluster", *arguments, *NOWHERE)) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "command"),
    [(decommission_run, ("decommission", "b:1", "--force")), (recover_run, ("recover", "b:1", "-f"))],
    ids=["decommission", "recover"],
)
def test_copies_are_made_as_the_configuration_says(
    module: ModuleType, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, file = str(tmp_path / "metadata"), tmp_path / "bookie.conf"
    assert run(["cluster", "init", uri]) == 0

    def options(keys: str, *words: str) -> ReplicationOptions:
        file.write_text(keys)
        seen: list[ReplicationOptions] = []

        def mover(client: Client, options: ReplicationOptions) -> None:
            seen.append(options)
            raise Refused("enough")

        monkeypatch.setattr(module, "ClientMover", mover)
        assert run(["cluster", *command, *words, "--metadata", uri, "--config", str(file)]) == 10
        return seen[0]

    given = options("rereplicationEntryBatchSize=20\nreplicationMaxBytesInFlight=1048576\n", "--rate", "8000")
    assert (given.entry_batch_size, given.max_bytes_in_flight, given.batch_reads) == (20, 1_048_576, True)
    assert 0 < (given.throttle.bytes_per_second or 0) < 8000  # it gives way, so it begins with a part
    steady = options("replicationYieldsToClients=false\nrecoveryBatchReadEnabled=false\n", "--rate", "8000")
    assert (steady.throttle.bytes_per_second, steady.batch_reads) == (8000, False)
    assert options("", "--rate", "0").throttle.bytes_per_second is None


@pytest.mark.parametrize("how", ["-q", "-f"])
def test_a_lost_bookie_that_nobody_knows_is_told(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = str(tmp_path / "metadata")
    assert run(["cluster", "init", uri]) == 0
    assert run(["cluster", "recover", "mistyped:3181", how, "--metadata", uri]) == 0
    told = "warning: bookie mistyped:3181 has no cookie and is not registered: is the name right?"
    assert capsys.readouterr().err.splitlines()[0] == told


def test_ids_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lost"
    file.write_text("7\n8 9\n\n7\n")
    assert read_ledger_ids(str(file)) == {7, 8, 9}
    for text in ("7\n-1", "seven", "", "²"):
        file.write_text(text)
        with pytest.raises(InvalidConfiguration, match="--accept-loss"):
            read_ledger_ids(str(file))


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    file = tmp_path / "ca"
    file.write_text("nothing")
    cluster: object = type("Cluster", (), {"service": None})()
    for path in (str(file), str(tmp_path / "missing")):
        with pytest.raises(InvalidConfiguration, match="--ca-file"):
            AdminAccess(HttpConfig(), ca_file=path).open(cluster)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="--token-file"):
        AdminAccess(HttpConfig(), token_file=str(tmp_path / "missing")).open(cluster)  # type: ignore[arg-type]


def test_a_command_in_a_pod_asks_bookies_as_they_ask_each_other(tmp_path: Path) -> None:
    """What is advised there, `bookie cluster decommission BOOKIE`, has no options."""
    certificates = Certificates(tmp_path).make_all()
    (tmp_path / "token").write_text("of-the-pod\n")
    (tmp_path / "other").write_text("given\n")
    (tmp_path / "both.pem").write_bytes((tmp_path / "bookie.key").read_bytes() + (tmp_path / "bookie.pem").read_bytes())
    http = HttpConfig(
        auth_token_file=str(tmp_path / "token"),
        tls_enable=True,
        tls_client_authentication=False,
        key_store_path=str(tmp_path / "both.pem"),
        trust_store_path=str(certificates.folder / "authority.pem"),
    )
    cluster: object = type("Cluster", (), {"service": None})()

    def opened(**given: str) -> tuple[str, list[str]]:
        reach = AdminAccess(http, **given).open(cluster)  # type: ignore[arg-type]
        assert reach._tls is not None
        subjects = [dict(part[0] for part in each["subject"]) for each in reach._tls.get_ca_certs()]
        return str(reach._token), [each["commonName"] for each in subjects]

    assert opened() == ("of-the-pod", ["authority"])
    assert opened(token_file=str(tmp_path / "other"), ca_file=str(tmp_path / "stranger.pem")) == (
        "given",
        ["stranger"],
    )


def test_words_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 1_234_567, 5 * 10**18)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "1.2 MB",
        "5,000.0 PB",
    ]
    assert [duration_text(s) for s in (0.4, 59.4, 60, 3599, 7500)] == ["0 s", "59 s", "1 min", "59 min", "2 h 5 min"]
    assert bookie_ids(" b:1, c:1 ") == {"b:1", "c:1"}


def test_a_record_that_nobody_stores_any_more() -> None:
    record = DecommissionRecord("b:1", "somebody", 0, 1_000_000)
    assert _heard(record, 1_004_000) == "4 s ago"
    assert _heard(record, 999_000) == "0 s ago"
    assert "`bookie cluster decommission b:1`" in _heard(record, 1_300_000)


def said_by(watched: Watched) -> tuple[str, object]:
    return _coordinator_lines(watched, "decommission")[0], _stage(watched)


async def test_whoever_interrupts_it_hears_how_far_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    watched, reached = Watched(), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)  # the first line is said
        await asyncio.sleep(0)
        watched.record = DecommissionRecord("b:1", "somebody", 0, 0)
        reached.set()
        await asyncio.Event().wait()

    job = asyncio.create_task(while_draining(work(), watched, "decommission"))
    await reached.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert capsys.readouterr().err.splitlines() == ["decommission: begins", "decommission: requested"]


def test_where_no_view_is_live_each_phase_and_fault_is_a_line() -> None:
    watched = Watched()
    stages = [said_by(watched)]
    watched.record = DecommissionRecord("b:1", "somebody", 0, 0)
    stages.append(said_by(watched))
    watched.waiting_for = "no answer"
    stages.append(said_by(watched))
    assert [line for line, _ in stages] == [
        "decommission: begins",
        "decommission: requested",
        "decommission: requested; waits: no answer",
    ]
    assert len({stage for _, stage in stages}) == 3


def test_only_what_is_really_given_up_is_called_so() -> None:
    record = DecommissionRecord(
        "b:1", "somebody", 0, 0, accepted_losses=(7, 8, 9), progress=DrainProgress(ledgers_total=5, blocked=1)
    )
    assert "given up: what it held of 1 of the 3 ledgers whose loss was accepted" in _done(record)
