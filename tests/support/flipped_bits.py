"""Damage on the disk of a stopped bookie."""

from __future__ import annotations

from tests.support.serve_process import ServeProcess


def flip_bit(bookie: ServeProcess, content: bytes) -> None:
    """Flip one bit of an entry with this content, which is in one entry log of the bookie and nowhere else."""
    folder = bookie.work / "ledgers" / "current"
    (path,) = (each for each in folder.glob("*.log") if content in each.read_bytes())
    stored = bytearray(path.read_bytes())
    stored[stored.index(content) + len(content) // 2] ^= 0x10
    path.write_bytes(stored)
