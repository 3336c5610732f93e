from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.options import MetadataServiceOptions, SaslLogin
from bookie_protocol.metadata_service.tree.rate_limit import RateLimit


async def test_a_second_may_burst_and_then_turns_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now, pauses = 100.0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    limit = RateLimit(10)
    for _ in range(10):
        await limit.turn(1e9)
    assert pauses == []
    for _ in range(3):
        await limit.turn(1e9)
    assert pauses == [0.1, 0.2, 0.3]
    now += 0.3 + 0.5
    for _ in range(6):
        await limit.turn(1e9)
    assert pauses[3:] == [0.1]
    free = RateLimit(0)
    for _ in range(1000):
        await free.turn(1e9)
    assert len(pauses) == 4


async def test_who_cannot_be_served_in_time_uses_no_turn() -> None:
    loop = asyncio.get_running_loop()
    limit = RateLimit(2)
    began = loop.time()
    await limit.turn(began + 1)
    await limit.turn(began + 1)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await limit.turn(loop.time())
    given_up = [loop.create_task(limit.turn(began + 60)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.wait(given_up)
    async with asyncio.timeout(2):  # the next turn is due half a second after the burst
        await limit.turn(began + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "must be positive"),
        ({"requests_per_second": -1}, "zkRequestRateLimit=-1"),
        ({"ledger_metadata_version": 4}, "ledgerMetadataVersion=4"),
        ({"ledger_metadata_version": 0}, "ledgerMetadataVersion=0"),
        ({"secure": True}, "zkAuthCredentialsPath"),
    ],
)
def test_options_are_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        MetadataServiceOptions(**options)  # type: ignore[arg-type]


def test_a_login_needs_both() -> None:
    assert MetadataServiceOptions(ledger_metadata_version=-1).format_version == 3
    assert MetadataServiceOptions(ledger_metadata_version=2).format_version == 2
    with pytest.raises(InvalidConfiguration, match="user name and a password"):
        SaslLogin(username="bookie")
