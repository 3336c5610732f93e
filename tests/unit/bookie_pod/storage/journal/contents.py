"""Journal files, byte by byte: as the reference writes them, and with group checks."""

from __future__ import annotations

from bookie_pod.storage.journal import format as fmt
from tests.support.journal_rig import DIRECTORY, an_entry
from tests.support.memory_files import MemoryFiles

SIZE = 16_384


def path_of(journal_id: int) -> str:
    return f"{DIRECTORY}/{journal_id:x}.txn"


def files_with(*contents: tuple[int, bytes], size: int = SIZE) -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    for journal_id, data in contents:
        files.write_bytes_synced(path_of(journal_id), data.ljust(size, b"\0"))
    return files


def record(ledger_id: int, entry_id: int, payload: bytes = b"p" * 30) -> bytes:
    return b"".join(fmt.entry_record(an_entry(ledger_id, entry_id, payload)))


def plain_file(*groups: bytes, version: int = 6) -> bytes:
    """A file as the reference writes it."""
    data = fmt.header_bytes(version) if version >= 4 else old_header(version)
    for group in groups:
        data += group
        if version >= 5:
            data += fmt.padding(len(data), 512)
    return data


def old_header(version: int) -> bytes:
    return b"" if version == 1 else b"BKLG" + version.to_bytes(4, "big")


def checked_file(
    journal_id: int, *groups: bytes, synced: int | None = None, previous: int = fmt.NO_FILE, continues: int = 0
) -> bytes:
    """A file with group checks in which every group was synced before the next one (or only up to `synced`)."""
    data = fmt.checked_header_bytes(6, journal_id, previous)
    before = continues
    for group in groups:
        start = len(data)
        data += group
        check = fmt.GroupCheck(start, start if synced is None else min(start, synced), before, fmt.crc32c(group))
        data += check.padding(journal_id, len(data), 512)
        before = start
    return data


def zeroed(data: bytes, offset: int, length: int) -> bytes:
    return data[:offset] + bytes(length) + data[offset + length :]
