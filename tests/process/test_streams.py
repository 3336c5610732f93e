"""Streams on bookies that are processes: killed bookies, killed writers, the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest

from bookie_client import BlockingClient, Client, ClientOptions
from bookie_client.streams import Streams, StreamSettings
from bookie_protocol.errors import StreamExists
from tests.support import warm
from tests.support.cluster_fixtures import bookies, cluster, metadata_service
from tests.support.edit_log_program import PASSWORD, EditLogProgram, operations
from tests.support.standalone_command import BOOKIE

__all__ = ["bookies", "cluster", "metadata_service"]

BOOKIES = 3
"""An ensemble without a spare: a bookie that is killed costs the writer its ledger where every copy counts."""
OPTIONS = ClientOptions(add_timeout=30.0, read_timeout=30.0)


async def transactions(streams, name):
    return [each async for entry in streams.reader(name).entries() for each in operations(entry.payload)]


async def test_bookies_die_and_come_back_and_the_stream_goes_on(cluster):
    async with Client(cluster.uri, OPTIONS) as client:
        streams = Streams(client)
        settings = StreamSettings(write_quorum=3, ack_quorum=3, max_ledger_entries=200, min_ledger_seconds=0)
        await streams.create("stubborn", settings)
        async with streams.writer("stubborn", patience=120.0) as writer:
            positions = await writer.append_many(b"%d" % i for i in range(300))
            for round_ in range(2):
                victim = f"bookie-{round_ + 1}"
                cluster.kill(victim)
                pending = asyncio.create_task(
                    writer.append_many(b"%d" % i for i in range(300 * (round_ + 1), 300 * (round_ + 2)))
                )
                await asyncio.to_thread(cluster.start, [victim])
                positions += await pending
        manifest = await streams.manifest("stubborn")
        assert [manifest.ordinal(each) for each in positions] == list(range(900))
        found = [entry.payload async for entry in streams.reader("stubborn").entries()]
        assert found == [b"%d" % i for i in range(900)]
        await streams.delete("stubborn")


async def test_writers_are_killed_one_after_another(cluster, tmp_path):
    """Each finds what the ones before were told to be stored, and nothing twice."""
    async with Client(cluster.uri, OPTIONS) as client:
        streams = Streams(client, password=PASSWORD)
        await streams.create("lives", StreamSettings(max_ledger_entries=40, min_ledger_seconds=0))
        last = 0
        for life in range(5):
            with EditLogProgram(cluster.uri, tmp_path / f"life{life}", "lives") as writer:
                found = await asyncio.to_thread(writer.wait_for, "active")
                assert int(found[0][0]) >= last
                await asyncio.to_thread(writer.wait_for, "acknowledged", 30 + 17 * life)
                writer.kill()
            last = writer.acknowledged()[-1]
        await streams.seal("lives")
        found = await transactions(streams, "lives")
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= last
        await streams.delete("lives")


async def test_of_two_clients_that_create_a_stream_one_does(cluster):
    async with Client(cluster.uri, OPTIONS) as one, Client(cluster.uri, OPTIONS) as other:
        both = (Streams(one), Streams(other))
        made = await asyncio.gather(*(each.create("ours") for each in both), return_exceptions=True)
        (refused,) = (error for error in made if isinstance(error, BaseException))
        assert isinstance(refused, StreamExists)
        assert str(refused) == "there is a stream ours already"
        async with both[0].writer("ours") as writer:
            await writer.append(b"kept")
        for each in both:
            with pytest.raises(StreamExists, match="ours"):
                await each.create("ours")
            assert [entry.payload async for entry in each.reader("ours").entries()] == [b"kept"]
        await both[0].delete("ours")


def command(cluster, *arguments, **options):
    return warm.run(warm.BOOKIE, ["stream", *map(str, arguments), "--metadata", cluster.uri], 100, **options)


def test_commands(bookies, tmp_path):
    def call(*arguments, **options):
        done = command(bookies, *arguments, **options)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    assert call("append", "cli", given=b"x\n") == (
        11,
        "",
        "bookie: there is no stream cli\n",
    )
    (tmp_path / "password").write_text("pw")
    password = ("--password-file", tmp_path / "password")
    code, out, err = call("append", "cli", "--create", "--json", *password, given=b"a\nb\nc\n")
    assert (code, err) == (0, "")
    appended = json.loads(out)
    assert (appended["entries"], appended["bytes"]) == (3, 3)
    assert call("read", "cli", *password) == (0, "a\nb\nc\n", "")
    assert call("read", "cli", "--from", appended["start"], "--to", appended["end"], *password)[1] == "a\nb\nc\n"
    code, _, err = call("read", "cli")
    assert (code, err.count("has another password")) == (10, 1)
    assert call("read", "cli", "--from", "7", *password)[0] == 10
    assert call("create", "cli")[0] == 10
    assert call("truncate", "cli")[0] == 1
    assert call("delete", "cli")[0] == 1  # there is no terminal to ask at

    tail = subprocess.Popen(
        [BOOKIE, "stream", "tail", "cli", "--from", appended["end"], "--metadata", bookies.uri, *map(str, password)],
        stdout=subprocess.PIPE,
    )
    try:
        assert call("append", "cli", *password, given=b"d\n")[0] == 0
        assert tail.stdout.readline() == b"d\n"
    finally:
        tail.kill()
        tail.wait()
        tail.stdout.close()
    info = json.loads(call("info", "cli", "--json")[1])
    assert (info["state"], info["entries"], info["writer"]) == ("closed", 4, None)
    assert "4" in call("info", "cli")[1]
    first, second = (each["ledger_id"] for each in info["ledgers"])
    assert [each["under_replicated"] for each in info["ledgers"]] == [False, False]
    with BlockingClient(bookies.uri) as client:
        client.run(lambda each: each.metadata_service.under_replication.mark(second, ["bookie-9"], ctime_ms=1))
        ledgers = json.loads(call("info", "cli", "--json")[1])["ledgers"]
        assert {each["ledger_id"]: each["under_replicated"] for each in ledgers} == {first: False, second: True}
        assert [line.split()[-1] for line in call("info", "cli")[1].splitlines()[-2:]] == ["-", "yes"]
        client.run(lambda each: each.metadata_service.under_replication.unmark(second))
    assert call("list", "--long", "--json")[1].count('"stream": "cli"') == 1
    assert call("seal", "cli")[1].strip() == info["end"]
    assert call("delete", "cli", "--yes") == (0, "", "")
    assert call("delete", "cli", "--yes")[0] == 11
