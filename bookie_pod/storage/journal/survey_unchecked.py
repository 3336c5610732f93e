"""Judging a journal file without group checks: written by the reference, or with `group_checks` off.

- Sound are the leading records. A zero length word with only zeros behind it is a clean end.
- A zero length word, or a record longer than the rest of the file, is a torn tail unless records follow somewhere
  behind it, up to the padding that ends their group: then it is damage. After a power cut that reordered sectors this
  may refuse a file that is only torn; the two look the same, and refusing loses nothing.
- A length is believed only as far as a second reading does not speak against it: with one bit of it changed, records
  would lead on from its end, and the entry does not match a digest that it carries.
- A padding ends at a sector boundary and holds zeros only; it is damage otherwise.
- A record of nothing but zeros counts as a zero length word: its length was written and its body was not.
- The last record is left out if it ends inside a sector without padding behind it, and that sector holds nothing but
  zeros: the process died between two writes of one group. A client could read such an entry, but its digest fails, and
  the ledger could not be recovered. No group without its padding was ever acknowledged. A file that ends with the
  record itself was cut there by a replay, which had found it whole.
- A negative length is damage, but for a padding marker cut short by zeros. A record below 16 bytes is damage if
  anything but zeros follows it.

Pure judgement over reads; one thread for each survey.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Final

from bookie_pod.storage.journal.format import (
    FIRST_VERSION_WITH_PADDING,
    LENGTH,
    PADDING_HEAD,
    RECORD_HEAD,
    SECTOR,
    SMALLEST_RECORD,
    JournalHeader,
    RecordKind,
    crc32c,
    kind_of,
)
from bookie_pod.storage.journal.reader import CHUNK, RecordWalk, Step, Stop
from bookie_pod.storage.journal.surveyed_file import JournalSurvey, SurveyedFile

_LONGEST_GROUP_SEARCHED: Final = 100_000
"""Records after which the search for the end of a group gives a candidate up."""

_STEPS_DOUBTED: Final = 8
"""The number of lengths that may have misled a walk, of a group without its padding, before it stops."""

_LIKELY_HEAD: Final = re.compile(
    rb"(?s)(?=(?!\0{4})[\0-\x07].{3}[\0-\x7f].{7}(?:\0{3}.{5}|\xff{6}(?:[\xf0\xe0\x80]\0|\0\0)))",
)
"""A place where a record may begin: of less than 128 MiB, and with an entry id that clients use."""

_LARGEST_LIKELY_ENTRY: Final = 1 << 40
_LENGTH_AND_ENTRY: Final = struct.Struct(">i8xq")
_IDS_AND_LAC: Final = struct.Struct(">qqq")
_DIGESTED_HEAD: Final = 32
"""Bytes of an entry before its digest."""
_CRC32C: Final = struct.Struct(">I")
_CRC32: Final = struct.Struct(">Q")


class UncheckedSurvey:
    """The survey of one file whose header announces no group checks."""

    def __init__(self, file: SurveyedFile, header: JournalHeader) -> None:
        self._file = file
        self._header = header
        self._padded = header.version >= FIRST_VERSION_WITH_PADDING

    def survey(self, start: int) -> JournalSurvey:
        """Survey the file from the record at `start` on."""
        header = self._header
        last: deque[Step] = deque(maxlen=_STEPS_DOUBTED)
        walk = self._walk(start)
        for step in walk:
            if (damage := self._damage_of(step)) is not None:
                return self._file.result(header, start, step.offset, damage=damage)
            if not step.is_padding and self._is_hollow(step):
                walk.stop = Stop.ZERO
                break
            self._file.saw(step)
            if step.is_padding:
                last.clear()  # no length before it led the walk astray
            else:
                last.append(step)
        end = walk.offset
        if self._file.only_zeros_from(end) and end > 0:
            damage = self._changed_length(last, walk) if self._ends_askew(last) else None
            return self._file.result(header, start, self._before_cut_record(start, end), damage=damage)
        damage = self._damage_at_stop(walk) or self._changed_length(last, walk)
        return self._file.result(header, start, end, torn=damage is None, damage=damage)

    def ends_group(self, offset: int) -> bool:
        """Return whether a record or a padding ends at an offset."""
        walk = self._walk(self._header.length)
        return any(step.end == offset for step in walk if step.end >= offset)

    def _walk(self, start: int) -> RecordWalk:
        return RecordWalk(self._file.window, self._header.version, start)

    def _damage_of(self, step: Step) -> str | None:
        if step.is_padding:
            cut = self._file.only_zeros_from(step.offset + LENGTH.size)
            return (
                None if cut or self._is_plain(step) else "a padding holds more than zeros, or does not end at a sector"
            )
        if (damage := self._file.impossible(step, self._header)) is not None:
            return damage
        return self._swallowed(step)

    def _is_plain(self, padding: Step) -> bool:
        return padding.end % SECTOR == 0 and self._file.only_zeros_between(padding.body_offset, padding.end)

    # --- the end --------------------------------------------------------------------------------------------------

    def _before_cut_record(self, start: int, end: int) -> int:
        """`end`, or where the last record begins if its own end was never written."""
        within = end % SECTOR
        if not self._padded or not within or end - within < start or end == self._file.window.size:
            return end
        if self._file.window.read(end - within, within).strip(b"\0"):
            return end
        last = end
        for step in self._walk(start):
            last = end if step.is_padding else step.offset
        return last

    def _is_hollow(self, step: Step) -> bool:
        """Return whether only the length word of a record was written: no client writes an entry of zeros."""
        return step.ledger_id == step.entry_id == 0 and self._file.only_zeros_between(step.body_offset, step.end)

    def _damage_at_stop(self, walk: RecordWalk) -> str | None:
        end, length = walk.offset, walk.stop_length
        if walk.stop is Stop.NEGATIVE:
            return None if self._is_cut_marker(end) else f"a record has length {length}"
        if walk.stop is Stop.SHORT:
            if self._file.only_zeros_from(end + LENGTH.size + length):
                return None
            return f"a record has length {length}, at least 16 are needed"
        if end == 0:
            return f"no journal header, and no record either (length {length})"
        if not self._padded and end == self._header.length and walk.stop is Stop.ZERO:
            return "its first record has length 0, yet more follows"
        if (record := self._records_after(end)) is not None:
            return f"{walk.stop.value}, yet records follow at offset {record}"
        return None

    def _is_cut_marker(self, offset: int) -> bool:
        word = self._file.window.read(offset, LENGTH.size)
        return word in (b"\xff\0\0\0", b"\xff\xff\0\0") and self._file.only_zeros_from(offset + LENGTH.size)

    def _records_after(self, offset: int) -> int | None:
        """Offset behind the word at `offset` at which records begin that lead on."""
        for base in range(offset + 1, self._file.window.size, CHUNK):
            data = self._file.window.read(base, CHUNK + RECORD_HEAD.size)
            for found in _LIKELY_HEAD.finditer(data):
                if self._leads_on(base + found.start()):
                    return base + found.start()
        return None

    def _leads_on(self, offset: int) -> bool:
        """Return whether records begin here and lead to the padding of their group; in a file without padding, to its
        end.
        """
        last: Step | None = None
        for count, step in enumerate(self._walk(offset)):
            if step.is_padding:
                return self._is_plain(step)
            if count == _LONGEST_GROUP_SEARCHED or not self._is_likely(step):
                return False
            last = step
        return not self._padded and last is not None and self._ends_file(last.body_offset, last.length)

    def _ends_file(self, body: int, length: int) -> bool:
        """Return whether nothing follows a record, and it does not reach into that nothing itself."""
        end = body + length
        reaches = self._file.only_zeros_between(end - LENGTH.size, end) and not self._is_right(body, length)
        return not reaches and self._file.only_zeros_from(end)

    # --- the second reading of a length ---------------------------------------------------------------------------

    def _swallowed(self, step: Step) -> str | None:
        """Return why a record seems to hold the records behind it; None if it does not."""
        for end in _with_one_bit_less(step.length):
            begin = step.body_offset + end
            if self._fills(begin, step.end) and not self._is_right(step.body_offset, step.length):
                return f"a record has length {step.length}, yet records follow at offset {begin} inside it"
        return None

    def _fills(self, begin: int, end: int) -> bool:
        """Return whether likely records fill the range, or lead to a padding behind which it holds zeros only."""
        length, entry_id = _LENGTH_AND_ENTRY.unpack(self._file.window.read(begin, RECORD_HEAD.size).ljust(20, b"\0"))
        if length == 0 or length > end - begin or entry_id >= _LARGEST_LIKELY_ENTRY:
            return False  # nearly always
        walk = self._walk(begin)
        for step in walk:
            if step.end > end or not (self._is_plain(step) if step.is_padding else self._is_likely(step)):
                return False
            if step.end == end or (step.is_padding and self._file.only_zeros_between(step.end, end)):
                return True
        return False

    def _ends_askew(self, last: deque[Step]) -> bool:
        """Return whether the last records before a clean end are such that an earlier length may have led there."""
        if not last:
            return False
        if not self._ends_file(last[-1].body_offset, last[-1].length):
            return True
        return not all(map(self._is_likely, last))

    def _changed_length(self, last: deque[Step], walk: RecordWalk) -> str | None:
        """Return the place at which one bit of a length may have misled the walk; None if nothing shows that."""
        doubted = [(step.offset, step.length) for step in last if not self._is_right(step.body_offset, step.length)]
        if walk.offset + LENGTH.size <= self._file.window.size:
            doubted.append((walk.offset, walk.stop_length if walk.stop is Stop.CUT else 0))
        for offset, length in doubted:
            body = offset + LENGTH.size
            for bit in range(31):
                other = length ^ 1 << bit
                if SMALLEST_RECORD <= other <= self._file.window.size - body and self._goes_on_behind(body, other):
                    return f"the length of the record at offset {offset} is wrong: with {other} it fits what follows"
        return None

    def _goes_on_behind(self, body: int, length: int) -> bool:
        end = body + length
        padding = next(iter(self._walk(end)), None) if self._padded else None
        if padding is not None and padding.is_padding:
            return self._is_plain(padding)
        return self._leads_on(end) or (self._file.only_zeros_from(end) and self._is_right(body, length))

    def _is_likely(self, step: Step) -> bool:
        """Return whether a record is one that a client's entry or a ledger makes, and not just any bytes."""
        if step.ledger_id < 0 or kind_of(step.entry_id) is RecordKind.UNKNOWN:
            return False
        if step.entry_id < 0:
            return self._file.impossible(step, self._header) is None
        head = self._file.window.read(step.body_offset, min(step.length, _IDS_AND_LAC.size))
        if step.entry_id >= _LARGEST_LIKELY_ENTRY or len(head) < _IDS_AND_LAC.size:
            return False
        lac: int = _IDS_AND_LAC.unpack(head)[2]
        return -1 <= lac < step.entry_id

    def _is_right(self, body: int, length: int) -> bool:
        """Return whether an entry of this length matches a checksum that it carries."""
        entry = self._file.window.read(body, length)
        head, digest = entry[:_DIGESTED_HEAD], entry[_DIGESTED_HEAD:]
        return digest[:4] == _CRC32C.pack(crc32c(digest[4:], crc32c(head))) or digest[:8] == _CRC32.pack(
            zlib.crc32(digest[8:], zlib.crc32(head))
        )


def _with_one_bit_less(length: int) -> Iterator[int]:
    """Yield the values that a length may have had before one bit of it was set, with room for a record or a padding."""
    bit = PADDING_HEAD.size
    while bit <= length - SMALLEST_RECORD:
        if length & bit:
            yield length - bit
        bit <<= 1
