"""Adds of one shape that lie one behind the other, taken apart together: the server's hot path for a loaded connection.

What costs so and so much for each frame elsewhere costs it once for a run here: whether frames are alike, the ids, the
answers. Only the entries become objects one by one.

Invariants
- A run begins with a frame that was found to be a valid add; every other frame of it has the same bytes wherever
  `RunShape.fixed` says so: lengths, tags, flags, master key and the entry's ledger id.
- Answers are in the order of the frames, and are byte for byte those that each frame would get alone.

Pure; any thread.

Source: docs/internals/wire-protocol.md, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bookie_protocol.columns import byte_column

SHORTEST_RUN: Final = 32
"""Frames below which taking them apart one by one is faster."""
LONGEST_RUN: Final = 256
"""Frames that are looked at together, so that a look which finds a short run costs no more than that."""
_LEDGER_ID_SIZE: Final = 8
_NUMBERS: Final = np.dtype((">i8", 2))
"""Entry id and LAC, which follow the ledger id of an entry."""
MAX_ENTRY_ID: Final = (1 << 63) - 1
_NO_LAC: Final = -(1 << 63)


class Echo(NamedTuple):
    """Bytes of a frame that its answer repeats: where they start in the answer and in the frame, and how many."""

    answer_at: int
    frame_at: int
    size: int


class RunShape:
    """Frames of one length whose fixed bytes lie at fixed places. Offsets count from the length word."""

    __slots__ = ("answer", "body_size", "echoes", "entry_at", "fixed", "stride", "tail_at")

    def __init__(self, fixed: bytes, body_size: int, tail_size: int, answer: bytes, echoes: Sequence[Echo]) -> None:
        """`fixed`: a mask over what precedes the entry, 0xff where all frames of a run have the same bits. `answer`:
        the one to such a frame, but for what `echoes` repeats."""
        self.entry_at = len(fixed)
        self.body_size = body_size
        self.tail_at = self.entry_at + body_size
        self.stride = self.tail_at + tail_size
        self.fixed = np.frombuffer(fixed + b"\xff" * _LEDGER_ID_SIZE, np.uint8)
        self.answer = np.frombuffer(answer, np.uint8)
        self.echoes = tuple(echoes)


class AddRun(NamedTuple):
    """Adds to one ledger with one key."""

    entry_ids: Sequence[int]
    entries: list[bytes]
    lac: int
    """The highest LAC that one of the entries carries and that can be right: below its own id."""
    answers: bytes
    """Answers to all of them."""


def take_add_run(data: bytes, start: int, shape: RunShape, max_entry_id: int = MAX_ENTRY_ID) -> AddRun | None:
    """The adds from `start` on that are as the one which begins there, which has this shape and an entry id from 0 to
    `max_entry_id`, at most `LONGEST_RUN`. None: fewer than `SHORTEST_RUN`."""
    stride, entry_at = shape.stride, shape.entry_at
    count = min((len(data) - start) // stride, LONGEST_RUN)
    if count < SHORTEST_RUN:
        return None
    frames = np.frombuffer(data, np.uint8, count * stride, start).reshape(count, stride)
    heads = frames[:, : len(shape.fixed)]
    differs = ((heads ^ heads[0]) & shape.fixed).any(axis=1)
    if shape.tail_at < stride:
        tails = frames[:, shape.tail_at :]
        differs |= (tails != tails[0]).any(axis=1)
    numbers_at = entry_at + _LEDGER_ID_SIZE
    raw = np.ascontiguousarray(frames[:, numbers_at : numbers_at + _NUMBERS.itemsize])
    numbers = raw.view(">i8").astype(np.int64)
    differs |= numbers[:, 0].view(np.uint64) > max_entry_id  # negative ones are the largest of all
    if differs.any():
        count = int(differs.argmax())
        if count < SHORTEST_RUN:
            return None
        frames, numbers = frames[:count], numbers[:count]
    ids, lacs = numbers[:, 0], numbers[:, 1]
    return AddRun(
        ids.tolist(),
        byte_column(data, start + entry_at, shape.body_size, stride, count),
        int(np.where(lacs < ids, lacs, _NO_LAC).max()),
        _answers(shape, frames),
    )


def _answers(shape: RunShape, frames: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bytes:
    answers = np.empty((len(frames), len(shape.answer)), np.uint8)
    answers[:] = shape.answer
    for answer_at, frame_at, size in shape.echoes:
        answers[:, answer_at : answer_at + size] = frames[:, frame_at : frame_at + size]
    return answers.tobytes()
