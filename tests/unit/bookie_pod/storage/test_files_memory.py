"""The crash model of `MemoryFiles`, on which the crash ring rests."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from tests.support.memory_files import Died, MemoryFiles

SEEDS = range(300)


def after_crashes(files: MemoryFiles, path: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    for seed in SEEDS:
        crashed = files.crash(random.Random(seed))
        found.append(crashed.read_bytes(path) if crashed.exists(path) else None)
    return found


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_synced_survives_every_crash(strict: bool) -> None:
    files = MemoryFiles(strict_names=strict)
    file = files.create("/a")
    file.write(b"synced" * 300)
    file.datasync()
    files.sync_directory("/")
    file.write(b"not synced")
    for content in after_crashes(files, "/a"):
        assert content is not None
        assert content.startswith(b"synced" * 300)


def test_unsynced_data_is_kept_lost_and_torn() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    file.sync()
    data = random.Random(1).randbytes(2000)
    file.write(data)
    found = after_crashes(files, "/a")
    assert b"" in found
    assert data in found
    prefixes = [c for c in found if c and len(c) % 512 and c != data and data.startswith(c)]
    assert prefixes
    reordered = [c for c in found if c and c[512:1024] == bytes(512) and c[1024:1100] == data[1024:1100]]
    assert reordered
    for content in found:
        assert content is not None
        assert all(byte in (0, data[i]) for i, byte in enumerate(content))


def test_an_overwrite_keeps_old_or_new_bytes() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    file.write(b"o" * 1024)
    file.sync()
    file.pwrite(b"n" * 1024, 0)
    found = after_crashes(files, "/a")
    assert {b"o" * 1024, b"n" * 1024, b"o" * 512 + b"n" * 512} <= set(found)


def test_of_two_writes_to_one_sector_the_later_never_survives_alone() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    file.allocate(0, 1024)
    file.sync()
    file.write(b"1" * 200)
    file.write(b"2" * 600)
    found = {(content[:200], content[200:512]) for content in after_crashes(files, "/a") if content is not None}
    assert (b"1" * 200, bytes(312)) in found
    assert (b"1" * 200, b"2" * 312) in found
    assert not [first for first, second in found if second[0] and first != b"1" * 200]


def test_truncate_and_write_never_mixes_with_what_was_there() -> None:
    files = MemoryFiles()
    files.write_bytes_synced("/a", b"old content")
    files.write_bytes("/a", b"new")
    found = set(after_crashes(files, "/a"))
    assert {b"old content", b"", b"new"} <= found
    assert found <= {b"old content", b"", b"n", b"ne", b"new", bytes(3), b"n\0\0", b"ne\0"}


def test_a_sync_covers_what_was_written_before_it_was_called() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    file.write(b"before")
    gate = files.faults.hold("datasync")
    syncing = threading.Thread(target=file.datasync)
    syncing.start()
    gate.reached()
    file.write(b"during")
    gate.open()
    syncing.join()
    found = set(after_crashes(files, "/a"))
    assert b"before" in found
    assert b"beforeduring" in found


def test_names_without_a_sync_of_the_folder() -> None:
    lenient, strict = MemoryFiles(), MemoryFiles(strict_names=True)
    for files in (lenient, strict):
        file = files.create("/a")
        file.write(b"1")
        file.sync()
    assert set(after_crashes(lenient, "/a")) == {b"1"}
    assert set(after_crashes(strict, "/a")) == {b"1", None}
    strict.sync_directory("/")
    assert set(after_crashes(strict, "/a")) == {b"1"}


def test_names_change_in_order_or_each_by_itself() -> None:
    lenient, strict = MemoryFiles(), MemoryFiles(strict_names=True)
    outcomes = []
    for files in (lenient, strict):
        files.create("/a")
        files.create("/b")
        outcomes.append({tuple(files.crash(random.Random(seed)).listdir("/")) for seed in SEEDS})
    assert outcomes == [{(), ("a",), ("a", "b")}, {(), ("a",), ("b",), ("a", "b")}]


def test_an_atomic_replacement_is_old_or_new_and_new_once_returned() -> None:
    for strict in (False, True):
        for step in range(20):
            files = MemoryFiles(strict_names=strict)
            files.write_bytes_atomic("/a", b"old")
            files.faults.die_at(files.operations + step)
            try:
                files.write_bytes_atomic("/a", b"new")
                expected = {b"new"}
            except Died:
                expected = {b"old", b"new"}
            assert set(after_crashes(files, "/a")) <= expected
            if expected == {b"new"}:
                break
        else:
            raise AssertionError("it died every time")


def test_a_removed_file_may_come_back_until_the_folder_is_synced() -> None:
    files = MemoryFiles()
    files.write_bytes_atomic("/a", b"1")
    files.unlink("/a")
    assert set(after_crashes(files, "/a")) == {None, b"1"}
    files.sync_directory("/")
    assert set(after_crashes(files, "/a")) == {None}


def test_hard_links_stay_one_file_after_a_crash() -> None:
    files = MemoryFiles()
    files.write_bytes_atomic("/a", b"1")
    files.link("/a", "/b")
    files.sync_directory("/")
    crashed = files.crash(random.Random(1))
    crashed.write_bytes("/a", b"2")
    assert crashed.read_bytes("/b") == b"2"


def test_after_a_death_nothing_works_any_more() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    files.faults.die_at(1)
    with pytest.raises(Died):
        file.write(b"x")
    for call in (file.size, lambda: files.listdir("/"), lambda: files.create("/b")):
        with pytest.raises(Died):
            call()
    file.close()  # in finalizers too, which must not raise
    assert files.crash(random.Random(0)).listdir("/") in ([], ["a"])


def test_a_killed_process_loses_nothing_until_the_power_is_cut() -> None:
    files = MemoryFiles()
    files.create("/a").write(b"unsynced")
    files.sync_directory("/")
    files.create("/b")
    files.faults.die_now()
    after = files.restart()
    assert (after.read_bytes("/a"), after.exists("/b")) == (b"unsynced", True)
    cut = [after.crash(random.Random(seed)) for seed in range(20)]
    assert {each.read_bytes("/a") for each in cut} > {b"", b"unsynced"}
    assert {each.exists("/b") for each in cut} == {False, True}
    after.open("/a", writable=True).sync()
    after.sync_directory("/")
    last = after.crash(random.Random(0))
    assert (last.read_bytes("/a"), last.exists("/b")) == (b"unsynced", True)


def test_failing_the_nth_of_some_operations() -> None:
    files = MemoryFiles()
    files.makedirs("/x")
    files.faults.fail("write", path="/x/", errno=errno.EIO, after=1, times=1)
    file, other = files.create("/x/a"), files.create("/b")
    file.write(b"1")
    other.write(b"1")
    with pytest.raises(OSError) as caught:
        file.write(b"2")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/x/a")
    file.write(b"3")
    assert files.read_bytes("/x/a") == b"13"
    files.faults.read_only("/x")
    with pytest.raises(OSError) as caught:
        files.unlink("/x/a")
    assert caught.value.errno == errno.EROFS
    assert files.read_bytes("/x/a") == b"13"
    files.faults.clear()
    files.unlink("/x/a")


def test_a_failed_sync_makes_nothing_durable_ever() -> None:
    files = MemoryFiles()
    file = files.create("/a")
    file.sync()
    file.write(b"x")
    files.faults.fail("datasync", times=1)
    for _ in range(2):
        with pytest.raises(OSError):
            file.datasync()
    assert b"" in after_crashes(files, "/a")


def test_volumes_fill_up() -> None:
    files = MemoryFiles(volumes={"/small": 10 * 4096})
    files.makedirs("/small/current")
    file = files.create("/small/current/a")
    file.pwrite(b"x", 1 << 20)
    file.write(bytes(8 * 4096))
    assert files.usage("/small").usable == 4096
    with pytest.raises(OSError) as caught:
        file.write(bytes(4097))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/small/current/a")
    files.write_bytes("/elsewhere", bytes(1 << 20))
    assert files.usage("/small").device != files.usage("/").device
    files.set_capacity("/small", 1 << 20)
    file.write(bytes(4097))


def test_corruption_is_durable_and_no_operation() -> None:
    files = MemoryFiles()
    files.write_bytes_atomic("/a", b"abc")
    before = files.operations
    files.corrupt("/a", 1, b"X")
    assert files.operations == before
    assert set(after_crashes(files, "/a")) == {b"aXc"}


@pytest.mark.parametrize("full", [False, True])
def test_a_write_that_fails_leaves_its_first_half(full: bool) -> None:
    files = MemoryFiles()
    file = files.create("/f")
    if full:
        files.set_capacity("/", 2 * 4096)
        with pytest.raises(OSError):
            file.write(bytes([1]) * (4 * 4096))
        assert files.size("/f") == 2 * 4096
    else:
        files.faults.fail("write", times=1)
        with pytest.raises(OSError):
            file.write(bytes([1]) * 1000)
        assert files.read_bytes("/f") == bytes([1]) * 500
    assert file.position == 0  # to be written again
    file.close()


def test_a_sync_that_fails_loses_what_it_covered_though_the_next_one_succeeds() -> None:
    files = MemoryFiles()
    file = files.create("/f")
    files.sync_directory("/")
    file.write(b"lost")
    files.faults.fail("datasync", times=1)
    with pytest.raises(OSError):
        file.datasync()
    file.close()
    file = files.open("/f", writable=True)
    file.write(b" kept")
    file.datasync()
    file.close()
    assert files.read_bytes("/f") == b"lost kept"
    for seed in range(10):
        assert files.crash(random.Random(seed)).read_bytes("/f") == bytes(4) + b" kept"
