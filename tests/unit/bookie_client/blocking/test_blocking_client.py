"""The blocking client against model bookies: threads, interruptions, forks, running loops."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie_client.batches import MAX_ITEMS
from bookie_client.blocking import BlockingClient, appends
from bookie_protocol.errors import BadRequest, LedgerClosed, LedgerFenced, NotEnoughBookies, QuorumLost
from tests.support.until import until_true


def payloads(count):
    return [f"entry {i}".encode() for i in range(count)]


def test_what_was_written_is_read_back(client):
    with client.create(ensemble=3, write_quorum=3, password=b"pw", metadata={"app": b"x"}) as ledger:
        assert ledger.append(b"entry 0") == 0
        assert ledger.submit(b"entry 1").result(5) == 1
        assert ledger.append_many(payloads(1000)[2:]) == list(range(2, 1000))
        assert ledger.last_add_confirmed == 999
        assert [entry.payload for entry in ledger.read(0, 9)] == payloads(10)
    assert ledger.is_closed
    assert list(client.list()) == [ledger.ledger_id]
    assert client.metadata(ledger.ledger_id).custom_metadata == {"app": b"x"}
    with client.open(ledger.ledger_id, password=b"pw") as reader:
        assert [entry.payload for entry in reader.entries()] == payloads(1000)
        assert [entry.entry_id for entry in reader.read(3, 5)] == [3, 4, 5]
        assert [bytes(payload) for payload in reader.read_payloads(3, 900)] == payloads(901)[3:]
    client.delete(ledger.ledger_id)
    assert list(client.list()) == []


def test_the_asynchronous_client_runs_on_the_same_loop(client):
    ledger = client.create(metadata={"app": b"x"})
    stored = client.run(lambda each: each.stored_metadata(ledger.ledger_id))
    assert stored.value.custom_metadata == {"app": b"x"}
    ledger.close()

    async def fails(each):
        raise BadRequest(f"{len(await each.writable_bookies())} bookies are not enough")

    with pytest.raises(BadRequest, match="enough"):
        client.run(fails)


def test_entry_ids_of_the_callers_choice(client):
    with client.create_advanced() as ledger:
        behind_a_gap = ledger.submit(1, b"entry 1")
        assert ledger.append(0, b"entry 0") == 0
        assert behind_a_gap.result(5) == 1
    with client.open(ledger.ledger_id) as reader:
        assert [entry.payload for entry in reader.entries()] == payloads(2)


def test_errors_are_those_of_the_asynchronous_client(client):
    with pytest.raises(NotEnoughBookies):
        client.create(ensemble=9)
    with pytest.raises(BadRequest):
        client.create(ensemble=2, write_quorum=3)
    with client.create() as ledger, pytest.raises(BadRequest, match="confirmed"):
        ledger.entries(0, 5)
    with pytest.raises(LedgerClosed):
        ledger.append(b"late")


def test_a_failed_append_is_raised_once_by_each_call(cluster):
    with cluster.client() as client:
        ledger = client.create(write_quorum=3, ack_quorum=3)
        for server in cluster.model.servers.values():
            server.bookie.fail_adds = QuorumLost
        with pytest.raises(QuorumLost):
            ledger.append(b"x")
        with pytest.raises(LedgerClosed):
            ledger.append_many([b"y"] * 3000)
        ledger.close()


def test_a_failure_in_the_middle_of_many_batches(client):
    ledger = client.create()
    many = [b"x"] * 1500 + [bytes(6_000_000)] + [b"y"] * 10
    with pytest.raises(BadRequest, match="split it"):
        ledger.append_many(many)
    assert ledger.append(b"goes on") >= 1500
    ledger.close()


def test_appends_of_many_threads_keep_the_order_of_each(client):
    with client.create() as ledger:

        def write(thread):
            futures = [ledger.submit(f"{thread}:{i}".encode()) for i in range(50)]
            ids = ledger.append_many(f"{thread}:{i}".encode() for i in range(50, 500))
            return [future.result() for future in futures] + ids + [ledger.append(f"{thread}:500".encode())]

        with ThreadPoolExecutor(4) as pool:
            given = list(pool.map(write, range(4)))
    assert all(ids == sorted(ids) for ids in given)
    assert sorted(entry_id for ids in given for entry_id in ids) == list(range(4 * 501))
    with client.open(ledger.ledger_id) as reader:
        stored = [entry.payload.decode().split(":") for entry in reader.entries()]
    for thread in range(4):
        assert [int(i) for name, i in stored if int(name) == thread] == list(range(501))


def test_what_waits_to_be_sent_is_bounded(cluster, monkeypatch):
    monkeypatch.setattr(appends, "MAX_QUEUED_ENTRIES", 20)
    with cluster.client(write_window_entries=10) as client, client.create() as ledger:
        cluster.hold()
        given = []

        def submit():
            for number in range(100):
                given.append(ledger.submit(b"%d" % number))  # noqa: PERF401 - others watch it grow

        writer = threading.Thread(target=submit)
        writer.start()
        until_true(lambda: ledger.pending == 10)
        until_true(lambda: len(given) >= 20)
        time.sleep(0.05)
        assert len(given) <= 30  # window, queue
        cluster.release()
        writer.join(10)
        assert [future.result(5) for future in given] == list(range(100))


def test_the_payload_may_be_changed_after_the_call(cluster):
    with cluster.client() as client, client.create() as ledger:
        cluster.hold()
        payload = bytearray(b"before")
        future = ledger.submit(payload)
        payload[:] = b"after!"
        cluster.release()
        future.result(5)
        assert ledger.read(0, 0)[0].payload == b"before"


def test_a_ledger_that_is_being_written_is_tailed(client):
    ledger = client.create()
    for payload in payloads(3):
        ledger.append(payload)
    reader = client.open(ledger.ledger_id)
    assert reader.last_add_confirmed == 1
    tail = reader.tail()
    assert [next(tail).payload for _ in range(2)] == payloads(2)
    assert reader.read_unconfirmed(2, 2)[0].payload == b"entry 2"
    ledger.append(b"entry 3")
    assert next(tail).payload == b"entry 2"
    assert reader.read_last_add_confirmed() == reader.try_read_last_add_confirmed() == 2
    ledger.close()
    assert [entry.payload for entry in tail] == [b"entry 3"]
    reader.close()


def test_recovery_locks_the_writer_out(client):
    ledger = client.create(write_quorum=3)
    ledger.append(b"entry 0")
    assert client.recover(ledger.ledger_id).last_entry_id == 0
    with pytest.raises(LedgerFenced):
        ledger.append(b"entry 1")
    with client.open(ledger.ledger_id, recover=True) as reader:
        assert [len(batch) for batch in reader.batches()] == [1]


def test_closing_the_client_ends_a_tail_that_waits(cluster):
    client = cluster.client()
    client.start()
    tail = client.open(client.create().ledger_id).tail()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(tail))
        threading.Timer(0.2, client.close).start()
        assert isinstance(waiting.exception(10), (LedgerClosed, RuntimeError))


def interrupted(call):
    """Whether `call` ends with KeyboardInterrupt when the main thread gets SIGINT while it waits."""
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        timer.join()


def test_an_interrupted_append_leaves_the_client_usable(cluster):
    with cluster.client(add_timeout=60.0) as client:
        ledger = client.create()
        cluster.hold()
        interrupted(lambda: ledger.append(b"entry 0"))
        interrupted(ledger.flush)
        cluster.release()
        assert ledger.append(b"entry 1") == 1
        ledger.close()
        with client.open(ledger.ledger_id) as reader:
            assert [entry.payload for entry in reader.entries()] == payloads(2)


def test_an_interrupted_read_leaves_the_client_usable(cluster):
    with cluster.client(read_timeout=60.0) as client:
        with client.create() as ledger:
            ledger.append_many(payloads(10))
        cluster.hold()
        reader = client.open(ledger.ledger_id)
        interrupted(lambda: reader.read(0, 9))
        interrupted(lambda: next(reader.entries()))
        cluster.release()
        assert [entry.payload for entry in reader.read(0, 9)] == payloads(10)


async def test_it_works_where_a_loop_is_running_already(cluster):
    # As in a notebook: the cell runs inside the kernel's loop.
    with cluster.client() as client, client.create() as ledger:
        assert ledger.append(b"x") == 0
        assert [entry.payload for entry in ledger.entries()] == [b"x"]
    assert asyncio.get_running_loop().is_running()


def test_after_a_fork_every_call_says_so(client):
    ledger = client.create()
    ledger.append(b"x")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, this process must neither go on with the tests nor stay.
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            said = []
            calls = lambda: ledger.append(b"y"), lambda: client.create(), lambda: list(client.list()), client.close
            for call in calls:
                try:
                    call()
                    said.append("no error")
                except RuntimeError as error:
                    said.append(str(error))
            os.write(write_end, "\n".join(said).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        said = answers.read().splitlines()
    os.waitpid(child, 0)
    assert (
        said[:3]
        == [
            f"this client belongs to process {os.getpid()} and does not survive a fork:"
            f" make a client of its own in process {child}"
        ]
        * 3
    )
    assert said[3] == "no error"
    assert ledger.append(b"the parent goes on") == 1
    ledger.close()


def test_it_cannot_be_sent_to_another_process(client):
    with client.create() as ledger:
        for thing in (client, ledger):
            with pytest.raises(TypeError, match="where"):
                pickle.dumps(thing)


def test_closing_ends_calls_that_wait(cluster):
    client = cluster.client(add_timeout=60.0)
    client.start()
    ledger = client.create()
    cluster.hold()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ledger.append, b"x")
        until_true(lambda: ledger.pending == 1)
        client.close()
        assert isinstance(waiting.exception(10), LedgerClosed)
    with pytest.raises(RuntimeError, match="closed"):
        ledger.append(b"y")
    with pytest.raises(RuntimeError, match="open"):
        client.create()
    client.close()


def test_a_call_from_the_clients_own_thread_is_refused_instead_of_waiting_for_itself(client):
    with client.create() as ledger:
        said = []

        def call_back(_):
            try:
                ledger.append(b"from the call-back")
            except RuntimeError as error:
                said.append(str(error))

        ledger.submit(b"x").add_done_callback(call_back)
        until_true(lambda: said)
    assert "would wait for itself" in said[0]


def test_a_forgotten_client_ends_its_thread(cluster):
    client = cluster.client()
    client.start()
    thread = client._thread._thread
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_a_program_that_forgets_to_close_ends():
    code = (
        "from bookie_client.blocking import BlockingClient\n"
        "from tests.support.memory_metadata import MemoryMetadata\n"
        "client = BlockingClient(MemoryMetadata())\n"
        "client.start()\n"
        "print(sorted(client.writable_bookies()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


def test_an_iterator_that_is_left_early_reads_no_more(client):
    async def tasks(_):
        return {task.get_name() for task in asyncio.all_tasks()}

    with client.create() as ledger:
        ledger.append_many([b"x"] * 3 * MAX_ITEMS)
        for entry in ledger.entries():
            if entry.entry_id == 10:
                assert "batches" in client.run(tasks), "it waits with what it read ahead"
                break
        assert "batches" not in client.run(tasks)
        assert ledger.read(0, 0)[0].entry_id == 0


def test_starting_twice_is_refused(client):
    with pytest.raises(RuntimeError, match="started"):
        client.start()


def test_a_start_that_fails_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(Exception, match="refused"):
        BlockingClient("zk+nonsense://nowhere/ledgers").start()
    assert threading.active_count() == before
