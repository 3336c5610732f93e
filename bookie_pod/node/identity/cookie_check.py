"""The start-up check of cookies: compare, decide, stamp.

`compare` and `decide` are pure and hold the whole decision table; `verify_cookies` gathers what they need,
and stamps.

| stored cookie | directories without a cookie | result |
|---|---|---|
| yes | none | START (EXPAND again, if an earlier one died before it updated the stored cookie) |
| no | none, and no data anywhere | STAMP_NEW: a first start that ended before it made the stored cookie |
| no | none | refused: the cluster forgot this bookie, or it is another cluster |
| no | some, all empty | STAMP_NEW: a new bookie |
| yes | some, all empty and new, expansion allowed | EXPAND |
| yes | some | refused: a disk was lost, or expansion is not allowed |

Stricter than the reference in two cases, because a bookie that lost data must not answer "no such entry": a
new bookie has no data in any directory (the reference looks only at those without a cookie), and an
expansion never covers a journal directory (the journal directories never change).

Sources: docs/internals/metadata-layout.md, sections 5.4 and 5.5; docs/internals/on-disk-formats.md, section 10.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_pod.config.sections.journal import CURRENT_FOLDER
from bookie_pod.node.identity.cookies import (
    COOKIE_FILE,
    BookieDirectories,
    Cookie,
    decode_directories,
    format_cookie,
    parse_cookie,
)
from bookie_pod.node.identity.earlier_life import NAME as EARLIER_LIFE
from bookie_pod.node.identity.earlier_life import EarlierLife
from bookie_pod.storage.files import TEMPORARY_SUFFIX, Files
from bookie_pod.storage.inspect.layout import FORMAT_MARK, PLACE_FILE
from bookie_protocol.errors import (
    ExitCode,
    InvalidCookie,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.tree.documents import CookieStore

_OWN_FILES: Final = tuple(
    name + suffix for name in (COOKIE_FILE, EARLIER_LIFE, PLACE_FILE) for suffix in ("", TEMPORARY_SUFFIX)
)


class CookieNotReadable(InvalidCookie):
    """A fault of the file system: no word on whether the cookie is there, so not the exit code of one that is wrong."""

    exit_code = ExitCode.BOOKIE_EXCEPTION


class CookieAction(Enum):
    """The action to take before serving."""

    START = "start"
    STAMP_NEW = "stamp all directories, then create the stored cookie"
    EXPAND = "stamp all directories, then update the stored cookie"


@dataclass(frozen=True, slots=True)
class StoredCookie:
    """A cookie of the metadata service, the id it was found under, and what it is there."""

    bookie_id: str
    cookie: Cookie
    identity: Identity

    @property
    def source(self) -> str:
        return f"the metadata service under {self.bookie_id}"


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One `current` folder: its cookie, if any, and whether it holds anything else."""

    path: str
    cookie: Cookie | None
    has_data: bool


class NoStoredCookie(InvalidCookie):
    """The directories have been this bookie's, and the cluster knows nothing of it any more."""


def compare(found: Cookie, expected: Cookie, source: str, *, allow_storage_expansion: bool = False) -> None:
    """`InvalidCookie` unless `found` agrees with what configuration and cluster ask for."""
    if found.bookie_id != expected.bookie_id:
        raise InvalidCookie(
            f"cookie in {source} belongs to bookie {found.bookie_id}, but this bookie is {expected.bookie_id}; set "
            f"bookieId={found.bookie_id} to keep its data, or point it to its own directories"
        )
    if found.journal_dirs != expected.journal_dirs:
        raise InvalidCookie(
            f"cookie in {source} was made for journal directories {found.journal_dirs!r}, but configured are "
            f"{expected.journal_dirs!r}; set journalDirectories to the former, in that order"
        )
    for key, old, new in (
        ("ledgerDirectories", found.ledger_dirs, expected.ledger_dirs),
        ("indexDirectories", found.effective_index_dirs, expected.effective_index_dirs),
    ):
        _compare_directories(key, old, new, source, allow_storage_expansion)
    if found.instance_id != expected.instance_id:
        raise InvalidCookie(
            f"cookie in {source} belongs to the cluster with instance id {found.instance_id or '(none)'}, but this "
            f"cluster's is {expected.instance_id or '(none)'}; correct metadataServiceUri, or empty the bookie's "
            "directories and delete its stored cookie if the data may go"
        )


def _compare_directories(key: str, old: str, new: str, source: str, allow_storage_expansion: bool) -> None:
    if old == new:
        return
    was, now = decode_directories(old, source), decode_directories(new, "the configuration")
    if not allow_storage_expansion:
        remedy = (
            "to add directories set allowStorageExpansion=true"
            if set(now) > set(was)
            else f"set {key} to the former, in that order"
        )
    elif missing := sorted(set(was) - set(now)):
        remedy = f"expansion may only add directories: put {','.join(missing)} back"
    else:
        return
    raise InvalidCookie(
        f"cookie in {source} was made for {key} {','.join(was)!r}, but configured are {','.join(now)!r}; {remedy}"
    )


def decide(
    expected: Cookie,
    stored: Sequence[StoredCookie],
    directories: Sequence[DirectoryState],
    *,
    allow_storage_expansion: bool = False,
) -> CookieAction:
    """The decision table. `stored` holds what was found under every id that this bookie could have had."""
    for item in stored:
        compare(item.cookie, expected, item.source, allow_storage_expansion=allow_storage_expansion)
    for directory in directories:
        if directory.cookie is not None:
            compare(directory.cookie, expected, directory.path, allow_storage_expansion=allow_storage_expansion)
    missing = [directory for directory in directories if directory.cookie is None]
    if not stored:
        _check_new_environment(expected, directories, missing)
        return CookieAction.STAMP_NEW
    if not missing:
        # after an expansion that died before the store was updated, its cookie is older than all directories
        outdated = any(not _same_content(item.cookie, expected) for item in stored)
        return CookieAction.EXPAND if outdated else CookieAction.START
    _check_expansion(stored, directories, missing, allow_storage_expansion)
    return CookieAction.EXPAND


def _same_content(found: Cookie, expected: Cookie) -> bool:
    return (found.ledger_dirs, found.effective_index_dirs) == (
        expected.ledger_dirs,
        expected.effective_index_dirs,
    )


def _check_new_environment(
    expected: Cookie, directories: Sequence[DirectoryState], missing: Sequence[DirectoryState]
) -> None:
    if not missing and any(directory.has_data for directory in directories):
        raise NoStoredCookie(
            f"the directories carry the cookie of bookie {expected.bookie_id}, but the metadata service has none for "
            f"it; correct metadataServiceUri, or, if the data is whole, store a {COOKIE_FILE} file as its cookie again"
        )
    for directory in directories:
        if directory.has_data:
            lacking = directory.path if directory.cookie is None else missing[0].path
            raise InvalidCookie(
                f"{lacking} has no cookie, the metadata service has none for bookie {expected.bookie_id}, and "
                f"{directory.path} is not empty, so this bookie is not new; restore {COOKIE_FILE}, or empty all "
                "directories if the data may go"
            )


def _check_expansion(
    stored: Sequence[StoredCookie],
    directories: Sequence[DirectoryState],
    missing: Sequence[DirectoryState],
    allow_storage_expansion: bool,
) -> None:
    if not allow_storage_expansion:
        raise InvalidCookie(
            f"{missing[0].path} has no cookie, but bookie {stored[0].bookie_id} had data before: a disk is missing, "
            "unmounted or was emptied; mount it, or run the bookie as a new one after its ledgers were re-replicated "
            "(a directory that was added needs allowStorageExpansion=true)"
        )
    known = _known_folders(stored, directories)
    for directory in missing:
        if directory.path in known:
            raise InvalidCookie(
                f"{directory.path} has no cookie, but the bookie used it before: its disk is missing, unmounted or was "
                "emptied; mount it, or run the bookie as a new one after its ledgers were re-replicated"
            )
        if directory.has_data:
            raise InvalidCookie(
                f"{directory.path} has no cookie and is not empty; only an empty directory can be added"
            )


def _known_folders(stored: Sequence[StoredCookie], directories: Sequence[DirectoryState]) -> set[str]:
    known: set[str] = set()
    cookies = [(item.cookie, item.source) for item in stored]
    cookies += [(item.cookie, item.path) for item in directories if item.cookie is not None]
    for cookie, source in cookies:
        known.update(cookie.journal_dirs.split(","))
        known.update(decode_directories(cookie.ledger_dirs, source))
        known.update(decode_directories(cookie.effective_index_dirs, source))
    return {os.path.join(directory, CURRENT_FOLDER) for directory in known}


def read_directory(files: Files, path: str) -> DirectoryState:
    """Look at one `current` folder; one that does not exist is empty.

    `InvalidCookie` if it cannot be read.
    """
    source = os.path.join(path, COOKIE_FILE)
    try:
        names = files.listdir(path) if files.is_dir(path) else []
        if FORMAT_MARK in names:
            raise InvalidCookie(
                f"{path} is only partly there: `bookie disk format` was ended while it emptied it; run that again"
            )
        cookie = parse_cookie(files.read_bytes(source), source) if COOKIE_FILE in names else None
    except OSError as error:
        raise CookieNotReadable(
            f"cannot read {source}: {error.strerror or error}; check disk and permissions"
        ) from error
    return DirectoryState(path, cookie, any(name not in _OWN_FILES for name in names))


def stamp_directories(files: Files, paths: Sequence[str], cookie: Cookie) -> None:
    """Write the cookie to every folder, durably. `InvalidCookie` if one cannot be written."""
    data = format_cookie(cookie)
    for path in paths:
        try:
            files.makedirs(path)
            files.write_bytes_atomic(os.path.join(path, COOKIE_FILE), data)
        except OSError as error:
            raise CookieNotReadable(
                f"cannot write {os.path.join(path, COOKIE_FILE)}: {error.strerror or error}; check disk and permissions"
            ) from error


def begin_life(files: Files, ledger_folders: Sequence[str]) -> None:
    """Write down that this bookie is new. `InvalidCookie` if that is impossible."""
    try:
        EarlierLife(files, ledger_folders).begin()
    except OSError as error:
        raise CookieNotReadable(
            f"cannot write {error.filename}: {error.strerror or error}; check disk and permissions"
        ) from error


async def read_stored_cookies(store: CookieStore, candidate_ids: Sequence[str]) -> list[StoredCookie]:
    """Return the stored cookie under each id. Raises `MetadataUnavailable` if that cannot be determined."""
    found: list[StoredCookie] = []
    for bookie_id in dict.fromkeys(candidate_ids):
        with suppress(MetadataNotFound):
            found.append(await _read_stored(store, bookie_id))
    return found


async def _read_stored(store: CookieStore, bookie_id: str) -> StoredCookie:
    item = await store.read(bookie_id)
    cookie = parse_cookie(item.value, f"the metadata service under {bookie_id}")
    return StoredCookie(bookie_id, cookie, item.identity)


async def verify_cookies(
    store: CookieStore,
    files: Files,
    expected: Cookie,
    candidate_ids: Sequence[str],
    directories: BookieDirectories,
    *,
    allow_storage_expansion: bool = False,
) -> tuple[CookieAction, StoredCookie]:
    """Check every cookie and stamp what has to be stamped. Return what was done, and the stored cookie.

    Raises `InvalidCookie`, or `MetadataUnavailable` if the metadata service does not answer.
    """
    stored = await read_stored_cookies(store, candidate_ids)
    paths = directories.current_folders()
    states = [await asyncio.to_thread(read_directory, files, path) for path in paths]
    action = decide(expected, stored, states, allow_storage_expansion=allow_storage_expansion)
    if action is CookieAction.START:
        return action, stored[-1]
    if action is CookieAction.STAMP_NEW:
        await asyncio.to_thread(begin_life, files, directories.ledger_folders())
    await asyncio.to_thread(stamp_directories, files, paths, expected)
    data = format_cookie(expected)
    try:
        if action is CookieAction.STAMP_NEW:
            await store.create(expected.bookie_id, data)
        else:
            await store.update(expected.bookie_id, data, stored[-1].identity)
        own = await _read_stored(store, expected.bookie_id)
        if own.cookie != expected:
            raise MetadataVersionConflict(f"the stored cookie is {own.cookie}")
    except (MetadataExists, MetadataVersionConflict, MetadataNotFound) as error:
        raise InvalidCookie(
            f"the stored cookie of bookie {expected.bookie_id} changed while this bookie started: another process uses "
            "the same id; stop one of them"
        ) from error
    return action, own
