"""A backup: a file of JSON lines, compressed by gzip, that `zcat` shows.

    {"format": "podkeeper metadata backup", "version": 1, "instance_id": ..., "layout": ..., "source": ...,
     "taken_ms": ..., "history": ..., "position": ...}  (one line)
    ["/cookies/bookie-1:3181", "<base64>"]              one line for each node, as `nodes` orders them
    {"nodes": ..., "ledgers": ..., "sha256": ..., "next_number": ..., "high_order": ..., "left_out": ...}

The last line is written when everything was read: a file without it is not complete. `sha256` is that of `Tally`.
`high_order` is null where no 63-bit ids are generated. The file holds what the metadata hold, passwords of ledgers too:
only its owner may read it.

Invariants
- A file has its name only when it is complete, durable, and was read back. Until then it is a new file beside it, of a
  random name, which a process that is killed leaves there (`unfinished_file`).
- `checked` reads everything and compares counts and digest before anybody uses a line. Bytes that cannot be understood
  are `MetadataDamaged`; an error of the machine is `StorageFault`.

Threads: event loop; the file on others, one at a time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import json
import os
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final

from bookie_protocol.errors import InvalidConfiguration, MetadataDamaged, StorageFault
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.moving import unfinished_file
from bookie_protocol.metadata_service.moving.nodes import Entries, Tally, order
from bookie_protocol.metadata_service.moving.numbers import Numbers

FORMAT: Final = "podkeeper metadata backup"
VERSION: Final = 1
_BYTES_AT_ONCE: Final = 256 * 1024
_LONGEST_LINE: Final = 16 * 1024 * 1024
"""A node has at most a few megabytes, whatever the service."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: it is written before any node is read."""

    instance_id: str
    layout: LedgerLayout
    source: str
    """The URI, for people."""
    taken_ms: int
    history: str
    """The record `history` of that place, as it was stored."""
    position: int
    """`Session.position` before any node was read: the file has everything up to there; 0: not known."""
    counts: str
    """`Session.counts` of that place."""


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last line: it says what was read."""

    nodes: int
    ledgers: int
    sha256: str
    next_number: int
    high_order: int | None
    left_out: int
    """Nodes of sessions that were there: the cluster was in use while it was read."""

    @property
    def numbers(self) -> Numbers:
        return Numbers(self.next_number, self.high_order)


class BackupFile:
    """The file at `path`."""

    def __init__(self, path: str, opened: BinaryIO | None = None) -> None:
        """`opened`: the file itself, whatever has its path; None: it is opened each time that it is read."""
        self.path = path
        self._opened = opened

    async def write(self, header: Header, entries: AsyncGenerator[tuple[str, bytes] | Trailer, None]) -> Trailer:
        """Write a backup; the last of the entries is the trailer. `InvalidConfiguration`: there is such a file."""
        with _machine(self.path):
            part, raw = await asyncio.to_thread(self._begin)
        try:
            with raw:
                async with aclosing(entries):
                    trailer = await self._write(part, raw, header, entries)
                if (await BackupFile(part, raw).checked())[1] != trailer:
                    raise StorageFault(f"{part} does not hold what was written to it")
                await asyncio.to_thread(self._give_name, part, raw)
        finally:
            await asyncio.to_thread(unfinished_file.discard, part)
        return trailer

    async def checked(self) -> tuple[Header, Trailer]:
        """Read everything. `MetadataDamaged`: it is not a complete backup."""
        tally = Tally()
        before: tuple[str, ...] = ()
        header: Header | None = None
        trailer: Trailer | None = None
        async for item in self._items():
            if header is None:
                header = self._header(item)
            elif trailer is not None:
                raise self._damaged("lines follow the last one")
            elif isinstance(item, dict):
                trailer = self._trailer(item)
            else:
                path, data = self._entry(item)
                if order(path) <= before:
                    raise self._damaged(f"{path} is out of order")
                before = order(path)
                tally.add(path, data)
        if header is None or trailer is None:
            raise self._damaged("its end is missing")
        if (tally.nodes, tally.ledgers, tally.sha256) != (trailer.nodes, trailer.ledgers, trailer.sha256):
            raise self._damaged("its nodes are not those that were written")
        return header, trailer

    async def entries(self) -> Entries:
        """Return the nodes of a file that was `checked`."""
        async for item in self._items():
            if isinstance(item, list):
                yield self._entry(item)

    # --- inside ----------------------------------------------------------------------------------------------

    async def _write(
        self, part: str, raw: BinaryIO, header: Header, entries: AsyncGenerator[tuple[str, bytes] | Trailer, None]
    ) -> Trailer:
        nbytes, lines = (
            0,
            [_line({"format": FORMAT, "version": VERSION, **asdict(header), "layout": header.layout.name})],
        )
        with _machine(part), gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
            async for entry in entries:
                if isinstance(entry, Trailer):
                    lines.append(_line(asdict(entry)))
                    break
                lines.append(_line([entry[0], base64.b64encode(entry[1]).decode()]))
                nbytes += len(lines[-1])
                if nbytes >= _BYTES_AT_ONCE:
                    await asyncio.to_thread(file.write, b"".join(lines))
                    nbytes, lines = 0, []
            else:
                raise AssertionError("the entries end without a trailer")
            await asyncio.to_thread(file.write, b"".join(lines))
            await asyncio.to_thread(file.close)
            await asyncio.to_thread(_sync, raw)
        return entry

    def _begin(self) -> tuple[str, BinaryIO]:
        if os.path.lexists(self.path):
            raise self._exists()
        return unfinished_file.begin(self.path)

    def _exists(self) -> InvalidConfiguration:
        return InvalidConfiguration(f"{self.path} exists already: name another file, or remove it")

    def _give_name(self, part: str, raw: BinaryIO) -> None:
        with _machine(self.path):
            try:
                unfinished_file.finish(part, raw, self.path)
            except FileExistsError:
                raise self._exists() from None

    async def _items(self) -> AsyncGenerator[Any, None]:
        with _machine(self.path), self._understood(), self._source() as raw, gzip.GzipFile(fileobj=raw) as file:
            while part := await asyncio.to_thread(_lines, file):
                for line in part:
                    yield json.loads(line)

    def _source(self) -> BinaryIO:
        if self._opened is None:
            return open(self.path, "rb")
        raw = os.fdopen(os.dup(self._opened.fileno()), "rb")
        raw.seek(0)
        return raw

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error

    def _header(self, item: Any) -> Header:
        try:
            if item["format"] != FORMAT or item["version"] != VERSION:
                raise self._damaged(f"it is of version {item['version']}, and this release reads {VERSION}")
            return Header(
                str(item["instance_id"]),
                LedgerLayout[item["layout"]],
                str(item["source"]),
                int(item["taken_ms"]),
                str(item.get("history", "")),  # earlier releases wrote neither
                int(item.get("position", 0)),
                str(item.get("counts", "oxia" if "oxia://" in item["source"] else "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"its first line is not that of a backup: {error!r}") from error

    def _trailer(self, item: Any) -> Trailer:
        try:
            return Trailer(**item)
        except TypeError as error:
            raise self._damaged(f"its last line is not that of a backup: {error!r}") from error

    def _entry(self, item: Any) -> tuple[str, bytes]:
        try:
            path, text = item
            parts = str(path).split("/")
            if parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
                raise ValueError(f"{path!r} is not a path below the root")
            return str(path), base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise self._damaged(f"a line is not that of a node: {error}") from error

    def _damaged(self, why: str) -> MetadataDamaged:
        return MetadataDamaged(f"{self.path} is not a complete backup of metadata: {why}; use another one")


@contextmanager
def _machine(path: str) -> Iterator[None]:
    try:
        yield
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise StorageFault(f"{path}: {error.strerror or error}") from error


def _lines(file: gzip.GzipFile) -> list[bytes]:
    """Return the next lines, empty at the end."""
    lines, left = [], _BYTES_AT_ONCE
    while left > 0 and (line := file.readline(_LONGEST_LINE)):
        lines.append(line)
        left -= len(line)
    return lines


def _line(item: Any) -> bytes:
    return json.dumps(item).encode() + b"\n"


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
