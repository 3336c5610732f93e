"""The decision table, case by case and exhaustively, and the whole check against a disk and a metadata service."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.node.identity.cookie_check import (
    CookieAction,
    DirectoryState,
    StoredCookie,
    compare,
    decide,
    read_directory,
    verify_cookies,
)
from bookie_pod.node.identity.cookies import BookieDirectories, Cookie, encode_directories, format_cookie, parse_cookie
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.inspect.layout import FORMAT_MARK
from bookie_protocol.errors import InvalidCookie
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.versioned import Identity

DIRECTORIES = BookieDirectories(("/j",), ("/l1", "/l2"))
EXPECTED = Cookie.expected("b:1", DIRECTORIES, "cluster")
FILES = PosixFiles()
STORED = [StoredCookie("b:1", EXPECTED, Identity(3, 1))]
FOLDERS = DIRECTORIES.current_folders()


def states(have: tuple[bool, ...], data: tuple[bool, ...]) -> list[DirectoryState]:
    return [
        DirectoryState(path, EXPECTED if has else None, filled)
        for path, has, filled in zip(FOLDERS, have, data, strict=True)
    ]


def test_whole_table() -> None:
    """All directories were known before, so expansion can never excuse a missing cookie."""
    each = list(itertools.product([False, True], repeat=3))
    for stored, expansion, have, data in itertools.product([False, True], [False, True], each, each):
        outcome: CookieAction | str
        try:
            outcome = decide(EXPECTED, STORED if stored else [], states(have, data), allow_storage_expansion=expansion)
        except InvalidCookie as error:
            outcome = str(error)
        case = (stored, expansion, have, data, outcome)
        assert "\n" not in str(outcome), case
        first_missing = next((path for path, has in zip(FOLDERS, have, strict=True) if not has), "")
        if stored and all(have):
            assert outcome is CookieAction.START, case
        elif stored:
            assert str(outcome).startswith(f"{first_missing} has no cookie"), case
        elif all(have) and any(data):
            assert "the metadata service has none" in str(outcome), case
        elif not any(data):
            assert outcome is CookieAction.STAMP_NEW, case
        else:
            assert "is not empty, so this bookie is not new" in str(outcome), case


def test_expansion_by_an_empty_directory() -> None:
    bigger = Cookie.expected("b:1", replace(DIRECTORIES, ledger=("/l1", "/l2", "/l3")), "cluster")
    old = states((True, True, True), (True, True, True))
    added = DirectoryState("/l3/current", None, False)
    assert decide(bigger, STORED, [*old, added], allow_storage_expansion=True) is CookieAction.EXPAND
    with pytest.raises(InvalidCookie, match="allowStorageExpansion=true"):
        decide(bigger, STORED, [*old, added])
    with pytest.raises(InvalidCookie, match=r"/l3/current .*empty"):
        decide(bigger, STORED, [*old, replace(added, has_data=True)], allow_storage_expansion=True)


def test_an_expansion_that_died_before_the_store_was_updated_is_finished() -> None:
    bigger = Cookie.expected("b:1", replace(DIRECTORIES, ledger=("/l1", "/l2", "/l3")), "cluster")
    stamped = [DirectoryState(path, bigger, True) for path in (*FOLDERS, "/l3/current")]
    assert decide(bigger, STORED, stamped, allow_storage_expansion=True) is CookieAction.EXPAND
    now_stored = [StoredCookie("b:1", bigger, Identity(4, 1))]
    assert decide(bigger, now_stored, stamped, allow_storage_expansion=True) is CookieAction.START
    assert decide(bigger, now_stored, stamped) is CookieAction.START


def test_a_lost_journal_is_no_expansion() -> None:
    lost = states((False, True, True), (False, True, True))
    with pytest.raises(InvalidCookie, match=r"/j/current .*before"):
        decide(EXPECTED, STORED, lost, allow_storage_expansion=True)


@pytest.mark.parametrize(
    ("change", "expansion", "message"),
    [
        ({"bookie_id": "other:1"}, False, "b:1; set bookieId=other:1"),
        ({"journal_dirs": "/j,/k"}, False, "'/j,/k', .* '/j'"),
        ({"journal_dirs": "/k"}, True, "'/k'"),
        (
            {"ledger_dirs": encode_directories(("/l2", "/l1"))},
            False,
            "ledgerDirectories '/l2,/l1'",
        ),
        ({"ledger_dirs": encode_directories(("/l1",))}, False, "allowStorageExpansion=true"),
        (
            {"ledger_dirs": encode_directories(("/l1", "/l2", "/l9"))},
            True,
            "/l9",
        ),
        ({"index_dirs": encode_directories(("/i",))}, False, "indexDirectories '/i'"),
        ({"instance_id": "elsewhere"}, False, "id elsewhere, .* cluster"),
        ({"instance_id": None}, False, r"instance id \(none\)"),
    ],
)
@pytest.mark.parametrize("where", ["stored", "local"])
def test_each_difference_is_named(change: dict[str, str | None], expansion: bool, message: str, where: str) -> None:
    other = replace(EXPECTED, **change)  # type: ignore[arg-type]
    local = states((True, True, True), (True, True, True))
    stored = STORED
    if where == "stored":
        stored = [StoredCookie("b:1", other, Identity(0, 1))]
    else:
        local[1] = replace(local[1], cookie=other)
    with pytest.raises(InvalidCookie, match=message) as caught:
        decide(EXPECTED, stored, local, allow_storage_expansion=expansion)
    place = "the metadata service under b:1" if where == "stored" else "/l1/current"
    assert f"cookie in {place} " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_difference() -> None:
    same_index = replace(EXPECTED, index_dirs=EXPECTED.ledger_dirs)
    compare(same_index, EXPECTED, "x")
    compare(EXPECTED, same_index, "x")
    reordered = replace(EXPECTED, ledger_dirs=encode_directories(("/l2", "/l1")))
    compare(reordered, EXPECTED, "x", allow_storage_expansion=True)
    anonymous = replace(EXPECTED, instance_id=None)
    compare(anonymous, anonymous, "x")
    with pytest.raises(InvalidCookie, match="id cluster"):
        compare(EXPECTED, anonymous, "x")


@pytest.mark.parametrize("expansion", [False, True])
def test_a_cookie_with_a_changed_bit_is_refused_or_says_the_same(expansion: bool) -> None:
    data = format_cookie(EXPECTED)
    refused = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = parse_cookie(bytes(changed), "here")
            compare(found, EXPECTED, "here", allow_storage_expansion=expansion)
        except InvalidCookie:
            refused += 1
        else:
            assert replace(found, layout_version=EXPECTED.layout_version) == EXPECTED
    assert refused > 7 * len(data)


def test_every_id_the_bookie_had_counts() -> None:
    old = StoredCookie("10.0.0.1:3181", replace(EXPECTED, bookie_id="10.0.0.1:3181"), Identity(0, 1))
    with pytest.raises(InvalidCookie, match=r"10\.0\.0\.1:3181 belongs .* 10\.0\.0\.1:3181"):
        decide(EXPECTED, [*STORED, old], states((True, True, True), (True, True, True)))


# --- against a disk and a metadata service ---------------------------------------------------------------------


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[MetadataService]:
    opened = await open_metadata_service(str(tmp_path / "metadata"))
    await opened.cluster.initialize(instance_id="cluster")
    yield opened
    await opened.close()


@pytest.fixture
def directories(tmp_path: Path) -> BookieDirectories:
    return BookieDirectories((f"{tmp_path}/j",), (f"{tmp_path}/l1", f"{tmp_path}/l2"))


async def check(
    service: MetadataService, directories: BookieDirectories, *, bookie_id: str = "b:1", expansion: bool = False
) -> CookieAction:
    expected = Cookie.expected(bookie_id, directories, await service.cluster.instance_id())
    candidates = (bookie_id, "host:3181")
    action, own = await verify_cookies(
        service.cookies, FILES, expected, candidates, directories, allow_storage_expansion=expansion
    )
    stored = await service.cookies.read(bookie_id)
    assert (own.cookie, own.identity) == (expected, stored.identity)
    return action


async def test_a_new_bookie_is_stamped_then_starts(service: MetadataService, directories: BookieDirectories) -> None:
    assert await check(service, directories) is CookieAction.STAMP_NEW
    stored = await service.cookies.read("b:1")
    for folder in directories.current_folders():
        assert FILES.read_bytes(f"{folder}/VERSION") == stored.value
        in_ledgers = ["earlier-ledgers"] if folder != directories.current_folders()[0] else []
        assert sorted(os.listdir(folder)) == ["VERSION", *in_ledgers]
    assert await check(service, directories) is CookieAction.START
    grown = replace(directories, ledger=(*directories.ledger, f"{directories.ledger[0]}-more"))
    with pytest.raises(InvalidCookie, match="allowStorageExpansion"):
        await check(service, grown)
    assert await check(service, grown, expansion=True) is CookieAction.EXPAND
    assert (await service.cookies.read("b:1")).version == 1
    assert await check(service, grown) is CookieAction.START


async def test_an_interrupted_first_start_is_finished(service: MetadataService, directories: BookieDirectories) -> None:
    first = directories.current_folders()[0]
    os.makedirs(first)
    cookie = Cookie.expected("b:1", directories, "cluster")
    FILES.write_bytes_synced(f"{first}/VERSION", format_cookie(cookie))
    FILES.write_bytes_synced(f"{first}/VERSION.tmp", b"half")
    assert await check(service, directories) is CookieAction.STAMP_NEW


async def test_a_wiped_disk_is_refused(service: MetadataService, directories: BookieDirectories) -> None:
    await check(service, directories)
    FILES.unlink(f"{directories.current_folders()[1]}/VERSION")
    with pytest.raises(InvalidCookie, match=r"l1/current .*bookie b:1 .*before"):
        await check(service, directories)
    await service.cookies.delete("b:1")
    FILES.write_bytes_synced(f"{directories.current_folders()[2]}/0.log", b"entries")
    with pytest.raises(InvalidCookie, match=r"l2/current .*empty"):
        await check(service, directories)


async def test_a_directory_that_cannot_be_read_is_named(
    service: MetadataService, directories: BookieDirectories
) -> None:
    os.makedirs(f"{directories.ledger[0]}/current/VERSION")  # a folder where the file should be
    with pytest.raises(InvalidCookie, match=r"read .*l1/current/VERSION"):
        await check(service, directories)


def test_reading_a_folder_that_is_not_there(tmp_path: Path) -> None:
    state = read_directory(FILES, f"{tmp_path}/nowhere")
    assert (state.cookie, state.has_data) == (None, False)


def test_a_format_that_was_ended_leaves_no_bookie(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_bytes(format_cookie(EXPECTED))
    (tmp_path / FORMAT_MARK).touch()
    with pytest.raises(InvalidCookie, match="again"):
        read_directory(PosixFiles(), str(tmp_path))
