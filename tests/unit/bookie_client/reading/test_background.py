"""What becomes of a defect in the background of a handle."""

from __future__ import annotations

import asyncio

from bookie_client.reading.background import fail_on_defect
from bookie_protocol.errors import CouldNotTell

DEFECT = ZeroDivisionError("a defect")


async def told(ends):
    """What those are told who wait for work that ends so."""
    heard = []

    async def work():
        if ends is None:
            await asyncio.Event().wait()
        elif isinstance(ends, Exception):
            raise ends

    task = asyncio.ensure_future(work())
    fail_on_defect(task, 7, "the work", heard.append)
    await asyncio.sleep(0)
    if ends is None:
        task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    return heard


async def test_who_waits_is_told_of_a_defect_and_of_nothing_else(caplog):
    assert await told(None) == await told(True) == []
    assert caplog.records == []
    (error,) = await told(DEFECT)
    assert (type(error), str(error)) == (CouldNotTell, f"ledger 7: the work failed: {DEFECT!r}")
    assert error.__cause__ is DEFECT
    (record,) = caplog.records
    assert record.exc_info[1] is DEFECT
