"""Bookies of a standalone cluster that end are started again, whatever stands in the way at first."""

import asyncio
from types import SimpleNamespace

import pytest

from bookie_pod.node.standalone import cluster as clusters
from bookie_pod.node.standalone.cluster import keep_running
from bookie_protocol.errors import MetadataUnavailable, ServerStartFailed
from tests.support.until import until


class HasMetadata:
    """A cluster whose metadata service fails when `failed` is set."""

    def __init__(self):
        self.failed = asyncio.Event()

    async def wait_broken(self):
        await self.failed.wait()
        return "no space left"


class EndedOnce(HasMetadata):
    """A cluster of one bookie that has ended; starting it raises `errors`, one after the other."""

    def __init__(self, errors):
        super().__init__()
        self.errors = list(errors)
        self.decommissioned = False
        self.started = asyncio.Event()
        self.bookies = {"bookie-1": SimpleNamespace(process=self, output=self.output)}

    async def wait(self):
        if self.started.is_set():
            await asyncio.Event().wait()
        return 1

    def output(self):
        raise FileNotFoundError("no log")

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
    monkeypatch.setattr(clusters, "FIRST_PAUSE", 0.0)
    cluster, told = EndedOnce([error, error]), []
    supervising = asyncio.create_task(keep_running(cluster, told.append))
    started = asyncio.create_task(cluster.started.wait())
    await asyncio.wait({supervising, started}, return_when=asyncio.FIRST_COMPLETED)
    assert not supervising.done()
    await until(lambda: told[-1] == "bookie-1 is back")
    supervising.cancel()
    await asyncio.wait([supervising])
    ended = "bookie-1 ended with exit code 1: starting it again in 0 s"
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


async def test_a_metadata_service_that_failed_ends_the_supervision():
    cluster = EndedOnce([])
    cluster.started.set()
    supervising = asyncio.create_task(keep_running(cluster, lambda text: None))
    await asyncio.sleep(0)
    cluster.failed.set()
    with pytest.raises(ServerStartFailed, match="space"):
        await supervising


class EndsAgain(HasMetadata):
    """A cluster of one bookie that comes back whenever it is started, and ends at once; the last time it stays."""

    def __init__(self, times, code=1, output="{}\nbookie: disk full\n"):
        super().__init__()
        self.times = times
        self.code = code
        self.bookies = {"bookie-1": SimpleNamespace(process=self, output=lambda: output)}

    async def wait(self):
        if not self.times:
            await asyncio.Event().wait()
        self.times -= 1
        return self.code

    async def was_decommissioned(self, bookie_id):
        return False

    async def start_bookie(self, bookie_id):
        pass


async def all_told(cluster):
    told = []
    supervising = asyncio.create_task(keep_running(cluster, told.append))
    lines = 2 * cluster.times
    await until(lambda: len(told) == lines)
    supervising.cancel()
    await asyncio.wait([supervising])
    return told


def short_pauses(monkeypatch, healthy):
    monkeypatch.setattr(clusters, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(clusters, "LONGEST_PAUSE", 0.004)
    monkeypatch.setattr(clusters, "HEALTHY_SECONDS", healthy)


async def test_one_that_comes_back_and_ends_again_is_started_ever_later(monkeypatch):
    short_pauses(monkeypatch, healthy=60.0)
    told = await all_told(EndsAgain(4))
    ended = "bookie-1 ended with exit code 1, its last line is 'bookie: disk full': starting it again in"
    assert told[::2] == [f"{ended} {pause} s" for pause in (0.001, 0.002, 0.004, 0.004)]
    assert set(told[1::2]) == {"bookie-1 is back"}


async def test_one_that_was_well_for_a_while_is_started_soon(monkeypatch):
    short_pauses(monkeypatch, healthy=0.0)
    told = await all_told(EndsAgain(3, code=-9, output=""))
    assert told[::2] == ["bookie-1 ended with exit code -9 (SIGKILL): starting it again in 0.001 s"] * 3
