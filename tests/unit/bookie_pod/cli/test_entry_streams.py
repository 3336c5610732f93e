"""Files that entries go to."""

from __future__ import annotations

import os

import pytest

from bookie_pod.cli.entry_streams import Output

FULL = "/dev/full"


@pytest.mark.skipif(not os.path.exists(FULL), reason="no device that is always full")
async def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="'/dev/full'") as raised, Output(FULL) as output:
        await output.write(b"entry\n")
    assert raised.value.filename == FULL


async def test_a_reader_that_has_gone_is_told_apart(tmp_path: object) -> None:
    fifo = f"{tmp_path}/fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with Output(fifo) as output:
        await output.write(b"entry\n")
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            await output.write(b"entry\n")
