"""The disks of a bookie: the latency of a journal's sync, the throughput of each disk, and the room that is left.

It measures with files that have no name, so nothing is left behind, however the process ends. At each journal directory
it syncs 4 KB at a time for a second; at each journal and ledger directory it writes at most 64 MB in two seconds. Where
that would leave too little room it writes nothing.

Synchronous; each directory is looked at by a thread of its own, which a disk that does not answer may hold for ever. A
running bookie on the same disks is slowed a little meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.cli.tables import size_text
from bookie_pod.config.model import BookieConfig

SLOW_SYNC_MS: Final = 20.0
"""The 99th percentile of syncs from which a journal's disk counts as slow: each add waits for one."""
SLOW_WRITE: Final = 40_000_000
"""Bytes a second below which a disk counts as slow: a flush takes minutes then."""
FEW_INODES: Final = 10_000
PATIENCE_S: Final = 30.0
"""Seconds after which a disk counts as one that does not answer."""
_SYNC_SECONDS, _SYNC_BYTES, _MOST_SYNCS = 1.0, 4096, 2000
_WRITE_SECONDS, _WRITE_BYTES, _MOST_BYTES = 2.0, 1024 * 1024, 64 * 1024 * 1024
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse")
_MEMORY: Final = ("tmpfs", "ramfs")
_NO_BARRIERS: Final = frozenset({"nobarrier", "barrier=0", "barrier=none"})
"""Options of mounts with which a sync returns before the disk has written."""
_MACHINE_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
_MOUNTS: Final = "/proc/self/mountinfo"
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""Blanks and backslashes in the names of mounts, as the kernel writes them."""


def disk_findings(config: BookieConfig, *, measure: bool) -> Iterator[Finding]:
    """Check each directory; `measure` also writes to it."""
    directories = config.directories
    devices: dict[int, dict[str, str]] = {}
    for kind, paths in (
        ("journal", directories.journal),
        ("ledgers", directories.ledger),
        ("index", directories.index),
    ):
        for path in paths:
            yield from _within(PATIENCE_S, kind, path, config, measure, devices)
    for parts in devices.values():
        yield from _shared(parts)


def _within(
    seconds: float, kind: str, path: str, config: BookieConfig, measure: bool, devices: dict[int, dict[str, str]]
) -> list[Finding]:
    """Return the findings of a directory. A system call on a disk that hangs does not end, so a thread makes it."""
    part, found = f"{kind} {path}", list[Finding]()
    missing = Finding(part, State.PROBLEM, f"did not answer within {seconds:g} s", "see the kernel's log (dmesg)")

    def look() -> None:
        try:
            folder = _existing(path)
            devices.setdefault(os.stat(folder).st_dev, {})[part] = kind
            found.extend(_directory(part, path, folder, config, measures=kind if measure else ""))
        except OSError as error:
            found.append(_failed(part, error))

    thread = threading.Thread(target=look, name=f"doctor {part}", daemon=True)
    thread.start()
    thread.join(seconds)
    return [*found, missing] if thread.is_alive() else found


def _failed(part: str, error: OSError) -> Finding:
    why = error.strerror or str(error)
    if error.errno in _MACHINE_ERRORS:
        return Finding(part, State.UNKNOWN, f"could not be checked: {why}", "try again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Finding(part, State.PROBLEM, f"cannot be used: {why}", "free space")
    remedy = "run this as the bookie's user; correct the owner and the mode of the directory"
    return Finding(part, State.PROBLEM, f"cannot be used: {why}", remedy)


def _directory(part: str, path: str, folder: str, config: BookieConfig, measures: str) -> Iterator[Finding]:
    if folder != path:
        yield Finding(part, State.OK, f"does not exist yet; the bookie makes it in {folder}")
    yield from _file_system(part, folder)
    yield _room(part, folder, config)
    if not measures:
        return
    if measures == "index":
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    elif _is_short(folder, config):
        yield Finding(part, State.UNKNOWN, "was not measured: that would fill the disk", "free space")
    else:
        if measures == "journal":
            yield _syncs(part, folder, direct=config.journal.direct_io)
        yield _writes(part, folder)


def _existing(path: str) -> str:
    """Return the directory, or the nearest one above it that exists. Raises `OSError` if that is not known."""
    folder = os.path.abspath(path)
    while not _exists(folder):
        folder = os.path.dirname(folder)
    return folder if folder != os.path.abspath(path) else path


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _is_short(folder: str, config: BookieConfig) -> bool:
    """Return True if the files of a measurement would make a bookie of this disk read-only, or nearly so."""
    found = os.statvfs(folder)
    reserved = found.f_blocks * (1 - config.disks.usage_threshold)
    return (found.f_bavail - reserved) * found.f_frsize < 2 * (_MOST_BYTES + _MOST_SYNCS * _SYNC_BYTES)


def _file_system(part: str, folder: str) -> Iterator[Finding]:
    kind, options = _mount_of(folder)
    if kind in _MEMORY:
        yield Finding(part, State.PROBLEM, f"is in memory ({kind}): entries are lost at a restart", "use a disk")
    elif kind.partition(".")[0] in _NETWORK:
        text = f"is a network file system ({kind}): each sync waits for the network"
        yield Finding(part, State.WARNING, text, "use a disk of this machine or a block volume")
    if (unsafe := sorted(_NO_BARRIERS & options)) and part.startswith("journal"):
        text = f"is mounted with {unsafe[0]}: entries that were acknowledged may be lost with the power"
        yield Finding(part, State.WARNING, text, "mount it without this option, unless its cache has a battery")


def _mount_of(folder: str) -> tuple[str, frozenset[str]]:
    """Return the type and the options of the mount that the folder is in; empty if the kernel does not tell."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return "", frozenset()
    place, longest, found = os.path.realpath(folder), "", ("", frozenset[str]())
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words, tail = fields.split(), rest.split()
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[4])
        if len(point) >= len(longest) and (place == point or place.startswith(point.rstrip("/") + "/")):
            longest, found = point, (tail[0], frozenset((*words[5].split(","), *tail[-1].split(","))))
    return found


def _room(part: str, folder: str, config: BookieConfig) -> Finding:
    found, disks = os.statvfs(folder), config.disks
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used = 1 - free / size if size else 0.0
    text = f"{size_text(free)} of {size_text(size)} free"
    remedy = "enlarge the volume, or lower what is kept"
    if used >= disks.usage_threshold:
        return Finding(part, State.PROBLEM, f"{text}: above diskUsageThreshold={disks.usage_threshold:g}", remedy)
    if used >= disks.usage_warn_threshold:
        return Finding(
            part, State.WARNING, f"{text}: above diskUsageWarnThreshold={disks.usage_warn_threshold:g}", remedy
        )
    if found.f_files and found.f_favail < FEW_INODES:
        text = f"{text}, but only {found.f_favail:,} inodes"
        return Finding(part, State.WARNING, text, "make the file system with more inodes")
    return Finding(part, State.OK, text)


def _syncs(part: str, folder: str, *, direct: bool) -> Finding:
    """Measure what an add to an idle bookie waits for: a write of 4 KB into allocated room of the file, and its
    sync."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file, mmap.mmap(-1, _SYNC_BYTES) as page:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, _MOST_SYNCS * _SYNC_BYTES)
        is_direct = direct and _set_direct(descriptor)
        page.write(os.urandom(_SYNC_BYTES))
        os.fsync(descriptor)
        until = time.monotonic() + _SYNC_SECONDS
        while len(times) < _MOST_SYNCS and (not times or time.monotonic() < until):
            began = time.perf_counter()
            os.pwrite(descriptor, page, len(times) * _SYNC_BYTES)
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    half, most = _quantile(times, 0.5), _quantile(times, 0.99)
    text = f"a sync takes {half:.2f} ms, 99 of 100 at most {most:.2f} ms"
    if most > SLOW_SYNC_MS:
        return Finding(part, State.WARNING, f"{text}: each add waits for one", "give the journal an SSD of its own")
    if direct and not is_direct:
        remedy = "use ext4 or XFS to spare CPU time"
        return Finding(part, State.WARNING, f"{text}; its file system has no direct I/O", remedy)
    return Finding(part, State.OK, text)


def _set_direct(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except (AttributeError, OSError):
        return False
    return True


def _quantile(times: Sequence[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))]


def _writes(part: str, folder: str) -> Finding:
    """Measure the throughput that a flush of the write cache, or a journal under load, can reach."""
    written, block = 0, os.urandom(_WRITE_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        while written < _MOST_BYTES and time.monotonic() - began < _WRITE_SECONDS:
            written += file.write(block)
            os.fdatasync(file.fileno())
        rate = written / max(1e-9, time.monotonic() - began)
    text = f"takes {size_text(round(rate))}/s"
    if rate < SLOW_WRITE:
        return Finding(part, State.WARNING, f"{text}: entries arrive faster on most networks", "use a faster volume")
    return Finding(part, State.OK, text)


def _shared(kinds: Mapping[str, str]) -> Iterator[Finding]:
    """`kinds`: the kind of each directory of one file system."""
    journals = [part for part, kind in kinds.items() if kind == "journal"]
    ledgers = [part for part, kind in kinds.items() if kind == "ledgers"]
    if journals:
        for part in ledgers:
            text = f"is in the file system of {journals[0]}: flushes delay adds"
            yield Finding(part, State.WARNING, text, "give the journal a disk of its own")
    for first, *others in filter(None, (journals, ledgers)):
        for part in others:
            text = f"is in the file system of {first}: it adds neither speed nor room"
            yield Finding(part, State.WARNING, text, "give each directory a disk of its own, or name one directory")
