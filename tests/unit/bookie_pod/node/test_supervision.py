"""Bookies of a standalone cluster that end are started again, whatever stands in the way at first."""

import asyncio
from types import SimpleNamespace

import pytest

from bookie_pod.node import supervision
from bookie_pod.node.supervision import keep_running
from bookie_protocol.errors import MetadataUnavailable, ServerStartFailed
from tests.support.until import until


class EndedOnce:
    """A cluster of one bookie that has ended; starting it raises `errors`, one after the other."""

    def __init__(self, errors):
        self.errors = list(errors)
        self.decommissioned = False
        self.started = asyncio.Event()
        self.bookies = {"bookie-1": SimpleNamespace(process=self)}

    async def wait(self):
        if self.started.is_set():
            await asyncio.Event().wait()
        return 1

    async def was_decommissioned(self, bookie_id):
        assert bookie_id == "bookie-1"
        return self.decommissioned

    async def start_bookie(self, bookie_id):
        assert bookie_id == "bookie-1"
        if self.errors:
            raise self.errors.pop(0)
        self.started.set()


@pytest.mark.parametrize(
    "error", [ServerStartFailed("no port"), MetadataUnavailable("nobody answers"), OSError("no space left")]
)
async def test_a_start_that_failed_is_told_and_tried_again(monkeypatch, error):
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.0)
    cluster, told = EndedOnce([error, error]), []
    supervising = asyncio.create_task(keep_running(cluster, told.append))
    started = asyncio.create_task(cluster.started.wait())
    await asyncio.wait({supervising, started}, return_when=asyncio.FIRST_COMPLETED)
    assert not supervising.done()
    await until(lambda: told[-1] == "bookie-1 is back")
    supervising.cancel()
    await asyncio.wait([supervising])
    ended = "bookie-1 ended with exit code 1: starting it again"
    assert told == [ended, str(error), ended, str(error), ended, "bookie-1 is back"]


async def test_a_decommissioned_bookie_is_not_started_again():
    cluster, told = EndedOnce([]), []
    cluster.decommissioned = True
    supervising = asyncio.create_task(keep_running(cluster, told.append))
    await until(lambda: told)
    assert told == ["bookie-1 ended with exit code 1: it was decommissioned, so it is not started again"]
    assert not cluster.started.is_set()
    assert not supervising.done()
    supervising.cancel()
    await asyncio.wait([supervising])
