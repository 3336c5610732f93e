"""The disks and the process of a bookie as the kernel describes them, for its support bundle. Changes nothing."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from bookie_pod.cli.doctor.ports import owner_of
from bookie_pod.config.model import BookieConfig

MOST_FILES: Final = 200_000
MOST_THREADS: Final = 2000
_MOST_BYTES: Final = 64 * 1024
_OF_A_PROCESS: Final = ("status", "limits", "io", "sched")


def disk_use(config: BookieConfig) -> list[dict[str, Any]]:
    """Return, for each directory, the room of its file system, and number and bytes of its files by ending."""
    directories = config.directories
    kinds = {"journal": directories.journal, "ledgers": directories.ledger, "index": directories.index}
    return [_directory(kind, path) for kind, paths in kinds.items() for path in paths]


def _directory(kind: str, path: str) -> dict[str, Any]:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return {"kind": kind, "path": path, "error": error.strerror or str(error)}
    files: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    whole = True
    for seen, (name, size) in enumerate(_files(path)):
        if seen == MOST_FILES:
            whole = False
            break
        counted = files[os.path.splitext(name)[1]]
        counted[0] += 1
        counted[1] += size
    return {
        "kind": kind,
        "path": path,
        "size_bytes": room.f_blocks * room.f_frsize,
        "free_bytes": room.f_bavail * room.f_frsize,
        "free_inodes": room.f_favail,
        "files": {ending: {"number": number, "bytes": size} for ending, (number, size) in sorted(files.items())},
        "all_files": whole,
    }


def _files(path: str) -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield name, os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # it was deleted meanwhile


def process_files(port: int) -> list[tuple[str, str]]:
    """Return files of the bundle about the process that listens on the port, and its threads. OSError: none does, or
    it belongs to another user."""
    owner = owner_of(port)
    if owner is None:
        raise OSError(0, f"no process of this user listens on port {port}")
    place = f"/proc/{owner[0]}"
    found = [(f"process/{name}.txt", _read(f"{place}/{name}")) for name in _OF_A_PROCESS]
    threads = sorted(os.listdir(f"{place}/task"), key=int)[:MOST_THREADS]
    lines = [_thread(f"{place}/task/{thread}", thread) for thread in threads]
    return [*found, ("process/threads.txt", "thread state switches processor-ticks waits-in name\n" + "".join(lines))]


def _thread(place: str, thread: str) -> str:
    """Return one line about a thread, with its state and the kernel's function that it waits in."""
    fields = _read(f"{place}/stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return f"{thread} ended\n"
    status = dict(line.split(":", 1) for line in _read(f"{place}/status").splitlines() if ":" in line)
    switches = status.get("voluntary_ctxt_switches", "?").strip()
    ticks = int(fields[11]) + int(fields[12])
    waits, name = _read(f"{place}/wchan").strip() or "-", _read(f"{place}/comm").strip()
    return f"{thread} {fields[0]} {switches} {ticks} {waits} {name}\n"


def _read(path: str) -> str:
    """Return the begin of a file of the kernel; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""
