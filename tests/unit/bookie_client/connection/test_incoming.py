"""What is received and not dropped stays, in order, whatever the sizes; and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.connection.connection import LARGE, SMALL, ReceiveBuffer

SIZES = [1, 4, 100, SMALL - 1, SMALL, SMALL + 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE]


def put(buffer: ReceiveBuffer, data: bytes) -> int:
    """As the network does: as much as there is room for."""
    room = buffer.room()
    assert room
    taken = min(len(room), len(data))
    room[:taken] = data[:taken]
    before = len(buffer)
    assert buffer.took(taken) == len(buffer) == before + taken
    return taken


@given(frames=st.lists(st.sampled_from(SIZES), min_size=1, max_size=6), pieces=st.lists(st.sampled_from(SIZES)))
def test_frames_come_out_as_they_went_in(frames: list[int], pieces: list[int]) -> None:
    """Whoever uses it learns a frame's size with its first byte, and drops frames when they are whole."""
    buffer, stream = ReceiveBuffer(), b"".join(bytes([i]) * size for i, size in enumerate(frames))
    at, wanted, found = 0, 1, []
    sizes, cuts = list(frames), iter(pieces)
    while at < len(stream):
        at += put(buffer, stream[at : at + next(cuts, len(stream))])
        done = 0
        while sizes and len(buffer) - done >= sizes[0]:
            found.append(bytes(buffer.received()[done : done + sizes[0]]))
            done += sizes.pop(0)
        wanted = sizes[0] if sizes and len(buffer) > done else 1
        buffer.drop(done, wanted)
        assert len(buffer) + len(buffer.room()) <= max(LARGE, wanted)
        assert len(buffer) + len(buffer.room()) >= wanted
    assert [len(each) for each in found] == frames
    assert b"".join(found) == stream
    assert len(buffer) == 0


def test_memory_grows_with_the_frame_and_shrinks_behind_it() -> None:
    buffer = ReceiveBuffer()
    assert len(buffer.room()) == SMALL
    sizes = []
    for wanted in (4, SMALL + 1, 4, 10 * LARGE, LARGE, 10 * LARGE, 4):
        buffer.drop(0, wanted)
        sizes.append(len(buffer.room()))
    assert sizes == [SMALL, LARGE, LARGE, 10 * LARGE, LARGE, 10 * LARGE, LARGE]


def test_the_beginning_of_a_frame_moves_with_the_memory() -> None:
    buffer = ReceiveBuffer()
    put(buffer, b"abcdef")
    buffer.drop(2, 2 * LARGE)
    assert (bytes(buffer.received()), len(buffer)) == (b"cdef", 4)
    put(buffer, b"gh")
    buffer.drop(5, 4)
    assert bytes(buffer.received()) == b"h"


FAULTS = """
import os, resource
from bookie_client.connection.connection import LARGE, ReceiveBuffer

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for wanted in (LARGE, 4):
    if os.fork():
        os.wait()
        continue
    ReceiveBuffer().drop(0, wanted)
    answers = [b"x" * 100_000 for _ in range(40)]
    del answers
    before = faults()
    for _ in range(25):
        answers = [b"x" * 100_000 for _ in range(40)]
        del answers
    print(faults() - before, flush=True)
    os._exit(0)
"""
"""Page faults of a process that holds 4 MB of answers and lets them go, 25 times; before, its buffer grew or not."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc's allocator")
def test_memory_of_answers_is_kept_for_the_next_ones() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    grown, small = map(int, done.stdout.split())
    assert grown < 100 < 10_000 < small
