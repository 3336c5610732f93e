"""`bookie standalone` and the commands that use a cluster, as their users run them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess

import psutil
import pytest

from bookie_client.blocking import BlockingClient
from bookie_pod.cli.main import run
from tests.support.standalone_command import BOOKIE, StandaloneCommand
from tests.support.until import until_true


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with StandaloneCommand(tmp_path_factory.mktemp("standalone") / "data", command=BOOKIE) as cluster:
        yield cluster
        assert cluster.stop() == 0
        assert cluster.errors.read_text() == "bookie: stopped\n"


@pytest.fixture(autouse=True)
def environment(cluster, monkeypatch):
    monkeypatch.setenv("BK_metadataServiceUri", cluster.uri)
    # Commands that run in this process must not leave their log set up: its stream is gone after the test.
    monkeypatch.setattr("bookie_pod.logs.configure", lambda *settings: None)


@pytest.fixture
def bookie(capfdbinary):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        said = capfdbinary.readouterr()
        return code, said.out, said.err.decode()

    return call


def command(*arguments, **options):
    return subprocess.run([BOOKIE, *map(str, arguments)], capture_output=True, timeout=60, check=False, **options)


def written(bookie, *arguments):
    code, out, err = bookie("ledger", "write", *arguments)
    assert (code, err) == (0, "")
    return int(out)


def test_lines_of_a_file_come_back(bookie, tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)))
    ledger = written(bookie, file)
    assert bookie("ledger", "read", ledger) == (0, file.read_bytes(), "")
    assert bookie("ledger", "read", ledger, "--first", 10, "--last", 11)[1] == b"line 10\nline 11\n"
    assert bookie("ledger", "read", ledger, "-o", tmp_path / "copy")[1] == b""
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    assert bookie("ledger", "read", ledger, "--first", 5000) == (0, b"", "")
    code, _, err = bookie("ledger", "read", ledger, "--first", 5001)
    assert (code, err) == (10, f"bookie: ledger {ledger}: entry 5001 is above the last add confirmed, 4999\n")
    (first, *_) = bookie("ledger", "read", ledger, "--format", "json")[1].splitlines()
    assert json.loads(first)["payload_base64"] == "bGluZSAw"


@pytest.mark.parametrize(
    ("write", "read"),
    [(["--format", "fixed", "--size", "1000"], ["--format", "raw"]), (["--format", "whole"], ["--format", "raw"])],
)
def test_any_bytes_survive_a_pipe(write, read):
    data = random.Random(1).randbytes(1_234_567)
    ledger = int(command("ledger", "write", *write, input=data).stdout)
    assert command("ledger", "read", ledger, *read).stdout == data


def test_prefixed_entries_go_in_and_out(bookie, tmp_path):
    file = tmp_path / "entries"
    file.write_bytes(b"\0\0\0\3a\nb\0\0\0\0\0\0\0\1\xff")
    ledger = written(bookie, file, "--format", "prefixed")
    assert bookie("ledger", "read", ledger, "--format", "prefixed")[1] == file.read_bytes()


def test_what_a_ledger_is_told_shows_in_its_metadata(bookie, tmp_path):
    (tmp_path / "file").write_bytes(b"x\ny\n")
    (tmp_path / "password").write_bytes(b"secret\n")
    options = ["--ensemble", 2, "--write-quorum", 2, "--ack-quorum", 1, "--digest", "MAC", "--property", "app=test"]
    ledger = written(bookie, tmp_path / "file", *options, "--password-file", tmp_path / "password", "--id", 4711)
    assert ledger == 4711
    info = json.loads(bookie("ledger", "info", ledger, "--json")[1])
    assert len(info.pop("ensembles")["0"]) == 2
    assert info.pop("created")
    assert info == {
        "ledger_id": 4711,
        "state": "CLOSED",
        "entries": 2,
        "bytes": 2,
        "ensemble_size": 2,
        "write_quorum": 2,
        "ack_quorum": 1,
        "digest": "MAC",
        "has_password": True,
        "format_version": 3,
        "custom_metadata": {"app": "test"},
    }
    table = bookie("ledger", "info", ledger)[1].decode()
    assert "CLOSED" in table
    assert "secret" not in table
    code, out, err = bookie("ledger", "read", ledger)
    assert (code, out, err) == (10, b"", "bookie: ledger 4711 has another password\n")
    assert bookie("ledger", "read", ledger, "--password-file", tmp_path / "password")[1] == b"x\ny\n"


def test_list_and_delete(bookie):
    ledgers = [int(bookie("ledger", "create")[1]) for _ in range(3)]
    listed = bookie("ledger", "list")[1].split()
    assert [str(ledger).encode() in listed for ledger in ledgers] == [True] * 3
    long = [json.loads(line) for line in bookie("ledger", "list", "--long", "--json")[1].splitlines()]
    assert {line["state"] for line in long if line["ledger_id"] in ledgers} == {"CLOSED"}
    assert bookie("ledger", "delete", ledgers[0], "--yes") == (0, b"", "")
    code, out, err = bookie("ledger", "delete", *ledgers[:2], "--yes", "--json")
    # One that is gone keeps none of the others: a command that was interrupted can be given again.
    assert (code, err) == (11, f"bookie: ledger {ledgers[0]} does not exist; all others that were named are deleted\n")
    assert [json.loads(line) for line in out.splitlines()] == [{"ledger_id": ledgers[1], "deleted": True}]
    assert [bookie("ledger", "info", ledger)[0] for ledger in ledgers] == [11, 11, 0]
    code, _, err = bookie("ledger", "delete", *ledgers[:2], "--yes")
    assert (code, err) == (
        11,
        f"bookie: ledger {ledgers[0]} does not exist; ledger {ledgers[1]} does not exist; all others that were named"
        " are deleted\n",
    )


def test_a_ledger_without_a_writer_is_recovered(bookie, cluster):
    with BlockingClient(cluster.uri) as client:
        ledger = client.create().ledger_id
        writer = client.create()
        writer.append_many([b"a", b"b"])
    assert json.loads(bookie("ledger", "info", writer.ledger_id, "--json")[1])["entries"] is None
    recovered = json.loads(bookie("ledger", "recover", writer.ledger_id, "--json")[1])
    assert (recovered["state"], recovered["entries"]) == ("CLOSED", 2)
    assert bookie("ledger", "read", ledger, "--recover") == (0, b"", "")
    assert json.loads(bookie("ledger", "info", ledger, "--json")[1])["entries"] == 0


def test_tail_prints_entries_as_they_are_written_and_ends_with_the_ledger(cluster, tmp_path):
    with BlockingClient(cluster.uri) as client, (tmp_path / "out").open("wb") as output:
        with client.create() as ledger:
            tail = subprocess.Popen(
                [BOOKIE, "ledger", "tail", str(ledger.ledger_id), "--first", "0"], stdout=output, stderr=subprocess.PIPE
            )
            for number in range(3):
                ledger.append(b"line %d" % number)
            until_true(lambda: (tmp_path / "out").read_bytes().startswith(b"line 0\nline 1\n"), 20)
        assert tail.communicate(timeout=30)[1] == b""
    assert tail.returncode == 0
    assert (tmp_path / "out").read_bytes() == b"line 0\nline 1\nline 2\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_writer_that_is_stopped_closes_its_ledger_and_names_it(bookie, number, code):
    ledgers = set(bookie("ledger", "list")[1].split())
    process = subprocess.Popen(
        [BOOKIE, "ledger", "write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdin.write(b"one\ntwo\nhalf")
    process.stdin.flush()
    until_true(lambda: set(bookie("ledger", "list")[1].split()) - ledgers, 20)
    (ledger,) = set(bookie("ledger", "list")[1].split()) - ledgers
    until_true(lambda: process.poll() is None)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, b"")
    (line,) = err.decode().splitlines()
    assert line.startswith(f"bookie: stopped: ledger {ledger.decode()} holds the first ")
    assert json.loads(bookie("ledger", "info", ledger.decode(), "--json")[1])["state"] == "CLOSED"


def test_bad_input_names_the_ledger_that_holds_the_rest(bookie, tmp_path):
    (tmp_path / "bad").write_bytes(b"\0\0\0\1a\0\0\0\5b")
    code, out, err = bookie("ledger", "write", "--format", "prefixed", tmp_path / "bad")
    assert (code, out) == (10, b"")
    assert "ends inside the entry that begins at byte 5" in err
    assert "holds the first 1 entries" in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_not_there(bookie):
    assert bookie("ledger", "write", "/nowhere/x") == (1, b"", "bookie: /nowhere/x: No such file or directory\n")


def test_a_reader_of_the_output_that_goes_away_is_no_fault(bookie, tmp_path):
    (tmp_path / "log").write_bytes(b"0123456789\n" * 30_000)
    ledger = written(bookie, tmp_path / "log")
    shell = f"{BOOKIE} ledger read {ledger} | head -n 1; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60, check=False)
    assert (piped.stdout, piped.stderr) == (b"0123456789\n141\n", b"")


def test_the_cluster_shows_itself(bookie, cluster):
    code, out, _ = bookie("cluster", "bookies", "--json")
    bookies = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(b["bookie_id"], b["state"]) for b in bookies] == [(f"bookie-{i}", "writable") for i in (1, 2, 3)]
    assert all(0 < b["free_bytes"] < b["total_bytes"] for b in bookies)
    assert bookies[0]["address"] == f"127.0.0.1:{cluster.ready['bookies'][0]['port']}"
    code, out, _ = bookie("cluster", "status", "--json")
    status = json.loads(out)
    assert (code, status["bookies"]) == (0, {"writable": 3, "read-only": 0, "down": 0})
    assert b"writable" in bookie("cluster", "status", "--no-ledgers")[1]


def test_benchmarks_measure_and_leave_nothing(bookie):
    ledgers = bookie("ledger", "list")[1]
    arguments = ["--entries", 2000, "--size", 100, "--ledgers", 3, "--window", 50, "--json"]
    code, out, err = bookie("bench", "write", *arguments)
    measured = json.loads(out)
    assert (code, err, measured["entries"], measured["bytes"], measured["failed"]) == (0, "", 2000, 200_000, 0)
    latency = measured["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert bookie("ledger", "list")[1] == ledgers
    kept = json.loads(bookie("bench", "write", "--entries", 500, "--ledgers", 2, "--keep", "--json")[1])["ledgers"]
    for options in (["--entries", 2000], ["--entries", 300, "--batch", 1, "--random", "--window", 8]):
        measured = json.loads(bookie("bench", "read", *kept, *options, "--json")[1])
        assert (measured["entries"], measured["bytes"]) == (options[1], options[1] * 1024)
    batches = json.loads(bookie("bench", "write", "--entries", 1050, "--ledgers", 2, "--batch", 100, "--json")[1])
    assert (batches["entries"], batches["failed"]) == (1050, 0)
    paced = json.loads(bookie("bench", "write", "--entries", 100, "--rate", 500, "--json")[1])
    assert 90 < paced["entries_per_second"] < 520
    assert b"entries/s" in bookie("bench", "write", "--entries", 10, "--seconds", 5)[1]


def test_data_survives_and_a_killed_bookie_comes_back(tmp_path):
    with StandaloneCommand(tmp_path / "data", "--bookies", "2", command=BOOKIE) as first:
        with BlockingClient(first.uri) as client, client.create(ensemble=2, ack_quorum=1) as ledger:
            ledger.append(b"before")
            killed = first.ready["bookies"][0]["pid"]
            os.kill(killed, signal.SIGKILL)
            until_true(lambda: b"bookie-1 is back" in first.errors.read_bytes(), 30)
            ledger.append(b"after")
        children = psutil.Process(first.process.pid).children(recursive=True)
        assert first.stop(signal.SIGTERM) == 0
    assert psutil.wait_procs(children, timeout=10)[1] == []
    with StandaloneCommand(tmp_path / "data", "--bookies", "2") as second, BlockingClient(second.uri) as client:
        assert [entry.payload for entry in client.open(ledger.ledger_id).entries()] == [b"before", b"after"]


def test_a_port_in_use_is_one_line(cluster, tmp_path):
    port = cluster.uri.split(":")[2].split("/")[0]
    ended = command("standalone", "--data", tmp_path, "--metadata-port", port)
    assert ended.returncode == 2
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"bookie: port {port} of 127.0.0.1 is in use: ")


@pytest.mark.zookeeper
def test_a_cluster_with_its_metadata_in_zookeeper(zookeeper, tmp_path):
    uri = zookeeper.uri("/standalone", "hierarchical")
    for expected in ([], [b"kept"]):
        with StandaloneCommand(tmp_path / "data", "--bookies", "1", "--zookeeper", uri) as cluster:
            assert cluster.uri == uri
            with BlockingClient(uri) as client:
                ledgers = list(client.list())
                read = [entry.payload for ledger in ledgers for entry in client.open(ledger).entries()]
                assert read == expected
                with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                    ledger.append(b"kept")
            assert cluster.stop() == 0
