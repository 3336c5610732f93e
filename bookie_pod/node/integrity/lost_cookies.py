"""Cookies with `dataIntegrityChecking`: a directory that came back empty is detected, and may be stamped again.

    all as configured                                  start
    one missing, or made for other directories         refused; with `dataIntegrityStampMissingCookies` the data
                                                       is checked, then every cookie is stamped
    one of another bookie or another cluster           refused
    none in the metadata service                       as without `dataIntegrityChecking`: a new bookie is stamped,
                                                       anything else is refused

Stricter than the reference, which stamps over the cookie of another bookie as well: its ledgers would be served as
ours.

Invariant: a cookie is stamped only after everything that the lost data may have held is in limbo, durably (the code
that did that calls `stamp`). A crash before that leaves the cookies as they were, and the next start checks again.

Threads: event loop; files on threads.

Source: docs/internals/bookie-behaviour.md, section 8.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.node.identity.bookie_id import candidate_bookie_ids
from bookie_pod.node.identity.cookie_check import (
    DirectoryState,
    StoredCookie,
    read_directory,
    read_stored_cookies,
    stamp_directories,
)
from bookie_pod.node.identity.cookies import BookieDirectories, Cookie, format_cookie
from bookie_pod.storage.files import Files
from bookie_protocol.errors import InvalidCookie, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.tree.service import MetadataService


@dataclass(frozen=True, slots=True)
class LostCookies:
    """Cookies that must be stamped once the data is checked."""

    files: Files
    metadata: MetadataService
    expected: Cookie
    stored: StoredCookie
    paths: Sequence[str]
    """Every `current` folder."""
    missing: Sequence[str]
    """The directories without the right cookie."""

    async def stamp(self) -> None:
        """Write the cookie to the metadata service, then to every directory. Raises InvalidCookie."""
        try:
            await self.metadata.cookies.update(
                self.expected.bookie_id, format_cookie(self.expected), self.stored.identity
            )
        except (MetadataVersionConflict, MetadataNotFound) as error:
            raise InvalidCookie(
                f"the stored cookie of bookie {self.expected.bookie_id} changed while this bookie started: another"
                " process uses the same id; stop one of them"
            ) from error
        await asyncio.to_thread(stamp_directories, self.files, self.paths, self.expected)


async def find_lost_cookies(
    config: BookieConfig, metadata: MetadataService, files: Files, bookie_id: str, address: NetworkConfig
) -> LostCookies | None:
    """Return what must be stamped.

    None: nothing is lost, or there is no stored cookie and the ordinary check decides. Raises InvalidCookie,
    MetadataUnavailable.
    """
    directories = BookieDirectories.of(config.directories)
    try:
        instance_id = await metadata.cluster.instance_id()
    except MetadataNotFound:
        return None
    stored = await read_stored_cookies(metadata.cookies, await asyncio.to_thread(candidate_bookie_ids, address))
    if not stored:
        return None
    expected = Cookie.expected(bookie_id, directories, instance_id)
    states = [await asyncio.to_thread(read_directory, files, path) for path in directories.current_folders()]
    missing = lost(expected, stored, states, stamp=config.integrity.stamp_missing_cookies)
    if missing is None:
        return None
    return LostCookies(files, metadata, expected, stored[-1], directories.current_folders(), missing)


def lost(
    expected: Cookie, stored: Sequence[StoredCookie], directories: Sequence[DirectoryState], *, stamp: bool
) -> list[str] | None:
    """Folders without the right cookie, if all that is wrong may be stamped over; None: nothing is wrong. Pure.

    Raises InvalidCookie.
    """
    found = [(item.cookie, item.source) for item in stored]
    found += [(each.cookie, each.path) for each in directories if each.cookie is not None]
    for cookie, source in found:
        for what, old, new in (
            ("bookie", cookie.bookie_id, expected.bookie_id),
            ("the cluster with instance id", cookie.instance_id, expected.instance_id),
        ):
            if old != new:
                raise InvalidCookie(
                    f"cookie in {source} belongs to {what} {old or '(none)'}, here it is {new or '(none)'}; point this"
                    " bookie to its own directories and cluster"
                )
    missing = [each.path for each in directories if each.cookie is None or not _same(each.cookie, expected)]
    if not missing and all(_same(item.cookie, expected) for item in stored):
        return None
    if not stamp:
        what = missing[0] if missing else "the metadata service"
        raise InvalidCookie(
            f"{what} does not hold this bookie's cookie: a disk is missing, unmounted, was emptied, or the configured"
            " directories changed; mount it, or set dataIntegrityStampMissingCookies=true to have the bookie fetch what"
            " it lost from other bookies"
        )
    return missing


def _same(found: Cookie, expected: Cookie) -> bool:
    return (found.journal_dirs, found.ledger_dirs, found.effective_index_dirs) == (
        expected.journal_dirs,
        expected.ledger_dirs,
        expected.effective_index_dirs,
    )
