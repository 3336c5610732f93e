"""Commands that write and are stopped: what they began is closed before they end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.cli.ledger import entries
from bookie_pod.cli.stream import entries as stream_entries


class SlowToClose:
    """A handle whose close goes on when whoever waits for it is cancelled, as that of a ledger and a stream does."""

    ledger_id = 7
    last_add_confirmed = 2

    def __init__(self) -> None:
        self.is_closed = False
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SlowToClose:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._close())
        await asyncio.shield(self._task)

    async def _close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.is_closed = True


async def stopped_while_it_closes(command: asyncio.Task[Any], handle: SlowToClose) -> None:
    await handle.closing.wait()
    command.cancel()
    await asyncio.sleep(0)
    handle.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await command
    assert handle.is_closed


async def test_a_ledger_that_is_being_closed_is_closed_all_the_same(monkeypatch, tmp_path, capsys):
    handle = SlowToClose()

    async def create_writer(*arguments: object) -> SlowToClose:
        return handle

    monkeypatch.setattr(entries, "create_writer", create_writer)
    (tmp_path / "input").touch()
    cluster: Any = SimpleNamespace(client=SimpleNamespace(context=None))
    new: Any = None
    source = entries.Source(str(tmp_path / "input"), "lines", 1)
    await stopped_while_it_closes(asyncio.create_task(entries.write_ledger(cluster, new, source)), handle)
    assert capsys.readouterr().err == "bookie: stopped: ledger 7 holds the first 3 entries\n"


async def test_a_stream_that_is_being_closed_is_closed_all_the_same(monkeypatch, tmp_path, capsys):
    handle = SlowToClose()

    async def end(name: str) -> str:
        return "7:0"

    streams = SimpleNamespace(writer=lambda name, take_over: handle, end=end)
    monkeypatch.setattr(stream_entries, "Streams", lambda *arguments, **options: streams)
    (tmp_path / "input").touch()
    cluster: Any = SimpleNamespace(client=None)
    source = entries.Source(str(tmp_path / "input"), "lines", 1)
    appending = stream_entries.Appending("log", source, b"", create=False, take_over=True)
    await stopped_while_it_closes(asyncio.create_task(stream_entries.append_stream(cluster, appending)), handle)
    assert capsys.readouterr().err == "bookie: stopped: stream log has the first 0 entries of the input\n"
