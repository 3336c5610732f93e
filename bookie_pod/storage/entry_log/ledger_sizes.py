"""Bytes per ledger of one entry log, 16 bytes a ledger.

The ledgers map at the tail of a closed log holds them (reference disk formats, 4.5). A log may hold a million ledgers;
a dict of them would take a hundred times its map on disk. `LedgerSizes` is two sorted arrays.

Invariants
- Ledger ids are ascending and unique, so a look-up is a binary search.
- `LedgerSizesBuilder` holds at most `CHUNK` ledgers as Python objects, and of a ledger that it meets again and again
  not many pairs: they are merged as they come.
- A map is believed only if all of it fits: framing, number of ledgers, no more bytes than lie before it, and the check
  sum if the log has one. Anything else is "no map" and the caller counts by a scan. One case of that is no damage: a
  pointer that a power cut tore (`is_pointer_torn`). Without a check sum (logs of the reference) a flipped bit in a
  ledger id goes unseen, so nothing may be deleted on the word of such a map.

Immutable once built, and pure reading; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAKER,
    MAKER_OFFSET,
    MAP_CHECK,
    MAP_CHECK_OFFSET,
    MAP_ENTRY_ID,
    MAP_FIXED_SIZE,
    MAP_HEAD,
    MAP_LEDGER_ID,
    MAP_PAIR,
    MAP_POINTER,
    MAP_POINTER_OFFSET,
    SIZE,
    SIZE_BYTES,
    VERSION,
    decode_header,
    encode_map_pointer,
    map_checksum,
    map_checksum_in,
)
from bookie_pod.storage.files import File
from bookie_protocol.errors import ResourcesShort, StorageFault

CHUNK: Final = 32_768
LOOSE_SHARE: Final = 4
"""Pairs that are not merged yet are merged when they are a quarter of the merged ones, and `LOOSE_SHARE` chunks."""

Array = npt.NDArray[np.int64]


class LedgerSizes(Mapping[int, int]):
    """Ledger id to bytes, 4-byte sizes of the entries included."""

    __slots__ = ("_ids", "_sizes")

    def __init__(self, ids: Array, sizes: Array) -> None:
        """The pairs in any order; an id that occurs several times counts with the sum."""
        if len(ids) > 1:
            order = np.argsort(ids, kind="stable")
            ids, sizes = ids[order], sizes[order]
            first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
            ids, sizes = ids[first], np.add.reduceat(sizes, first)
        self._ids, self._sizes = ids, sizes

    @property
    def total(self) -> int:
        """Bytes of all ledgers."""
        return int(self._sizes.sum())

    @property
    def nbytes(self) -> int:
        """Return the bytes that this takes in memory."""
        return self._ids.nbytes + self._sizes.nbytes

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        for at in range(0, len(self._ids), CHUNK):
            yield from self._ids[at : at + CHUNK].tolist()

    def __getitem__(self, ledger_id: int) -> int:
        at = int(np.searchsorted(self._ids, ledger_id))
        if at == len(self._ids) or self._ids[at] != ledger_id:
            raise KeyError(ledger_id)
        return int(self._sizes[at])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(ledger id, bytes), ascending."""
        for at in range(0, len(self._ids), CHUNK):
            yield from zip(self._ids[at : at + CHUNK].tolist(), self._sizes[at : at + CHUNK].tolist(), strict=True)

    def same_as(self, other: LedgerSizes) -> bool:
        """Return whether both hold the same ledgers with the same bytes; `==` compares ledger by ledger."""
        return np.array_equal(self._ids, other._ids) and np.array_equal(self._sizes, other._sizes)


class LedgerSizesBuilder:
    """Adds up sizes in the order in which a scan meets them."""

    def __init__(self) -> None:
        self._chunk: dict[int, int] = {}
        self._packed: list[LedgerSizes] = []
        self._loose = 0
        """Pairs behind the first of `_packed`."""

    def add(self, ledger_id: int, nbytes: int) -> None:
        """Count `nbytes` more of this ledger."""
        chunk = self._chunk
        chunk[ledger_id] = chunk.get(ledger_id, 0) + nbytes
        if len(chunk) >= CHUNK:
            self._pack()

    def add_array(self, pairs: Array) -> None:
        """Count an array of shape (n, 2): ledger ids and bytes."""
        self._packed.append(LedgerSizes(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)))

    def build(self) -> LedgerSizes:
        """Return everything that was added."""
        self._pack()
        if not self._packed:
            return LedgerSizes(np.empty(0, np.int64), np.empty(0, np.int64))
        return LedgerSizes(
            np.concatenate([part._ids for part in self._packed]), np.concatenate([part._sizes for part in self._packed])
        )

    def _pack(self) -> None:
        if self._chunk:
            count = len(self._chunk)
            self._packed.append(
                LedgerSizes(
                    np.fromiter(self._chunk.keys(), np.int64, count), np.fromiter(self._chunk.values(), np.int64, count)
                )
            )
            self._chunk = {}
            self._loose += count
            if self._loose >= max(LOOSE_SHARE * CHUNK, len(self._packed[0]) // LOOSE_SHARE):
                self._merge()

    def _merge(self) -> None:
        packed, self._packed, self._loose = self._packed, [], 0
        ids = np.concatenate([part._ids for part in packed])
        sizes = np.concatenate([part._sizes for part in packed])
        del packed
        self._packed.append(LedgerSizes(ids, sizes))


class StoredMap(NamedTuple):
    """A map that was read."""

    ledgers: LedgerSizes
    checked: bool
    """A check sum of all of it was right."""


def map_offset(file: File) -> int | None:
    """Return the offset at which, by the header, the entries end and the map begins.

    None if the header names no map or cannot be read: then nothing shows that the log was ever complete.
    """
    try:
        header = decode_header(file.pread(HEADER_SIZE, 0))
    except ValueError:
        return None
    return header.map_offset if header.has_map else None


def synced_end(file: File) -> int | None:
    """Return where the entries of the log end, if its header proves that all of them were synced; None if it does not.

    Only what we write proves it: the pointer with a check sum, which follows a sync. The reference points to the map
    before it syncs the log, so a power cut may leave its pointer, and bytes of the log that never reached the disk.
    Raises `OSError`.
    """
    return None if map_checksum_in(file.pread(HEADER_SIZE, 0)) is None else map_offset(file)


def may_be_foreign(file: File) -> bool:
    """Return whether another program may have written the log. A header that a power cut took tells nothing. Raises
    `OSError`."""
    maker = file.pread(HEADER_SIZE, 0)[MAKER_OFFSET : MAKER_OFFSET + len(MAKER)]
    return maker != MAKER and file.data_from(0) is not None


def any_foreign(log_ids: Iterable[int], look: Callable[[int], bool]) -> bool:
    """Return whether another program may have written one of these logs, or one cannot be read. `look` is
    `may_be_foreign` for one log, with its error as `StorageFault`. Raises `ResourcesShort`."""
    try:
        return any(map(look, log_ids))
    except ResourcesShort:
        raise  # a lack of resources proves nothing
    except StorageFault:
        return True


def read_ledgers_map(file: File) -> StoredMap:
    """Bytes per ledger. `ValueError` if there is no map that can be believed, `OSError` if reading fails."""
    head = file.pread(HEADER_SIZE, 0)
    header = decode_header(head)
    if not header.has_map:
        raise ValueError("the log was never closed")
    stored = map_checksum_in(head)
    ledgers = LedgerSizesBuilder()
    position, limit, found = header.map_offset, file.size(), 0
    checksum = map_checksum(head[MAP_POINTER_OFFSET:MAP_CHECK_OFFSET], b"")
    while (batch := _read_batch(file, position, limit, header.ledger_count - found)) is not None:
        position, data, pairs = batch
        found += len(pairs)
        _check_pairs(pairs, header.map_offset)
        ledgers.add_array(pairs)
        checksum = map_checksum(b"", data, checksum)
    sizes = ledgers.build()
    if len(sizes) != header.ledger_count:
        raise ValueError(f"the map holds {len(sizes)} ledgers, the header says {header.ledger_count}")
    if sizes.total > header.map_offset - HEADER_SIZE:
        raise ValueError(f"the map counts more than the {header.map_offset - HEADER_SIZE} bytes before it")
    if stored is not None and stored != checksum:
        raise ValueError("the check sum of the map is wrong")
    return StoredMap(sizes, stored is not None)


def is_pointer_torn(file: File) -> bool:
    """Return whether the header's pointer to the map is one of which a power cut left the first bytes only.

    The rest are zeros, as before it was written. Such a log is whole: all of it was synced before. Apache's header of a
    log without ledgers, which names a map of none, looks the same. Raises `OSError`.
    """
    head = file.pread(HEADER_SIZE, 0)
    written = head[MAP_POINTER_OFFSET : MAP_CHECK_OFFSET + MAP_CHECK.size].rstrip(b"\0")
    try:
        header = decode_header(head)
        if header.version != VERSION:
            return False  # the version was written with the first header, before any entry
        if header.ledger_count == 0:
            return 0 < len(written) <= MAP_POINTER.size
        whole = _pointer(file, header.map_offset)
    except ValueError:
        return False
    return len(written) < len(whole) and whole.startswith(written)


def _pointer(file: File, offset: int) -> bytes:
    """Return the pointer to the map at this offset. `ValueError` if there is none."""
    position, limit, found, batches = offset, file.size(), 0, []
    while (batch := _read_batch(file, position, limit, limit)) is not None:
        position, data, pairs = batch
        found += len(pairs)
        batches.append(data)
    return encode_map_pointer(offset, found, b"".join(batches))


def _read_batch(file: File, position: int, limit: int, expected: int) -> tuple[int, bytes, Array] | None:
    """(offset of the next batch, bytes, pairs) of the batch at `position`; None at the end of the map."""
    head = file.pread(min(MAP_HEAD.size, max(0, limit - position)), position)
    if len(head) < SIZE_BYTES or SIZE.unpack_from(head)[0] <= 0:
        return None
    if len(head) < MAP_HEAD.size:
        raise ValueError(f"the map breaks off at {position + len(head)}")
    size, ledger_id, entry_id, count = MAP_HEAD.unpack(head)
    if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID):
        raise ValueError(f"entry {entry_id} of ledger {ledger_id} at {position} instead of a map")
    length = count * MAP_PAIR.size
    if not 0 <= count <= expected or size != MAP_FIXED_SIZE + length:
        raise ValueError(f"a batch of {count} ledgers and {size} bytes at {position}, {expected} expected")
    start = position + MAP_HEAD.size
    if start + length > limit:
        raise ValueError(f"the map breaks off at {limit}")
    data = file.pread(length, start)
    return start + length, head + data, _decode_pairs(data, count)


def _decode_pairs(data: bytes, count: int) -> Array:
    if len(data) != count * MAP_PAIR.size:
        raise ValueError(f"{len(data)} bytes do not hold {count} ledgers")
    return np.frombuffer(data, ">i8").reshape(count, 2).astype(np.int64)


def _check_pairs(pairs: Array, most: int) -> None:
    if len(pairs) and (int(pairs[:, 0].min()) < 0 or int(pairs[:, 1].min()) <= 0):
        raise ValueError("the map holds a negative ledger id or an empty ledger")
    if len(pairs) and int(pairs[:, 1].max()) > most:  # one by one: the sum of such numbers could wrap
        raise ValueError(f"the map holds a ledger of {int(pairs[:, 1].max())} bytes, {most} lie before it")
