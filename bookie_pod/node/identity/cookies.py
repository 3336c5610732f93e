"""Cookies: proof that directories, bookie id and cluster belong together.

A cookie is in the file `VERSION` of the `current` folder of every journal, ledger and index directory, and, with the
same bytes, under the bookie's id in the metadata service.

Format: the layout version in decimal and LF; then, from version 4 on, protobuf text of `CookieFormat`. Version 3 had
three plain lines instead (id, journal directory, ledger directories). Version 5 is written. Lists of ledger and index
directories are one string: `<count> TAB <dir> TAB <dir> ...`; journal directories are joined with commas.

Invariants
- A bookie starts only if no cookie contradicts its configuration; whatever is refused is refused with one
  `InvalidCookie` line that names the place, the difference and the remedy.
- `decide` is pure. Stamping writes the local files first, then the metadata service, so that an interrupted first start
  looks like a new environment again.
- A cookie file is replaced atomically.

Threads: pure functions anywhere; `verify_cookies` on the event loop (file access happens in a worker thread).

Sources: docs/internals/metadata-layout.md, section 5; docs/internals/on-disk-formats.md, section 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from bookie_pod.config.sections.journal import DirectoriesConfig, current_folders
from bookie_protocol.errors import InvalidCookie, MetadataDamaged
from bookie_protocol.ledger_metadata.codec import format_text, parse_text
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import CookieFormat

COOKIE_FILE: Final = "VERSION"
CURRENT_LAYOUT_VERSION: Final = 5
_OLDEST_LAYOUT_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """The configured directories, as configured (without `current`).

    `index` is None if not configured apart.
    """

    journal: tuple[str, ...]
    ledger: tuple[str, ...]
    index: tuple[str, ...] | None = None

    @classmethod
    def of(cls, config: DirectoriesConfig) -> Self:
        """Return the directories of a configuration."""
        return cls(config.journal, config.ledger, config.index or None)

    def current_folders(self) -> tuple[str, ...]:
        """The `current` folder of each directory, each once, journals first."""
        every = (*self.journal, *self.ledger, *(self.index or ()))
        return tuple(dict.fromkeys(current_folders(every)))

    def ledger_folders(self) -> tuple[str, ...]:
        """The `current` folder of each ledger directory."""
        return tuple(current_folders(self.ledger))


@dataclass(frozen=True, slots=True)
class Cookie:
    """One cookie. Directory lists are kept as the strings that are stored and compared; absent is None."""

    bookie_id: str
    journal_dirs: str
    ledger_dirs: str
    index_dirs: str | None = None
    instance_id: str | None = None
    layout_version: int = CURRENT_LAYOUT_VERSION

    @staticmethod
    def expected(bookie_id: str, directories: BookieDirectories, instance_id: str | None) -> Cookie:
        """Return the cookie that configuration and cluster ask for."""
        index = None if directories.index is None else encode_directories(directories.index)
        return Cookie(
            bookie_id=bookie_id,
            journal_dirs=",".join(directories.journal),
            ledger_dirs=encode_directories(directories.ledger),
            index_dirs=index,
            instance_id=instance_id or None,
        )

    @property
    def effective_index_dirs(self) -> str:
        """Index directories; where none are named they are the ledger directories."""
        return self.index_dirs or self.ledger_dirs


def encode_directories(directories: Sequence[str]) -> str:
    """`<count> TAB <dir> TAB <dir> ...`"""
    return "\t".join((str(len(directories)), *directories))


def decode_directories(text: str, source: str) -> tuple[str, ...]:
    """Return the directories of such a string; `InvalidCookie` if the count is wrong."""
    count, *directories = text.split("\t")
    if count != str(len(directories)):
        raise InvalidCookie(f"cookie in {source} is damaged: directory list {text[:200]!r} does not fit its count")
    return tuple(directories)


def format_cookie(cookie: Cookie) -> bytes:
    """Return the bytes of a `VERSION` file, always in the current layout version."""
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=cookie.journal_dirs,
        ledgerDirs=cookie.ledger_dirs,
        instanceId=cookie.instance_id,
        indexDirs=cookie.index_dirs,
    )
    return b"%d\n%s" % (CURRENT_LAYOUT_VERSION, format_text(message))


def parse_cookie(data: bytes, source: str) -> Cookie:
    """Parse layouts 3 and newer; `InvalidCookie` names `source` and what is wrong."""
    first, _, rest = data.partition(b"\n")
    first = first.strip()
    if not first.isdigit() or len(first) > 9:
        raise InvalidCookie(
            f"cookie in {source} is damaged: its first line is not a layout version; restore the file from another "
            "directory of this bookie"
        )
    version = int(first)
    if version < _OLDEST_LAYOUT_VERSION:
        raise InvalidCookie(
            f"cookie in {source} has layout version {version}, written by a release before 4.0; start an older release "
            "first, which upgrades it"
        )
    try:
        return _parse_lines(rest, source) if version == _OLDEST_LAYOUT_VERSION else _parse_text(version, rest, source)
    except (MetadataDamaged, UnicodeDecodeError) as error:
        raise InvalidCookie(
            f"cookie in {source} is damaged ({error}); restore the file from another directory of this bookie"
        ) from error


def _parse_lines(rest: bytes, source: str) -> Cookie:
    lines = rest.decode("utf-8").split("\n")
    if len(lines) < 3:
        raise MetadataDamaged("layout 3 has four lines")
    bookie_id, journal, ledgers = lines[:3]
    return Cookie(bookie_id, journal, ledgers, layout_version=_OLDEST_LAYOUT_VERSION)


def _parse_text(version: int, rest: bytes, source: str) -> Cookie:
    message = parse_text(rest, CookieFormat(), "its text")
    return Cookie(
        bookie_id=message.bookieHost,
        journal_dirs=message.journalDir,
        ledger_dirs=message.ledgerDirs,
        index_dirs=message.indexDirs or None,
        instance_id=message.instanceId or None,
        layout_version=version,
    )
