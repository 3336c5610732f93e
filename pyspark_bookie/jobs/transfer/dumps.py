"""Ledgers as single files in a folder, to be carried away and brought back: `export` writes, `import` reads them.

Their names are `ledger-7.dump`, `ledger-7.dump.zst` or `ledger-7.dump.gz`; each holds one ledger, with its entry ids,
in one stream:

    b"PKLEDGER", version 1 (2 bytes), length of the header (4), its CRC32C (4), the header
    for each entry: entry id (8), length of the payload (4), CRC32C of the payload (4), the payload
    end: entry id -1 (8), 0 (4), 0 (4), entries (8), payload bytes (8), `Counts.payload_crc` (4), `lengths_crc` (4)

All numbers big-endian. The header is JSON: {"ledger_id": 7, "entries": 9, "bytes": 50, "ledger": {...}}, where `ledger`
and the optional `place` are those of an archive's manifest. Entry ids begin at 0 and have no gaps. There is no password
in it.

Invariants
- A dump appears under its name when it is whole; until then it is `_tmp/...`. It is the only one of its ledger then.
- A dump without its end was not written to its end. Whatever is changed in one is found when it is read.
- If there are two dumps of one ledger, after a process that died while it replaced one, or where folders were put
  together, neither is read: it is unknown which one counts.

One thread at a time for each ledger.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import google_crc32c

from bookie_protocol.archive import Counts, whole
from bookie_protocol.errors import UNREADABLE, EntryDamaged, NoSuchLedger, Refused
from bookie_protocol.shown import one_line
from bookie_protocol.wire.framing import LEAST_RECEIVED_FRAME_SIZE
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import ArchivedFileMissing, Files, is_of_this_process
from pyspark_bookie.archive.manifest import NUMBER, LedgerShape, matched
from pyspark_bookie.archive.places import StreamPlace
from pyspark_bookie.common.throttle import Throttle

SUFFIXES: Final = {"none": "", "zstd": ".zst", "gzip": ".gz"}
"""Compressions, and how names of files end."""
_CODECS: Final = {suffix: None if name == "none" else name for name, suffix in SUFFIXES.items()}
_NAME: Final = re.compile(rf"ledger-{NUMBER}\.dump(\.zst|\.gz)?")
_MAGIC: Final = b"PKLEDGER"
_VERSION: Final = 1
_START: Final = struct.Struct(">8sHII")
_ENTRY: Final = struct.Struct(">qII")
_END: Final = struct.Struct(">qqII")
_MAX_HEADER: Final = 16 * 1024 * 1024
_END_ID: Final = -1
_BATCH_BYTES: Final = 1024 * 1024
_BATCH_ENTRIES: Final = 1000


class Dumps:
    """The dumps in a folder. What is read of their entries passes the throttle. `longest`: bytes of a payload that is
    read; what the job's client receives, which may be more than others do.

    Errors of all methods: `ArchiveUnavailable`; of those that read a dump also `EntryDamaged` and `NoSuchLedger`, where
    there is no such file; of `find` and `only` also `Refused`, where there are two."""

    def __init__(
        self, files: Files, throttle: Throttle | None = None, longest: int = LEAST_RECEIVED_FRAME_SIZE
    ) -> None:
        self._files = files
        self._throttle = throttle or Throttle(None)
        self._longest = longest

    def names(self) -> dict[int, list[str]]:
        """The dumps there are, by ledger."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for listed in self._files.list(""):
            match = matched(_NAME, listed.path)
            if match is not None:
                found[int(match[1])].append(listed.path)
        return found

    def find(self, ledger_id: int) -> str | None:
        """The name of a ledger's dump; None: there is none."""
        names = [f"ledger-{ledger_id}.dump{suffix}" for suffix in SUFFIXES.values()]
        found = [name for name in names if self._files.size(name) is not None]
        return self.only(found) if found else None

    def only(self, names: list[str]) -> str:
        """Return the one dump of those of a ledger."""
        if len(names) > 1:
            raise Refused(
                f"{self._files.shown('')} has {len(names)} dumps of one ledger, {' and '.join(sorted(names))}: delete"
                " the wrong ones, or overwrite them by export --replace"
            )
        return names[0]

    def header(self, name: str) -> DumpHeader:
        """Read the header of a dump, which says nothing of the rest."""
        with self._opened(name) as stream:
            header = read_header(stream, name)
        match = matched(_NAME, name.rpartition("/")[2])
        if match is not None and header.ledger_id != int(match[1]):
            raise EntryDamaged(f"{name} is the dump of ledger {header.ledger_id}")
        return header

    def payloads(self, name: str) -> Iterator[list[bytes]]:
        """The payloads, in order. The dump is known to be whole when the iterator has ended."""
        with self._opened(name) as stream:
            for payloads in read_payloads(stream, read_header(stream, name), name, self._longest):
                self._throttle.take(sum(map(len, payloads)))
                yield payloads

    def count(self, name: str) -> int:
        """Read a dump to its end; returns how many entries it has."""
        return sum(len(payloads) for payloads in self.payloads(name))

    def write(self, header: DumpHeader, batches: Iterable[list[bytes]], compression: str) -> tuple[Counts, int]:
        """Write a dump, read it again and give it its name; returns its counts and the size of the file."""
        import pyarrow as pa

        suffix = SUFFIXES[compression]
        name = f"ledger-{header.ledger_id}.dump{suffix}"
        folder = f"_tmp/{uuid.uuid4().hex}"
        self._files.make_folder(folder)
        temporary = f"{folder}/{name}"
        codec = _CODECS[suffix]
        try:
            path = self._files.path(temporary)
            with (
                self._files.requests(temporary),
                self._files.system.open_output_stream(path, compression=None) as raw,
            ):
                if codec is None:
                    counts = write_dump(raw, header, batches)
                else:
                    with pa.CompressedOutputStream(raw, codec) as stream:
                        counts = write_dump(stream, header, batches)
            self.count(temporary)
            self._files.move(temporary, name)
            for other in SUFFIXES.values():  # what it replaces, in another compression
                if other != suffix:
                    self._files.delete(f"ledger-{header.ledger_id}.dump{other}")
        finally:
            self._files.delete_folder(folder)
        return counts, self._files.size(name) or 0

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        import pyarrow as pa

        found = matched(_NAME, name.rpartition("/")[2])
        codec = _CODECS[(found[2] if found else None) or ""]
        try:
            noted = self._files.stream(name)
            raw = pa.PythonFile(noted, mode="r")
            try:
                with closing(noted), raw if codec is None else pa.CompressedInputStream(raw, codec) as stream:
                    yield stream
            except (pa.ArrowException, OSError) as error:
                error.with_traceback(None)  # it leads to `noted` by way of pyarrow, where no collector looks
                if noted.failure is not None:
                    raise self._files.read_failed(name, noted.failure) from None
                if is_of_this_process(error):
                    raise self._files.failed(name, error) from None
                raise EntryDamaged(f"{name} is damaged: {one_line(error)}") from None
        except ArchivedFileMissing as error:
            raise NoSuchLedger(f"there is no dump {name}: {error}") from None


assert (_START.size, _ENTRY.size, _END.size) == (18, 16, 24)


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """The header of a dump."""

    ledger_id: int
    entries: int
    nbytes: int
    shape: LedgerShape
    place: StreamPlace | None = None


def write_dump(stream: BinaryIO, header: DumpHeader, batches: Iterable[list[bytes]]) -> Counts:
    """Write a whole dump. Raises `EntryDamaged` when the payloads are not as many as the header says."""
    row = {
        "ledger_id": header.ledger_id,
        "entries": header.entries,
        "bytes": header.nbytes,
        "ledger": header.shape.as_json(),
        "place": None if header.place is None else header.place.as_json(),
    }
    text = json.dumps(row).encode()
    stream.write(_START.pack(_MAGIC, _VERSION, len(text), google_crc32c.value(text)) + text)
    counter = Counter()
    for payloads in batches:
        first = counter.entries
        counter.add(payloads)
        pieces: list[bytes] = []
        for entry_id, payload in enumerate(payloads, first):
            pieces += (_ENTRY.pack(entry_id, len(payload), google_crc32c.value(payload)), payload)
        stream.write(b"".join(pieces))
    counts = counter.counts()
    if (counts.entries, counts.nbytes) != (header.entries, header.nbytes):
        raise EntryDamaged(f"ledger {header.ledger_id} gave {counts.entries} entries instead of {header.entries}")
    stream.write(_ENTRY.pack(_END_ID, 0, 0))
    stream.write(_END.pack(counts.entries, counts.nbytes, counts.payload_crc, counts.lengths_crc))
    return counts


def read_header(stream: BinaryIO, name: str) -> DumpHeader:
    """The header. Raises `EntryDamaged`, naming the file."""
    magic, version, length, crc = _START.unpack(_exactly(stream, _START.size, name))
    if magic != _MAGIC or version != _VERSION or length > _MAX_HEADER:
        raise EntryDamaged(f"{name} is not a dump of a ledger, or of a version that is not known here")
    text = _exactly(stream, length, name)
    if google_crc32c.value(text) != crc:
        raise EntryDamaged(f"{name}: its header is damaged")
    try:
        row = json.loads(text)
        return DumpHeader(
            whole(row["ledger_id"]),
            whole(row["entries"]),
            whole(row["bytes"]),
            LedgerShape.from_json(row["ledger"]),
            StreamPlace.from_json(place) if (place := row.get("place")) is not None else None,
        )
    except UNREADABLE as error:
        raise EntryDamaged(f"{name}: its header cannot be read: {one_line(repr(error))}") from None


def read_payloads(
    stream: BinaryIO, header: DumpHeader, name: str, longest: int = LEAST_RECEIVED_FRAME_SIZE
) -> Iterator[list[bytes]]:
    """The payloads behind the header, in order. Raises `EntryDamaged` for whatever is not as it was written, and for a
    payload of more than `longest` bytes; the dump is known to be whole when the iterator has ended."""
    counter = Counter()
    waiting: list[bytes] = []
    nbytes = 0
    while True:
        entry_id, length, crc = _ENTRY.unpack(_exactly(stream, _ENTRY.size, name))
        if (entry_id, length, crc) == (_END_ID, 0, 0):
            break
        if entry_id != counter.entries + len(waiting):
            raise EntryDamaged(f"{name}: entry {entry_id} in place of {counter.entries + len(waiting)}")
        if length > header.nbytes:
            raise EntryDamaged(f"{name}: entry {entry_id} claims {length} bytes of {header.nbytes}")
        if length > longest:
            raise EntryDamaged(
                f"{name}: entry {entry_id} claims {length} bytes, of which {longest} are taken: it is damaged, or was"
                " exported with a larger client.maxFrameSize"
            )
        payload = _exactly(stream, length, name)
        if google_crc32c.value(payload) != crc:
            raise EntryDamaged(f"{name}: entry {entry_id} is damaged")
        waiting.append(payload)
        nbytes += length
        if nbytes >= _BATCH_BYTES or len(waiting) >= _BATCH_ENTRIES:
            counter.add(waiting)
            yield waiting
            waiting, nbytes = [], 0
    if waiting:
        counter.add(waiting)
        yield waiting
    counts = counter.counts()
    if Counts(*_END.unpack(_exactly(stream, _END.size, name))) != counts or stream.read(1):
        raise EntryDamaged(f"{name}: its end does not fit its entries")
    if (counts.entries, counts.nbytes) != (header.entries, header.nbytes):
        raise EntryDamaged(f"{name}: {counts.entries} entries instead of {header.entries}")


def _exactly(stream: BinaryIO, nbytes: int, name: str) -> bytes:
    data = bytes(stream.read(nbytes))
    if len(data) != nbytes:
        raise EntryDamaged(f"{name} ends in the middle: it was not written to its end, or was cut")
    return data
