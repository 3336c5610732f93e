"""The order in which a bookie closes what it has opened."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock, patch

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.bookie import Bookie
from bookie_protocol.errors import InvalidConfiguration, MetadataDamaged, MetadataUnavailable, RegistrationFailed


async def test_a_failure_during_a_stop_closes_nothing_under_its_feet() -> None:
    """The last flush goes on when the journal fails: the storage that it writes to stays open until it has ended."""
    bookie = Bookie(load_config(None))
    flushing, flushed = asyncio.Event(), asyncio.Event()
    closed: list[str] = []

    async def flush() -> None:
        flushing.set()
        await flushed.wait()
        closed.append("journals")

    async def close() -> None:
        closed.append("storage")

    bookie._undo.push_async_callback(close)
    bookie._undo.push_async_callback(flush)
    stopping = asyncio.create_task(bookie.stop())
    await flushing.wait()
    failing = asyncio.create_task(bookie.abort())
    for _ in range(5):
        await asyncio.sleep(0)
    assert closed == []
    flushed.set()
    await asyncio.gather(stopping, failing)
    assert closed == ["journals", "storage"]


async def test_whatever_becomes_of_the_registration_a_stop_flushes() -> None:
    bookie = Bookie(load_config(None))
    bookie._is_replayed = bookie.status.running = True
    bookie._mode = Mock()
    bookie._registration = Mock(deregister=AsyncMock(side_effect=ValueError("a fault of ours")))
    clean: list[bool] = []

    async def flush() -> None:
        clean.append(bookie._clean)

    bookie._undo.push_async_callback(flush)
    with pytest.raises(ValueError, match="fault"):
        await bookie.stop()
    assert clean == [True]


@pytest.mark.parametrize(
    "failure",
    [
        RegistrationFailed("taken"),
        MetadataUnavailable("away"),
        MetadataDamaged("what?"),
        InvalidConfiguration("the host's own name does not resolve to an address"),
        OSError("no thread"),
    ],
)
async def test_a_bookie_that_cannot_join_its_cluster_flushes_what_it_has_acknowledged(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = Bookie(load_config(None))
    bookie._metadata, bookie._mode = Mock(), Mock()
    bookie.bookie_id, bookie._listener = "b:3181", Mock(port=3181)
    monkeypatch.setattr("bookie_pod.node.bookie.join_cluster", AsyncMock(side_effect=failure))
    clean: list[bool] = []
    bookie._undo.callback(lambda: clean.append(bookie._clean))
    with pytest.raises(type(failure)):
        await bookie._join(None, None)
    assert clean == [True]


async def test_a_stop_calls_nothing_clean_that_a_failed_start_could_not_flush() -> None:
    """It comes while what that start had begun is being closed."""
    bookie = Bookie(load_config(None))
    bookie._is_replayed = True
    flushed, told = asyncio.Event(), asyncio.Event()
    clean: list[bool] = []

    async def fail_to_flush() -> None:
        bookie._clean = False
        flushed.set()

    bookie._undo.callback(lambda: clean.append(bookie._clean))
    bookie._undo.push_async_callback(told.wait)
    bookie._undo.push_async_callback(fail_to_flush)
    bookie._clean = True
    starting = asyncio.create_task(bookie._unwind())
    await flushed.wait()
    starting.cancel()
    stopping = asyncio.create_task(bookie.stop())
    await asyncio.sleep(0)
    told.set()
    await stopping
    assert clean == [False]


async def test_who_cannot_join_while_a_part_has_failed_flushes_nothing() -> None:
    bookie = Bookie(load_config(None))
    bookie._metadata, bookie._mode = Mock(), Mock()
    bookie.bookie_id, bookie._listener = "b:3181", Mock(port=3181)
    clean: list[bool] = []
    bookie._undo.callback(lambda: clean.append(bookie._clean))
    bookie.fail(OSError("a journal's disk"))
    join = AsyncMock(side_effect=RegistrationFailed("taken"))
    with patch("bookie_pod.node.bookie.join_cluster", join), pytest.raises(RegistrationFailed):
        await bookie._join(None, None)
    assert clean == [False]
