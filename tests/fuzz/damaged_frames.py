"""Requests as clients send them, and damage to them."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from tests.support.frames import (
    entry,
    v2_add,
    v2_batch,
    v2_fence,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_poll,
    v3_read,
    v3_read_lac,
    v3_start_tls,
    v3_write_lac,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def golden_requests() -> list[bytes]:
    cases = json.loads((GOLDEN / "wire-edge-cases.json").read_text())["cases"]
    frames = [bytes.fromhex(frame) for case in cases for frame in case["sent"]]
    return [frame for frame in frames if len(frame) > 8]


def own_requests() -> list[bytes]:
    return [
        v2_add(entry(3, 0)),
        v2_add(entry(3, 1), flags=6),
        v2_read(3, 0),
        v2_fence(4),
        v2_batch(3, 0),
        v3_add(entry(5, 0)),
        v3_add(entry(5, 1), sync=False),
        v3_read(5, 0),
        v3_fence(6),
        v3_poll(5, 7, 5),
        v3_write_lac(5, 3),
        v3_read_lac(5),
        v3_force(5),
        v3_start_tls(),
    ]


FRAMES = golden_requests() + own_requests()


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """A frame with a few changes behind its length word, which stays right more often than not."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(body)) if body else 0
        kind = rng.randrange(5)
        if kind == 0 and body:
            body[at] = rng.randrange(256)
        elif kind == 1 and body:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            body[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del body[at : at + rng.randrange(1, 9)]
        else:
            body[at : at + 8] = struct.pack(">q", rng.choice((-1, -(2**63), 2**63 - 1, 0, -0x1000, -0xEEFD)))
    length = len(body)
    if rng.random() < 0.1:
        length = rng.choice((0, 1, length + rng.randrange(1, 50), max(0, length - 3), 2**31 - 1, 2**32 - 1, 5_242_877))
    return struct.pack(">I", length) + bytes(body)
