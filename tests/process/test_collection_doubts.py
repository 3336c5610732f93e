"""When garbage collection cannot tell, or is told nonsense: a metadata service that does not answer, that lists
nothing, or that is another cluster's; entry logs that are damaged. Nothing that lives is lost, and it says so."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import ExitCode, V2Code
from tests.support.collected_bookie import (
    CollectedBookie,
    check,
    delete,
    payload,
    write,
)
from tests.support.frames import v2_code, v2_entry, v2_read
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.until import until_true

pytestmark = pytest.mark.slow

EMPTY = (
    "the metadata service lists no ledger at all, this bookie holds some: nothing is deleted before the next pass has"
    " seen the same; check metadataServiceUri if that is not expected"
)
EARLY = "search for deleted ledgers ended early: nothing more is deleted"
PATIENCE_S = 30.0


def served(bookie: CollectedBookie, ledger_id: int, entry_id: int) -> int:
    """The code of the answer; a success must be the entry."""
    with SyncClient(bookie.port) as client:
        answer = client.ask(v2_read(ledger_id, entry_id))
    code = v2_code(answer)
    if code == V2Code.EOK:
        assert v2_entry(answer).endswith(payload(ledger_id, entry_id))
    return code


@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_a_metadata_service_that_does_not_answer(bookie: CollectedBookie, metadata: MetadataProcess, how: str) -> None:
    with BlockingClient(bookie.uri) as client:
        name, ledger_ids = bookie.fill_log(client, [49] * 20)
        delete(client, ledger_ids[:10])
    logs = bookie.logs()
    metadata.kill() if how == "killed" else metadata.pause()
    done = bookie.collect(major=True)
    assert (done["ledgersDeleted"], done["logsDeleted"], done["logsCompacted"]) == (0, 0, 0)
    assert bookie.logged(EARLY)
    assert any("the search for deleted ledgers ended early" in error for error in done["errors"])
    assert bookie.metric("bookie_LAST_GC_PASS_ERRORS") >= 1
    assert "as far as is known (the search for deleted ledgers ended early" in bookie.why(name)["reason"]
    assert bookie.logs() == logs
    assert {served(bookie, ledger_id, 48) for ledger_id in ledger_ids} == {V2Code.EOK}

    metadata.start() if how == "killed" else metadata.resume()
    until_true(lambda: bookie.collect()["ledgersDeleted"] == 10, PATIENCE_S)
    assert bookie.collect(major=True)["logsCompacted"] == 1
    assert name not in bookie.logs()
    with BlockingClient(bookie.uri) as client:
        for ledger_id in ledger_ids[10:]:
            check(client, ledger_id, 49)


def test_a_metadata_service_that_lists_nothing(bookie: CollectedBookie) -> None:
    """A forced pass looks twice, and then at each ledger by itself: they really are gone."""
    with BlockingClient(bookie.uri) as client:
        name, ledger_ids = bookie.fill_log(client, [49] * 20)
        delete(client, client.list())
    done = bookie.collect(major=True)
    assert bookie.logged(EMPTY)
    assert done["ledgersDeleted"] == len(ledger_ids) + 1
    assert name not in bookie.logs()


@pytest.mark.parametrize("restarted", [False, True], ids=["it runs", "it is started again"])
def test_metadata_of_before_cost_no_ledger(
    bookie: CollectedBookie, metadata: MetadataProcess, tmp_path: Path, restarted: bool
) -> None:
    """A backup was restored: what it does not know was not deleted. The newest state comes back later."""
    store, backup, newest = tmp_path / "metadata" / "store", tmp_path / "backup", tmp_path / "newest"
    with BlockingClient(bookie.uri) as client:
        _, old = bookie.fill_log(client, [49])
        metadata.kill()
        shutil.copytree(store, backup)
        metadata.start()
    with BlockingClient(bookie.uri) as client:
        name, since = bookie.fill_log(client, [49] * 20)
    until_true(lambda: not bookie.collect()["errors"], PATIENCE_S)
    logs = bookie.logs()
    if restarted:
        bookie.kill()
    metadata.kill()
    store.rename(newest)
    backup.rename(store)
    metadata.start()
    if restarted:
        bookie.start()
    with BlockingClient(bookie.uri) as client:
        write(client, [1] * 30)  # the service catches up
    for _ in range(3):
        done = bookie.collect(major=True)
        assert (done["ledgersDeleted"], done["logsDeleted"], done["logsCompacted"]) == (0, 0, 0)
        assert done["errors"]
    assert bookie.metric("bookie_LEDGER_DELETIONS_HELD") == 1
    assert "put back to an older state" in bookie.why(name)["reason"]
    assert set(bookie.logs()) >= set(logs)
    metadata.kill()
    shutil.rmtree(store)
    newest.rename(store)
    metadata.start()
    until_true(lambda: not bookie.collect()["errors"], PATIENCE_S)
    assert bookie.metric("bookie_LEDGER_DELETIONS_HELD") == 0
    with BlockingClient(bookie.uri) as client:
        for ledger_id in (*old, *since):
            check(client, ledger_id, 49)
        delete(client, since[:10])
    until_true(lambda: bookie.collect()["ledgersDeleted"] == 10, PATIENCE_S)


def test_a_metadata_service_of_another_cluster(
    bookie: CollectedBookie, metadata: MetadataProcess, tmp_path: Path
) -> None:
    with BlockingClient(bookie.uri) as client:
        _, ledger_ids = bookie.fill_log(client, [49] * 20)
    logs = bookie.logs()
    other = MetadataProcess(tmp_path / "other")
    other.start()
    made = ServeProcess.command("cluster", "init", other.uri())
    assert made.returncode == 0, made.stderr
    other.kill()
    metadata.kill()
    (tmp_path / "metadata" / "store").rename(tmp_path / "kept")
    (tmp_path / "other" / "store").rename(tmp_path / "metadata" / "store")
    metadata.start()
    with suppress(OSError):  # until it ends, because it registers with its own cluster only
        while bookie.process is not None and bookie.process.poll() is None:
            done = bookie.collect(major=True)
            assert (done["ledgersDeleted"], done["logsDeleted"], done["logsCompacted"]) == (0, 0, 0)
    assert bookie.ended() == ExitCode.SERVER_EXCEPTION
    assert set(bookie.logs()) >= set(logs)
    metadata.kill()
    (tmp_path / "metadata" / "store").rename(tmp_path / "not ours")
    (tmp_path / "kept").rename(tmp_path / "metadata" / "store")
    metadata.start()
    bookie.start()
    assert {served(bookie, ledger_id, 48) for ledger_id in ledger_ids} == {V2Code.EOK}


# --- damage -------------------------------------------------------------------------------------------------


def overwrite_size_word(bookie: CollectedBookie, name: str, ledger_id: int, entry_id: int) -> None:
    content = bytearray(bookie.log_path(name).read_bytes())
    at = content.index(struct.pack(">qq", ledger_id, entry_id)) - 4
    content[at : at + 4] = struct.pack(">i", 1 << 28)
    bookie.log_path(name).write_bytes(content)


def cut_tail(bookie: CollectedBookie, name: str, ledger_id: int, entry_id: int) -> None:
    content = bookie.log_path(name).read_bytes()
    bookie.log_path(name).write_bytes(content[: content.index(struct.pack(">qq", ledger_id, entry_id)) + 300])


def overwrite_block(bookie: CollectedBookie, name: str, ledger_id: int, entry_id: int) -> None:
    """A page of zeros, as a disk with a firmware of its own gives it."""
    content = bytearray(bookie.log_path(name).read_bytes())
    at = content.index(struct.pack(">qq", ledger_id, entry_id)) & ~4095
    content[at : at + 4096] = bytes(4096)
    bookie.log_path(name).write_bytes(content)


@pytest.mark.parametrize("damage", [overwrite_size_word, cut_tail, overwrite_block])
def test_a_damaged_log_is_quarantined_and_the_others_are_compacted(
    bookie: CollectedBookie, damage: Callable[[CollectedBookie, str, int, int], None]
) -> None:
    with BlockingClient(bookie.uri) as client:
        name, (before, dead, after) = bookie.fill_log(client, [300, 300, 300])
        other, (alive, also_dead) = bookie.fill_log(client, [300, 600])
        delete(client, [dead, also_dead])
        bookie.stop()
        damage(bookie, name, dead, 150)
        bookie.start()

        done = bookie.collect(major=True)
        assert done["logsCompacted"] == 1
        assert other not in bookie.logs()
        check(client, alive, 300)
        assert list(bookie.quarantined()) == [name]
        assert "quarantined: damaged" in bookie.why(name)["reason"]
        assert bookie.metric("bookie_QUARANTINED_ENTRY_LOG_TOTAL") == 1
        assert any(name in error for error in done["errors"]) or bookie.logged(
            "entry log quarantined: it is damaged and will be neither deleted nor compacted; its readable entries are"
            " served, the others heal by re-replication"
        )
        check(client, before, 300)
        if damage is not cut_tail:
            check(client, after, 300)  # behind the damage
        else:
            assert {served(bookie, after, each) for each in (0, 150, 299)} == {V2Code.EIO}

        # Again and again, over restarts, and even when the metadata service has none of its ledgers any more.
        write(client, [1])
        for round_number in range(2):
            bookie.collect(major=True)
            assert name in bookie.logs()
            assert list(bookie.quarantined()) == [name]
            if round_number == 0:
                delete(client, [before, after])
                bookie.kill()
                bookie.start()
        bookie.log_path(name).unlink()  # by a person who has looked at it
        bookie.stop()
        bookie.start()
        bookie.collect()
        assert bookie.quarantined() == {}
        check(client, alive, 300)
