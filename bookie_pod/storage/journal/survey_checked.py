"""Judging a journal file with group checks (`journal.format`).

- Sound are the leading groups that match their check and follow each other. If only zeros follow, the end is clean.
- Else the first group that is not sound is *damaged* if a later intact check says that it had been synced, or if its
  own check is intact and a crash cannot have made what is there: none of its sectors ends in zeros, as every torn one
  would, or a single changed bit explains all of the difference. So it is if its check itself is intact but for one bit.
  Otherwise it is a torn tail: nothing from there on was ever acknowledged.

A disk that tears a write loses the ends of sectors; one that rots changes bits. CRC32C finds each single bit of up to
256 MiB by itself: the difference of two checksums names its place.

Pure judgement over reads; one thread for each survey.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie_pod.storage.journal.format import (
    CHECK_LENGTH,
    CHECKS_MAGIC,
    OLD_CHECK_LENGTH,
    OLD_CHECKS_MAGIC,
    PADDING_HEAD,
    SECTOR,
    Checks,
    GroupCheck,
    JournalHeader,
    crc32c,
    parse_group_check,
)
from bookie_pod.storage.journal.reader import CHUNK, RecordWalk, Step
from bookie_pod.storage.journal.surveyed_file import JournalSurvey, SurveyedFile

_MAGIC_IN_PADDING = PADDING_HEAD.size
_POLYNOMIAL: Final = 0x82F63B78
"""The polynomial of CRC32C, its bits reversed."""


class CheckedSurvey:
    """The survey of one file whose header announces group checks."""

    def __init__(self, file: SurveyedFile, header: JournalHeader) -> None:
        self._file = file
        self._header = header
        old = header.checks is Checks.OLD
        self._magic = OLD_CHECKS_MAGIC if old else CHECKS_MAGIC
        self._check_length = PADDING_HEAD.size + (OLD_CHECK_LENGTH if old else CHECK_LENGTH)

    def survey(self, start: int) -> JournalSurvey:
        """Survey the file from the record at `start` on."""
        header = self._header
        sound = start
        before: int | None = None
        continues: int | None = None
        walk = RecordWalk(self._file.window, header.version, start, skip_entries=True)
        for step in walk:
            if step.is_padding:
                check = self._check_at(step.offset)
                if check is None or not self._follows(check, sound, before, step):
                    break
                if sound == header.length:
                    continues = check.before
                before, sound = sound, step.end
            elif self._file.impossible(step, header) is not None:
                break
            self._file.saw(step)
        if self._file.only_zeros_from(sound):
            return self._file.result(header, start, sound, continues=continues)
        damage = self._proof_of_damage(sound, walk.offset)
        return self._file.result(header, start, sound, torn=damage is None, damage=damage, continues=continues)

    def ends_group(self, offset: int) -> bool:
        """Return whether a group ends at an offset: its check is intact, and only zeros follow it."""
        begin = max(self._header.length, offset - CHUNK)
        data = self._file.window.read(begin, offset - begin)
        at = data.rfind(self._magic)
        while at >= 0:
            position = begin + at - _MAGIC_IN_PADDING
            if position >= begin and self._check_at(position) is not None:
                length: int = PADDING_HEAD.unpack_from(data, at - _MAGIC_IN_PADDING)[1]
                return position + PADDING_HEAD.size + length == offset
            at = data.rfind(self._magic, 0, at)
        return False

    def _follows(self, check: GroupCheck, start: int, before: int | None, step: Step) -> bool:
        """Return whether this check is of the group at `start` with its padding, after the group at `before`."""
        if check.start != start or (before is not None and check.before not in (before, None)):
            return False
        if self._header.checks is Checks.OLD and not self._is_plain_padding(step):
            return False
        return check.crc == self._crc(start, step.offset)

    def _is_plain_padding(self, step: Step) -> bool:
        """Return whether the alignment, and the zeros inside a padding whose length no check covers, agree with it."""
        zeros = step.offset + self._check_length
        return step.end % SECTOR == 0 and self._file.only_zeros_between(zeros, step.end)

    def _crc(self, start: int, end: int) -> int:
        crc = 0
        for chunk in self._file.window.chunks(start, end):
            crc = crc32c(chunk, crc)
        return crc

    def _check_at(self, position: int) -> GroupCheck | None:
        return self._parse(self._file.window.read(position, self._check_length), position)

    def _parse(self, padding: bytes, position: int) -> GroupCheck | None:
        return parse_group_check(padding, self._header.checks, self._file.journal_id, position)

    def _proof_of_damage(self, sound: int, stopped: int) -> str | None:
        """Return why the group at `sound` cannot be a torn tail; None if it can. `stopped`: where its last record
        ended.
        """
        for position, check in self._checks_from(sound):
            if check.synced > sound:
                return f"its group does not match its checksum, yet all below {check.synced} had been synced"
            if check.start == sound and (why := self._why_not_torn(check, sound, position)) is not None:
                return why
        for padding in with_one_bit_changed(self._file.window.read(stopped, self._check_length)):
            changed = self._parse(padding, stopped)
            if changed is not None and changed.start == sound and changed.crc == self._crc(sound, stopped):
                return "the check of its group has one changed bit"
        return None

    def _why_not_torn(self, check: GroupCheck, sound: int, position: int) -> str | None:
        crc = self._crc(sound, position)
        if check.crc == crc:
            return "its group matches its checksum and holds an impossible record"
        if not self._may_be_torn(sound, position):
            return "its group does not match its checksum, and no part of it is missing"
        if is_one_bit(crc ^ check.crc, position - sound):
            return "its group does not match its checksum, and one changed bit explains that"
        return None

    def _checks_from(self, begin: int) -> Iterator[tuple[int, GroupCheck]]:
        """Every intact check from an offset to the end of the file, with the offset of its padding record."""
        overlap = len(self._magic) - 1
        for base in range(begin, self._file.window.size, CHUNK):
            data = self._file.window.read(base, CHUNK + overlap)
            at = data.find(self._magic)
            while at >= 0:
                position = base + at - _MAGIC_IN_PADDING
                if position >= begin and (check := self._check_at(position)) is not None:
                    yield position, check
                at = data.find(self._magic, at + 1)

    def _may_be_torn(self, start: int, end: int) -> bool:
        """Return whether a sector of a group ends in zeros. The one with the check is whole, as the check is."""
        begin = start - start % SECTOR
        sectors = self._file.window.chunks(begin, end - end % SECTOR)
        return any(0 in chunk[SECTOR - 1 :: SECTOR] for chunk in sectors)


def _forward(byte: int) -> int:
    crc = byte
    for _ in range(8):
        crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE: Final = [_forward(byte) for byte in range(256)]
_ONE_BIT: Final = frozenset(_TABLE[1 << bit] for bit in range(8))
"""The differences of a checksum if one bit of the last byte differs."""

_BACK: Final = {value >> 24: (value << 8 & 0xFFFFFFFF) | byte for byte, value in enumerate(_TABLE)}
"""The values that undo one byte of zeros, by the top byte of a checksum."""


def is_one_bit(difference: int, length: int) -> bool:
    """Return whether a checksum difference can come from one changed bit in a text of this many bytes."""
    for _ in range(length):
        if difference in _ONE_BIT:
            return True
        difference = (difference << 8 & 0xFFFFFFFF) ^ _BACK[difference >> 24]
    return False


def with_one_bit_changed(data: bytes) -> Iterator[bytes]:
    """`data` with each of its bits changed, one at a time."""
    number = int.from_bytes(data)
    for bit in range(len(data) * 8):
        yield (number ^ 1 << bit).to_bytes(len(data))
