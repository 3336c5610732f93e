"""How long turns of an event loop are, as the benchmark of attacks tells it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.turns import longest, note_turns
from tests.support.until import until


async def test_a_turn_at_work_is_told_from_one_in_which_the_thread_waited(tmp_path: Path) -> None:
    path, began = tmp_path / "turns", time.monotonic()
    noting = asyncio.create_task(note_turns(path))
    await until(path.exists)
    ends = time.thread_time() + 0.05
    while time.thread_time() < ends:
        pass
    await until(lambda: longest(path, began)[0] >= 0.05)
    worked, _ = longest(path, began)
    time.sleep(0.3)  # noqa: ASYNC251 - as if another process had the processor
    await until(lambda: longest(path, began)[1] >= 0.3)
    assert longest(path, began)[0] < worked + 0.1
    assert longest(path, time.monotonic()) == (0.0, 0.0)
    noting.cancel()
