"""What destroys copies: flipped bits in files of every kind, disks that are lost, bookies that are replaced.

The bookie is stopped (killed, or by an orderly stop), its files are changed, and it is started again. It may refuse,
and then it gets empty disks. What it may never do is deny an entry that it had, or give other bytes for one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random

from bookie_pod.storage.journal.format import CHECKS_MAGIC, PADDING_HEAD
from tests.campaign.faults.kind import Fault
from tests.campaign.world import Bookie, World

KINDS = {
    "journals": ("journal", "current/*.txn"),
    "marks": ("ledgers", "current/lastMark*"),
    "entry logs": ("ledgers", "current/*.log"),
    "location index": ("ledgers", "current/locations/*"),
    "ledger index": ("ledgers", "current/ledgers/*"),
    "index files": ("ledgers", "current/*/*/*.idx"),
    "cookies": ("*", "current/VERSION"),
}


_UNREAD = ("LOG", "OPTIONS", "IDENTITY")
"""Beginnings of names of a database's files that hold nothing of ours."""


def _files(bookie: Bookie, kind: str) -> list[Path]:
    folder, pattern = KINDS[kind]
    found = [each for each in bookie.folder.glob(f"{folder}/{pattern}") if each.is_file() and each.stat().st_size]
    return sorted(each for each in found if not each.name.startswith(_UNREAD))


async def _stop(bookie: Bookie, random: Random, kind: str) -> None:
    """After a kill journals hold what nothing else does; after an orderly stop logs and indexes have all, and what
    becomes of journals shows nothing."""
    if kind != "journals" and bookie.program.is_running and random.random() < 0.4:
        await asyncio.to_thread(bookie.program.terminate, 60)
    bookie.program.kill()


async def bits_flip(kind: str, world: World, bookie: Bookie, random: Random) -> str:
    await _stop(bookie, random, kind)
    files = _files(bookie, kind)
    if not files:
        await world.start_bookie(bookie)
        return "no such file"
    path = files[-1] if kind == "journals" and random.random() < 0.7 else random.choice(files)
    data = bytearray(path.read_bytes())
    groups = _groups(data) if kind == "journals" else []
    await world.destroys(bookie, f"{path.name}, flipped bits", is_seen=len(groups) > 1)
    flips = random.choice((1, 1, 1, 3))
    for _ in range(flips):
        data[_place(data, groups, random)] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    await world.start_bookie(bookie)
    return f"{flips} bits of {path.relative_to(bookie.folder)}"


def _groups(data: bytearray) -> list[int]:
    """Where the checks of the last groups of a journal stand, the newest first."""
    checks, at = [], data.rfind(CHECKS_MAGIC)
    while at >= PADDING_HEAD.size and len(checks) < 200:
        checks.append(at)
        at = data.rfind(CHECKS_MAGIC, 0, at)
    return checks


def _place(data: bytearray, groups: list[int], random: Random) -> int:
    """Where a bit flips: anywhere in what is used of the file. Of a journal in front of its last group, of which nobody
    can tell damage from a write that did not end; mostly in one of the words that decide where a replay goes next,
    those in front of the checks of its groups, and rather in the last of them: what they stand for nothing but the
    journal has yet."""
    if len(groups) < 2:
        return random.randrange(len(data.rstrip(b"\0")) or len(data))
    if random.random() < 0.7:
        group = groups[min(len(groups) - 1, 1 + int(random.expovariate(0.1)))]
        return group - random.randint(1, PADDING_HEAD.size // 2)
    return random.randrange(groups[1])


async def file_is_lost(world: World, bookie: Bookie, random: Random) -> str:
    """One journal, entry log or index file is gone, or empty; or an index file was cut."""
    kind = random.choice([each for each in ("journals", "entry logs", "index files") if _files(bookie, each)] or [""])
    if not kind:
        return "no such file"
    await _stop(bookie, random, kind)
    files = _files(bookie, kind)
    if not files:
        await world.start_bookie(bookie)
        return "no such file"
    path = random.choice(files)
    await world.destroys(bookie, f"{path.name} lost")
    how = random.choice(("gone", "emptied", "cut") if kind == "index files" else ("gone", "emptied"))
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: random.choice((20, 1024, 1500, 5000)) if how == "cut" else 0])
    await world.start_bookie(bookie)
    return f"{path.relative_to(bookie.folder)} {how}"


async def disk_is_lost(world: World, bookie: Bookie, random: Random) -> str:
    bookie.program.kill()
    folders = random.choice(((bookie.journal,), (bookie.ledgers,), (bookie.journal, bookie.ledgers)))
    await world.destroys(bookie, "disk lost")
    await world.empty_disks(bookie, *folders)
    await world.start_bookie(bookie)
    return " and ".join(folder.name for folder in folders)


FAULTS = (
    *(
        Fault(f"bits flipped in {kind}", 0.8, partial(bits_flip, kind), destroys=True, needs_checks=True)
        for kind in KINDS
    ),
    Fault("file lost", 1.5, file_is_lost, destroys=True, needs_checks=True),
    Fault("disk lost", 2, disk_is_lost, destroys=True),
)
